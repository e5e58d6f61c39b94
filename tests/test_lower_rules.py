"""How what stands around convolutions is lowered, against ONNX Runtime, with the layouts that it should have chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from frontend_graphs import model, node, weights
from lowered_graphs import kernel_calls, kinds, lowered_like_onnxruntime, steps
from onnx import TensorProto

BLOCKED = "NCHW8c"


def conv(name: str, source: str, result: str, **attributes: Any) -> onnx.NodeProto:
    return node("Conv", [source, name], [result], name=f"conv_{result}", **attributes)


@pytest.mark.parametrize("channels", [8, 12])
def test_elementwise_operands_of_every_shape_follow_the_blocks(channels: int) -> None:
    source = model(
        [
            conv("w", "x", "c", pads=[1, 1, 1, 1]),
            node("Mul", ["c", "scalar"], ["d"]),
            node("Add", ["d", "one"], ["e"]),
            node("Mul", ["e", "per_channel"], ["f"]),
            node("Add", ["f", "map"], ["g"]),
            node("GlobalAveragePool", ["g"], ["h"]),
            node("Sigmoid", ["h"], ["i"]),
            node("Mul", ["g", "i"], ["j"]),
            node("Sub", ["c", "j"], ["k"]),
            node("Max", ["k", "c"], ["l"]),
            node("Div", ["l", "scalar"], ["m"]),
            node("Tanh", ["m"], ["y"]),
        ],
        {"x": [1, 3, 6, 6]},
        ["y"],
        {
            "w": weights(channels, 3, 3, 3),
            "scalar": np.float32(1.5),
            "one": np.float32([[[[0.25]]]]),
            "per_channel": weights(channels, 1, 1),
            "map": weights(1, 1, 6, 6),
        },
    )
    found = steps(lowered_like_onnxruntime(source))
    assert [kind for kind, _ in found].count("layout_change") == 1
    assert {layout for _, layout in found[:-1]} == {BLOCKED}


def test_constants_of_one_element_are_folded_into_the_kernels() -> None:
    source = model(
        [node("Mul", ["x", "two"], ["a"]), node("Add", ["one", "a"], ["y"])],
        {"x": [3, 4]},
        ["y"],
        {"two": np.float32([[2]]), "one": np.float32([1])},
    )
    lowered = lowered_like_onnxruntime(source)
    calls = kernel_calls(lowered)
    assert [len(c.args[1].fields) for c in calls] == [1, 1]


def test_the_same_operand_twice_and_two_operands_share_no_wrong_kernel() -> None:
    for first, second in ((["a", "a"], ["a", "b"]), (["a", "b"], ["a", "a"])):
        source = model(
            [node("Add", first, ["p"]), node("Add", second, ["q"]), node("Mul", ["p", "q"], ["y"])],
            {"a": [2, 3], "b": [2, 3]},
            ["y"],
        )
        assert kinds(lowered_like_onnxruntime(source)) == ["add", "add", "multiply"]


@pytest.mark.parametrize("blocked", [True, False])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("MaxPool", {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2, 2, 2, 2]}),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 2], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    ],
)
def test_pools_keep_the_layout_of_their_operand(op: str, attributes: dict[str, Any], blocked: bool) -> None:
    before = [conv("w", "x", "a")] if blocked else [node("Abs", ["x"], ["a"])]
    source = model(
        [*before, node(op, ["a"], ["y"], **attributes)], {"x": [1, 12, 9, 8]}, ["y"], {"w": weights(12, 12, 1, 1)}
    )
    found = steps(lowered_like_onnxruntime(source))
    pool = "nn.max_pool2d" if op == "MaxPool" else "nn.avg_pool2d"
    assert (pool, BLOCKED if blocked else "") in found


@pytest.mark.parametrize("channels", [8, 10])
@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("GlobalAveragePool", {}),
        ("ReduceMean", {"keepdims": 1}),
        ("ReduceMean", {"keepdims": 0}),
        ("ReduceSum", {"keepdims": 0}),
        ("ReduceMax", {"keepdims": 1}),
    ],
)
def test_spatial_reductions_keep_the_blocks(op: str, attributes: dict[str, Any], channels: int) -> None:
    inputs = ["a"] if op == "GlobalAveragePool" else ["a", "axes"]
    source = model(
        [conv("w", "x", "a"), node(op, inputs, ["y"], **attributes)],
        {"x": [2, 3, 7, 5]},
        ["y"],
        {"w": weights(channels, 3, 1, 1), "axes": np.int64([2, 3])},
    )
    found = steps(lowered_like_onnxruntime(source))
    assert found[1][1] == BLOCKED
    assert found[1][0] in ("mean", "sum", "max")


def test_other_reductions_see_the_model_s_own_layout() -> None:
    source = model(
        [conv("w", "x", "a"), node("ReduceMean", ["a", "axes"], ["y"], keepdims=0)],
        {"x": [1, 3, 5, 5]},
        ["y"],
        {"w": weights(8, 3, 1, 1), "axes": np.int64([1, 3])},
    )
    assert steps(lowered_like_onnxruntime(source))[1:] == [("layout_change", ""), ("mean", "")]


@pytest.mark.parametrize(
    ("first", "second", "axis", "blocked"),
    [
        (8, 16, 1, True), (8, 12, 1, True), (12, 8, 1, False), (12, 12, 2, True), (12, 12, 3, True), (8, 8, 0, True),
        (8, 12, -3, True), (12, 12, -2, True), (12, 12, -1, True), (8, 8, -4, True),
    ],
)  # fmt: skip
def test_concat_stays_in_blocks_where_its_parts_fill_them(first: int, second: int, axis: int, blocked: bool) -> None:
    source = model(
        [
            conv("w1", "x", "a"),
            conv("w2", "x", "b"),
            node("Concat", ["a", "b"], ["c"], axis=axis),
            conv("w3", "c", "y"),
        ],
        {"x": [1, 3, 4, 5]},
        ["y"],
        {
            "w1": weights(first, 3, 1, 1),
            "w2": weights(second, 3, 1, 1),
            "w3": weights(8, first + second if axis % 4 == 1 else first, 1, 1),
        },
    )
    assert (("concat", BLOCKED) in steps(lowered_like_onnxruntime(source))) == blocked


def test_concat_takes_a_part_that_is_not_blocked_yet() -> None:
    source = model(
        [conv("w", "x", "a"), node("Concat", ["a", "z"], ["y"], axis=1)],
        {"x": [1, 3, 4, 4], "z": [1, 4, 4, 4]},
        ["y"],
        {"w": weights(8, 3, 1, 1)},
    )
    assert ("concat", BLOCKED) in steps(lowered_like_onnxruntime(source))


@pytest.mark.parametrize(("parts", "blocked"), [([8, 16], True), ([16, 4], True), ([12, 12], False), ([4, 8], False)])
def test_splits_become_one_slice_a_part(parts: list[int], blocked: bool) -> None:
    source = model(
        [conv("w", "x", "a"), node("Split", ["a", "parts"], ["p", "q"], axis=1)],
        {"x": [1, 3, 4, 4]},
        ["p", "q"],
        {"w": weights(sum(parts), 3, 1, 1), "parts": np.int64(parts)},
    )
    found = steps(lowered_like_onnxruntime(source))
    layouts = [layout for kind, layout in found if kind == "strided_slice"]
    assert len(layouts) == 2
    assert (layouts[0] == BLOCKED) == blocked


@pytest.mark.parametrize(
    ("axes", "starts", "ends", "steps_", "blocked"),
    [
        ([1], [8], [16], [1], True),
        ([1], [16], [1000], [1], True),  # to the end, which fills a block partly
        ([1], [-12], [-4], [1], True),
        ([1], [4], [12], [1], False),
        ([1], [0], [16], [2], False),
        ([2, 3], [1, 0], [5, -1], [2, 1], True),
        ([1, 2], [8, 1], [16, 3], [1, 1], True),
    ],
)
def test_slices_stay_in_blocks_on_whole_channel_blocks(
    axes: list[int], starts: list[int], ends: list[int], steps_: list[int], blocked: bool
) -> None:
    source = model(
        [
            conv("w", "x", "a"),
            node("Slice", ["a", "starts", "ends", "axes", "steps"], ["b"]),
            node("Neg", ["b"], ["y"]),
        ],
        {"x": [1, 3, 6, 6]},
        ["y"],
        {
            "w": weights(20, 3, 1, 1),
            "starts": np.int64(starts),
            "ends": np.int64(ends),
            "axes": np.int64(axes),
            "steps": np.int64(steps_),
        },
    )
    assert (("strided_slice", BLOCKED) in steps(lowered_like_onnxruntime(source))) == blocked


@pytest.mark.parametrize(
    ("mode", "coordinates"), [("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")]
)
def test_resize_keeps_the_blocks(mode: str, coordinates: str) -> None:
    source = model(
        [
            conv("w", "x", "a"),
            node(
                "Resize", ["a", "", "scales"], ["y"], mode=mode, coordinate_transformation_mode=coordinates,
                nearest_mode="floor",
            ),
        ],
        {"x": [1, 3, 5, 4]},
        ["y"],
        {"w": weights(12, 3, 1, 1), "scales": np.float32([1, 1, 2, 2])},
    )  # fmt: skip
    assert ("image.resize2d", BLOCKED) in steps(lowered_like_onnxruntime(source))


@pytest.mark.parametrize(
    ("left", "right", "constant"),
    [
        ([5, 7], [7, 20], True),
        ([2, 3, 5, 7], [7, 33], True),
        ([2, 5, 7], [1, 7, 16], True),
        ([5, 7], [1, 7, 16], True),  # a result of more axes than the left operand
        ([5, 7], [3, 7, 4], True),  # one weight for each batch
        ([2, 3, 5, 7], [2, 3, 7, 6], False),
        ([2, 1, 5, 7], [3, 7, 6], False),  # broadcast batch
        ([1, 1, 5, 7], [2, 3, 7, 1], False),
    ],
)
def test_matrix_products(left: list[int], right: list[int], constant: bool) -> None:
    inputs = {"a": left} if constant else {"a": left, "b": right}
    source = model([node("MatMul", ["a", "b"], ["y"])], inputs, ["y"], {"b": weights(*right)} if constant else None)
    assert kinds(lowered_like_onnxruntime(source)) == ["matmul"]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("left", "right"), [([7], [7, 4]), ([2, 5, 7], [7]), ([7], [7]), ([7], [2, 7, 3])])
def test_products_with_vectors(left: list[int], right: list[int], constant: bool) -> None:
    inputs = {"a": left} if constant else {"a": left, "b": right}
    source = model([node("MatMul", ["a", "b"], ["y"])], inputs, ["y"], {"b": weights(*right)} if constant else None)
    lowered = lowered_like_onnxruntime(source)
    (product,) = [c for c in kernel_calls(lowered) if lowered.module[c.args[0]].attrs["autofuse.kind"] == "matmul"]
    assert all(len(t.ty.shape.values) >= 2 for t in product.args[1].fields)


def test_a_map_that_every_channel_shares_is_broadcast() -> None:
    source = model(
        [
            conv("w", "x", "a", pads=[1, 1, 1, 1]),
            node("ReduceMean", ["a", "axes"], ["m"], keepdims=1),
            node("Mul", ["a", "m"], ["b"]),
            conv("v", "b", "y"),
        ],
        {"x": [1, 3, 5, 5]},
        ["y"],
        {"w": weights(12, 3, 3, 3), "v": weights(4, 12, 1, 1), "axes": np.int64([1])},
    )
    lowered_like_onnxruntime(source)


def test_integer_inputs_look_up_embeddings() -> None:
    source = model(
        [
            node("Gather", ["table", "ids"], ["e"], axis=0),
            node("MatMul", ["e", "w"], ["m"]),
            node("LayerNormalization", ["m", "scale", "shift"], ["n"], axis=-1),
            node("Softmax", ["n"], ["y"], axis=-1),
        ],
        {"ids": ([2, 5], TensorProto.INT64)},
        ["y"],
        {"table": weights(11, 12), "w": weights(12, 12), "scale": weights(12), "shift": weights(12, seed=1)},
    )
    ids = np.random.default_rng(0).integers(0, 11, (2, 5))
    found = kinds(lowered_like_onnxruntime(source, arrays=[ids]))
    assert found[:2] == ["take", "matmul"]
    assert found[-1] == "nn.softmax"


def test_an_operator_without_a_tensor_program_stays_a_call() -> None:
    source = model(
        [conv("w", "x", "a"), node("Relu", ["a"], ["b"]), node("TopK", ["b", "k"], ["values", "indices"], axis=1)],
        {"x": [1, 3, 4, 4]},
        ["values", "indices"],
        {"w": weights(8, 3, 1, 1), "k": np.int64([2])},
    )
    found = steps(lowered_like_onnxruntime(source))
    assert found[:3] == [("nn.conv2d", BLOCKED), ("nn.relu", BLOCKED), ("layout_change", "")]
    assert ("topk", "opaque") in found
