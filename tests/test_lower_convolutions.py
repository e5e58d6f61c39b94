"""How convolutions of every kind are lowered, against ONNX Runtime on the source, with the layouts they should have."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_graphs import model, node, weights
from lowered_graphs import kernel_calls, lowered_like_onnxruntime, steps

BLOCKED = "NCHW8c"


def conv(name: str, source: str, result: str, **attributes: Any) -> onnx.NodeProto:
    return node("Conv", [source, name], [result], name=f"conv_{result}", **attributes)


@pytest.mark.parametrize(
    ("channels", "outputs", "attributes"),
    [
        (3, 16, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),  # an image
        (1, 5, {}),
        (8, 8, {"pads": [1, 0, 2, 1]}),
        (16, 24, {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
        (12, 20, {"pads": [1, 1, 1, 1]}),  # channels that fill a block partly
        (7, 9, {"strides": [1, 3]}),
    ],
)
def test_convolutions_give_blocked_channels(channels: int, outputs: int, attributes: dict[str, Any]) -> None:
    source = model(
        [conv("w", "x", "y", **attributes)], {"x": [2, channels, 9, 11]}, ["y"], {"w": weights(outputs, channels, 3, 3)}
    )
    found = steps(lowered_like_onnxruntime(source))
    assert found[-2:] == [("nn.conv2d", BLOCKED), ("layout_change", "")]
    # An image is read where it stands: no layout change before a convolution of few channels.
    assert len(found) == (2 if channels < 8 else 3)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_chains_of_convolutions_stay_in_blocks_at_every_vector_width(lanes: int) -> None:
    source = model(
        [
            conv("w1", "x", "a", pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            conv("w2", "b", "c", group=18, pads=[1, 1, 1, 1], strides=[2, 2]),
            node("Clip", ["c", "low", "high"], ["d"]),
            conv("w3", "d", "y"),
        ],
        {"x": [1, 3, 8, 8]},
        ["y"],
        {
            "w1": weights(18, 3, 3, 3),
            "w2": weights(18, 1, 3, 3),
            "w3": weights(10, 18, 1, 1),
            "low": np.float32(0),
            "high": np.float32(6),
        },
    )
    found = steps(lowered_like_onnxruntime(source, lanes))
    assert [kind for kind, _ in found] == ["nn.conv2d", "nn.relu", "nn.conv2d", "clip", "nn.conv2d", "layout_change"]
    assert {layout for _, layout in found[:-1]} == {f"NCHW{lanes}c"}


@pytest.mark.parametrize(
    ("channels", "outputs", "groups", "left"),
    [
        (12, 12, 12, 12),  # depthwise
        (16, 32, 2, 2),
        (24, 24, 3, 3),
        (32, 32, 8, 8),  # four channels a group: two groups a block, read by rearranging lanes
        (16, 16, 4, 4),
        (8, 16, 8, 8),  # two results a channel
        (6, 12, 6, 6),
        (24, 24, 2, 2),  # a block between two groups reads both
        (20, 20, 5, 5),
        (12, 8, 2, 1),  # nothing fits but all groups together
        (34, 34, 17, 17),
    ],
)
def test_groups_that_blocks_do_not_fit_are_read_or_merged(channels: int, outputs: int, groups: int, left: int) -> None:
    source = model(
        [conv("w", "x", "y", group=groups, pads=[1, 1, 1, 1])],
        {"x": [1, channels, 6, 5]},
        ["y"],
        {"w": weights(outputs, channels // groups, 3, 3)},
    )
    lowered = lowered_like_onnxruntime(source)
    assert ("nn.conv2d", BLOCKED) in steps(lowered)
    (attrs,) = [
        json.loads(str(f.attrs["autofuse.attrs"]))
        for _, f in lowered.module.functions_items()
        if f.attrs and f.attrs.get("autofuse.kind") == "nn.conv2d"
    ]
    assert attrs["groups"] == left


@pytest.mark.parametrize("channels", [3, 8, 12])
@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2]},
        {"strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 0]},
        {"pads": [1, 1, 1, 1]},
        {"dilations": [2, 1], "strides": [1, 2]},
        {"dilations": [2, 2], "strides": [2, 2], "pads": [2, 0, 1, 3]},
    ],
)
def test_transposed_convolutions_have_blocked_channels(channels: int, attributes: dict[str, Any]) -> None:
    source = model(
        [node("ConvTranspose", ["x", "w"], ["y"], **attributes)],
        {"x": [2, channels, 5, 4]},
        ["y"],
        {"w": weights(channels, 6, 3, 4)},
    )
    kind = "nn.conv2d_transpose" if "strides" in attributes else "nn.conv2d"
    assert (kind, BLOCKED) in steps(lowered_like_onnxruntime(source))


@pytest.mark.parametrize(("size", "step", "apart"), [([12, 15], 3, True), ([9, 11], 2, True), ([7, 7], 6, False)])
def test_dilated_convolutions_are_taken_apart_where_images_are_large(size: list[int], step: int, apart: bool) -> None:
    source = model(
        [conv("w", "x", "y", dilations=[step, step], pads=[step] * 4)],
        {"x": [2, 32, *size]},
        ["y"],
        {"w": weights(40, 32, 3, 3)},
    )
    found = [kind for kind, _ in steps(lowered_like_onnxruntime(source))]
    assert ("space_to_batch" in found, "batch_to_space" in found) == (apart, apart)


@pytest.mark.parametrize("groups", [1, 12])
def test_chains_of_one_dimensional_operators_stay_in_blocks(groups: int) -> None:
    source = model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1], group=groups, name="first"),
            node("Add", ["a", "b"], ["c"]),
            node("Relu", ["c"], ["d"]),
            node("ConvTranspose", ["d", "v"], ["e"], strides=[2], pads=[1, 1], name="second"),
            node("Sigmoid", ["e"], ["f"]),
            node("Mul", ["e", "f"], ["y"]),
        ],
        {"x": [2, 12, 15]},
        ["y"],
        {"w": weights(12, 12 // groups, 3), "b": weights(12, 1), "v": weights(12, 20, 4)},
    )
    found = steps(lowered_like_onnxruntime(source))
    assert [kind for kind, _ in found].count("layout_change") == 2
    assert ("nn.conv2d_transpose", BLOCKED) in found


@pytest.mark.parametrize(("channels", "outputs", "groups"), [(16, 16, 16), (16, 32, 2), (12, 12, 3)])
def test_transposed_convolutions_in_groups_have_blocked_channels(channels: int, outputs: int, groups: int) -> None:
    source = model(
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1], group=groups)],
        {"x": [1, channels, 5, 4]},
        ["y"],
        {"w": weights(channels, outputs // groups, 4, 4)},
    )
    assert ("nn.conv2d_transpose", BLOCKED) in steps(lowered_like_onnxruntime(source))


@pytest.mark.parametrize("groups", [1, 12])
def test_one_dimensional_convolutions_have_a_height_of_one(groups: int) -> None:
    source = model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[2, 1], strides=[2], group=groups, name="first"),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["b", "v"], ["y"], dilations=[2], name="second"),
        ],
        {"x": [2, 12, 15]},
        ["y"],
        {"w": weights(12, 12 // groups, 3), "v": weights(5, 12, 2)},
    )
    assert steps(lowered_like_onnxruntime(source)).count(("nn.conv2d", BLOCKED)) == 2


def test_a_weight_shared_by_two_convolutions_is_packed_once() -> None:
    source = model(
        [conv("w", "x", "a", pads=[1, 1, 1, 1]), conv("w", "a", "y", pads=[1, 1, 1, 1])],
        {"x": [1, 8, 6, 6]},
        ["y"],
        {"w": weights(8, 8, 3, 3)},
    )
    lowered = lowered_like_onnxruntime(source)
    calls = kernel_calls(lowered)
    packed = [c.args[1].fields[1] for c in calls if len(c.args[1].fields) == 2]
    assert len(packed) == 2
    assert packed[0].same_as(packed[1])
