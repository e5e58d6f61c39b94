"""The family of last resort on GPUs: single operators that no other family takes, by TVM's own rules (dlight).

The rules know products, reductions and transpositions, and bind the threads of anything else to its results. They have
no configuration; what they make is also what the other families are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group
from autofuse.graph.reasons import Refusal
from autofuse.schedule import ScheduleError
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.schedule.gpu.shape import BASE_REGISTERS, GpuShape, ceil_div
from autofuse.target import GpuHardware, Hardware
from autofuse.target.gpu import MOST_THREADS, GpuChoice, described

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


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
        """A thread a result that reads all it needs by itself: the worst of what the rules make."""
        assert isinstance(hardware, GpuHardware)
        op = group.operators[0]
        tensors = group.graph.tensors
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        results = prod(tensors[op.outputs[0]].shape)
        reads = 4 * results * prod(op.reduction) * max(1, len(op.inputs)) if op.reduction else 0
        groups = ceil_div(results, MOST_THREADS)
        return GpuShape(
            tasks=groups,
            vector_fill=results / (groups * MOST_THREADS),
            loads_per_fma=2.0 if op.reduction else 0.0,
            l1_bytes=memory + reads,
            l2_bytes=memory + reads // 4,
            l3_bytes=memory,
            memory_bytes=memory,
            footprint=ceil_div(memory, groups),
            threads=MOST_THREADS,
            registers=2 * BASE_REGISTERS,
            launches=op.blocks,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """What TVM's rules make of the function. ScheduleError where none of them takes it."""
        assert isinstance(hardware, GpuHardware)
        return scheduled_by_rules(func, hardware)


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
