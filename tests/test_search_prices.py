"""Prices bound every cover from below, and what they put aside is in no cheapest plan; near ties are settled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import GraphBuilder, chain, problems

from autofuse.graph.model import Group
from autofuse.search.dp import DPStrategy
from autofuse.search.exhaustive import ExhaustiveStrategy
from autofuse.search.prices import priced, prices, sharper
from autofuse.search.problem import Choice, SearchProblem, Thresholds
from autofuse.search.region_search import skippable
from autofuse.search.regions import cut

_QUIET = settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.parametrize("solve", [prices, sharper])
@_QUIET
@given(problem=problems())
def test_prices_bound_the_oracle_and_tell_what_may_pay(solve: object, problem: SearchProblem) -> None:
    oracle = ExhaustiveStrategy().search(problem)
    (region,) = cut(problem.graph, problem.choices, whole=True)
    weights = [problem.choices[c.position].cost + problem.call_cost for c in region.choices]
    found = solve(len(region.operators), region.choices, weights, skippable(region))  # type: ignore[operator]
    rounding = 1e-9 * oracle.cost
    assert found.bound <= oracle.cost + rounding
    assert found.bound == pytest.approx(sum(found.of))
    free = skippable(region)
    assert all(p >= 0 for v, p in enumerate(found.of) if free >> v & 1)
    for c, weight, slack in zip(region.choices, weights, found.slack, strict=True):
        paid = sum(p for v, p in enumerate(found.of) if v in priced(c, free))
        assert slack == pytest.approx(weight - paid, abs=rounding)
        assert slack >= -rounding
        if any(problem.choices[c.position] is chosen for chosen in oracle.choices):
            assert found.bound + slack <= oracle.cost + rounding


@_QUIET
@given(problem=problems())
def test_the_solver_is_no_worse_than_the_first_prices(problem: SearchProblem) -> None:
    (region,) = cut(problem.graph, problem.choices, whole=True)
    weights = [problem.choices[c.position].cost for c in region.choices]
    first = prices(len(region.operators), region.choices, weights, skippable(region))
    better = sharper(len(region.operators), region.choices, weights, skippable(region))
    assert better is not None
    assert better.bound >= first.bound - 1e-6 * abs(first.bound)


@_QUIET
@given(problem=problems())
def test_many_choices_an_operator_get_the_same_prices(problem: SearchProblem) -> None:
    """Arrays in place of lists change no number."""
    (region,) = cut(problem.graph, problem.choices, whole=True)
    weights = [problem.choices[c.position].cost for c in region.choices]
    arguments = (len(region.operators), region.choices, weights, skippable(region))
    few = [solve(*arguments) for solve in (prices, sharper)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autofuse.search.prices._CROWDED", 0)
        assert [solve(*arguments) for solve in (prices, sharper)] == few


def test_a_chain_is_priced_exactly() -> None:
    graph = chain(6)
    costs = {(0,): 3.0, (1,): 1.0, (2,): 2.0, (3,): 2.0, (4,): 5.0, (5,): 1.0, (0, 1): 2.5, (2, 3, 4): 4.0, (4, 5): 3.0}
    choices = [Choice(Group.of(graph, members), cost) for members, cost in costs.items()]
    (region,) = cut(graph, choices, whole=True)
    weights = [choices[c.position].cost for c in region.choices]
    found = prices(6, region.choices, weights, 0)
    assert found.bound == pytest.approx(7.5)
    assert found.cover is not None
    assert [choices[region.choices[j].position].group.members for j in found.cover] == [(0, 1), (2, 3, 4), (5,)]


@_QUIET
@given(
    problems(max_operators=14),
    st.builds(
        Thresholds,
        groups_per_state=st.integers(4, 8),
        states_per_region=st.integers(1, 20),
        frontier_values=st.integers(0, 1),
    ),
)
def test_recomputing_choices_never_make_a_plan_dearer(problem: SearchProblem, thresholds: Thresholds) -> None:
    plain = tuple(c for c in problem.choices if not c.recomputed)
    without = DPStrategy(tie=0.0).search(replace(problem, choices=plain))
    capped = DPStrategy(tie=0.0).search(replace(problem, thresholds=thresholds))
    if (
        without.proved_optimal
        and DPStrategy(tie=0.0).search(replace(problem, choices=plain, thresholds=thresholds)).proved_optimal
    ):
        assert capped.cost <= without.cost * (1 + 1e-6)


def test_a_recomputing_choice_that_cannot_pay_is_not_searched() -> None:
    b = GraphBuilder()
    e = b.unary(b.input(), "exp")
    b.reduce(e)
    b.matmul(e)
    graph = b.build()
    singles = [Choice(Group.of(graph, [i]), c) for i, c in enumerate([1.0, 2.0, 2.0])]
    pair = [Choice(Group.of(graph, [0, i], [graph.operators[i].outputs[0]]), 3.0) for i in (1, 2)]
    result = DPStrategy().search(SearchProblem(graph, (*singles, *pair)))
    assert result.cost == 5.0
    assert result.proved_optimal
    assert (result.states, result.pruned["too_dear"]) == (0, 10)  # both, at first and at four prices


def test_a_kernel_that_costs_more_of_the_tie_than_others_is_saved_too() -> None:
    graph = chain(10)
    choices = [Choice(Group.of(graph, [i]), 12.5) for i in range(10)]
    # One pair pays, so that no fusion is no limit; of the others the first fits in 1 % of 110, the rest do not.
    for first, cost in ((8, 10.0), (0, 26.05), (2, 28.0), (4, 28.0), (6, 28.0)):
        choices.append(Choice(Group.of(graph, [first, first + 1]), cost))
    result = DPStrategy().search(SearchProblem(graph, tuple(choices)))
    assert result.cost == pytest.approx(111.05)
    assert [c.group.members for c in result.choices] == [(0, 1), *((i,) for i in range(2, 8)), (8, 9)]


def test_of_near_equal_plans_fewer_kernels_win_then_less_traffic() -> None:
    b = GraphBuilder()
    b.unary(b.reduce(b.unary(b.input(64, 64))))
    graph = b.build()
    singles = [Choice(Group.of(graph, [i]), c) for i, c in enumerate([1.5, 1.5, 1.0])]
    front, back = Choice(Group.of(graph, [0, 1]), 2.001), Choice(Group.of(graph, [1, 2]), 1.5)

    def members(*choices: Choice) -> list[tuple[int, ...]]:
        return [c.group.members for c in DPStrategy().search(SearchProblem(graph, (*singles, *choices))).choices]

    # Two kernels either way; only `front` keeps the large value out of memory, at a price within the tie.
    assert members(front, back) == [(0, 1), (2,)]
    assert members(replace(front, cost=2.04), back) == [(0,), (1, 2)]
    whole = Group.of(graph, [0, 1, 2])
    assert members(front, back, Choice(whole, 3.008)) == [(0, 1, 2)]
    assert members(front, back, Choice(whole, 3.04)) == [(0, 1), (2,)]
