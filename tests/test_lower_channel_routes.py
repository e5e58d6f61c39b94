"""Channel shuffles between convolutions disappear into the weights, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
from frontend_graphs import model, node
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered_graphs import kinds, lowered_like_onnxruntime

from autofuse.lower.channel_routes import arrange


def shuffle(at: str, out: str, channels: int, groups: int, size: int) -> tuple[list[Any], dict[str, np.ndarray]]:
    """ONNX's way to write a channel shuffle."""
    constants = {
        f"{out}_split": np.array([1, groups, channels // groups, size, size]),
        f"{out}_merged": np.array([1, channels, size, size]),
    }
    nodes = [
        node("Reshape", [at, f"{out}_split"], [f"{out}_5d"]),
        node("Transpose", [f"{out}_5d"], [f"{out}_t"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", [f"{out}_t", f"{out}_merged"], [out]),
    ]
    return nodes, constants


class Builder:
    """A network of ShuffleNet's units, written node by node."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.size = size
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        self.nodes.append(node(kind, inputs, [out], name=f"node_{out}", **attributes))
        return out

    def weight(self, name: str, *shape: int) -> str:
        self.constants[name] = (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32")
        return name

    def conv(self, at: str, out: str, inputs: int, outputs: int, act: str = "Relu", stride: int = 1) -> str:
        size = 1 if stride == 1 else 3
        self.weight(f"{out}_w", outputs, inputs, size, size)
        self.weight(f"{out}_b", outputs)
        made = self.add("Conv", [at, f"{out}_w", f"{out}_b"], f"{out}_c", pads=[size // 2] * 4, strides=[stride] * 2)
        return self.add(act, [made], out)

    def depthwise(self, at: str, out: str, channels: int) -> str:
        self.weight(f"{out}_w", channels, 1, 3, 3)
        self.weight(f"{out}_b", channels)
        return self.add("Conv", [at, f"{out}_w", f"{out}_b"], out, pads=[1, 1, 1, 1], group=channels)

    def shuffled(self, parts: list[str], out: str, channels: int, groups: int = 2) -> str:
        joined = self.add("Concat", parts, f"{out}_j", axis=1)
        nodes, constants = shuffle(joined, out, channels, groups, self.size)
        self.nodes += nodes
        self.constants |= constants
        return out

    def split(self, at: str, out: str, half: int) -> list[str]:
        self.constants[f"{out}_sizes"] = np.array([half, half])
        parts = [f"{out}_0", f"{out}_1"]
        self.nodes.append(node("Split", [at, f"{out}_sizes"], parts, axis=1))
        return parts


@st.composite
def shuffled_networks(draw: st.DrawFn) -> tuple[Any, int]:
    """A unit that widens, then units that leave half of the channels alone, then one reader of all."""
    half = draw(st.sampled_from([4, 6, 8, 13, 20]))
    size = draw(st.sampled_from([3, 4]))
    net = Builder(size, draw(st.integers(0, 99)))
    act = draw(st.sampled_from(["Relu", "Sigmoid", "Tanh"]))
    left, right = net.conv("x", "a", 5, half), net.conv("x", "b", 5, half, act)
    at = net.shuffled([left, right], "s", 2 * half)
    for i in range(draw(st.integers(0, 3))):
        first, second = net.split(at, f"p{i}", half)
        made = net.conv(second, f"u{i}", half, half, act)
        if draw(st.booleans()):
            made = net.conv(net.depthwise(made, f"d{i}", half), f"v{i}", half, half)
        at = net.shuffled([first, made], f"s{i}", 2 * half)
    if draw(st.booleans()):
        at = net.depthwise(at, "last", 2 * half)
    net.conv(at, "y", 2 * half, 7)
    return model(net.nodes, {"x": [1, 5, size, size]}, ["y"], net.constants), half


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(shuffled_networks())
def test_shuffles_between_convolutions_are_gone_and_the_results_stay(drawn: tuple[Any, int]) -> None:
    found = kinds(lowered_like_onnxruntime(drawn[0]))
    assert "permute_dims" not in found
    assert "layout_change" not in found[:-1]  # the last gives the model's result


def test_a_shuffle_that_something_else_reads_stays() -> None:
    net = Builder(4)
    at = net.shuffled([net.conv("x", "a", 8, 8), net.conv("x", "b", 8, 8)], "s", 16)
    net.conv(at, "y", 16, 8)
    source = model(net.nodes, {"x": [1, 8, 4, 4]}, ["y", "s"], net.constants)
    assert "permute_dims" in kinds(lowered_like_onnxruntime(source))


def test_a_shuffle_of_what_no_convolution_made_stays() -> None:
    net = Builder(4)
    nodes, constants = shuffle("x", "s", 16, 4, 4)
    net.nodes, net.constants = nodes, constants
    net.conv("s", "y", 16, 8)
    source = model(net.nodes, {"x": [1, 16, 4, 4]}, ["y"], net.constants)
    assert "permute_dims" in kinds(lowered_like_onnxruntime(source))


def test_a_residual_addition_keeps_its_channels_in_order() -> None:
    net = Builder(4)
    a, b = net.conv("x", "a", 8, 8), net.conv("x", "b", 8, 8)
    at = net.shuffled([a, b], "s", 16)
    net.conv(at, "c", 16, 8)
    net.add("Add", ["c", "a"], "y")
    source = model(net.nodes, {"x": [1, 8, 4, 4]}, ["y"], net.constants)
    assert "permute_dims" in kinds(lowered_like_onnxruntime(source))


def test_weights_that_two_convolutions_share_are_reordered_for_each() -> None:
    net = Builder(4)
    net.weight("w", 16, 16, 1, 1)
    net.add("Conv", ["x", "w"], "a")
    made, constants = shuffle("a", "s", 16, 2, 4)
    net.nodes += made
    net.constants |= constants
    net.add("Conv", ["s", "w"], "b")
    net.conv("b", "y", 16, 8)
    source = model(net.nodes, {"x": [1, 16, 4, 4]}, ["y"], net.constants)
    assert "permute_dims" not in kinds(lowered_like_onnxruntime(source))


def test_each_reader_finds_its_channels_in_blocks_and_tails_share_one() -> None:
    sets = [frozenset({i % 2}) for i in range(22)] + [frozenset({2})] * 5 + [frozenset()]
    slots = arrange(sets, 8)
    blocks = slots.reshape(-1, 8)
    assert sorted(slots[slots >= 0]) == list(range(27))
    readers = [{next(iter(sets[c])) for c in block if c >= 0} for block in blocks]
    assert [len(r) for r in readers[:2]] == [1, 1]
    assert len(blocks) == 4  # two whole ones; tails of 3, 3 and 5 in two
    for reader in (0, 1, 2):
        channels = [c for c in range(27) if sets[c] == {reader}]
        read = [block for block in blocks if set(block) & set(channels)]
        assert len(read) == -(-len(channels) // 8)
