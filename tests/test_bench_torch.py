"""ONNX models in PyTorch compute what ONNX Runtime computes. Skipped where PyTorch is not installed."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")

from autofuse.bench.peers.onnx_to_torch import convert  # noqa: E402
from autofuse.frontend import zoo  # noqa: E402


def both(model: ModelProto, inputs: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        mine = convert(model)(*[torch.from_numpy(array) for array in inputs.values()])
    return [tensor.numpy() for tensor in mine], session.run(None, inputs)


def one_node(
    kind: str, shape: tuple[int, ...], constants: dict[str, np.ndarray], outputs: int = 1, **attributes
) -> ModelProto:
    """A model of one operator: x, then the constants in order ("" for an operand left out)."""
    names = [f"y{index}" for index in range(outputs)]
    operands = [name if name[0] != "_" else "" for name in constants]
    node = helper.make_node(kind, ["x", *operands], names, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name[0] != "_"],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


NOTHING = np.zeros(0, np.float32)


@pytest.mark.parametrize(
    "model",
    [
        one_node(
            "Conv", (2, 4, 9, 9), {"w": np.ones((6, 2, 3, 3), np.float32)}, group=2, strides=[2, 2], pads=[0, 1, 2, 1]
        ),
        one_node("MaxPool", (1, 2, 9, 9), {}, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
        one_node("MaxPool", (1, 2, 7, 7), {}, kernel_shape=[5, 5], pads=[2, 2, 2, 2]),
        one_node("AveragePool", (1, 2, 8, 8), {}, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        one_node("AveragePool", (1, 2, 8, 8), {}, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
        one_node(
            "Resize",
            (1, 2, 4, 4),
            {"_": NOTHING, "s": np.array([1, 1, 2, 2], np.float32)},
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
        one_node("Resize", (1, 2, 4, 5), {"_": NOTHING, "__": NOTHING, "n": whole(1, 2, 8, 15)}, mode="linear"),
        one_node("Slice", (3, 8, 5), {"a": whole(-6, 0), "b": whole(-1, 2), "c": whole(1, 2), "d": whole(2, 1)}),
        one_node("Split", (2, 7), {"s": whole(3, 4)}, outputs=2, axis=1),
        one_node("Gather", (3, 5, 2), {"i": whole(4, -1, 0).reshape(3, 1)}, axis=1),
        one_node("Pad", (1, 2, 3, 3), {"p": whole(0, 0, 1, 0, 0, 1, 2, 0), "v": np.float32(0.5)}),
        one_node("ReduceMean", (2, 3, 4), {}, axes=[-1], keepdims=0),
        one_node("ReduceSum", (2, 3, 4), {"a": whole(0, 2)}),
        one_node("Clip", (2, 9), {"l": np.float32(-0.5), "h": np.float32(0.25)}),
        one_node("LayerNormalization", (2, 3, 8), {"s": np.full(8, 2, np.float32), "b": np.ones(8, np.float32)}),
        one_node("Reshape", (2, 3, 4), {"s": whole(0, -1)}),
        one_node(
            "Gemm",
            (3, 4),
            {"b": np.ones((5, 4), np.float32), "c": np.ones(5, np.float32)},
            transB=1,
            alpha=0.5,
            beta=2.0,
        ),
        one_node("Softplus", (2, 50), {}),
        one_node("HardSigmoid", (2, 50), {}),
    ],
    ids=lambda model: model.graph.node[0].op_type,
)
def test_one_operator(model: ModelProto) -> None:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = 3 * np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    mine, theirs = both(model, {"x": x})
    assert len(mine) == len(theirs)
    for left, right in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mobilenet_v2", "shufflenet_v2", "minilm_l6"])
def test_a_network_of_the_zoo(name: str) -> None:
    mine, theirs = both(zoo.build(name), zoo.sample_inputs(name))
    for left, right in zip(mine, theirs, strict=True):
        assert np.abs(left - right).max() < 1e-4 * np.abs(right).max()


def test_what_has_no_conversion_is_named() -> None:
    with pytest.raises(ValueError, match="operator Hardmax"):
        convert(one_node("Hardmax", (2, 3), {}))
    old = one_node("Relu", (2, 3), {})
    old.opset_import[0].version = 9
    with pytest.raises(ValueError, match="opset is 9"):
        convert(old)
