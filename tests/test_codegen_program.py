"""Kernels put in order and into a program: calls outside groups, views, weights, outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from codegen_cases import TARGET, alone, analysed_model, of_kind, program_of, run_executable, taken
from frontend_graphs import model, node, random_inputs, run_onnxruntime, weights

from autofuse.codegen.build import build_program
from autofuse.codegen.describe import describe_kernels
from autofuse.codegen.kernels import KernelBuilder
from autofuse.codegen.program import Program, order_kernels
from autofuse.compiler import Analysed
from autofuse.graph.model import Graph, Group, Operator, Role, Tensor
from autofuse.search.problem import Choice


def singles(analysed: Analysed) -> tuple[list[Any], list[int]]:
    """A kernel for every operator that is a tensor program, and the others."""
    builder = KernelBuilder(analysed.fuser, analysed.hardware, alone(analysed))
    fusable = [op.index for op in analysed.graph.operators if op.fusable]
    opaque = [op.index for op in analysed.graph.operators if not op.fusable]
    return builder.kernels([taken(analysed, [i]) for i in fusable]), opaque


def check(source: Any) -> tuple[Analysed, Program]:
    """Every operator alone, built, run and compared with ONNX Runtime."""
    analysed = analysed_model(source)
    program = program_of(analysed, *singles(analysed))
    arrays = random_inputs(analysed.prepared)
    ours = run_executable(program, build_program(program.module, TARGET), arrays)
    theirs = run_onnxruntime(source, analysed.prepared, arrays)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(mine, other, atol=1e-5)
    return analysed, program


def hand_made(count: int, edges: list[tuple[int, int]]) -> Graph:
    """`count` operators, tensor i + 1 made by operator i; operators without a producer read tensor 0."""
    tensors = [Tensor(0, "x", (4,), role=Role.INPUT), *(Tensor(i + 1, f"t{i}", (4,)) for i in range(count))]
    operators = [
        Operator(i, f"op{i}", "add", "add", tuple(a + 1 for a, b in edges if b == i) or (0,), (i + 1,))
        for i in range(count)
    ]
    return Graph("hand", tuple(tensors), tuple(operators), (0,), (count,))


def kernel(graph: Graph, members: list[int], outputs: list[int] | None = None) -> Any:
    return SimpleNamespace(assignment=SimpleNamespace(group=Group.of(graph, members, outputs)))


def test_kernels_run_after_what_they_read() -> None:
    graph = hand_made(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    kernels = [kernel(graph, [i]) for i in (3, 2, 1, 0)]
    ordered = order_kernels(kernels, [], graph)
    assert [k.assignment.group.members for k in ordered] == [(0,), (1,), (2,), (3,)]


def test_a_late_member_does_not_hold_up_what_other_groups_need() -> None:
    # The group {1, 3} reads what operator 2 makes; operator 2 does not depend on it although it comes later.
    graph = hand_made(4, [(0, 1), (1, 3), (2, 3)])
    ordered = order_kernels([kernel(graph, [0, 1, 3]), kernel(graph, [2])], [], graph)
    assert [k.assignment.group.members for k in ordered] == [(2,), (0, 1, 3)]


def test_groups_that_wait_for_each_other_are_refused() -> None:
    graph = hand_made(4, [(0, 1), (1, 2), (0, 3), (2, 3)])
    with pytest.raises(ValueError, match="cycle"):
        order_kernels([kernel(graph, [0, 2]), kernel(graph, [1]), kernel(graph, [3])], [], graph)


def test_a_kernel_that_makes_nothing_new_is_left_out() -> None:
    graph = hand_made(3, [(0, 1), (0, 2), (1, 2)])
    ordered = order_kernels([kernel(graph, [0, 1], [1, 2]), kernel(graph, [0], [1]), kernel(graph, [2])], [], graph)
    assert [k.assignment.group.members for k in ordered] == [(0, 1), (2,)]


def test_calls_without_a_tensor_program_stand_between_kernels() -> None:
    analysed, program = check(
        model(
            [
                node("Conv", ["x", "w"], ["a"]),
                node("Relu", ["a"], ["b"]),
                node("Flatten", ["b"], ["c"]),
                node("TopK", ["c", "k"], ["values", "places"], axis=1),
                node("CumSum", ["values", "axis"], ["sums"]),
                node("Neg", ["sums"], ["y"]),
            ],
            {"x": [2, 3, 4, 4]},
            ["y", "places"],
            {"w": weights(8, 3, 1, 1), "k": np.int64([5]), "axis": np.int64(1)},
        )
    )
    numbers = [unit for unit in program.units if isinstance(unit, int)]
    assert [analysed.graph.operators[i].kind for i in numbers] == ["topk", "cumsum"]
    assert program.kernels == len(program.units) - len([u for u in program.units if getattr(u, "func", 0) is None])


def test_views_cost_no_kernel() -> None:
    analysed, program = check(
        model(
            [
                node("Exp", ["x"], ["a"]),
                node("Reshape", ["a", "flat"], ["b"]),
                node("Neg", ["b"], ["c"]),
                node("Reshape", ["c", "wide"], ["y"]),
            ],
            {"x": [2, 3, 4]},
            ["y"],
            {"flat": np.int64([6, 4]), "wide": np.int64([3, 8])},
        )
    )
    assert len(of_kind(analysed, "reshape")) == 2
    assert program.kernels == 2


def test_a_part_of_a_tensor_is_no_view() -> None:
    analysed, program = check(
        model(
            [node("Slice", ["x", "begin", "end", "axes"], ["a"]), node("Exp", ["a"], ["y"])],
            {"x": [6, 4]},
            ["y"],
            {"begin": np.int64([1]), "end": np.int64([4]), "axes": np.int64([0])},
        )
    )
    assert len(of_kind(analysed, "strided_slice")) == 1
    assert program.kernels == 2


def test_weights_are_parameters_and_shared_ones_are_passed_once() -> None:
    shared = weights(6, 6)
    _, program = check(
        model(
            [
                node("MatMul", ["x", "w"], ["a"]),
                node("Add", ["a", "v"], ["b"]),
                node("MatMul", ["b", "w"], ["c"]),
                node("Add", ["c", "v"], ["y"]),
            ],
            {"x": [5, 6]},
            ["y"],
            {"w": shared, "v": weights(6, seed=3)},
        )
    )
    assert len(program.weights) == 2
    main = program.module["main"]
    assert len(main.params) == 1 + len(program.weights)
    assert "constant" not in main.script(show_meta=False).replace("autofuse", "")
    assert int(main.attrs["num_input"]) == 1


def test_inputs_and_constants_may_be_outputs() -> None:
    analysed = analysed_model(
        model([node("Relu", ["x"], ["y"]), node("Identity", ["x"], ["z"])], {"x": [2, 3]}, ["y", "z"])
    )
    program = program_of(analysed, *singles(analysed))
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    y, z = run_executable(program, build_program(program.module, TARGET), [x])
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(z, x)


def test_kernels_are_described_with_what_was_predicted_for_them() -> None:
    analysed, program = check(
        model(
            [
                node("Conv", ["x", "w"], ["a"]),
                node("Flatten", ["a"], ["b"]),
                node("TopK", ["b", "k"], ["y", "places"], axis=1),
            ],
            {"x": [1, 16, 4, 4]},
            ["y", "places"],
            {"w": weights(16, 16, 1, 1), "k": np.int64([2])},
        )
    )
    (convolution,) = of_kind(analysed, "nn.conv2d")
    found = taken(analysed, [convolution])
    choices = [Choice(found.group, 3e-6, found.family.name, found.config.text, "record")]
    entries = describe_kernels(program, analysed.graph, choices, analysed.hardware)
    assert len(entries) == program.kernels
    (entry,) = [e for e in entries if e["label"] == "conv2d"]
    assert (entry["predicted_ms"], entry["source"]) == (pytest.approx(3e-3), "record")
    assert entry["flops"] == 2 * 16 * 16 * 4 * 4
    assert entry["bytes"] == 4 * (16 * 16 + 256 + 16 * 16)
    assert (entry["executed"], entry["weight_bytes"]) == (entry["flops"], 4 * 256)
    assert [e["name"] for e in entries if e["label"] == "topk"] == [""]
    assert all(e["predicted_ms"] is None for e in entries if e["label"] != "conv2d")
