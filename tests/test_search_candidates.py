"""Enumeration and costing: which groups are found, that all are legal, and that long or wide graphs stay small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray
from random_graphs import GraphBuilder, chain, graphs
from search_fakes import FAMILIES, FakeCostModel, FakeElementwise

from autofuse.cost.model import Candidate
from autofuse.graph.legality import check_group
from autofuse.graph.model import Graph, Group
from autofuse.schedule.family import ScheduleFamily
from autofuse.search.candidates import legal_groups, search_problem
from autofuse.search.check import fault
from autofuse.search.problem import SearchProblem, Thresholds
from autofuse.search.strategies import strategy
from autofuse.target.hardware import Hardware

HARDWARE = Hardware()


def problem_of(graph: Graph, **options: object) -> SearchProblem:
    return search_problem(graph, FakeCostModel(), hardware=HARDWARE, families=FAMILIES, **options)  # type: ignore[arg-type]


def members_of(graph: Graph, **options: object) -> set[tuple[int, ...]]:
    found = legal_groups(graph, hardware=HARDWARE, families=FAMILIES, **options)  # type: ignore[arg-type]
    return {f.group.members for f in found}


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs(max_operators=14, opaque=True))
def test_every_group_found_is_legal_and_every_operator_stands_alone(graph: Graph) -> None:
    problem = problem_of(graph)
    assert set(problem.singles) == set(range(len(graph.operators)))
    seen = set()
    for choice in problem.choices:
        name = (choice.group.members, choice.group.outputs)
        assert name not in seen
        seen.add(name)
        if not choice.family:
            assert not choice.group.operators[0].fusable
            continue
        family = check_group(choice.group, hardware=HARDWARE, families=FAMILIES)
        assert isinstance(family, ScheduleFamily), str(family)
        assert family.name == choice.family
        assert choice.config == "size=1"
    result = strategy("dp").search(problem)
    assert fault(graph, [c.group for c in result.choices]) is None


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs(max_operators=7))
def test_small_graphs_lose_no_legal_group_without_siblings(graph: Graph) -> None:
    """All connected convex sets that are legal, runs apart (they are thinned) and one growing step at a time."""
    from random_graphs import legal_groups as all_groups

    found = members_of(graph, thresholds=Thresholds(groups_per_operator=10_000))
    longest_run = 2
    for group in all_groups(graph, recompute=False, limit=10_000):
        legal = isinstance(check_group(group, hardware=HARDWARE, families=FAMILIES), ScheduleFamily)
        parts_too = all(
            isinstance(check_group(Group.of(graph, part), hardware=HARDWARE, families=FAMILIES), ScheduleFamily)
            for part in (group.members[: k + 1] for k in range(len(group.members)))
        )
        if legal and parts_too and len(group.members) <= longest_run:
            assert group.members in found


def test_growth_passes_through_what_no_family_takes() -> None:
    b = GraphBuilder()
    scores = b.matmul(b.input(32, 32))
    b.matmul(b.reduce(b.unary(scores, "exp")), b.constant(1, 8))
    graph = b.build()
    found = members_of(graph)
    assert (0, 1, 2) not in found  # a contraction and a reduction alone are not legal
    assert (0, 1, 2, 3) in found


def test_a_softmax_of_single_operators_becomes_one_group() -> None:
    b = GraphBuilder()
    x = b.input(32, 64)
    e = b.unary(b.binary(x, b.reduce(x, "max"), "subtract"), "exp")
    b.binary(e, b.reduce(e), "divide")
    graph = b.build()
    result = strategy("dp").search(problem_of(graph))
    assert [c.group.members for c in result.choices] == [(0, 1, 2, 3, 4)]


def test_a_value_used_inside_and_outside_becomes_a_second_output() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input(32, 32))
    b.unary(y)
    b.matmul(y)
    graph = b.build()
    choices = problem_of(graph).choices
    assert any(c.group.members == (0, 1) and len(c.group.outputs) == 2 for c in choices)


def test_cheap_producers_are_recomputed_and_dear_ones_are_not() -> None:
    b = GraphBuilder()
    e = b.unary(b.input(32, 32), "exp")
    s = b.reduce(e)
    b.transpose(e)
    b.binary(s, s)
    b.unary(s)
    graph = b.build()
    private = [c for c in problem_of(graph).choices if c.recomputed]
    assert any(c.group.members == (0, 1) and c.recomputed == 1 for c in private)
    assert all(not c.recomputed >> 1 & 1 for c in private)  # the reduction
    assert not [c for c in problem_of(graph, thresholds=Thresholds(recompute_members=0)).choices if c.recomputed]


def test_siblings_on_one_input_are_offered_together() -> None:
    b = GraphBuilder()
    x = b.input(32, 32)
    for kind in ("exp", "tanh", "negative"):
        b.unary(x, kind)
    assert {(0, 1), (0, 1, 2)} <= members_of(b.build())


def test_a_long_chain_gives_few_groups_and_few_kernels() -> None:
    graph = chain(2000)
    problem = problem_of(graph, greedy=[tuple(range(2000))])
    assert len(problem.choices) < 10 * 2000
    assert len(strategy("dp").search(problem).choices) == 32


@pytest.mark.parametrize("name", ["greedy", "hybrid", "interval", "auto"])
def test_every_strategy_gives_a_chain_few_kernels(name: str) -> None:
    problem = problem_of(chain(300), greedy=[tuple(range(300))])
    assert len(strategy(name).search(problem).choices) <= 8


def test_a_wide_concat_keeps_to_the_argument_limit() -> None:
    b = GraphBuilder()
    b.concat([b.unary(b.input(1, 16)) for _ in range(1200)])
    graph = b.build()
    problem = problem_of(graph, greedy=[tuple(range(1201))])
    for choice in problem.choices:
        group = choice.group
        assert len(group.members) == 1 or len(group.inputs) + len(group.outputs) <= 48
    assert fault(graph, [c.group for c in strategy("greedy").search(problem).choices]) is None


def test_many_siblings_give_few_groups() -> None:
    b = GraphBuilder()
    x = b.input(4, 16)
    for _ in range(600):
        b.unary(x)
    assert len(members_of(b.build())) < 8 * 600


def test_repeated_blocks_are_costed_once_in_one_batch() -> None:
    def blocks(count: int) -> tuple[int, SearchProblem]:
        b = GraphBuilder()
        x = b.input(32, 32)
        for _ in range(count):
            x = b.binary(b.unary(b.matmul(x)), x)
        model = FakeCostModel()
        problem = search_problem(b.build(), model, hardware=HARDWARE, families=FAMILIES)
        assert len(model.batches) == 1
        return model.batches[0], problem

    few, _ = blocks(3)
    many, problem = blocks(12)
    # only at the graph's ends do blocks differ (an input instead of a value before them)
    assert many == few
    assert len({c.key for c in problem.choices}) < len(problem.choices) / 3


def test_the_key_function_names_the_choices() -> None:
    problem = problem_of(chain(3), key=lambda group: f"k{len(group.members)}")
    assert {c.key for c in problem.choices} == {"k1", "k2", "k3"}


def test_the_prefilter_drops_dear_groups_but_not_the_given_partition() -> None:
    class Dear(FakeCostModel):
        def costs(self, candidates: list[Candidate]) -> NDArray[np.float64]:  # type: ignore[override]
            return np.array([1.0 if len(c.group.members) == 1 else 100.0 for c in candidates])

    problem = search_problem(chain(4), Dear(), hardware=HARDWARE, families=FAMILIES, greedy=[(0, 1)])
    assert {c.group.members for c in problem.choices if len(c.group.members) > 1} == {(0, 1)}
    assert problem.pruned["prefilter_ratio"] > 0


def test_groups_known_not_to_build_are_dropped_and_single_operators_stay() -> None:
    class Broken(FakeCostModel):
        def costs(self, candidates: list[Candidate]) -> NDArray[np.float64]:  # type: ignore[override]
            return np.array([1e-3 if c.group.members in ((0,), (1,), (0, 1)) else np.inf for c in candidates])

    problem = search_problem(chain(3), Broken(), hardware=HARDWARE, families=FAMILIES)
    assert {c.group.members for c in problem.choices} == {(0,), (1,), (2,), (0, 1)}
    assert all(np.isfinite(c.cost) for c in problem.choices)


def test_an_illegal_set_of_the_partition_is_split_into_legal_parts() -> None:
    b = GraphBuilder()
    x = b.unary(b.matmul(b.input(32, 32)))
    b.unary(b.matmul(b.unary(x, "exp")))
    graph = b.build()
    problem = problem_of(graph, greedy=[(0, 1, 2, 3, 4)])
    result = strategy("greedy").search(problem)
    assert fault(graph, [c.group for c in result.choices]) is None
    assert len(result.choices) == 2


@pytest.mark.parametrize("limit", [1, 5, 50])
def test_the_cap_on_sets_around_an_operator_holds(limit: int) -> None:
    b = GraphBuilder()
    values = [b.input(8, 8)]
    for _ in range(24):
        values.append(b.binary(values[-1], values[max(0, len(values) - 3)]))
    graph = b.build()
    found = legal_groups(
        graph,
        hardware=HARDWARE,
        families=[FakeElementwise()],
        thresholds=Thresholds(groups_per_operator=limit, recompute_members=0),
    )
    siblings = 60  # pairs and more on one input, each grown by at most 16
    assert len(found) <= 24 * (limit + 64) + 16 * siblings
