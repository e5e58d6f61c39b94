"""The family of last resort on GPUs: single operators that no other family takes, by TVM's own rules (dlight).

The rules know products, reductions and transpositions, and bind the threads of anything else to its results. They have
no configuration; what they make is also what the other families are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Graph, Group, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.rowspace import Rows, rows_of
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.schedule.gpu.gemm import GpuGemmConfig, Product, product_of, tiled
from autofuse.schedule.gpu.shape import GpuShape, ceil_div
from autofuse.target import GpuHardware, Hardware
from autofuse.target.gpu import MOST_THREADS, GpuChoice, described

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# What the rule for products makes, as a configuration of `gpu_gemm`: one buffer, 4 × 4 results a thread. Bytes that pad
# its rows in LDS (read in compiled kernels).
_TILES = GpuGemmConfig(rows=32, columns=64, depth=16, micro_rows=4, micro_columns=4, buffers=1)
_PADDING = 768
# Threads of the rule for reductions.
_WAVE = 64


@dataclass(frozen=True)
class DlightConfig(Configuration):
    """Nothing to choose."""


class DlightFamily(ScheduleFamily):
    """One operator of any kind."""

    name: ClassVar[str] = "dlight"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = DlightConfig
    most_operators: ClassVar[int] = 1

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """A single operator that is a tensor program with one result."""
        if len(group.members) != 1:
            return Refusal("family", f"{len(group.members)} operators: TVM's rules are given one", group.members)
        op = group.operators[0]
        if not op.fusable:
            return Refusal("opaque", f"{op.name} ({op.kind}) is no tensor program with one result", (op.index,))
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        """The only one."""
        return [DlightConfig()]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """What the rules make, as their code shows: tiles for products, a wave for each result of a reduction (for each
        row of a softmax), a thread for each result of anything else. Kernels of the same tiles as `gpu_gemm`'s are
        taken to do the same around their products.
        """
        assert isinstance(hardware, GpuHardware)
        op = group.operators[0]
        tensors = group.graph.tensors
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        results = prod(tensors[op.outputs[0]].shape)
        product = product_of(op, group)
        if isinstance(product, Product):
            made = tiled(product, _TILES, memory, 4 * results)
            return replace(made, lds_bytes=made.lds_bytes + _PADDING)
        if op.reduction:
            return _waves(op, group.graph, memory)
        groups = ceil_div(results, MOST_THREADS)
        return GpuShape(
            tasks=groups,
            vector_fill=results / (groups * MOST_THREADS),
            l1_bytes=memory,
            l2_bytes=memory,
            l3_bytes=memory,
            memory_bytes=memory,
            footprint=ceil_div(memory, groups),
            threads=MOST_THREADS,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """What TVM's rules make of the function. ScheduleError where none of them takes it."""
        assert isinstance(hardware, GpuHardware)
        return scheduled_by_rules(func, hardware)


def _waves(op: Operator, graph: Graph, memory: int) -> GpuShape:
    """A wave a row of a softmax or a normalisation, else for each result, its lanes along what is read."""
    reads = prod(op.reduction)
    rows = rows_of(op, graph)
    tasks = rows.rows * rows.lanes if isinstance(rows, Rows) else prod(graph.tensors[op.outputs[0]].shape)
    steps = ceil_div(reads, _WAVE)
    return GpuShape(
        tasks=tasks,
        vector_fill=reads / (steps * _WAVE),
        l1_bytes=memory + 4 * tasks * reads * max(1, op.blocks - 1),
        l2_bytes=memory,
        l3_bytes=memory,
        memory_bytes=memory,
        footprint=8 * reads,
        threads=_WAVE,
        lds_bytes=4 * _WAVE,
        barriers=op.blocks,
    )


def scheduled_by_rules(func: PrimFunc, hardware: GpuHardware) -> PrimFunc:
    """A fused function of any operators, scheduled by TVM's rules. ScheduleError where none of them takes it."""
    import tvm
    from tvm import s_tir
    from tvm.s_tir import dlight

    rules = (
        dlight.gpu.Matmul(), dlight.gpu.GEMV(), dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )  # fmt: skip
    symbol = "global_symbol" in (func.attrs or {})
    fresh = s_tir.renew_defs(func)
    with tvm.target.Target(described(GpuChoice(hardware.isa, hardware.wave))):
        try:
            module = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": fresh}))
        except Exception as error:
            raise ScheduleError(f"TVM's rules fail: {(str(error).strip().splitlines() or ['?'])[-1]}") from error
    made = module["main"]
    if made.attrs is None or "tirx.is_scheduled" not in made.attrs:
        raise ScheduleError("none of TVM's rules takes the function")
    return made if symbol else made.without_attr("global_symbol")
