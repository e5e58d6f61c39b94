"""Groups, a schedule family and a cost model without TVM, for tests of what stands on top of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware


@dataclass(frozen=True)
class Scale(Configuration):
    """A configuration with one number."""

    scale: int = 1


class PlainFamily(ScheduleFamily):
    """Takes every group, with three configurations."""

    name: ClassVar[str] = "plain"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = Scale

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        return [Scale(1), Scale(2), Scale(3)]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        return KernelShape(tasks=1)

    def apply(self, func: object, group: Group, config: object, hardware: Hardware) -> object:  # type: ignore[override]
        return func


FAMILY = PlainFamily()


class PlainCosts(CostModel):
    """A millisecond an operator, divided by the configuration's number; counts how often it is asked."""

    name: ClassVar[str] = "plain"

    def __init__(self) -> None:
        self.asked: list[int] = []

    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        self.asked.append(len(candidates))
        return np.array([1e-3 * len(c.group.members) / c.config.scale for c in candidates])  # type: ignore[attr-defined]


def graph(kinds: Sequence[str]) -> Graph:
    """A chain of elementwise operators on 64 floats."""
    tensors = [Tensor(i, f"t{i}", (64,), role=Role.VALUE if i else Role.INPUT) for i in range(len(kinds) + 1)]
    operators = [
        Operator(i, f"{kind}{i}", kind, f"{kind} float32[64]", (i,), (i + 1,),
                 (Access(0, i, MappingType.ONE_TO_ONE),), Work(simple=64), spatial=(64,))
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    return Graph("chain", tuple(tensors), tuple(operators), (0,), (len(kinds),))


def chain(kinds: Sequence[str]) -> Group:
    """The whole chain as one group."""
    return Group.of(graph(kinds), range(len(kinds)))


def key_of(group: Group) -> str:
    """A workload key for tests: the kinds in order."""
    return "-".join(op.kind for op in group.operators)
