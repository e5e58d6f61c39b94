"""What every search strategy promises, and what each of them does besides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import GraphBuilder, chain, problems

from autofuse.errors import PlanError
from autofuse.graph.model import Graph, Group
from autofuse.search.baselines import greedy_cover
from autofuse.search.check import fault, runs_in_order
from autofuse.search.hybrid import hot_operators, promises
from autofuse.search.order import depth_first, peak_memory, run_order
from autofuse.search.problem import Choice, SearchProblem, Thresholds
from autofuse.search.regions import cut
from autofuse.search.strategies import NAMES, strategy
from autofuse.target.hardware import Hardware

_QUIET = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), derandomize=True)


def singles_over(graph: Graph, cost: float = 1.0) -> list[Choice]:
    return [Choice(Group.of(graph, [op.index]), cost) for op in graph.operators]


@pytest.mark.parametrize("name", NAMES)
class TestEveryStrategy:
    @_QUIET
    @given(problem=problems(max_operators=9, max_choices=25))
    def test_gives_a_plan_in_run_order_at_the_cost_it_says(self, name: str, problem: SearchProblem) -> None:
        result = strategy(name).search(problem)
        groups = [c.group for c in result.choices]
        assert fault(problem.graph, groups) is None
        assert runs_in_order(problem.graph, groups)
        assert set(result.choices) <= set(problem.choices)
        cost = sum(c.cost for c in result.choices) + problem.call_cost * len(result.choices)
        assert result.cost == pytest.approx(cost)
        assert result.peak_memory == peak_memory(problem.graph, result.choices)

    @_QUIET
    @given(problem=problems(max_operators=8, max_choices=20))
    def test_is_deterministic(self, name: str, problem: SearchProblem) -> None:
        assert strategy(name).search(problem) == strategy(name).search(problem)

    @_QUIET
    @given(problem=problems(max_operators=8, max_choices=20), share=st.floats(0.2, 1.2))
    def test_keeps_the_memory_limit_or_says_that_it_cannot(
        self, name: str, problem: SearchProblem, share: float
    ) -> None:
        limit = max(1, int(strategy("none").search(problem).peak_memory * share))
        try:
            result = strategy(name).search(replace(problem, max_memory=limit))
        except PlanError as error:
            assert "\n" not in str(error)
            return
        assert result.peak_memory <= limit

    def test_takes_one_operator(self, name: str) -> None:
        graph = chain(1)
        result = strategy(name).search(SearchProblem(graph, tuple(singles_over(graph)), call_cost=0.5))
        assert len(result.choices) == 1
        assert result.cost == 1.5

    def test_carries_on_what_enumeration_cut(self, name: str) -> None:
        graph = chain(2)
        problem = SearchProblem(graph, tuple(singles_over(graph)), pruned={"max_arguments": 3})
        assert strategy(name).search(problem).pruned["max_arguments"] == 3


@_QUIET
@given(problems(max_operators=10))
def test_none_is_every_operator_alone(problem: SearchProblem) -> None:
    result = strategy("none").search(problem)
    assert sorted(c.group.members for c in result.choices) == [(i,) for i in range(len(problem.graph.operators))]


def test_greedy_is_the_given_partition() -> None:
    graph = chain(5)
    choices = [*singles_over(graph), Choice(Group.of(graph, [0, 1, 2]), 99.0), Choice(Group.of(graph, [0, 1]), 0.1)]
    result = strategy("greedy").search(SearchProblem(graph, tuple(choices), greedy=((0, 1, 2),)))
    assert [c.group.members for c in result.choices] == [(0, 1, 2), (3,), (4,)]


def test_greedy_splits_a_set_without_schedule_into_the_fewest_kernels() -> None:
    graph = chain(5)
    sets = [(0, 1), (1, 2, 3), (0, 1, 2), (3, 4)]
    choices = [*singles_over(graph), *(Choice(Group.of(graph, s), 1.0) for s in sets)]
    result = strategy("greedy").search(SearchProblem(graph, tuple(choices), greedy=((0, 1, 2, 3, 4),)))
    assert [c.group.members for c in result.choices] == [(0, 1, 2), (3, 4)]


def test_interval_takes_only_neighbours_in_the_program() -> None:
    b = GraphBuilder()
    x, y = b.input(), b.input()
    a, c = b.unary(x), b.unary(y)
    b.unary(a, "exp")
    b.unary(c, "exp")
    graph = b.build()
    pairs = [Choice(Group.of(graph, [0, 2]), 0.1), Choice(Group.of(graph, [1, 3]), 0.1)]
    problem = SearchProblem(graph, (*singles_over(graph), *pairs))
    assert len(strategy("interval").search(problem).choices) == 4
    assert len(strategy("dp").search(problem).choices) == 2


def hybrid_problem(share: float) -> SearchProblem:
    """Six operators alone under greedy; pairs of neighbours save half a second each, those of 3 and 4 nearly all."""
    graph = chain(6)
    pairs = [Choice(Group.of(graph, [i, i + 1]), 0.25 if i == 3 else 1.5) for i in range(5)]
    greedy = tuple((i,) for i in range(6))
    return SearchProblem(graph, (*singles_over(graph), *pairs), Thresholds(hybrid_share=share), greedy=greedy)


def test_hybrid_searches_where_most_is_promised() -> None:
    problem = hybrid_problem(0.5)
    cover = greedy_cover(problem)
    # Of the pairs that share an operator with one that promises more, none counts.
    assert [(s, problem.choices[i].group.members) for s, i in promises(problem, cover)] == [
        (1.75, (3, 4)),
        (0.5, (0, 1)),
    ]
    assert hot_operators(problem, cover) == {3, 4}
    result = strategy("hybrid").search(problem)
    members = [c.group.members for c in result.choices]
    assert (0,) in members and (1,) in members  # greedy, far from what promises most
    assert (3, 4) in members
    assert not result.proved_optimal


def test_hybrid_that_goes_after_all_promises_is_dp() -> None:
    problem = hybrid_problem(1.0)
    assert strategy("hybrid").search(problem).cost == strategy("dp").search(problem).cost


def test_where_nothing_is_promised_hybrid_is_greedy() -> None:
    graph = chain(4)
    pairs = [Choice(Group.of(graph, [i, i + 1]), 3.0) for i in range(3)]
    problem = SearchProblem(graph, (*singles_over(graph), *pairs), greedy=((0, 1), (2,), (3,)))
    assert strategy("hybrid").search(replace(problem, greedy=((0,), (1,), (2,), (3,)))).cost == 4.0
    # A choice that splits a kernel promises what its operators' part of it is over what it costs.
    assert promises(problem, greedy_cover(problem)) == [(0.5, 0), (0.5, 1)]


@_QUIET
@given(problems(max_operators=10), st.floats(0.0, 1.0))
def test_hybrid_lies_between_greedy_and_dp(problem: SearchProblem, share: float) -> None:
    problem = replace(problem, thresholds=replace(problem.thresholds, hybrid_share=share))
    cost = strategy("hybrid").search(problem).cost
    assert cost <= strategy("greedy").search(problem).cost * (1 + 1e-9)
    assert cost >= strategy("dp").search(problem).cost / (1.01 + 1e-9)


@pytest.mark.parametrize(
    ("bandwidth", "operators", "allowance", "memory", "expected", "words"),
    [
        (20e9, 10, None, 0, "dp", "20 GB/s"),
        (20e9, 60, 100.0, 0, "dp", "20 GB/s"),
        (20e9, 60, 10.0, 0, "hybrid", "10 %"),
        (20e9, 60, 0.0, 0, "greedy", "0 %"),
        (400e9, 60, None, 0, "hybrid", "60 operators"),
        (400e9, 10, None, 0, "greedy", "10 operators"),
        (400e9, 10, None, 1 << 30, "dp", "memory limit"),
    ],
)
def test_auto_says_why(
    bandwidth: float, operators: int, allowance: float | None, memory: int, expected: str, words: str
) -> None:
    graph = chain(operators)
    problem = SearchProblem(graph, tuple(singles_over(graph)), max_memory=memory)
    hardware = Hardware(memory_bandwidth=bandwidth)
    result = strategy("auto", hardware=hardware, compile_allowance=allowance).search(problem)
    assert result.strategy == expected
    assert result.reason.startswith(f"{expected}: ")
    assert words in result.reason


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(PlanError, match="unknown strategy 'best'"):
        strategy("best")


def test_exhaustive_refuses_large_graphs() -> None:
    graph = chain(40)
    with pytest.raises(PlanError, match="at most 16 operators"):
        strategy("exhaustive").search(SearchProblem(graph, tuple(singles_over(graph))))


@_QUIET
@given(problems(max_operators=14))
def test_regions_are_what_no_choice_leaves_in_an_order_to_run(problem: SearchProblem) -> None:
    graph = problem.graph
    regions = cut(graph, problem.choices)
    assert sorted(op for r in regions for op in r.operators) == list(range(len(graph.operators)))
    done: set[int] = set()
    for region in regions:
        inside = set(region.operators)
        for op in region.operators:
            assert set(graph.predecessors[op]) <= done | inside
        done |= inside
        for local in region.choices:
            assert set(problem.choices[local.position].group.members) <= inside
    assert sum(len(r.choices) for r in regions) == len(problem.choices)
    assert [sorted(r.operators) for r in cut(graph, problem.choices, whole=True)] == [list(range(len(graph.operators)))]


@_QUIET
@given(problems(max_operators=14))
def test_depth_first_is_a_topological_order(problem: SearchProblem) -> None:
    order = depth_first(problem.graph)
    place = {op: i for i, op in enumerate(order)}
    assert sorted(order) == list(range(len(problem.graph.operators)))
    assert all(place[p] < place[op] for op in order for p in problem.graph.predecessors[op])


def test_a_branch_is_finished_before_the_next_one_starts() -> None:
    b = GraphBuilder()
    x, y = b.input(), b.input()
    p, q = x, y
    for _ in range(3):
        p, q = b.unary(p), b.unary(q)
    b.binary(p, q)
    graph = b.build()
    order = list(depth_first(graph))
    assert order in ([0, 2, 4, 1, 3, 5, 6], [1, 3, 5, 0, 2, 4, 6])


def test_peak_memory_counts_what_is_alive() -> None:
    b = GraphBuilder()
    x = b.input(8, 8)
    a = b.unary(x)
    c = b.unary(a)
    b.binary(a, c)
    graph = b.build()
    one = 8 * 8 * 4
    ordered = run_order(graph, singles_over(graph))
    assert ordered is not None
    assert peak_memory(graph, ordered) == 3 * one
    assert peak_memory(graph, [Choice(Group.of(graph, [0, 1, 2]), 1.0)]) == one
