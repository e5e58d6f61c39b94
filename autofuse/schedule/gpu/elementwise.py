"""Groups without a reduction on a GPU: elementwise chains, broadcasts, layout changes, slices, concat, resize, gather.

A thread takes vectors of consecutive elements of each result, a workgroup apart, and computes everything that they
need: neighbours in a wave write neighbouring vectors. What several results share is computed once if it stands at the
same place in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, MappingType, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.schedule.gpu.shape import BASE_REGISTERS, GpuShape
from autofuse.target import GpuHardware, Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

#: Mapping types of operators that read at most one element of each operand for an element of the result.
INJECTIVE = frozenset({MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY, MappingType.REORGANIZE, MappingType.SHUFFLE})
# Reads a few neighbours for each element of its result, which are written out: no loop, no reduction.
_RESIZE = "image.resize2d"
_THREADS = (256, 128, 64)
# Workgroups a compute unit from which on a thread may take several vectors.
_ENOUGH = 8


@dataclass(frozen=True)
class GpuElementwiseConfig(Configuration):
    """threads: of a workgroup; vector: elements that a thread takes in a row (1, 2, 4); steps: its vectors."""

    threads: int
    vector: int
    steps: int


@remembered
def _row(group: Group) -> int:
    """Elements that follow each other in every result: the innermost extent that all of them have in common."""
    extents = []
    for t in group.outputs:
        inner = [e for e in group.graph.tensors[t].shape if e > 1]
        extents.append(inner[-1] if inner else 1)
    return min(extents) if len(set(extents)) > 1 else extents[0]


class GpuElementwiseFamily(ScheduleFamily):
    """Schedules any group of injective operators and resizes whose results have one shape."""

    name: ClassVar[str] = "gpu_elementwise"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = GpuElementwiseConfig
    one_shape: ClassVar[bool] = True

    def admits(self, op: Operator) -> bool:
        """What neither reduces nor contracts; resizes, however they interpolate."""
        return not op.reduction and (op.mapping in INJECTIVE or op.kind == _RESIZE)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Operators that `admits` takes only, all results of one shape."""
        for op in group.operators:
            if not self.admits(op):
                return Refusal("reduction", f"{op.name} ({op.kind}) reduces: not an elementwise kernel", (op.index,))
        shapes = {group.graph.tensors[t].shape for t in group.outputs}
        if len(shapes) > 1:
            detail = f"results of different shapes {sorted(shapes)} need different threads"
            return Refusal("shapes", detail, group.members)
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GpuElementwiseConfig]:
        """The widest vector that rows allow, few elements a thread first; more where there is work for all units."""
        assert isinstance(hardware, GpuHardware)
        total = group.graph.tensors[group.outputs[0]].elements
        vectors = [v for v in (4, 2, 1) if _row(group) % v == 0]
        found: dict[GpuElementwiseConfig, None] = {}
        for steps in (1, 2, 4):
            for vector in vectors[:2]:
                for threads in _THREADS:
                    enough = total >= _ENOUGH * hardware.cores * threads * vector * steps
                    if steps == 1 or enough:
                        found[GpuElementwiseConfig(threads, vector, steps)] = None
        return list(found)

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Operands and results pass once; what a layout change reads in pieces passes L1 as whole lines."""
        assert isinstance(config, GpuElementwiseConfig) and isinstance(hardware, GpuHardware)
        tensors = group.graph.tensors
        total = tensors[group.outputs[0]].elements
        block = config.threads * config.vector * config.steps
        groups = -(-total // block)
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        return GpuShape(
            tasks=groups,
            vector_fill=total / (groups * block),
            accumulators=config.vector * config.steps,
            independent_chains=config.vector * config.steps,
            l1_bytes=memory + sum(_lines(group, t, config.vector, hardware) for t in group.inputs),
            l2_bytes=memory,
            l3_bytes=memory,
            memory_bytes=memory,
            footprint=-(-memory // groups),
            threads=config.threads,
            registers=BASE_REGISTERS + 2 * config.vector * config.steps * (1 + len(group.outputs)),
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule.gpu.elementwise_nests import build

        return build(func, config)


def _lines(group: Group, tensor: int, vector: int, hardware: GpuHardware) -> int:
    """Bytes that pass L1 beside those of a tensor since its elements are read in pieces of lines."""
    extra = 0
    for op in group.operators:
        for access in op.accesses:
            if access.tensor == tensor and access.stride not in (0, 1):
                stride = abs(access.stride) if access.stride != -1 else hardware.line_bytes // 4
                # Neighbouring lanes are `vector` elements apart; a line serves those of them that it holds.
                lanes = max(1, hardware.line_bytes // (4 * stride * vector))
                read = prod(group.graph.tensors[op.outputs[0]].shape)
                extra += read * 4 * max(0, min(hardware.line_bytes // 4, stride * vector) // lanes - 1)
    return extra
