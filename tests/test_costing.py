"""Costs of groups: a cheaper model leaves out hopeless configurations before the dear one is asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from learn_stores import MACHINE, TileFamily
from random_graphs import chain

from autofuse.cost import AnalyticalCostModel, Candidate
from autofuse.graph.keys import workload_key
from autofuse.records import MemoryStore, Record, RecordedCostModel, RecordedHardware, Workload
from autofuse.search.candidates import search_problem
from autofuse.search.problem import SearchProblem, Thresholds
from autofuse.search.replay import ReplayedCosts

FAMILY = TileFamily()


class Dear(AnalyticalCostModel):
    """Contradicts the model that it is filtered by: more rows are better. Remembers what it is asked."""

    def __init__(self) -> None:
        super().__init__(MACHINE)
        self.asked: list[Candidate] = []

    def costs(self, candidates: Sequence[Candidate]) -> np.ndarray:
        self.asked += candidates
        return np.array([1e-5 / c.config.rows for c in candidates])  # type: ignore[attr-defined]

    def prefilter(self, candidates: Sequence[Candidate]) -> np.ndarray:
        return np.array([1e-6 * c.config.rows for c in candidates])  # type: ignore[attr-defined]


def problem(costs: object, ratio: float) -> SearchProblem:
    return search_problem(
        chain(3), costs, hardware=MACHINE, families=(FAMILY,), thresholds=Thresholds(prefilter_ratio=ratio)  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(("ratio", "rows"), [(0.5, 1), (1.0, 1), (2.0, 2), (4.0, 4), (100.0, 8)])
def test_hopeless_configurations_are_not_asked_for(ratio: float, rows: int) -> None:
    dear = Dear()
    found = problem(dear, ratio)
    assert max(c.config.rows for c in dear.asked) == rows  # type: ignore[attr-defined]
    assert {c.config for c in found.choices if len(c.group.members) == 1} == {f"rows={rows},tasks=1"}


def test_what_is_recorded_is_never_left_out() -> None:
    """Nor does it make other configurations hopeless."""
    store, dear = MemoryStore(), Dear()
    store.add_hardware(RecordedHardware("here", "this machine"))
    group = next(c.group for c in problem(Dear(), 1.0).choices if len(c.group.members) == 1)
    store.add_workload(Workload(workload_key(group), "", ""))
    best = FAMILY.configs(group, MACHINE)[-1]
    store.add(Record(workload_key(group), "here", FAMILY.name, FAMILY.version, best.text, samples=(1e-9,)))
    recorded = RecordedCostModel(store, "here", dear)
    found = problem(recorded, 1.0)
    mine = [c for c in found.choices if c.group.members == group.members and c.group.outputs == group.outputs]
    assert [(c.config, c.source) for c in mine] == [(best.text, "record")]
    assert {c.config.rows for c in dear.asked} == {1}  # type: ignore[attr-defined]
    replayed = ReplayedCosts(recorded)
    assert [c.config for c in problem(replayed, 1.0).choices] == [c.config for c in found.choices]
    assert [c.config for c in problem(replayed, 1.0).choices] == [c.config for c in found.choices]


def test_the_analytical_model_is_its_own_filter() -> None:
    assert AnalyticalCostModel(MACHINE).prefilter([]) is None
    store = MemoryStore()
    assert RecordedCostModel(store, "here", AnalyticalCostModel(MACHINE)).prefilter([]) is None
