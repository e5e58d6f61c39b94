"""Rules on mapping types and the checks of a group, each with the reason that it gives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import HEAVY, MOVE, ONE, OPAQUE, REDUCE, SAME, SPREAD, GraphBuilder, chain, graphs
from search_fakes import FAMILIES, FakeAnchor, FakeElementwise

from autofuse.graph.legality import RULES, Rule, check_group, check_structure, convex_hull, edge_rule, recomputable
from autofuse.graph.model import Graph, Group, MappingType, bits
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import ScheduleFamily
from autofuse.target.hardware import Hardware

HARDWARE = Hardware()


def check(group: Group, **limits: int) -> ScheduleFamily | Refusal:
    return check_group(group, hardware=HARDWARE, families=FAMILIES, **limits)


def refusal(group: Group, **limits: int) -> Refusal:
    found = check(group, **limits)
    assert isinstance(found, Refusal)
    return found


def test_the_table_is_complete_and_every_rule_has_a_reason() -> None:
    assert set(RULES) == set(itertools.product(MappingType, MappingType))
    assert all(len(reason) > 20 for _, reason in RULES.values())


@pytest.mark.parametrize(
    ("producer", "consumer", "rule"),
    [
        (ONE, ONE, Rule.ALWAYS),
        (ONE, REDUCE, Rule.ALWAYS),
        (SAME, MOVE, Rule.ALWAYS),
        (MOVE, HEAVY, Rule.IF_SCHEDULED),
        (REDUCE, ONE, Rule.ALWAYS),
        (REDUCE, SPREAD, Rule.IF_SCHEDULED),
        (REDUCE, REDUCE, Rule.IF_SCHEDULED),
        (HEAVY, ONE, Rule.ALWAYS),
        (HEAVY, HEAVY, Rule.IF_SCHEDULED),
        (OPAQUE, ONE, Rule.NEVER),
        (HEAVY, OPAQUE, Rule.NEVER),
    ],
)
def test_rules(producer: MappingType, consumer: MappingType, rule: Rule) -> None:
    assert RULES[producer, consumer][0] is rule


def test_an_edge_counts_with_the_operand_that_it_feeds() -> None:
    b = GraphBuilder()
    x = b.input(16, 32)
    b.binary(b.unary(x), b.reduce(x))  # a broadcast of the reduction, one to one in the other operand
    graph = b.build()
    assert edge_rule(graph, 0, 2)[0] is Rule.ALWAYS
    assert edge_rule(graph, 1, 2)[0] is Rule.IF_SCHEDULED


def test_an_edge_that_is_none_is_refused_by_name() -> None:
    rule, reason = edge_rule(chain(3), 0, 2)
    assert rule is Rule.NEVER
    assert "negative_2 does not read a result of relu_0" in reason


def test_opaque_operators_join_nothing_and_have_no_family() -> None:
    b = GraphBuilder()
    b.unary(b.opaque(b.unary(b.input())))
    graph = b.build()
    assert edge_rule(graph, 0, 1)[0] is Rule.NEVER
    assert refusal(Group.of(graph, [0, 1])).rule == "opaque"
    assert refusal(Group.of(graph, [1])).rule == "opaque"


def test_a_set_that_waits_for_itself_is_refused_with_what_lies_between() -> None:
    b = GraphBuilder()
    a = b.unary(b.input(16, 16), "exp")
    m = b.matmul(a, columns=16)
    b.binary(a, m)
    found = refusal(Group.of(b.build(), [0, 2]))
    assert (found.rule, found.where) == ("convex", (1,))
    assert "matmul_1" in found.detail


def test_strangers_are_refused_and_siblings_are_not() -> None:
    b = GraphBuilder()
    x, y, shared = b.input(), b.input(), b.constant(1, 32)
    b.unary(x)
    b.unary(y)
    b.unary(x, "exp")
    b.binary(x, shared)
    b.binary(y, shared)
    graph = b.build()
    assert refusal(Group.of(graph, [0, 1])).rule == "connected"
    assert isinstance(check(Group.of(graph, [0, 2])), FakeElementwise)
    assert refusal(Group.of(graph, [3, 4])).rule == "connected"  # a shared constant is no bond


def test_limits() -> None:
    graph = chain(6)
    assert refusal(Group.of(graph, range(6)), max_group_size=5).rule == "size"
    b = GraphBuilder()
    x = b.input()
    for _ in range(5):
        x = b.binary(x, b.input())
    wide = b.build()
    assert refusal(Group.of(wide, range(5)), max_arguments=6).rule == "arguments"  # 6 inputs and 1 output
    assert isinstance(check(Group.of(wide, range(5)), max_arguments=7), FakeElementwise)


def test_a_single_operator_passes_whatever_its_size() -> None:
    b = GraphBuilder()
    b.concat([b.input(1, 16) for _ in range(100)])
    assert isinstance(check(Group.of(b.build(), [0]), max_arguments=48, max_group_size=1), FakeElementwise)


def test_only_cheap_operators_are_recomputed() -> None:
    b = GraphBuilder()
    e = b.unary(b.input(32, 32), "exp")
    s = b.reduce(e)
    b.unary(s)
    b.unary(s)
    b.binary(e, e)
    graph = b.build()
    out = {op.index: op.outputs[0] for op in graph.operators}
    assert not isinstance(check(Group(graph, (0, 1), (out[1],))), Refusal)  # exp, used by the last one too
    found = refusal(Group(graph, (1, 2), (out[2],)))
    assert (found.rule, found.where) == ("recompute", (1,))
    assert recomputable(graph.operators[0])
    assert not recomputable(graph.operators[1])


def test_what_nothing_uses_is_refused() -> None:
    b = GraphBuilder()
    x = b.input()
    b.unary(x)
    b.unary(x, "exp")
    graph = b.build()
    assert refusal(Group(graph, (0, 1), (graph.operators[0].outputs[0],))).rule == "outputs"
    assert refusal(Group(graph, (0,), (graph.operators[1].outputs[0],))).rule == "outputs"


def test_several_outputs_are_legal() -> None:
    b = GraphBuilder()
    y = b.matmul(b.input(32, 32))
    b.unary(y)
    b.matmul(y)
    group = Group.of(b.build(), [0, 1])
    assert len(group.outputs) == 2
    assert isinstance(check(group), FakeAnchor)


def test_the_first_family_that_matches_is_taken_else_the_most_specific_refusal() -> None:
    b = GraphBuilder()
    b.matmul(b.unary(b.input(32, 32)))
    group = Group.of(b.build(), [0, 1])
    found = refusal(group)
    assert found.where != group.members  # names the operator that is in the way
    both = check_group(Group.of(group.graph, [0]), hardware=HARDWARE, families=[FakeAnchor(), FakeElementwise()])
    assert isinstance(both, FakeElementwise)
    none = check_group(group, hardware=HARDWARE, families=())
    assert isinstance(none, Refusal)
    assert none.rule == "family"


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs(max_operators=10, opaque=True))
def test_structure_agrees_with_the_definitions(graph: Graph) -> None:
    """Every set of up to three operators: convex by paths, connected by edges or shared inputs."""

    def reaches(a: int, b: int) -> bool:
        return a == b or any(reaches(s, b) for s in graph.successors[a])

    for size in (2, 3):
        for members in itertools.combinations(range(len(graph.operators)), size):
            group = Group.of(graph, members)
            outside = [
                v
                for v in range(len(graph.operators))
                if v not in members and any(reaches(a, v) for a in members) and any(reaches(v, b) for b in members)
            ]
            assert list(bits(convex_hull(graph, group.mask) & ~group.mask)) == outside
            found = check_structure(group, max_arguments=99, max_group_size=99)
            if outside:
                assert found is not None
            elif found is None:
                assert all(op.fusable for op in group.operators)
                for a, b in itertools.product(members, members):
                    if b in graph.successors[a]:
                        assert edge_rule(graph, a, b)[0] is not Rule.NEVER
