"""Random small convolutional networks as ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np
from frontend_graphs import model, node
from hypothesis import strategies as st


def conv(name: str, source: str, result: str, **attributes: Any) -> Any:
    return node("Conv", [source, name], [result], name=f"conv_{result}", **attributes)


@st.composite
def small_networks(draw: st.DrawFn) -> Any:
    """A chain of layers over a feature map whose channel count changes, with a branch now and then."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    channels, size = draw(st.sampled_from([3, 4, 8, 13])), 7
    nodes: list[Any] = []
    constants: dict[str, np.ndarray] = {}
    at, earlier = "x", None
    start = channels
    for i in range(draw(st.integers(2, 5))):
        out = f"v{i}"
        layer = draw(st.sampled_from(["conv", "conv", "depthwise", "unary", "scale", "add", "pool", "concat", "slice"]))
        if layer in ("add", "concat") and (earlier is None or earlier[1:] != (channels, size)):
            layer = "unary"
        if layer == "conv":
            made = draw(st.sampled_from([5, 8, 12, 16]))
            constants[f"w{i}"] = (rng.standard_normal((made, channels, 3, 3)) * 0.2).astype("float32")
            nodes.append(conv(f"w{i}", at, out, pads=[1, 1, 1, 1]))
            channels = made
        elif layer == "depthwise":
            constants[f"w{i}"] = (rng.standard_normal((channels, 1, 3, 3)) * 0.3).astype("float32")
            nodes.append(conv(f"w{i}", at, out, pads=[1, 1, 1, 1], group=channels))
        elif layer == "unary":
            nodes.append(
                node(draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "Exp", "HardSwish", "Sin"])), [at], [out])
            )
        elif layer == "scale":
            constants[f"w{i}"] = rng.standard_normal((channels, 1, 1)).astype("float32")
            nodes.append(node(draw(st.sampled_from(["Mul", "Add", "Sub"])), [at, f"w{i}"], [out]))
        elif layer == "add":
            nodes.append(node("Add", [at, earlier[0]], [out]))
        elif layer == "concat":
            nodes.append(node("Concat", [at, earlier[0]], [out], axis=1))
            channels *= 2
        elif layer == "pool":
            nodes.append(
                node(
                    draw(st.sampled_from(["MaxPool", "AveragePool"])),
                    [at],
                    [out],
                    kernel_shape=[3, 3],
                    pads=[1, 1, 1, 1],
                )
            )
        else:
            constants[f"s{i}"], constants[f"e{i}"] = np.int64([1]), np.int64([channels])
            constants[f"a{i}"] = np.int64([1])
            nodes.append(node("Slice", [at, f"s{i}", f"e{i}", f"a{i}"], [out]))
            channels -= 1
        if draw(st.booleans()):
            earlier = (out, channels, size)
        at = out
        if channels < 2 or channels > 40:
            break
    return model(nodes, {"x": [draw(st.integers(1, 2)), start, size, size]}, [at], constants)
