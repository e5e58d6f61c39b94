"""dp against the oracle, against the plans it may never be worse than, and under every threshold and limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import GraphBuilder, chain, problems

from autofuse.errors import PlanError
from autofuse.graph.model import Group
from autofuse.search.baselines import GreedyStrategy, NoneStrategy
from autofuse.search.check import fault, runs_in_order
from autofuse.search.dp import DPStrategy
from autofuse.search.exhaustive import ExhaustiveStrategy
from autofuse.search.problem import Choice, SearchProblem, SearchResult, Thresholds

ROUNDING = 1 + 1e-9
_QUIET = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)


def assert_plan(problem: SearchProblem, result: SearchResult) -> None:
    groups = [c.group for c in result.choices]
    assert fault(problem.graph, groups) is None
    assert runs_in_order(problem.graph, groups)
    cost = sum(c.cost for c in result.choices) + problem.call_cost * len(result.choices)
    assert result.cost == pytest.approx(cost)


@_QUIET
@given(problems())
def test_equals_the_oracle_when_no_cap_fires(problem: SearchProblem) -> None:
    exact = DPStrategy(tie=0.0).search(problem)
    oracle = ExhaustiveStrategy().search(problem)
    assert_plan(problem, exact)
    assert exact.proved_optimal
    assert exact.cost == pytest.approx(oracle.cost, rel=1e-9)


@_QUIET
@given(problems())
def test_prefers_fewer_kernels_within_one_percent(problem: SearchProblem) -> None:
    exact = DPStrategy(tie=0.0).search(problem)
    result = DPStrategy().search(problem)
    assert_plan(problem, result)
    assert result.cost <= exact.cost * 1.01 * ROUNDING
    assert len(result.choices) <= len(exact.choices) or result.cost < exact.cost * ROUNDING


@_QUIET
@given(
    problems(max_operators=16, max_choices=60),
    st.builds(
        Thresholds,
        groups_per_state=st.integers(1, 8),
        abort_factor=st.sampled_from([0.1, 0.9, 1.0, 2.0]),
        states_per_region=st.integers(1, 40),
        frontier_values=st.integers(0, 2),
    ),
)
def test_never_worse_than_greedy_or_none_whatever_the_thresholds(
    problem: SearchProblem, thresholds: Thresholds
) -> None:
    problem = replace(problem, thresholds=thresholds)
    result = DPStrategy().search(problem)
    assert_plan(problem, result)
    assert result.cost <= NoneStrategy().search(problem).cost * ROUNDING
    assert result.cost <= GreedyStrategy().search(problem).cost * ROUNDING


@_QUIET
@given(problems(max_operators=14), st.integers(1, 12))
def test_a_plan_said_to_be_optimal_is(problem: SearchProblem, cap: int) -> None:
    free = DPStrategy(tie=0.0).search(problem)
    capped = DPStrategy(tie=0.0).search(
        replace(problem, thresholds=Thresholds(groups_per_state=cap, states_per_region=4 * cap, frontier_values=1))
    )
    if capped.proved_optimal:
        assert capped.cost == pytest.approx(free.cost, rel=1e-9)
    else:
        assert capped.pruned


@_QUIET
@given(problems(max_operators=9), st.floats(0.3, 1.0))
def test_memory_limit_is_kept_or_refused(problem: SearchProblem, share: float) -> None:
    free = DPStrategy().search(problem)
    limited = replace(problem, max_memory=max(1, int(free.peak_memory * share)))
    try:
        result = DPStrategy().search(limited)
    except PlanError as error:
        assert "smallest peak" in str(error)
        assert NoneStrategy().search(problem).peak_memory > limited.max_memory
        return
    assert_plan(limited, result)
    assert result.peak_memory <= limited.max_memory
    assert result.cost >= DPStrategy(tie=0.0).search(problem).cost / ROUNDING


def test_memory_limit_takes_a_dearer_plan_and_names_the_smallest_peak() -> None:
    graph = chain(4)
    size = graph.tensors[graph.outputs[0]].bytes
    choices = [Choice(Group.of(graph, [i]), 1.0) for i in range(4)]
    choices += [Choice(Group.of(graph, [0, 1, 2, 3]), 9.0)]
    problem = SearchProblem(graph, tuple(choices))
    assert DPStrategy().search(problem).cost == 4.0
    assert DPStrategy().search(problem).peak_memory == 2 * size
    tight = DPStrategy().search(replace(problem, max_memory=2 * size - 1))
    assert (tight.cost, tight.peak_memory) == (9.0, size)
    with pytest.raises(PlanError, match=r"smallest peak found is 0\.0164 MB") as caught:
        DPStrategy().search(replace(problem, max_memory=size - 1))
    # What the message names is enough.
    named = float(str(caught.value).split("found is ")[1].split()[0])
    assert DPStrategy().search(replace(problem, max_memory=int(named * 1e6))).peak_memory <= named * 1e6


def test_a_producer_is_recomputed_where_that_is_cheaper() -> None:
    b = GraphBuilder()
    x = b.input()
    e = b.unary(x, "exp")
    b.reduce(e)
    b.matmul(e)
    graph = b.build()
    pair = [Choice(Group.of(graph, [0, i], [graph.operators[i].outputs[0]]), 3.0) for i in (1, 2)]
    singles = [Choice(Group.of(graph, [i]), c) for i, c in enumerate([4.0, 2.0, 2.0])]
    result = DPStrategy().search(SearchProblem(graph, (*singles, *pair)))
    assert [c.group.members for c in result.choices] == [(0, 1), (0, 2)]
    assert result.cost == 6.0
    none_left = DPStrategy().search(SearchProblem(graph, (*singles, *pair), Thresholds(frontier_values=0)))
    assert none_left.pruned["frontier_values"] > 0
    assert not none_left.proved_optimal


def test_groups_that_would_wait_for_each_other_are_not_taken_together() -> None:
    b = GraphBuilder()
    x, y = b.input(), b.input()
    a, c = b.unary(x), b.unary(y)
    d, e = b.binary(a, c), b.binary(c, a)
    graph = b.build()
    assert d != e
    # {a, e} and {c, d}: each is convex, and each reads what the other writes
    cross = [Choice(Group.of(graph, [0, 3]), 0.1), Choice(Group.of(graph, [1, 2]), 0.1)]
    singles = [Choice(Group.of(graph, [i]), 1.0) for i in range(4)]
    problem = SearchProblem(graph, (*singles, *cross))
    result = DPStrategy().search(problem)
    assert_plan(problem, result)
    assert result.cost == pytest.approx(2.1)


def test_equal_blocks_are_searched_once() -> None:
    def blocks(count: int) -> SearchProblem:
        b = GraphBuilder()
        x = b.input(32, 32)
        for _ in range(count):
            x = b.binary(b.unary(b.matmul(x)), x)
        graph = b.build()
        choices = [Choice(Group.of(graph, [op.index]), 1.0 + op.index % 3) for op in graph.operators]
        for first in range(0, 3 * count, 3):
            choices.append(Choice(Group.of(graph, [first, first + 1]), 1.5))
            choices.append(Choice(Group.of(graph, [first + 1, first + 2]), 2.0))
        return SearchProblem(graph, tuple(choices))

    one, many = DPStrategy().search(blocks(2)), DPStrategy().search(blocks(50))
    assert many.regions == 50
    assert many.states == one.states
    assert len(many.choices) == 100


def test_long_chains_do_not_overflow() -> None:
    graph = chain(2000)
    choices = [Choice(Group.of(graph, [i]), 1.0) for i in range(2000)]
    choices += [
        Choice(Group.of(graph, range(i, i + n)), 0.5 + 0.01 * n) for n in (2, 8, 64) for i in range(2000 - n + 1)
    ]
    result = DPStrategy().search(SearchProblem(graph, tuple(choices)))
    assert len(result.choices) == 33
    assert result.proved_optimal


def test_an_operator_without_a_kernel_is_an_error() -> None:
    graph = chain(2)
    with pytest.raises(PlanError, match="exp_1"):
        DPStrategy().search(SearchProblem(graph, (Choice(Group.of(graph, [0]), 1.0),)))
