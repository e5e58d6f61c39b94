"""Growth around operators of repeated blocks: the same groups as if each were grown by itself, with less work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import GraphBuilder, graphs
from search_fakes import FAMILIES

from autofuse.graph.model import Graph
from autofuse.search import candidates
from autofuse.search.candidates import GroupEnumerator
from autofuse.search.judge import LegalGroup
from autofuse.search.problem import Thresholds
from autofuse.search.repeats import Looked, Repeats
from autofuse.target.hardware import Hardware

ENDS = st.sampled_from(["", "", "", "more", "out", "wide"])


def repeated(block: Graph, ends: Sequence[str]) -> Graph:
    """Copies of a graph, one after another: each reads a result of the one before, and all read one value from the
    start. How a copy ends: "" as it is, "more" with one operator more, "out" with a result that the graph gives too,
    "wide" with a concat of many parts."""
    b = GraphBuilder("repeated")
    x = b.input(16, 32)
    shared = b.unary(b.input(16, 32), "exp")
    given = []
    for end in ends:
        place: dict[int, int] = dict(zip(block.inputs, [x, *[shared] * (len(block.inputs) - 1)], strict=True))
        for op in block.operators:
            inputs = [place[t] if t in place else b.constant(*block.tensors[t].shape) for t in op.inputs]
            (out,) = op.outputs
            mappings = [a.mapping for a in op.accesses]
            shape = block.tensors[out].shape
            place[out] = b.operator(op.kind, inputs, mappings, shape, reduction=op.reduction, work=op.work)
        results = [place[t] for op in block.operators for t in op.outputs if b.shape(place[t]) == (16, 32)]
        if results:
            x = results[-1]
        if end == "more":
            x = b.binary(x, shared)
        if end == "out":
            given.append(results[0] if results else x)
        if end == "wide":
            b.concat([b.unary(x if k % 2 else shared, "exp" if k % 3 else "negative") for k in range(8)])
    return b.build([t for t in given if t not in b.inputs])


def enumerated(graph: Graph, thresholds: Thresholds) -> tuple[list[LegalGroup], dict[str, int]]:
    enumerator = GroupEnumerator(graph, hardware=Hardware(), families=FAMILIES, thresholds=thresholds)
    return enumerator.run(), enumerator.pruned


def each_by_itself(graph: Graph, thresholds: Thresholds) -> tuple[list[LegalGroup], dict[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repeats, "find", lambda *_: None)
        return enumerated(graph, thresholds)


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs(max_operators=9), st.lists(ENDS, min_size=2, max_size=6), st.data())
def test_repeated_blocks_give_the_groups_that_each_would_give(
    block: Graph, ends: list[str], data: st.DataObject
) -> None:
    graph = repeated(block, ends)
    thresholds = Thresholds(
        groups_per_operator=data.draw(st.sampled_from([6, 256, 256])),
        max_group_size=data.draw(st.sampled_from([4, 9, 64])),
        max_arguments=data.draw(st.sampled_from([4, 48])),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "_POOL", data.draw(st.sampled_from([5, 12, 40, 4096])))
        patch.setattr(candidates, "_USUAL_BUDGET", 6)
        patch.setattr(candidates, "_LEAST_BUDGET", 2)
        assert enumerated(graph, thresholds) == each_by_itself(graph, thresholds)


def layers(count: int) -> Graph:
    """Products with a softmax's reductions after them; every layer adds the same mask."""
    b = GraphBuilder("layers")
    mask = b.unary(b.input(16, 32), "exp")
    x = b.input(16, 32)
    for _ in range(count):
        scores = b.binary(b.matmul(x), mask)
        spread = b.unary(b.binary(scores, b.reduce(scores, "max"), "subtract"), "exp")
        x = b.binary(b.binary(spread, b.reduce(spread), "divide"), x)
    return b.build()


def test_layers_further_on_are_not_grown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    find = Repeats.find

    def counted(self: Repeats, seed: int, within: int, budget: int) -> Looked | None:
        known = find(self, seed, within, budget)
        if known is not None:
            again.append(seed)
        return known

    monkeypatch.setattr(Repeats, "find", counted)
    graph = layers(12)
    enumerated(graph, Thresholds(max_group_size=12))
    assert len(again) > len(graph.operators) // 2


def test_an_operator_whose_result_is_an_output_is_unlike_its_counterparts() -> None:
    graph = layers(6)
    result = graph.operators[20].outputs[0]
    marked = replace(graph, outputs=(*graph.outputs, result))
    found = enumerated(marked, Thresholds())
    assert found == each_by_itself(marked, Thresholds())
    whole = [f.group for f in found[0] if f.whole and 20 in f.group.members]
    assert whole
    assert all(result in group.outputs for group in whole)


@pytest.mark.parametrize(
    ("straight", "used", "same", "other"),
    [
        (10, 30, (48, 31, 100), (30, 20)),  # neither part ran out, nor would with these
        (10, 48, (48,), (47, 49, 100)),  # the budget ran out: more would have been looked at
        (24, 40, (48,), (47, 60, 100)),  # its first half did, straight on
        (20, 30, (48, 42, 100), (41, 40)),  # half of what is there is too little to go straight on as far
    ],
)
def test_what_was_looked_at_serves_another_budget_only_where_neither_would_run_out(
    straight: int, used: int, same: tuple[int, ...], other: tuple[int, ...]
) -> None:
    looked = Looked(0, 0, 0, 0, [], budget=48, straight=straight, used=used, cut=used == 48)
    assert [looked.fits(budget) for budget in same] == [True] * len(same)
    assert [looked.fits(budget) for budget in other] == [False] * len(other)
