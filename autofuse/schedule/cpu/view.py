"""Reshapes that move nothing: the result is another view of the operand, no kernel is launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, MappingType, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule import ScheduleError
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


@dataclass(frozen=True)
class ViewConfig(Configuration):
    """Nothing to choose."""


class ViewFamily(ScheduleFamily):
    """A chain of Reorganize operators with one result."""

    name: ClassVar[str] = "view"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = ViewConfig

    def admits(self, op: Operator) -> bool:
        """Reshapes."""
        return op.mapping is MappingType.REORGANIZE and len(op.inputs) == 1

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Only operators that keep the order of the elements, and a result that is no operand of the program."""
        for op in group.operators:
            if op.mapping is not MappingType.REORGANIZE or len(op.inputs) != 1:
                return Refusal("moves", f"{op.name} ({op.kind}) computes or moves data: not a view", (op.index,))
        if len(group.outputs) != 1 or len(group.inputs) != 1:
            return Refusal("results", "a view has one operand and one result", group.members)
        graph = group.graph
        if len({graph.tensors[t].elements for op in group.operators for t in (*op.inputs, *op.outputs)}) != 1:
            return Refusal("part", "a view shows all of its operand and nothing else", group.members)
        if graph.tensors[group.inputs[0]].dtype != graph.tensors[group.outputs[0]].dtype:
            return Refusal("dtype", "a view keeps the element type", group.members)
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        """The only one."""
        return [ViewConfig()]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Nothing is moved."""
        return KernelShape(tasks=1, loops=0)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """A view has no kernel: always ScheduleError."""
        raise ScheduleError(f"{group.label} is a view: there is no kernel to schedule")
