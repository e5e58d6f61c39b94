"""One reduction on a GPU whose results share little: depthwise and grouped convolutions, pools, anything of that form.

A thread computes a few neighbouring results, channels of a block as a vector and some places of a row, and reads all
that they need: what neighbours share is in registers, in L1 where other threads read it. What follows is computed on
the same registers. Neighbouring threads take neighbouring places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.schedule.gpu.elementwise import INJECTIVE
from autofuse.schedule.gpu.shape import BASE_REGISTERS, GpuShape, ceil_div, computed_again, whole_lines
from autofuse.target import GpuHardware, Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_THREADS = (256, 128, 64)
_PLACES = (1, 2, 4)


@dataclass(frozen=True)
class GpuDirectConfig(Configuration):
    """threads: of a workgroup; places: results along a row that a thread takes, each a vector of channels."""

    threads: int
    places: int


@dataclass(frozen=True)
class Results:
    """The results of a reduction: `outer` rows of `columns` places of vectors of `vector`; each reads `reads`.

    `plane` of the rows follow each other in one channel (block).
    """

    outer: int
    plane: int
    columns: int
    vector: int
    reads: int


def split(shape: Sequence[int]) -> tuple[int, int, int]:
    """(outer, columns, vector) of a shape: the innermost axis in vectors if it is as short as one, else along it."""
    axes = [e for e in shape if e > 1] or [1]
    if axes[-1] in (2, 4) and len(axes) > 1:
        return prod(axes[:-2]), axes[-2], axes[-1]
    vector = next(v for v in (4, 2, 1) if axes[-1] % v == 0)
    return prod(axes[:-1]), axes[-1] // vector, vector


@remembered
def _results(group: Group) -> Results | Refusal:
    """The results of the group's only reduction, or why the family does not take it."""
    anchors = [op for op in group.operators if op.mapping not in INJECTIVE or op.reduction]
    if len(anchors) != 1:
        return Refusal("anchor", "not one reduction with elementwise operators around it", group.members)
    anchor = anchors[0]
    tensors = group.graph.tensors
    out = tensors[anchor.outputs[0]]
    if not anchor.reduction:
        return Refusal("anchor", f"{anchor.name} ({anchor.kind}) reduces nothing", (anchor.index,))
    if not anchor.fusable or anchor.blocks > _most_blocks(anchor):
        return Refusal("anchor", f"{anchor.name} ({anchor.kind}) is more than one reduction", (anchor.index,))
    after = set(anchor.outputs)
    for op in group.operators:
        if op is not anchor and after.intersection(op.inputs):
            if not op.elementwise or tensors[op.outputs[0]].shape != out.shape:
                return Refusal("shape", f"{op.name} ({op.kind}) moves or repeats the results", (op.index,))
            after.update(op.outputs)
    if not after.issuperset(group.outputs):
        return Refusal("results", "a result does not depend on the reduction", group.members)
    outer, columns, vector = split(out.shape)
    plane = out.shape[2] if len(out.shape) in (4, 5) else outer
    return Results(outer, plane, columns, vector, max(1, prod(anchor.reduction)))


def _most_blocks(op: Operator) -> int:
    """Loop nests of an operator that is one reduction: a window's has padding before it, a mean a division behind."""
    return 4 if "pool" in op.kind or "conv" in op.kind else 2


class GpuDirectFamily(ScheduleFamily):
    """One reduction of any kind, anything injective before, elementwise operators after it."""

    name: ClassVar[str] = "gpu_direct"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = GpuDirectConfig
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    one_shape: ClassVar[bool] = True

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """See the module's description."""
        found = _results(group)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GpuDirectConfig]:
        """One place a thread where few threads are all there is, else two first; no more than a row has."""
        assert isinstance(hardware, GpuHardware)
        size = _found(group)
        total = size.outer * size.columns
        enough = [p for p in _PLACES if p <= size.columns and total >= 4 * p * hardware.cores * hardware.wave]
        places = sorted({1, *enough}, key=lambda p: abs(p - (2 if len(enough) > 1 else 1)))

        def apart(config: GpuDirectConfig) -> bool:
            """Whether a workgroup's results are of several channels: then weights are not the same for a whole wave."""
            return size.plane * ceil_div(size.columns, config.places) % config.threads != 0

        offered = [GpuDirectConfig(threads, p) for p in places for threads in _THREADS]
        return sorted(offered, key=lambda c: (places.index(c.places), apart(c)))

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Every read goes to L1, of neighbours along a row once; what rows share comes from there or from L2.

        Neighbouring lanes read vectors that are `places` apart, for which L1 gives more lines.
        """
        assert isinstance(config, GpuDirectConfig) and isinstance(hardware, GpuHardware)
        size = _found(group)
        tensors = group.graph.tensors
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        blocks = ceil_div(size.columns, config.places)
        threads = size.outer * blocks
        groups = ceil_div(threads, config.threads)
        width = config.places * size.vector
        reads = 4 * threads * width * size.reads
        window = round(size.reads**0.5)
        # Along a row, `places` windows read places + window - 1 columns instead of places · window.
        shared = (config.places + window - 1) / (config.places * window)
        anchor = next(op for op in group.operators if op.mapping not in INJECTIVE or op.reduction)
        lines = min(config.places, whole_lines(4 * size.vector, hardware.line_bytes))
        return GpuShape(
            tasks=groups,
            vector_fill=threads / (groups * config.threads),
            accumulators=width,
            independent_chains=width,
            recompute=blocks * config.places / size.columns,
            loads_per_fma=shared,
            l1_bytes=memory + int(reads * shared * lines),
            l2_bytes=memory + int(reads * shared / max(1, window)),
            l3_bytes=memory,
            memory_bytes=memory,
            footprint=ceil_div(memory, groups),
            threads=config.threads,
            extra_simple=computed_again(group, anchor, [int(reads * shared) // 4]),
            registers=BASE_REGISTERS + width * 2 + size.vector * min(size.reads, 16),
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule.gpu.direct_nests import build

        return build(func, config)


def _found(group: Group) -> Results:
    found = _results(group)
    assert isinstance(found, Results)
    return found
