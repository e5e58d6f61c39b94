"""What every CostModel must do. A new implementation is one more entry of MODELS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from learn_stores import MACHINE, small_predictor, trusting_model
from test_cost_analytical import FULL, FakeConfiguration, FakeFamily, one

from autofuse.cost import AnalyticalCostModel, Candidate, CostModel
from autofuse.cost.gpu import GpuCostModel
from autofuse.graph.model import Work
from autofuse.learn import LearnedCostModel
from autofuse.records import MemoryStore, Record, RecordedHardware, Workload
from autofuse.records.identity import identity_of
from autofuse.records.model import RecordedCostModel
from autofuse.target import GpuHardware, Hardware


def recorded(fallback: CostModel) -> RecordedCostModel:
    """A third of `batch` is on record."""
    store = MemoryStore()
    store.add_hardware(RecordedHardware("hw", "here"))
    for candidate in batch()[1::3]:
        key = repr(candidate.group.work)
        store.add_workload(Workload(key, key))
        identity = identity_of(candidate, key, "hw")
        version, config, layouts = identity.family_version, identity.config, identity.layouts
        store.add(Record(key, "hw", identity.family, version, config, layouts, samples=(2e-3,)))
    return RecordedCostModel(store, "hw", fallback, lambda group: repr(group.work))


MODELS: dict[str, Callable[[], CostModel]] = {
    "analytical": lambda: AnalyticalCostModel(Hardware()),
    "analytical, cold weights": lambda: AnalyticalCostModel(Hardware(), cold=True),
    "analytical, GPU": lambda: GpuCostModel(GpuHardware()),
    "learned, cold weights": lambda: LearnedCostModel(small_predictor().card, small_predictor().files, MACHINE, True),
    "learned": lambda: LearnedCostModel(small_predictor().card, small_predictor().files, MACHINE),
    "recorded": lambda: recorded(AnalyticalCostModel(Hardware())),
    "recorded, predicted elsewhere": lambda: recorded(trusting_model({"fake": 1})),
    "learned, everything predicted": lambda: trusting_model({"fake": 1}),
}


def batch() -> list[Candidate]:
    """Candidates of several sizes and configurations, one group object shared by some of them."""
    family = FakeFamily([FULL, replace(FULL, tasks=7), replace(FULL, vector_fill=0.125, recompute=1.5)])
    groups = [one(Work(fma=10**e), 2 ** (2 * e), (8,)) for e in range(2, 8)] + [
        one(Work(), 16),
        one(Work(special=99), 99),
    ]
    return [Candidate(g, family, FakeConfiguration(i)) for g in groups for i in range(3)]


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> CostModel:
    return MODELS[request.param]()


def test_has_a_name(model: CostModel) -> None:
    assert isinstance(model.name, str) and model.name


def test_costs_are_positive_seconds_one_for_each_candidate(model: CostModel) -> None:
    costs = model.costs(batch())
    assert costs.shape == (len(batch()),) and costs.dtype == np.float64
    assert not np.isnan(costs).any() and (costs > 0).all()
    assert np.isfinite(costs).all()  # none of these is known to fail
    assert (costs < 3600).all()


def test_an_empty_batch_gives_an_empty_array(model: CostModel) -> None:
    costs = model.costs([])
    assert costs.shape == (0,) and costs.dtype == np.float64
    assert list(model.sources([])) == []


def test_a_cost_does_not_depend_on_the_rest_of_the_batch(model: CostModel) -> None:
    candidates = batch()
    costs = model.costs(candidates)
    order = np.random.default_rng(0).permutation(len(candidates))
    assert np.array_equal(model.costs([candidates[i] for i in order]), costs[order])
    assert np.array_equal([model.costs([c])[0] for c in candidates], costs)
    assert np.array_equal(model.costs(candidates + candidates), np.tile(costs, 2))


def test_costs_are_deterministic_across_instances_and_equal_groups(
    model: CostModel, request: pytest.FixtureRequest
) -> None:
    again = MODELS[request.node.callspec.params["model"]]()
    assert np.array_equal(model.costs(batch()), again.costs(batch()))  # `batch` makes new objects every time


def test_groups_of_different_graphs_are_told_apart(model: CostModel) -> None:
    family = FakeFamily([FULL])
    small, large = (Candidate(one(Work(fma=n), reduction=(8,)), family, FakeConfiguration()) for n in (10**3, 10**9))
    assert small.group == large.group  # same members and outputs; the graph takes no part in equality
    costs = model.costs([small, large, small])
    assert costs[0] == costs[2] < costs[1]


def test_sources_name_where_each_cost_is_from(model: CostModel) -> None:
    sources = model.sources(batch())
    assert len(sources) == len(batch()) and set(sources) <= {"analytical", "predicted", "record"}


def test_says_how_sure_it_is_or_that_it_cannot(model: CostModel) -> None:
    errors = model.uncertainty(batch())
    if errors is not None:
        assert errors.shape == (len(batch()),) and np.isfinite(errors).all() and (errors >= 0).all()
        nothing = model.uncertainty([])
        assert nothing is not None and nothing.shape == (0,)
        if isinstance(model, RecordedCostModel):
            assert (errors[1::3] == 0).all()
    learned = model.fallback if isinstance(model, RecordedCostModel) else model
    assert (errors is not None) == isinstance(learned, LearnedCostModel)


def test_candidates_are_left_as_they_are(model: CostModel) -> None:
    candidates = batch()
    before = list(candidates)
    texts = [c.config.text for c in candidates]
    model.costs(candidates)
    assert candidates == before and [c.config.text for c in candidates] == texts
