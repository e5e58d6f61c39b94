"""Right outputs by numpy: those of ONNX Runtime for whole models, those of the unscheduled loops as stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from codegen_cases import analysed_model, run_function
from frontend_graphs import model, node, random_inputs, run_onnxruntime, weights
from hypothesis import given, settings
from random_networks import small_networks

from autofuse.compiler import Analysed
from autofuse.graph.model import Group
from autofuse.measure.kernels import by_definition
from autofuse.measure.oracle import _KINDS, Definition, NotEvaluated, evaluate


def whole(analysed: Analysed, arrays: list[np.ndarray], define: Definition | None = None) -> list[np.ndarray]:
    """The model's outputs: all of its operators as one group."""
    graph = analysed.graph
    group = Group.of(graph, range(len(graph.operators)), graph.outputs)
    given_ = dict(zip(graph.inputs, arrays, strict=True))
    values = [given_[t] if t in given_ else analysed.constants[t].numpy() for t in group.inputs]
    found = dict(zip(group.outputs, evaluate(group, values, define), strict=True))
    return [found[t] for t in graph.outputs]


def same_as_onnxruntime(source: Any, arrays: list[np.ndarray] | None = None, defined: bool = False) -> None:
    """`defined`: operators that numpy has no form of are computed by their definitions."""
    analysed = analysed_model(source)
    given_ = random_inputs(analysed.prepared) if arrays is None else arrays
    expected = run_onnxruntime(source, analysed.prepared, given_)
    define = partial(by_definition, analysed) if defined else None
    for ours, theirs in zip(whole(analysed, given_, define), expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= 2e-5 * max(1.0, float(np.abs(theirs).max()))


@settings(max_examples=25, deadline=None)
@given(small_networks())
def test_convolutional_networks(source: Any) -> None:
    same_as_onnxruntime(source)


def attention(length: int, heads: int, width: int) -> Any:
    """Gather, layer norm, packed and batched products, softmax with a mask, split and merged heads."""
    size = heads * width
    shape = np.array([1, length, heads, width])
    return model(
        [
            node("Gather", ["table", "ids"], ["x"]),
            node("LayerNormalization", ["x", "gamma", "beta"], ["n"], axis=-1, epsilon=1e-5),
            node("MatMul", ["n", "wq"], ["q0"]),
            node("Reshape", ["q0", "split"], ["q1"]),
            node("Transpose", ["q1"], ["q"], perm=[0, 2, 1, 3]),
            node("Reshape", ["n", "split"], ["k1"]),
            node("Transpose", ["k1"], ["k"], perm=[0, 2, 3, 1]),
            node("Transpose", ["k1"], ["v"], perm=[0, 2, 1, 3]),
            node("MatMul", ["q", "k"], ["s0"]),
            node("Where", ["mask", "s0", "low"], ["s"]),
            node("Softmax", ["s"], ["p"], axis=-1),
            node("MatMul", ["p", "v"], ["a0"]),
            node("Transpose", ["a0"], ["a1"], perm=[0, 2, 1, 3]),
            node("Reshape", ["a1", "merged"], ["a"]),
            node("Erf", ["a"], ["e"]),
            node("Add", ["x", "e"], ["y"]),
        ],
        {"ids": ([1, length], 7)},
        ["y"],
        {
            "table": weights(11, size),
            "gamma": weights(size, seed=1),
            "beta": weights(size, seed=2),
            "wq": weights(size, size, seed=3),
            "split": shape,
            "merged": np.array([1, length, size]),
            "mask": np.tril(np.ones((1, 1, length, length), bool)),
            "low": np.array(-1e9, np.float32),
        },
    )


def test_transformer_block() -> None:
    same_as_onnxruntime(attention(5, 2, 9), [np.array([[0, 10, 3, 3, 7]], np.int64)])


def pyramid() -> Any:
    """Channels that no block divides, through everything that counts channels."""
    return model(
        [
            node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
            node("LeakyRelu", ["a"], ["b"], alpha=0.1),
            node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1], group=13),
            node("Clip", ["c", "zero", "six"], ["d"]),
            node("Resize", ["d", "", "scales"], ["up"], mode="nearest", coordinate_transformation_mode="asymmetric",
                 nearest_mode="floor"),
            node("Concat", ["up", "x"], ["e"], axis=1),
            node("Slice", ["e", "begin", "end", "axis"], ["f"]),
            node("Conv", ["f", "w3"], ["g"], group=3),
            node("AveragePool", ["g"], ["h"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
            node("ReduceMean", ["h", "rows"], ["m"], keepdims=1),
            node("Mul", ["h", "m"], ["y"]),
        ],
        {"x": [2, 5, 8, 8]},
        ["y"],
        {
            "w1": weights(13, 5, 3, 3),
            "w2": weights(13, 1, 3, 3),
            "w3": weights(6, 3, 1, 1),
            "zero": np.array(0, np.float32),
            "six": np.array(6, np.float32),
            "scales": np.array([1, 1, 2, 2], np.float32),
            "begin": np.array([6]),
            "end": np.array([15]),
            "axis": np.array([1]),
            "rows": np.array([2, 3]),
        },
    )  # fmt: skip


def test_channels_that_no_block_divides() -> None:
    same_as_onnxruntime(pyramid())


def test_every_stored_element_is_that_of_the_unscheduled_loops() -> None:
    # Padding channels too, and whatever stands in the padding of the inputs: a kernel is compared as it stores.
    analysed = analysed_model(pyramid())
    graph = analysed.graph
    rng = np.random.default_rng(0)
    compared = 0
    for op in graph.operators:
        if not op.fusable:
            continue
        group = Group.of(graph, [op.index])
        inputs = [rng.standard_normal(graph.tensors[t].shape).astype("float32") for t in group.inputs]
        (expected,) = run_function(
            analysed.fuser.fuse(group).with_attr("global_symbol", "main"),
            inputs,
            [graph.tensors[group.outputs[0]].shape],
        )
        (ours,) = evaluate(group, inputs)
        assert np.abs(ours - expected).max() <= 2e-5 * max(1.0, float(np.abs(expected).max())), op.kind
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize(
    ("channels", "outputs", "groups"), [(16, 16, 4), (8, 16, 8), (24, 24, 2), (20, 30, 5), (16, 8, 4)]
)
def test_grouped_convolutions(channels: int, outputs: int, groups: int) -> None:
    """Groups that do not fill blocks."""
    same_as_onnxruntime(
        model(
            [node("Conv", ["x", "w"], ["y"], group=groups, pads=[1, 0, 1, 2], strides=[1, 2])],
            {"x": [2, channels, 5, 6]},
            ["y"],
            {"w": weights(outputs, channels // groups, 3, 3)},
        )
    )


@pytest.mark.parametrize(("channels", "outputs", "groups"), [(12, 20, 1), (16, 32, 2), (12, 12, 12)])
@pytest.mark.parametrize(
    "attributes", [{}, {"pads": [1, 1, 1, 1], "output_padding": [1, 1]}, {"pads": [2, 0, 1, 2]}, {"dilations": [2, 1]}]
)
def test_transposed_convolutions(channels: int, outputs: int, groups: int, attributes: dict[str, Any]) -> None:
    """Strides, padding, rows and columns that are added, groups."""
    same_as_onnxruntime(
        model(
            [node("ConvTranspose", ["x", "w"], ["y"], group=groups, strides=[2, 3], **attributes)],
            {"x": [2, channels, 3, 4]},
            ["y"],
            {"w": weights(channels, outputs // groups, 3, 4)},
        )
    )


@pytest.mark.parametrize(("size", "step"), [((12, 15), 3), ((9, 11), 2)])
def test_dilated_convolutions(size: tuple[int, int], step: int) -> None:
    """Those that are taken apart into an image for each phase."""
    same_as_onnxruntime(
        model(
            [node("Conv", ["x", "w"], ["y"], dilations=[step, step], pads=[step] * 4)],
            {"x": [2, 32, *size]},
            ["y"],
            {"w": weights(40, 32, 3, 3)},
        )
    )


@pytest.mark.parametrize(("channels", "groups"), [(32, 2), (32, 4), (32, 8), (20, 2)])
def test_group_normalisation(channels: int, groups: int) -> None:
    """In blocks, behind a convolution; of groups that fill blocks, and of others."""
    same_as_onnxruntime(
        model(
            [node("Conv", ["x", "w"], ["a"]), node("GroupNormalization", ["a", "g", "b"], ["y"], num_groups=groups)],
            {"x": [2, 8, 5, 6]},
            ["y"],
            {
                "w": weights(channels, 8, 1, 1),
                "g": np.linspace(0.5, 2, channels, dtype="float32"),
                "b": weights(channels),
            },
            opset=21,
        )
    )


def test_instance_normalisation() -> None:
    """Means and variances over the places of a channel, in blocks and in plain rows."""
    constants = {"g": np.linspace(0.5, 2, 12, dtype="float32"), "b": weights(12)}
    norm = node("InstanceNormalization", ["a", "g", "b"], ["y"])
    same_as_onnxruntime(
        model(
            [node("Conv", ["x", "w"], ["a"]), norm],
            {"x": [2, 8, 5, 6]},
            ["y"],
            {"w": weights(12, 8, 1, 1), **constants},
        )
    )
    same_as_onnxruntime(model([node("Relu", ["x"], ["a"]), norm], {"x": [2, 12, 9]}, ["y"], constants))


def test_functions_and_whole_numbers() -> None:
    same_as_onnxruntime(
        model(
            [
                node("Softplus", ["x"], ["a"]),
                node("Gelu", ["a"], ["b"]),
                node("Gelu", ["b"], ["c"], approximate="tanh"),
                node("Atan", ["c"], ["d"]),
                node("Round", ["x"], ["e"]),
                node("Sign", ["x"], ["f"]),
                node("Cast", ["x"], ["g"], to=6),
                node("Cast", ["g"], ["h"], to=1),
                node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
                node("DequantizeLinear", ["q", "scale", "zero"], ["r"]),
            ],
            {"x": [3, 7, 5]},
            ["d", "e", "f", "h", "q", "r"],
            {"scale": np.float32(0.013), "zero": np.int8(-7)},
            opset=20,
        ),
        [np.random.default_rng(0).normal(0, 3, (3, 7, 5)).astype("float32")],
    )


def test_scales_of_each_channel_are_not_known() -> None:
    source = model(
        [node("QuantizeLinear", ["x", "scales", "zeros"], ["y"], axis=1)],
        {"x": [1, 3, 4, 4]},
        ["y"],
        {"scales": np.float32([0.1, 0.2, 0.3]), "zeros": np.uint8([1, 2, 3])},
    )
    with pytest.raises(NotEvaluated, match="a scale for each channel"):
        same_as_onnxruntime(source)


# ---- operators by their definitions


def operators_of(source: Any) -> Iterator[tuple[Analysed, Group, list[np.ndarray]]]:
    """Each of a model's operators alone, and random inputs as stored."""
    analysed = analysed_model(source)
    rng = np.random.default_rng(0)
    for op in analysed.graph.operators:
        if not op.fusable:
            continue
        group = Group.of(analysed.graph, [op.index])
        tensors = [analysed.graph.tensors[t] for t in group.inputs]
        yield analysed, group, [
            rng.standard_normal(t.shape).astype("float32") if t.dtype == "float32"
            else rng.integers(0, 2, t.shape).astype(t.dtype)
            for t in tensors
        ]  # fmt: skip


@pytest.mark.parametrize("source", [pyramid(), attention(5, 2, 9)], ids=["pyramid", "attention"])
def test_definitions_give_what_the_forms_give(source: Any) -> None:
    """Two ways to the right outputs that have nothing in common, padding channels too."""
    compared = set()
    for analysed, group, inputs in operators_of(source):
        (op,) = group.operators
        (expected,) = evaluate(group, inputs)
        ours = by_definition(analysed, op, dict(zip(group.inputs, inputs, strict=True)))
        assert ours.shape == expected.shape and ours.dtype == expected.dtype, op.kind
        assert np.abs(ours - expected).max() <= 2e-5 * max(1.0, float(np.abs(expected).max())), op.kind
        compared.add(op.kind)
    assert len(compared) >= 8


def test_operators_that_numpy_has_no_form_of() -> None:
    """Reductions, functions, comparisons, movement; some behind a convolution, in blocks."""
    source = model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Resize", ["a", "", "", "sizes"], ["b"], mode="cubic", coordinate_transformation_mode="half_pixel"),
            node("Pad", ["b", "pads"], ["c"], mode="reflect"),
            node("Tile", ["c", "times"], ["d"]),
            node("PRelu", ["d", "slope"], ["e"]),
            node("Selu", ["e"], ["f"]),
            node("ReduceProd", ["f", "last"], ["p"], keepdims=1),
            node("ReduceLogSumExp", ["f", "last"], ["l"], keepdims=1),
            node("LogSoftmax", ["f"], ["s"], axis=-1),
            node("Asinh", ["s"], ["t"]),
            node("Less", ["t", "p"], ["lt"]),
            node("Not", ["lt"], ["nl"]),
            node("Where", ["nl", "t", "l"], ["y"]),
            node("GatherElements", ["y", "where"], ["z"], axis=1),
            node("Trilu", ["y"], ["u"], upper=1),
        ],
        {"x": [1, 5, 4, 4]},
        ["y", "z", "u"],
        {
            "w": weights(10, 5, 3, 3),
            "sizes": np.array([1, 10, 7, 6]),
            "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1]),
            "times": np.array([1, 1, 2, 1]),
            "slope": np.float32([[[0.3]]] * 10),
            "last": np.array([3]),
            "where": np.random.default_rng(0).integers(0, 10, (1, 3, 20, 9)),
        },
    )
    kinds = {op.kind for op in analysed_model(source).graph.operators if op.fusable}
    assert len(kinds - set(_KINDS)) >= 5, kinds
    same_as_onnxruntime(source, defined=True)


def test_large_definitions_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model([node("ReduceProd", ["x", "axes"], ["y"], keepdims=0)], {"x": [3, 7, 5]}, ["y"], {"axes": [2]})
    monkeypatch.setattr("autofuse.measure.oracle_definitions.AT_ONCE", 40)  # two of the seven rows
    same_as_onnxruntime(source, defined=True)
    monkeypatch.setattr("autofuse.measure.oracle_definitions.AT_ONCE", 14)
    with pytest.raises(NotEvaluated, match="105 points of its definition are too many"):
        same_as_onnxruntime(source, defined=True)


def test_what_a_definition_reads_outside_does_not_count() -> None:
    """Padding reads its operand under a condition."""
    source = model(
        [node("Pad", ["x", "pads", "value"], ["y"])], {"x": [2, 3, 4]}, ["y"],
        {"pads": np.array([0, 1, 0, 2, 0, 3]), "value": np.float32(0.5)},
    )  # fmt: skip
    same_as_onnxruntime(source, defined=True)


def test_unknown_operators_are_named() -> None:
    analysed = analysed_model(model([node("Relu", ["x"], ["y"])], {"x": [1, 8, 4, 4]}, ["y"]))
    (op, *rest) = analysed.graph.operators
    odd = replace(analysed.graph, operators=(replace(op, kind="nn.odd", name="lv7"), *rest))
    with pytest.raises(NotEvaluated, match=r"lv7 \(nn.odd\)"):
        evaluate(Group.of(odd, [0]), [np.zeros(odd.tensors[odd.operators[0].inputs[0]].shape, np.float32)])
