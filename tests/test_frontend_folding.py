"""Constants, scales and shifts end in the operators that they belong to, and the results stay ONNX Runtime's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from frontend_graphs import (
    assert_same_as_onnxruntime,
    model,
    node,
    operators,
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


def test_quantised_weights_are_folded_and_their_convolution_is_one_of_floats() -> None:
    bytes_ = np.random.default_rng(5).integers(-127, 127, (6, 4, 3, 3)).astype(np.int8)
    per_channel = {"s": np.abs(weights(6, seed=1)) + np.float32(0.01), "z": np.arange(-3, 3, dtype=np.int8)}
    source = model(
        [
            node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0),
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("QuantizeLinear", ["b", "one", "zero"], ["qb"]),
            node("DequantizeLinear", ["qb", "one", "zero"], ["db"]),
            node("Add", ["c", "db"], ["y"]),
        ],
        {"x": [1, 4, 7, 5]},
        ["y"],
        {
            "q": bytes_,
            **per_channel,
            "b": weights(6, 1, 1, seed=7) * 9,
            "one": np.float32(0.1),
            "zero": np.uint8(128),
        },
    )
    prepared = assert_same_as_onnxruntime(source)
    assert operators(prepared) == {"nn.conv2d": 1, "add": 1}
