"""Operators that move data, work out shapes or pass values on compute what ONNX Runtime computes."""

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
    # Positions on the border between two rows, and sizes just short of a whole number, in float64.
    (
        [1, 1, 29, 31],
        [1, 1, 1.5, 0.3],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    (
        [1, 2, 29, 17],
        [1, 1, 1.5, 1.7],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    ([1, 1, 3, 53], [1, 1, 1, 1.4], {"mode": "nearest", "nearest_mode": "ceil"}),
    (
        [1, 1, 3, 22],
        [1, 1, 1, 0.8],
        {"coordinate_transformation_mode": "half_pixel_symmetric", "nearest_mode": "round_prefer_ceil"},
    ),
    ([1, 1, 10, 3], [1, 1, 0.7, 1], {"mode": "linear"}),
]


@pytest.mark.parametrize(("shape", "scales", "attributes"), _RESIZES)
def test_resize_by_scales(shape: list[int], scales: list[float], attributes: dict[str, Any]) -> None:
    source = model(
        [node("Resize", ["x", "", "s"], ["y"], **attributes)], {"x": shape}, ["y"], {"s": np.asarray(scales, "float32")}
    )
    assert_same_as_onnxruntime(source, tolerance=1e-4)


@pytest.mark.parametrize(("mode", "size"), [("nearest", [13, 5]), ("linear", [13, 1]), ("linear", [1, 5])])
def test_resize_by_corners_to_sizes(mode: str, size: list[int]) -> None:
    """45 by 13 / 45 is not 13 in float32; one row or column has no second corner."""
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners", "nearest_mode": "floor"}
    nodes = [node("Resize", ["x", "", "", "sizes"], ["y"], **attributes)]
    source = model(nodes, {"x": [1, 2, 45, 33]}, ["y"], {"sizes": np.array([1, 2, *size])})
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
    # A cast to int64, and one to floats and back around a power of integers; truth values are compared, not cast.
    assert counts["astype"] == 3 and "power" not in counts and "one_hot" not in counts


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
