"""Plans as files, their checks, and plans for other graphs and targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import GraphBuilder, chain, problems

from autofuse.errors import PlanError
from autofuse.graph.model import Graph, Group
from autofuse.search.check import fault, runs_in_order
from autofuse.search.plan import SCHEMA, Plan, adapt, plan_of, validate
from autofuse.search.problem import Choice, SearchProblem
from autofuse.search.strategies import strategy


def problem_over(graph: Graph, *sets: tuple[int, ...]) -> SearchProblem:
    singles = [Choice(Group.of(graph, [op.index]), 1.0, "f", "a=1") for op in graph.operators]
    return SearchProblem(graph, (*singles, *(Choice(Group.of(graph, s), 0.5, "f", "a=2") for s in sets)))


def plan_over(problem: SearchProblem, target: str = "llvm") -> Plan:
    return plan_of(strategy("dp").search(problem), problem.graph, target=target, cost_model="fake")


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
@given(problems(max_operators=9))
def test_a_saved_plan_is_read_back_and_builds_the_same(problem: SearchProblem) -> None:
    result = strategy("dp").search(problem)
    plan = plan_of(result, problem.graph, target="llvm", cost_model="fake")
    assert Plan.from_json(plan.to_json()) == plan
    assert json.loads(json.dumps(plan.to_json())) == plan.to_json()
    again = adapt(plan, problem, target="llvm")
    assert {c.group for c in again.choices} == {c.group for c in result.choices}
    assert again.cost == pytest.approx(result.cost)


def test_files(tmp_path: Path) -> None:
    plan = plan_over(problem_over(chain(4), (0, 1)))
    path = tmp_path / "plan.json"
    plan.save(path)
    assert Plan.load(path) == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    content = json.loads(path.read_text())
    assert content["schema"] == SCHEMA
    assert content["groups"][0]["names"] == ["relu_0", "exp_1"]
    assert content["groups"][0]["config"] == "a=2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no schema version"),
        ('{"schema": "1"}', "no schema version"),
        ('{"schema": 99}', "reads up to 1"),
        ('{"schema": 1}', "'groups' is missing"),
        ('{"schema": 1, "groups": [], "graph": "g"}', "no field 'digest'"),
        ('{"schema": 1, "groups": [3]}', r"groups\[0\] is no JSON object"),
    ],
)
def test_what_is_no_plan_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=message) as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_fields_of_the_wrong_type_are_refused() -> None:
    content = plan_over(problem_over(chain(2))).to_json()
    for field, value in (("members", ["a"]), ("members", 3), ("seconds", "1"), ("family", None), ("outputs", [True])):
        damaged = {**content, "groups": [{**content["groups"][0], field: value}]}
        with pytest.raises(PlanError, match=field):
            Plan.from_json(damaged)


def test_a_missing_file_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the plan"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(PlanError, match="cannot write the plan"):
        plan_over(problem_over(chain(2))).save(tmp_path / "none" / "plan.json")


def test_a_plan_for_another_graph_is_refused() -> None:
    plan = plan_over(problem_over(chain(4)))
    with pytest.raises(PlanError, match="another graph"):
        adapt(plan, problem_over(chain(5)), target="llvm")
    with pytest.raises(PlanError, match="another graph"):
        validate(plan, chain(4, ["exp"]))


@pytest.mark.parametrize(
    "change",
    [
        lambda gs: gs[1:],
        lambda gs: [*gs, gs[0]],
        lambda gs: [replace(gs[0], outputs=()), *gs[1:]],
        lambda gs: [replace(gs[0], members=(0, 9)), *gs[1:]],
        lambda gs: [replace(gs[0], members=(1, 0)), *gs[1:]],
        lambda gs: [replace(gs[0], members=(0, 2)), *gs[1:]],
        lambda gs: [replace(gs[0], members=()), *gs[1:]],
        lambda gs: [replace(gs[0], outputs=(99,)), *gs[1:]],
    ],
)
def test_groups_that_are_no_plan_are_refused(change: object) -> None:
    graph = chain(4)
    plan = plan_over(problem_over(graph))
    damaged = replace(plan, groups=tuple(change(list(plan.groups))))  # type: ignore[operator]
    with pytest.raises(PlanError, match="damaged"):
        validate(damaged, graph)


def test_groups_that_wait_for_each_other_are_no_plan() -> None:
    b = GraphBuilder()
    x, y = b.input(), b.input()
    a, c = b.unary(x), b.unary(y)
    b.binary(a, c)
    b.binary(c, a)
    graph = b.build()
    assert "wait for each other" in str(fault(graph, [Group.of(graph, [0, 3]), Group.of(graph, [1, 2])]))


def test_the_order_of_the_groups_in_the_file_does_not_matter() -> None:
    problem = problem_over(chain(4))
    plan = plan_over(problem)
    result = adapt(replace(plan, groups=plan.groups[::-1]), problem, target="llvm")
    assert runs_in_order(problem.graph, [c.group for c in result.choices])


def test_another_target_keeps_legal_groups_and_chooses_configurations_again() -> None:
    graph = chain(6)
    plan = plan_over(problem_over(graph, (0, 1), (2, 3, 4, 5)))
    elsewhere = problem_over(graph, (0, 1), (2, 3))
    other = replace(elsewhere, choices=tuple(replace(c, config="a=7", cost=2 * c.cost) for c in elsewhere.choices))
    with pytest.warns(UserWarning, match="1 of its 2 groups") as caught:
        result = adapt(plan, other, target="cuda")
    assert len(caught) == 1
    assert [c.group.members for c in result.choices] == [(0, 1), (2, 3), (4,), (5,)]
    assert {c.config for c in result.choices} == {"a=7"}


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)
@given(problems(max_operators=10), st.randoms(use_true_random=False))
@pytest.mark.filterwarnings("ignore:the plan was made for target")
def test_a_plan_moves_to_a_target_where_any_groups_are_missing(problem: SearchProblem, rng: object) -> None:
    plan = plan_of(strategy("dp").search(problem), problem.graph, target="a", cost_model="fake")
    keep = [c for c in problem.choices if len(c.group.members) == 1 or rng.random() < 0.5]  # type: ignore[attr-defined]
    result = adapt(plan, replace(problem, choices=tuple(keep)), target="b")
    groups = [c.group for c in result.choices]
    assert fault(problem.graph, groups) is None
    assert runs_in_order(problem.graph, groups)
