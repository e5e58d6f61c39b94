"""The order in which kernels are measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from plain_groups import PlainCosts, chain, graph
from replayed_kernels import item

from autofuse.graph.model import Group
from autofuse.measure import in_order
from autofuse.measure.order import most_useful
from autofuse.records import Identity


class TestOrder:
    def test_planned_groups_come_first_then_what_saves_most(self) -> None:
        g = graph(["a", "b", "c"])
        singles = [Group.of(g, [i]) for i in range(3)]
        pair, triple = Group.of(g, [0, 1]), Group.of(g, [0, 1, 2])

        class Costs(PlainCosts):
            def costs(self, candidates):  # type: ignore[no-untyped-def]
                table = {(0,): 5e-3, (1,): 1e-3, (2,): 2e-3, (0, 1): 5.5e-3, (0, 1, 2): 4e-3}
                return np.array([table[c.group.members] for c in candidates])

        given = [item(pair), item(triple), *(item(s, planned=i == 2) for i, s in enumerate(singles))]
        ordered = [i.candidate.group.members for i in in_order(given, Costs())]
        assert ordered == [(2,), (0, 1, 2), (0, 1), (0,), (1,)]

    def test_other_groups_come_before_a_groups_last_configurations(self) -> None:
        groups = [chain(["a", "b"]), chain(["c", "d"])]
        given = [item(g, scale, planned=True) for g in groups for scale in (1, 1, 1)]
        ordered = [i.key for i in in_order(given, PlainCosts())]
        assert ordered == ["a-b", "c-d", "a-b", "c-d", "a-b", "c-d"]

    def test_the_most_useful_are_the_first_different_ones(self) -> None:
        groups = [chain(["a", "b"]), chain(["c", "d"])]
        given = [item(g, scale, planned=g is groups[1]) for g in groups for scale in (1, 2, 3)]
        ordered = in_order([*given, given[3]], PlainCosts())  # one of them twice
        first = most_useful([*given, given[3]], PlainCosts(), 2, lambda asked: [False] * len(asked))
        assert first == ordered[: len(first)] and {i.key for i in first} == {"c-d"}
        assert len({i.candidate.config for i in first}) == 2
        assert most_useful(given, PlainCosts(), 6, lambda asked: [False] * len(asked)) == in_order(given, PlainCosts())

    def test_what_plans_use_comes_first_whatever_else_a_dear_group_could_have(self) -> None:
        groups = [chain(["a", "b", "c"]), chain(["d"])]
        given = [item(g, scale, planned=True, used=scale == 3) for g in groups for scale in (1, 2, 3)]
        ordered = in_order(given, PlainCosts())
        assert [(i.key, i.candidate.config.text) for i in ordered[:2]] == [("a-b-c", "scale=3"), ("d", "scale=3")]

    def test_what_plans_use_is_never_left_out(self) -> None:
        groups = [chain([a]) for a in "abcd"]
        given = [item(g, scale, used=scale == 2) for g in groups for scale in (1, 2)]
        for known in (set[str](), {"a", "b"}):
            chosen = most_useful(
                given, PlainCosts(), 1, lambda asked, known=known: [i.workload in known for i in asked]
            )
            assert {i.key for i in chosen if i.used} == {"a", "b", "c", "d"}
            assert all(i.used or i.key in known for i in chosen)

    def test_what_is_measured_already_counts_among_the_most_useful(self) -> None:
        groups = [chain(["a", "b"]), chain(["c", "d"])]
        given = [item(g, scale, planned=g is groups[1]) for g in groups for scale in (1, 2, 3)]

        def known(asked: Sequence[Identity]) -> list[bool]:
            return [i.workload == "a-b" and i.config != "scale=3" for i in asked]

        for most, keys in ((1, ["a-b"] * 2), (2, ["a-b"] * 2), (4, ["a-b"] * 2 + ["c-d"] * 2)):
            assert sorted(i.key for i in most_useful(given, PlainCosts(), most, known)) == keys

    def test_asks_for_all_costs_at_once_and_loses_nothing(self) -> None:
        costs = PlainCosts()
        given = [item(chain(["a"]), s) for s in (1, 2, 3)]
        assert sorted(i.candidate.config.text for i in in_order(given, costs)) == ["scale=1", "scale=2", "scale=3"]
        assert costs.asked == [3]
