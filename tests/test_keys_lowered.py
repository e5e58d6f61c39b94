"""Workload keys and work of real networks: independent of the vector width that the lowering was made for.

But for channels that were shuffled and are moved into weights: in which order they lie depends on the blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest

pytest.importorskip("tvm")
from autofuse.frontend import prepare
from autofuse.graph.build import build_graph
from autofuse.graph.keys import workload_key
from autofuse.graph.model import Graph, Group, MappingType, Operator
from autofuse.lower import lower


@pytest.fixture(scope="module", params=["mobilenet_v2", "shufflenet_v2"])
def graphs(request: pytest.FixtureRequest) -> tuple[Graph, Graph]:
    """The same network lowered for vectors of 8 and of 16."""
    prepared = prepare(request.param)
    narrow, wide = (build_graph(lower(prepared, lanes).module, request.param).graph for lanes in (8, 16))
    return narrow, wide


@pytest.fixture(scope="module")
def unshuffled() -> tuple[Graph, Graph]:
    """A network without channel shuffles, whose convolutions keep their channels, for vectors of 8 and of 16."""
    prepared = prepare("mobilenet_v2")
    narrow, wide = (build_graph(lower(prepared, lanes).module, "mobilenet_v2").graph for lanes in (8, 16))
    return narrow, wide


def test_the_whole_network_has_one_key(unshuffled: tuple[Graph, Graph]) -> None:
    keys = {workload_key(Group.of(g, range(len(g.operators)), g.outputs)) for g in unshuffled}
    assert len(keys) == 1


def test_operators_alone_have_the_same_keys(unshuffled: tuple[Graph, Graph]) -> None:
    def keys(graph: Graph) -> list[str]:
        moved = {op.index for op in graph.operators if op.kind == "layout_change"}
        return sorted(workload_key(Group.of(graph, [op.index])) for op in graph.operators if op.index not in moved)

    narrow, wide = map(keys, unshuffled)
    assert narrow == wide
    # Blocks repeat, and their operators share keys: that is what records are reused by.
    assert len(set(narrow)) < len(narrow) // 2


def test_keys_differ_only_where_channels_were_moved_into_weights(graphs: tuple[Graph, Graph]) -> None:
    """How channels lie in whole blocks depends on the blocks; what has nothing to do with shuffled ones is the same."""

    def keys(graph: Graph) -> Counter[tuple[str, str]]:
        operators = [op for op in graph.operators if op.kind != "layout_change"]
        return Counter((op.kind, workload_key(Group.of(graph, [op.index]))) for op in operators)

    narrow, wide = map(keys, graphs)
    apart = Counter(kind for kind, _ in (narrow - wide).elements())
    moved = {"nn.conv2d", "nn.relu", "add", "concat", "strided_slice"} if graphs[0].name == "shufflenet_v2" else set()
    assert set(apart) == moved
    for kind in moved - {"concat", "strided_slice"}:
        assert apart[kind] < sum(1 for op in graphs[0].operators if op.kind == kind) / 2, kind


def test_every_operator_is_followed_and_convolutions_are_many_to_many(graphs: tuple[Graph, Graph]) -> None:
    for graph in graphs:
        assert all(op.fusable for op in graph.operators)
        for op in graph.operators:
            if op.kind == "nn.conv2d":
                assert op.mapping is MappingType.MANY_TO_MANY
                assert op.work.fma == op.work.flops // 2 > 0


def logical_multiply_adds(graph: Graph, op: Operator) -> int:
    """By the definition of the operator, on the shapes that the model has."""
    data, weight = (graph.tensors[t].logical_shape for t in op.inputs)
    each = math.prod(weight[1:]) if op.kind == "nn.conv2d" else data[-1]
    return math.prod(graph.tensors[op.outputs[0]].logical_shape) * each


def test_multiply_adds_match_the_published_count(graphs: tuple[Graph, Graph]) -> None:
    published = {"mobilenet_v2": 300.8e6, "shufflenet_v2": 145e6}
    # Convolutions that take the place of channel shuffles read whole blocks, some channels of which meet zeros.
    blocks = {"mobilenet_v2": (0.0, 0.0), "shufflenet_v2": (0.07, 0.15)}
    for graph, more in zip(graphs, blocks[graphs[0].name], strict=True):
        total = sum(logical_multiply_adds(graph, op) for op in graph.operators if op.work.fma)
        assert 0.99 <= total / published[graph.name] <= 1.01 + more


def test_work_exceeds_the_model_by_the_zero_channels_of_blocks_alone(graphs: tuple[Graph, Graph]) -> None:
    for graph, lanes in zip(graphs, (8, 16), strict=True):
        for op in graph.operators:
            if op.kind != "nn.conv2d":
                continue
            (_, channels, *_), (out_channels, per_group, *_) = (graph.tensors[t].logical_shape for t in op.inputs)
            padding = Fraction(-(-out_channels // lanes) * lanes, out_channels)
            # The image has too few channels to be blocked, and a depthwise convolution sums over none.
            if per_group == channels > 3:
                padding *= Fraction(-(-channels // lanes) * lanes, channels)
            assert op.work.fma == logical_multiply_adds(graph, op) * padding, op.name
