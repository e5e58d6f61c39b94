"""Groups through FuseTIR: what their functions share, take and compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from codegen_cases import analysed_model, of_kind, run_function
from frontend_graphs import model, node

from autofuse.codegen.fuse_ops import fuse_ops_partition
from autofuse.compiler import Analysed
from autofuse.graph.model import Group


@pytest.fixture(scope="module")
def chain() -> Analysed:
    """a = -x; b = a + a; c = tanh(b); y1 = b * a; y2 = c."""
    return analysed_model(
        model(
            [
                node("Neg", ["x"], ["a"]),
                node("Add", ["a", "a"], ["b"]),
                node("Tanh", ["b"], ["y2"]),
                node("Mul", ["b", "a"], ["y1"]),
            ],
            {"x": [3, 5]},
            ["y1", "y2"],
        )
    )


def run(analysed: Analysed, group: Group, values: dict[int, np.ndarray]) -> list[np.ndarray]:
    """The group's outputs; `values` by operator index: what it makes, -1 for the model's input."""
    graph = analysed.graph
    made = {t: op.index for op in graph.operators for t in op.outputs}
    inputs = [values[made.get(t, -1)] for t in group.inputs]
    return run_function(analysed.fuser.fuse(group), inputs, [graph.tensors[t].shape for t in group.outputs])


def test_equal_groups_share_a_function_and_take_their_weights_as_parameters(branches: Analysed) -> None:
    convolutions, relus = of_kind(branches, "nn.conv2d"), of_kind(branches, "nn.relu")
    groups = [Group.of(branches.graph, pair) for pair in zip(convolutions, relus, strict=True)]
    functions = [branches.fuser.fuse(g) for g in groups]
    assert groups[0].inputs != groups[1].inputs
    assert functions[0].same_as(functions[1])
    assert len(functions[0].params) == 3  # data, weight, result


def test_a_different_wiring_is_a_different_function() -> None:
    found = analysed_model(
        model(
            [
                node("Sub", ["x", "z"], ["a"]),
                node("Sub", ["a", "z"], ["b"]),
                node("Sub", ["z", "x"], ["c"]),
                node("Sub", ["z", "c"], ["d"]),
                node("Add", ["b", "d"], ["y"]),
            ],
            {"x": [4], "z": [4]},
            ["y"],
        )
    )
    graph = found.graph
    first, third = (
        next(op.index for op in graph.operators if op.inputs == pair) for pair in (graph.inputs, graph.inputs[::-1])
    )
    left, right = (Group.of(graph, [start, *graph.successors[start]]) for start in (first, third))
    assert found.fuser.structure(left) != found.fuser.structure(right)
    x, z = np.float32([1, 2, 3, 4]), np.float32([5, 7, 11, 13])
    names = {found.graph.inputs[0]: x, found.graph.inputs[1]: z}
    for group, answer in ((left, x - z - z), (right, z - (z - x))):
        (result,) = run_function(found.fuser.fuse(group), [names[t] for t in group.inputs], [(4,)])
        np.testing.assert_array_equal(result, answer)


def test_one_tensor_read_twice_is_one_parameter(chain: Analysed) -> None:
    (add,) = of_kind(chain, "add")
    group = Group.of(chain.graph, [add])
    a = np.arange(15, dtype="float32").reshape(3, 5)
    assert len(group.inputs) == 1
    (negative,) = of_kind(chain, "negative")
    (result,) = run(chain, group, {negative: a})
    np.testing.assert_array_equal(result, a + a)


def test_a_group_writes_every_tensor_that_is_used_outside(chain: Analysed) -> None:
    (negative,), (add,) = of_kind(chain, "negative"), of_kind(chain, "add")
    group = Group.of(chain.graph, [negative, add])
    assert len(group.outputs) == 2
    x = np.arange(15, dtype="float32").reshape(3, 5)
    a, b = run(chain, group, {-1: x})
    np.testing.assert_array_equal(a, -x)
    np.testing.assert_array_equal(b, -2 * x)


def test_a_recomputed_producer_is_not_written(chain: Analysed) -> None:
    (negative,), (add,) = of_kind(chain, "negative"), of_kind(chain, "add")
    wanted = chain.graph.operators[add].outputs
    group = Group.of(chain.graph, [negative, add], wanted)
    x = np.arange(15, dtype="float32").reshape(3, 5)
    assert chain.fuser.structure(group) != chain.fuser.structure(Group.of(chain.graph, [negative, add]))
    (b,) = run(chain, group, {-1: x})
    np.testing.assert_array_equal(b, -2 * x)


def test_a_whole_graph_with_two_outputs_in_one_function(chain: Analysed) -> None:
    group = Group.of(chain.graph, range(len(chain.graph.operators)))
    x = np.linspace(-1, 1, 15, dtype="float32").reshape(3, 5)
    results = run(chain, group, {-1: x})
    kinds = [chain.graph.operators[chain.graph.producer[t]].kind for t in group.outputs]
    answers: dict[str, Any] = {"multiply": 2 * x * x, "tanh": np.tanh(-2 * x)}
    for kind, result in zip(kinds, results, strict=True):
        np.testing.assert_allclose(result, answers[kind], atol=1e-6)


def test_the_greedy_partition_holds_every_kernel_once(branches: Analysed) -> None:
    partition = fuse_ops_partition(branches.lowered.module, branches.built)
    assert sorted(i for group in partition for i in group) == [op.index for op in branches.graph.operators]
    assert len(partition) < len(branches.graph.operators)
    for members in partition:
        producers = {p for m in members for p in branches.graph.predecessors[m]} - set(members)
        descendants = 0
        for m in members:
            descendants |= branches.graph.descendants[m]
        assert not any(descendants >> p & 1 for p in producers), "not convex"


def test_the_greedy_partition_leaves_calls_without_a_tensor_program_out() -> None:
    found = analysed_model(
        model(
            [
                node("Relu", ["x"], ["a"]),
                node("TopK", ["a", "k"], ["b", "i"], axis=1),
                node("Neg", ["b"], ["c"]),
                node("Exp", ["c"], ["d"]),
                node("Add", ["d", "b"], ["y"]),
            ],
            {"x": [2, 9]},
            ["y", "i"],
            {"k": np.int64([4])},
        )
    )
    partition = fuse_ops_partition(found.lowered.module, found.built)
    fusable = [op.index for op in found.graph.operators if op.fusable]
    assert sorted(i for group in partition for i in group) == fusable
    assert len(fusable) < len(found.graph.operators)
    assert max(len(group) for group in partition) == 3


def test_weights_are_counted_as_inputs_of_the_group(branches: Analysed) -> None:
    convolution = of_kind(branches, "nn.conv2d")[0]
    group = Group.of(branches.graph, [convolution])
    shapes = [branches.graph.tensors[t].shape for t in group.inputs]
    lanes = branches.hardware.lanes
    block = lanes if lanes <= 8 else 1  # of an input with fewer channels than lanes, channels are read one at a time
    assert shapes[1] == (-(-8 // lanes), 8 // block, 3, 3, block, lanes)
