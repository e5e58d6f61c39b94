"""Models with activations of bytes between their layers: where they are quantised and dequantised, in which layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from frontend_graphs import model, node, weights
from lowered_graphs import kinds, lowered_like_onnxruntime
from random_checks import RandomCosts

import autofuse
from autofuse.compiler import analyse
from autofuse.graph.model import Group
from autofuse.measure.outputs import compare
from autofuse.measure.rounding import LOOSE, loose_share
from autofuse.schedule.registry import family


class Net:
    """ONNX nodes one after another, with a quantisation and its way back between the layers."""

    def __init__(self, channels: int, dtype: str = "uint8") -> None:
        self.zero = {"uint8": np.uint8(3), "int8": np.int8(-5)}[dtype]
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {"scale": np.float32(0.03), "zero": self.zero}
        self.last, self.channels = "x", channels

    def add(self, op: str, *inputs: str, **attributes: Any) -> None:
        out = f"t{len(self.nodes)}"
        self.nodes.append(node(op, [self.last, *inputs], [out], **attributes))
        self.last = out

    def bytes(self) -> None:
        self.add("QuantizeLinear", "scale", "zero")
        self.add("DequantizeLinear", "scale", "zero")

    def conv(self, outputs: int, kernel: int, group: int = 1, **attributes: Any) -> None:
        name = f"w{len(self.constants)}"
        self.constants[name] = weights(outputs, self.channels // group, kernel, kernel, seed=len(self.constants))
        self.add("Conv", name, pads=[kernel // 2] * 4, group=group, **attributes)
        self.add("Relu")
        self.channels = outputs

    def done(self, shape: list[int]) -> Any:
        return model(self.nodes, {"x": shape}, [self.last], self.constants)


def separable(dtype: str) -> Any:
    """A dense, a depthwise, a pointwise and a grouped convolution and a pool; 13 channels do not fill their blocks."""
    net = Net(16, dtype)
    for outputs, kernel, group in ((24, 3, 1), (24, 3, 24), (13, 1, 1), (24, 1, 1), (24, 3, 6)):
        net.conv(outputs, kernel, group)
        net.bytes()
    net.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.bytes()
    net.conv(16, 1)
    return net.done([1, 16, 10, 11])


def onnx_as_written(source: Any, x: np.ndarray) -> np.ndarray:
    """ONNX Runtime without optimisation: with it, layers between quantisations become ones of whole numbers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def nearly(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The same but for what hangs on few values that were rounded to the next byte."""
    apart = np.abs(ours - theirs) / np.abs(theirs).max()
    assert apart.max() < 0.1
    assert np.mean(apart > 1e-4) < 0.05


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_bytes_between_convolutions_stay_in_blocks(dtype: str) -> None:
    """One layout change at either end, none between."""
    graph = analyse(separable(dtype)).graph
    found = [op.kind for op in graph.operators]
    assert found.count("quantize") == found.count("dequantize") == 6
    assert found.count("layout_change") == 2
    for op in graph.operators:
        if op.kind in ("quantize", "dequantize"):
            assert op.elementwise and len(graph.tensors[op.outputs[0]].shape) == 5


@pytest.mark.parametrize("seed", range(3))
def test_bytes_in_any_plan_are_right(seed: int) -> None:
    """Random costs: convolutions take their quantisations along, before and behind, or leave them to others."""
    source = separable("int8" if seed % 2 else "uint8")
    made = autofuse.compile(source, cost_model=RandomCosts(seed), strategy="dp", threads=2)
    x = np.random.default_rng(seed).standard_normal((1, 16, 10, 11)).astype("float32")
    nearly(made(x)[0], onnx_as_written(source, x))


def test_convolutions_take_their_quantisations_along() -> None:
    net = Net(16)
    net.bytes()
    net.conv(24, 3)
    net.bytes()
    net.conv(16, 1)
    found = analyse(net.done([1, 16, 14, 14]))
    graph = found.graph
    first, second = (op.index for op in graph.operators if op.kind == "nn.conv2d")
    between = range(first, second)
    assert [graph.operators[i].kind for i in between] == ["nn.conv2d", "nn.relu", "quantize", "dequantize"]
    for members in (between[:-1], [between[-1], second]):
        group = Group.of(graph, members)
        assert family("conv2d").match(group, found.hardware) is None
    assert graph.tensors[graph.operators[between[-2]].outputs[0]].dtype == "uint8"


def test_scales_of_each_channel_keep_the_model_s_layout() -> None:
    source = model(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("QuantizeLinear", ["a", "scales", "zeros"], ["b"], axis=1),
            node("DequantizeLinear", ["b", "scales", "zeros"], ["y"], axis=1),
        ],
        {"x": [1, 8, 5, 6]},
        ["y"],
        {
            "w": weights(8, 8, 1, 1),
            "scales": np.linspace(0.01, 0.05, 8, dtype="float32"),
            "zeros": np.arange(8, dtype="uint8"),
        },
    )
    lowered = lowered_like_onnxruntime(source, tolerance=0.06)
    assert kinds(lowered) == ["layout_change", "nn.conv2d", "layout_change", "quantize", "dequantize"]


def test_results_that_turn_on_a_last_bit_may_differ_in_few_places() -> None:
    graph = analyse(separable("uint8")).graph
    by_kind = {kind: next(op.index for op in graph.operators if op.kind == kind) for kind in ("quantize", "nn.conv2d")}
    alone, conv = by_kind["quantize"], by_kind["nn.conv2d"]
    assert loose_share(Group.of(graph, [alone])) == 0.0
    assert loose_share(Group.of(graph, range(conv, alone + 1))) == LOOSE
    assert loose_share(Group.of(graph, [conv])) == 0.0
    want = np.arange(4000, dtype="uint8").reshape(4, 1000)
    got = want.copy()
    got[0, :8] += 1
    assert compare([got], [want], 1e-3) and not compare([got], [want], 1e-3, LOOSE)
    got[1, 0] += 1
    assert "9 of 4000" in compare([got], [want], 1e-3, LOOSE)
    wide = np.arange(0, 60000, 100, dtype="uint16")
    assert compare([wide + 1], [wide], 1e-3) and not compare([wide + 1], [wide], 1e-3, LOOSE)
    few = np.ones(8, "float32")
    few[0] = 2
    assert not compare([few], [np.ones(8, "float32")], 1e-3, LOOSE)
    few[1] = 2
    assert compare([few], [np.ones(8, "float32")], 1e-3, LOOSE)
    few[:] = [np.nan, *[1] * 7]
    assert compare([few], [np.ones(8, "float32")], 1e-3, LOOSE)
