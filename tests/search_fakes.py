"""Schedule families and a cost model for tests of enumeration and search, without TVM and without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.legality import CHEAP
from autofuse.graph.model import Group, MappingType
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target.hardware import Hardware


@dataclass(frozen=True)
class FakeConfig(Configuration):
    """size: what `FakeCostModel` multiplies the cost by."""

    size: int


class _Fake(ScheduleFamily):
    version = 1
    configuration = FakeConfig

    def configs(self, group: Group, hardware: Hardware) -> Sequence[FakeConfig]:
        return [FakeConfig(2), FakeConfig(1), FakeConfig(3)]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        return KernelShape(tasks=1)

    def apply(self, func: Any, group: Group, config: Any, hardware: Hardware) -> Any:
        raise NotImplementedError("a fake family has no schedule")


class FakeElementwise(_Fake):
    """Cheap operators only."""

    name = "fake-elementwise"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        for op in group.operators:
            if op.mapping not in CHEAP:
                return Refusal("not-elementwise", f"{op.name} is {op.mapping.value}", (op.index,))
        return None


class FakeAnchor(_Fake):
    """One contraction, then element by element."""

    name = "fake-anchor"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        if len(group.anchors) != 1:
            return Refusal("anchor", f"{len(group.anchors)} contractions", group.members)
        first = group.anchors[0].index
        for op in group.operators:
            if op.index != first and op.mapping is not MappingType.ONE_TO_ONE:
                return Refusal("epilogue", f"{op.name} is {op.mapping.value}", (op.index,))
            if op.index < first:
                return Refusal("prologue", f"{op.name} comes before the contraction", (op.index,))
        return None


class FakeReduction(_Fake):
    """No contraction and at least one reduction: one alone, or two with everything between (a softmax)."""

    name = "fake-reduction"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        if group.anchors:
            return Refusal("anchor", "a contraction inside", (group.anchors[0].index,))
        reductions = [op for op in group.operators if op.mapping is MappingType.MANY_TO_ONE]
        if not reductions:
            return Refusal("reduction", "no reduction", group.members)
        return None


class FakePair(_Fake):
    """Exactly two contractions with a reduction between them, as attention has; no part of it with both is legal."""

    name = "fake-attention"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        heavy = [op.mapping for op in group.operators if op.mapping not in CHEAP]
        if heavy != [MappingType.MANY_TO_MANY, MappingType.MANY_TO_ONE, MappingType.MANY_TO_MANY]:
            return Refusal("attention", "not two contractions around a reduction", group.members)
        return None


FAMILIES: tuple[ScheduleFamily, ...] = (FakePair(), FakeAnchor(), FakeReduction(), FakeElementwise())


class FakeCostModel(CostModel):
    """Traffic, arithmetic and a constant, times the configuration's size; counts its batches and candidates."""

    name = "fake"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        self.batches.append(len(candidates))
        out = np.empty(len(candidates))
        for i, c in enumerate(candidates):
            tensors = c.group.graph.tensors
            moved = sum(tensors[t].bytes for t in (*c.group.inputs, *c.group.outputs))
            assert isinstance(c.config, FakeConfig)
            out[i] = (1e-6 + moved / 2e10 + c.group.work.flops / 1e11) * c.config.size
        return out
