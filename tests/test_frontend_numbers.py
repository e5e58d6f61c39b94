"""Prepared modules compute what ONNX Runtime computes, operator family by operator family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("onnxruntime")

from frontend_graphs import (
    assert_same_as_onnxruntime,
    model,
    node,
    operators,
    random_inputs,
    run_onnxruntime,
    run_prepared,
    weights,
)


def test_batch_norm_and_biases_end_in_the_convolution() -> None:
    statistics = {
        "g": weights(6, seed=1) + 1,
        "b": weights(6, seed=2),
        "m": weights(6, seed=3),
        "v": np.abs(weights(6, seed=4)) + 0.5,
    }
    source = model(
        [
            node("Conv", ["x", "w", "cb"], ["c"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"]),
            node("Relu", ["n"], ["y"]),
        ],
        {"x": [1, 4, 7, 5]},
        ["y"],
        {"w": weights(6, 4, 3, 3), "cb": weights(6, seed=9), **statistics},
    )
    prepared = assert_same_as_onnxruntime(source)
    assert operators(prepared) == {"nn.conv2d": 1, "add": 1, "nn.relu": 1}


@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution_takes_its_scale(group: int) -> None:
    source = model(
        [node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2], group=group), node("Mul", ["c", "s"], ["y"])],
        {"x": [1, 4, 3, 3]},
        ["y"],
        {"w": weights(4, 6 // group, 2, 2), "s": weights(1, 6, 1, 1, seed=1)},
    )
    assert operators(assert_same_as_onnxruntime(source)) == {"nn.conv2d_transpose": 1}


def test_depthwise_and_one_dimensional_convolutions() -> None:
    source = model(
        [
            node("Conv", ["x", "w"], ["c"], group=6, dilations=[2], pads=[2, 1]),
            node("Mul", ["c", "s"], ["y"]),
        ],
        {"x": [2, 6, 11]},
        ["y"],
        {"w": weights(6, 1, 3), "s": weights(6, 1, seed=1)},
    )
    assert operators(assert_same_as_onnxruntime(source)) == {"nn.conv1d": 1}


def test_scales_and_shifts_around_a_matmul_are_folded() -> None:
    source = model(
        [
            node("Gemm", ["x", "w", "b"], ["g"], transB=1, alpha=0.5),
            node("Mul", ["g", "s"], ["m"]),
            node("Sub", ["m", "t"], ["n"]),
            node("Div", ["n", "d"], ["y"]),
        ],
        {"x": [3, 8]},
        ["y"],
        {"w": weights(5, 8), "b": weights(5), "s": weights(5, seed=1), "t": weights(1, 5), "d": np.float32(4)},
    )
    assert operators(assert_same_as_onnxruntime(source))["matmul"] == 1


def test_a_scale_stays_where_the_convolution_has_another_reader() -> None:
    source = model(
        [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "s"], ["m"]), node("Add", ["m", "c"], ["y"])],
        {"x": [1, 3, 5, 5]},
        ["y"],
        {"w": weights(4, 3, 1, 1), "s": weights(1, 4, 1, 1, seed=1)},
    )
    assert operators(assert_same_as_onnxruntime(source)) == {"nn.conv2d": 1, "multiply": 1, "add": 1}


def test_a_constant_that_widens_the_result_is_not_a_bias() -> None:
    source = model(
        [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "s"], ["y"])],
        {"x": [1, 3, 1, 1]},
        ["y"],
        {"w": weights(4, 3, 1, 1), "s": weights(2, 4, 1, 3, seed=1)},
    )
    assert_same_as_onnxruntime(source)


_ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.1}, "Elu": {}, "Selu": {}, "Celu": {"alpha": 1.5}, "HardSwish": {},
    "HardSigmoid": {"alpha": 0.3}, "Softplus": {}, "Softsign": {}, "Mish": {}, "Sigmoid": {}, "Tanh": {}, "Erf": {},
    "ThresholdedRelu": {"alpha": 0.4}, "Softmax": {"axis": 1}, "LogSoftmax": {"axis": -1}, "Exp": {}, "Abs": {},
    "Reciprocal": {}, "Floor": {}, "Ceil": {}, "Neg": {}, "Sign": {}, "Sin": {}, "Cos": {}, "Round": {},
}  # fmt: skip


def test_activations() -> None:
    """All of them in one graph, so that one compile serves."""
    nodes = [node(op, ["x"], [f"y_{op}"], **attributes) for op, attributes in _ACTIVATIONS.items()]
    assert_same_as_onnxruntime(model(nodes, {"x": [2, 3, 7]}, [f"y_{op}" for op in _ACTIVATIONS]))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    source = model([node("Gelu", ["x"], ["y"], approximate=approximate)], {"x": [3, 5]}, ["y"], opset=20)
    assert_same_as_onnxruntime(source, tolerance=1e-4)


def test_mish_spelt_out_takes_one_exponential() -> None:
    source = model(
        [node("Softplus", ["x"], ["s"]), node("Tanh", ["s"], ["t"]), node("Mul", ["x", "t"], ["y"])],
        {"x": [6, 50]},
        ["y"],
    )
    prepared = assert_same_as_onnxruntime(source)
    assert operators(prepared)["exp"] == 1
    assert not {"tanh", "log", "nn.softplus"} & set(operators(prepared))
    # far from zero the quotient is 1 or the exponential vanishes
    far = np.linspace(-100, 100, 300).astype("float32").reshape(6, 50)
    (ours,), (theirs,) = run_prepared(prepared, [far]), run_onnxruntime(source, prepared, [far])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_clip_in_all_its_forms() -> None:
    source = model(
        [
            node("Clip", ["x", "lo", "hi"], ["a"]),
            node("Clip", ["x", "", "hi"], ["b"]),
            node("Clip", ["x", "lo"], ["c"]),
            node("Clip", ["x", "zero"], ["d"]),
            node("Clip", ["x", "run"], ["e"]),
            node("Clip", ["x", "hi", "lo"], ["f"]),
        ],
        {"x": [2, 9], "run": []},
        ["a", "b", "c", "d", "e", "f"],
        {"lo": np.float32(-0.5), "hi": np.float32(0.5), "zero": np.float32(0)},
    )
    prepared = assert_same_as_onnxruntime(source)
    assert operators(prepared)["clip"] == 1
    assert operators(prepared)["nn.relu"] == 1


def test_normalisations() -> None:
    source = model(
        [
            node("LayerNormalization", ["x", "g4", "b4"], ["a"], axis=-1),
            node("LayerNormalization", ["x", "g64"], ["b"], axis=1, epsilon=1e-3),
            node("InstanceNormalization", ["x", "g6", "b6"], ["c"]),
            node("GroupNormalization", ["x", "g3", "b3"], ["d"], num_groups=3),
            node("LRN", ["x"], ["e"], size=3),
            node("BatchNormalization", ["x", "g6", "b6", "b6", "v6"], ["f"]),
        ],
        {"x": [2, 6, 4, 4]},
        list("abcdef"),
        {
            "g4": weights(4),
            "b4": weights(4, seed=1),
            "g64": weights(6, 4, 4),
            "g6": weights(6),
            "b6": weights(6, seed=1),
            "v6": np.full(6, 0.7, "float32"),
            "g3": weights(3),
            "b3": weights(3, seed=1),
        },
    )
    prepared = assert_same_as_onnxruntime(source, tolerance=1e-4)
    assert "nn.batch_norm" not in operators(prepared)


def test_group_normalisation_with_a_scale_a_channel() -> None:
    source = model(
        [node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=2)],
        {"x": [1, 6, 3, 3]},
        ["y"],
        {"g": weights(6), "b": weights(6, seed=1)},
        opset=21,
    )
    assert_same_as_onnxruntime(source, tolerance=1e-4)


_RECURRENT = [
    ("LSTM", {"direction": "forward"}, "full"),
    ("LSTM", {"direction": "bidirectional", "activations": ["HardSigmoid", "Relu", "Tanh"] * 2}, "plain"),
    ("LSTM", {"direction": "reverse", "clip": 0.4, "input_forget": 1}, "peepholes"),
    ("GRU", {"direction": "forward", "linear_before_reset": 1}, "full"),
    ("GRU", {"direction": "bidirectional"}, "full"),
    ("GRU", {"direction": "reverse", "linear_before_reset": 0}, "plain"),
    ("RNN", {"direction": "bidirectional"}, "full"),
    (
        "RNN",
        {"direction": "forward", "activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]},
        "plain",
    ),
]


@pytest.mark.parametrize(("op", "attributes", "given"), _RECURRENT)
def test_recurrent_layers(op: str, attributes: dict[str, Any], given: str) -> None:
    steps, batch, width, hidden = 3, 2, 4, 5
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    directions = 2 if attributes["direction"] == "bidirectional" else 1
    constants = {
        "w": weights(directions, gates * hidden, width, seed=1),
        "r": weights(directions, gates * hidden, hidden, seed=2),
        "b": weights(directions, 2 * gates * hidden, seed=3),
        "p": weights(directions, 3 * hidden, seed=4),
    }
    inputs = {"x": [steps, batch, width]}
    names = ["x", "w", "r"]
    if given != "plain":
        names += ["b", "", "h0"]
        inputs["h0"] = [directions, batch, hidden]
        if op == "LSTM":
            names.append("c0")
            inputs["c0"] = [directions, batch, hidden]
    if given == "peepholes":
        names.append("p")
    outputs = ["y", "yh"] + (["yc"] if op == "LSTM" else [])
    read = {name for name in names if name in constants}
    source = model(
        [node(op, names, outputs, hidden_size=hidden, **attributes)],
        inputs,
        outputs,
        {name: value for name, value in constants.items() if name in read},
    )
    assert_same_as_onnxruntime(source)


_RESIZES = [
    (
        [1, 2, 4, 5],
        [1, 1, 2, 2],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    ([1, 2, 4, 5], [1, 1, 1.5, 1.7], {"mode": "nearest"}),
    ([1, 2, 4, 5], [1, 1, 2, 3], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ([1, 2, 4, 5], [1, 1, 2.3, 0.7], {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
    ([1, 2, 6, 5], [1, 1, 0.6, 1.3], {"mode": "cubic"}),
    ([1, 1, 8, 8], [1, 1, 0.5, 0.5], {"mode": "linear", "antialias": 1}),
    ([2, 3, 7], [1, 1, 2], {"mode": "linear"}),
]


@pytest.mark.parametrize(("shape", "scales", "attributes"), _RESIZES)
def test_resize_by_scales(shape: list[int], scales: list[float], attributes: dict[str, Any]) -> None:
    source = model(
        [node("Resize", ["x", "", "s"], ["y"], **attributes)], {"x": shape}, ["y"], {"s": np.asarray(scales, "float32")}
    )
    assert_same_as_onnxruntime(source, tolerance=1e-4)


def test_resize_to_the_size_of_another_tensor() -> None:
    """A detector's upsampling: the target is computed from a shape."""
    source = model(
        [
            node("Shape", ["other"], ["s"]),
            node("Slice", ["s", "two", "four"], ["hw"]),
            node("Shape", ["x"], ["t"]),
            node("Slice", ["t", "nought", "two"], ["nc"]),
            node("Concat", ["nc", "hw"], ["sizes"], axis=0),
            node(
                "Resize",
                ["x", "", "", "sizes"],
                ["r"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            ),
            node("Concat", ["r", "other"], ["y"], axis=1),
        ],
        {"x": [1, 2, 3, 4], "other": [1, 5, 6, 8]},
        ["y"],
        {"nought": np.array([0]), "two": np.array([2]), "four": np.array([4])},
    )
    assert operators(assert_same_as_onnxruntime(source)) == {"image.resize2d": 1, "concat": 1}


def test_upsample_by_an_input() -> None:
    source = model(
        [node("Upsample", ["x", "s"], ["y"], mode="nearest")],
        {"x": [1, 2, 3, 3]},
        ["y"],
        {"s": np.array([1, 1, 2, 2], "float32")},
        opset=9,
    )
    assert operators(assert_same_as_onnxruntime(source)) == {"image.resize2d": 1}


def test_shape_arithmetic_leaves_nothing_behind() -> None:
    source = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axis"], ["n1"]),
            node("Concat", ["n1", "minus"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["r"]),
            node("Shape", ["r"], ["rs"]),
            node("Cast", ["rs"], ["rf"], to=TensorProto.FLOAT),
            node("ReduceProd", ["rf"], ["count"], keepdims=0),
            node("Div", ["r", "count"], ["y"]),
        ],
        {"x": [2, 3, 4]},
        ["y"],
        {"zero": np.array(0), "axis": np.array([0]), "minus": np.array([-1])},
    )
    assert operators(assert_same_as_onnxruntime(source)) == {"reshape": 1, "multiply": 1}


def test_split_concat_slice_gather_and_pad() -> None:
    source = model(
        [
            node("Split", ["x", "sizes"], ["a", "b", "c"], axis=1),
            node("Concat", ["c", "a", "b"], ["d"], axis=1),
            node("Slice", ["d", "st", "en", "ax", "sp"], ["e"]),
            node("Gather", ["e", "idx"], ["f"], axis=0),
            node("Pad", ["f", "pads"], ["g"]),
            node("Tile", ["g", "rep"], ["h"]),
            node("Expand", ["col", "wide"], ["k"]),
            node("Transpose", ["h"], ["y"], perm=[1, 0, 2]),
        ],
        {"x": [3, 7, 4], "col": [3, 1]},
        ["y", "k"],
        {
            "sizes": np.array([2, 4, 1]),
            "st": np.array([6]),
            "en": np.array([-100]),
            "ax": np.array([1]),
            "sp": np.array([-2]),
            "idx": np.array([2, -1, 0]),
            "pads": np.array([0, 1, 0, 0, 0, 2]),
            "rep": np.array([1, 2, 1]),
            "wide": np.array([2, 3, 4]),
        },
    )
    assert_same_as_onnxruntime(source)


def test_gather_with_indices_given_at_run_time_counts_from_the_end_too() -> None:
    source = model([node("Gather", ["x", "i"], ["y"], axis=1)], {"x": [2, 9], "i": ([4], TensorProto.INT64)}, ["y"])
    prepared = assert_same_as_onnxruntime(source)
    arrays = [random_inputs(prepared)[0], np.array([-1, 0, -9, 8])]
    np.testing.assert_array_equal(run_prepared(prepared, arrays)[0], arrays[0][:, arrays[1]])
    assert operators(prepared) == {"take": 1}
    # out of range: any value, but no crash
    assert run_prepared(prepared, [arrays[0], np.array([9, -10, 1 << 40, 0])])[0].shape == (2, 4)


def test_gather_by_evenly_spaced_constants_is_a_slice() -> None:
    indices = {
        "one": np.array(-1),
        "row": np.array([1, 3, 5]),
        "grid": np.array([[0, 1], [2, 3]]),
        "odd": np.array([4, 0, 4]),
    }
    source = model(
        [node("Gather", ["x", name], [f"y_{name}"], axis=1) for name in indices],
        {"x": [2, 6, 3]},
        [f"y_{name}" for name in indices],
        indices,
    )
    assert operators(assert_same_as_onnxruntime(source)) == {"strided_slice": 3, "reshape": 2, "take": 1}


def test_padding_that_is_left_to_be_worked_out() -> None:
    source = model(
        [
            node("Conv", ["x", "w"], ["a"], auto_pad="SAME_UPPER", strides=[2, 2]),
            node("Conv", ["x", "w"], ["b"], auto_pad="SAME_LOWER", strides=[1, 2]),
            node("MaxPool", ["x"], ["c"], auto_pad="SAME_LOWER", kernel_shape=[2, 2], strides=[2, 2]),
            node("AveragePool", ["x"], ["d"], auto_pad="SAME_UPPER", kernel_shape=[3, 2], strides=[2, 2]),
            node("ConvTranspose", ["x", "t"], ["e"], auto_pad="SAME_UPPER", strides=[2, 2]),
            node("ConvTranspose", ["x", "t"], ["f"], output_shape=[14, 14], strides=[2, 2]),
            node("MaxPool", ["x"], ["g"], auto_pad="VALID", kernel_shape=[2, 3]),
        ],
        {"x": [1, 2, 7, 6]},
        list("abcdefg"),
        {"w": weights(3, 2, 3, 3), "t": weights(2, 3, 3, 3)},
    )
    prepared = assert_same_as_onnxruntime(source)
    assert not {"nn.pad", "call_tir"} & set(operators(prepared))


def test_operators_of_any_number_of_inputs_are_chains() -> None:
    names = ["Min", "Max", "Sum", "Mean"]
    source = model([node(op, ["a", "b", "c"], [op]) for op in names], {"a": [3, 4], "b": [4], "c": [3, 1]}, names)
    assert operators(assert_same_as_onnxruntime(source)) == {"minimum": 2, "maximum": 2, "add": 4, "multiply": 1}


def test_casts_comparisons_and_one_hot() -> None:
    source = model(
        [
            node("Cast", ["x"], ["a"], to=TensorProto.INT64),
            node("Cast", ["x"], ["b"], to=TensorProto.BOOL),
            node("Greater", ["x", "zero"], ["m"]),
            node("Where", ["m", "x", "zero"], ["c"]),
            node("OneHot", ["i", "depth", "values"], ["d"], axis=1),
            node("Pow", ["x", "two"], ["e"]),
            node("Pow", ["x", "three"], ["f"]),
            node("Pow", ["i", "three"], ["g"]),
        ],
        {"x": [2, 5], "i": ([2, 3], TensorProto.INT64)},
        list("abcdefg"),
        {
            "zero": np.float32(0),
            "depth": np.array(4),
            "values": np.array([-1, 2], "float32"),
            "two": np.float32(2),
            "three": np.array(3),
        },
    )
    counts = operators(assert_same_as_onnxruntime(source))
    assert "power" not in counts and "one_hot" not in counts


def test_attention_of_the_operator_set_is_taken_apart() -> None:
    source = model(
        [node("Attention", ["q", "k", "v"], ["y"])],
        {"q": [1, 2, 4, 8], "k": [1, 2, 5, 8], "v": [1, 2, 5, 8]},
        ["y"],
        opset=23,
    )
    assert operators(assert_same_as_onnxruntime(source))["matmul"] == 2


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [[2, 3, 4], [2, 4, 5]]),
        ("bhid,bhjd->bhij", [[1, 2, 3, 4], [1, 2, 5, 4]]),
        ("bij,kj->kbi", [[2, 3, 4], [5, 4]]),
        ("ij,kl->", [[2, 3], [4, 5]]),
        ("abc->cb", [[2, 3, 4]]),
        ("ij,ij->ij", [[3, 4], [3, 4]]),
        ("ij,jk", [[3, 4], [4, 2]]),
    ],
)
def test_einsum_becomes_a_matmul(equation: str, shapes: list[list[int]]) -> None:
    inputs = {f"x{k}": shape for k, shape in enumerate(shapes)}
    source = model([node("Einsum", list(inputs), ["y"], equation=equation)], inputs, ["y"])
    assert operators(assert_same_as_onnxruntime(source))["matmul"] == len(shapes) - 1


def test_pooling_and_reductions() -> None:
    source = model(
        [
            node("MaxPool", ["x"], ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("AveragePool", ["x"], ["b"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("GlobalAveragePool", ["x"], ["c"]),
            node("GlobalMaxPool", ["x"], ["d"]),
            node("ReduceMean", ["x", "axes"], ["e"], keepdims=0),
            node("ReduceL2", ["x", "axes"], ["f"]),
            node("ReduceLogSumExp", ["x", "axes"], ["g"]),
            node("ArgMax", ["x"], ["h"], axis=1),
        ],
        {"x": [1, 3, 7, 7]},
        list("abcdefgh"),
        {"axes": np.array([2, 3])},
    )
    assert_same_as_onnxruntime(source)


def test_attention_spelt_out() -> None:
    heads, width, steps = 2, 8, 5
    nodes = []
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Add", [f"b{name}", f"{name}0"], [f"{name}1"]),
            node("Reshape", [f"{name}1", "split"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s0"]),
        node("Div", ["s0", "root"], ["s1"]),
        node("Softmax", ["s1"], ["s"], axis=-1),
        node("MatMul", ["s", "v"], ["o0"]),
        node("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "join"], ["y"]),
    ]
    constants: dict[str, Any] = {f"w{name}": weights(width, width, seed=k) for k, name in enumerate("qkv")}
    constants |= {f"b{name}": weights(width, seed=k + 5) for k, name in enumerate("qkv")}
    constants |= {"split": np.array([0, 0, heads, width // heads]), "join": np.array([0, 0, -1]), "root": np.float32(2)}
    prepared = assert_same_as_onnxruntime(model(nodes, {"x": [1, steps, width]}, ["y"], constants))
    assert operators(prepared)["matmul"] == 5
    assert "divide" not in operators(prepared)


def test_an_operator_known_only_by_its_definition_is_replaced_by_it() -> None:
    """MeanVarianceNormalization has a converter, SoftmaxCrossEntropyLoss only ONNX's own definition."""
    source = model(
        [node("SoftmaxCrossEntropyLoss", ["x", "t"], ["y"], reduction="none")],
        {"x": [4, 3], "t": ([4], TensorProto.INT64)},
        ["y"],
    )
    assert_same_as_onnxruntime(source)


def test_outputs_that_are_inputs_constants_or_the_same_value() -> None:
    source = model(
        [
            node("Identity", ["x"], ["a"]),
            node("Relu", ["x"], ["r"]),
            node("Identity", ["r"], ["b"]),
            node("Add", ["k", "k"], ["c"]),
        ],
        {"x": [2, 3], "unused": [4]},
        ["a", "r", "b", "c"],
        {"k": weights(3)},
    )
    prepared = assert_same_as_onnxruntime(source)
    assert prepared.input_names == ("x", "unused")
    assert prepared.output_names == ("a", "r", "b", "c")


def test_the_reference_computes_the_same_as_the_source() -> None:
    source = model(
        [
            node("Shape", ["x"], ["s"]),
            node("ConstantOfShape", ["s"], ["z"]),
            node("Conv", ["x", "w"], ["c"]),
            node("Mul", ["c", "c"], ["y"]),
            node("Add", ["x", "z"], ["u"]),
        ],
        {"x": [1, 40, 5, 5], "unused": [2]},
        ["y", "u"],
        {"w": weights(110, 40, 1, 1)},
    )
    prepared = assert_same_as_onnxruntime(source)
    arrays = random_inputs(prepared)
    assert prepared.reference is not None
    for mine, other in zip(
        run_onnxruntime(prepared.reference, prepared, arrays), run_onnxruntime(source, prepared, arrays), strict=True
    ):
        np.testing.assert_array_equal(mine, other)
