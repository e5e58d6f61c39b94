"""Fixed groups whose scheduled code must not change while the version of the family that schedules them stays.

To add a family: give it one or more groups in `GROUPS`, then run `python scripts/golden_tir.py FAMILY`, which writes
its digests to tests/golden_tir.json. Groups are small; together they should reach every part of a family's schedule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lowered_groups import LoweredGroup
from schedule_harness import HARDWARE, Case, Sketch, Value, block
from tvm import relax
from tvm.relax import op as R
from window_layers import grouped, normalised, transposed

from autofuse.codegen.digest import tir_digest
from autofuse.graph.model import Group
from autofuse.schedule.registry import family

FILE = Path(__file__).with_name("golden_tir.json")
KERNELESS = {"view"}
"""Families that launch nothing: they have no scheduled code."""

Made = tuple[Group, Any]


def constant(*shape: int) -> Any:
    """Numbers that are the same everywhere; no digest depends on them."""
    return relax.const(np.linspace(-1, 1, int(np.prod(shape)), dtype="float32").reshape(shape))


def image(sketch: Sketch, channels: int, size: int) -> tuple[Value, np.ndarray]:
    """A blocked image and the same as [1, C, H, W]."""
    plain = sketch.uniform((1, channels, size, size))
    return sketch.source((), array=block(plain)), plain


def sketched(build: Callable[[Sketch], Value]) -> Callable[[], Made]:
    """A group put together by hand."""

    def make() -> Made:
        sketch = Sketch()
        case: Case = sketch.finish(build(sketch))
        return case.group, case.func

    return make


def lowered(build: Callable[..., Any], *shapes: tuple[int, ...], behind: str = "") -> Callable[[], Made]:
    """The operators of a small lowered program: all, or those behind the first of the kind `behind`.

    What changes the layout of the last result stays outside then.
    """

    def make() -> Made:
        case = LoweredGroup(build, shapes)
        kinds = [op.kind for op in case.graph.operators]
        if behind and kinds[-1] == "layout_change":
            kinds.pop()
        group = Group.of(case.graph, range(kinds.index(behind) + 1 if behind else 0, len(kinds)))
        return group, case.fuser.fuse(group)

    return make


def convolution(sketch: Sketch, **how: Any) -> Value:
    data, plain = image(sketch, 16, 12)
    return sketch.relu(sketch.conv2d(data, plain, 24, **how))


def pooled(sketch: Sketch) -> Value:
    return sketch.pool(convolution(sketch, kernel=(3, 3), padding=(1, 1, 1, 1)), "max", (2, 2), strides=(2, 2))


def stem(sketch: Sketch) -> Value:
    values = sketch.uniform((1, 3, 28, 28))
    out = sketch.conv2d(sketch.source((), array=values), values, 24, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    return sketch.pool(sketch.relu(out), "max", (3, 3), strides=(2, 2), padding=(1, 1, 1, 1))


def residual(sketch: Sketch) -> Value:
    out = convolution(sketch, kernel=(1, 1), strides=(2, 2))
    return sketch.relu(sketch.add(out, sketch.source(out.answer.shape)))


def depthwise(sketch: Sketch) -> Value:
    data, plain = image(sketch, 24, 14)
    return sketch.sigmoid(sketch.depthwise(data, plain, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))


def paired(depthwise_first: bool) -> Callable[[Sketch], Value]:
    """A depthwise and a pointwise convolution, either one first."""

    def build(sketch: Sketch) -> Value:
        data, plain = image(sketch, 16, 13)
        how: dict[str, Any] = {"strides": (2, 2), "padding": (1, 1, 1, 1)}
        if depthwise_first:
            made = sketch.relu(sketch.depthwise(data, plain, (3, 3), **how))
        else:
            made = sketch.relu(sketch.conv2d(data, plain, 24, (1, 1)))
        n, _, rows, columns, _ = made.answer.shape
        plain = made.answer.transpose(0, 1, 4, 2, 3).reshape(n, -1, rows, columns)
        if depthwise_first:
            return sketch.relu(sketch.conv2d(made, plain, 24, (1, 1)))
        return sketch.sigmoid(sketch.depthwise(made, plain, (3, 3), **how))

    return build


def depthwise_by_rows(sketch: Sketch) -> Value:
    data, plain = image(sketch, 16, 30)
    return sketch.relu(sketch.depthwise(data, plain, (3, 3), padding=(1, 1, 1, 1)))


def pooling(kind: str) -> Callable[[Sketch], Value]:
    def build(sketch: Sketch) -> Value:
        data, _ = image(sketch, 16, 13)
        return sketch.relu(sketch.pool(data, kind, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)))

    return build


def attention(emit: Any, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
    """Three heads of 12: softmax(q · kᵀ + mask + bias) · v."""

    def heads(x: Any, axes: list[int]) -> Any:
        return emit(R.permute_dims(emit(R.reshape(x, (1, x.ty.shape[1], 3, 12))), axes))

    scores = emit(R.matmul(heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1])))
    scores = emit(R.add(emit(R.add(scores, mask)), bias))
    mixed = emit(R.matmul(emit(R.nn.softmax(scores)), heads(v, [0, 2, 1, 3])))
    return R.reshape(emit(R.permute_dims(mixed, [0, 2, 1, 3])), (1, 21, 36))


def affine(emit: Any, x: Any) -> Any:
    return R.nn.relu(emit(R.add(emit(R.matmul(x, constant(32, 40))), constant(40))))


def deep(emit: Any, x: Any) -> Any:
    """A product deep enough for its weights to be fetched ahead, whose rows are reduced."""
    return R.nn.softmax(emit(R.matmul(x, constant(960, 96))))


def squeeze(emit: Any, x: Any) -> Any:
    """Squeeze-and-excitation behind a convolution that blocks its channels."""
    y = emit(R.nn.conv2d(x, constant(16, 16, 1, 1)))
    small = emit(R.nn.relu(emit(R.nn.conv2d(emit(R.mean(y, [2, 3], keepdims=True)), constant(8, 16, 1, 1)))))
    gates = emit(R.sigmoid(emit(R.nn.conv2d(small, constant(16, 8, 1, 1)))))
    return R.multiply(y, gates)


def head(emit: Any, x: Any) -> Any:
    """Global pooling and a product behind a convolution."""
    y = emit(R.nn.conv2d(x, constant(16, 16, 1, 1)))
    return R.matmul(emit(R.mean(y, [2, 3])), constant(16, 10))


def grouped_layer(sketch: Sketch) -> Value:
    """Groups of four channels, which are rearranged."""
    data, plain = image(sketch, 16, 9)
    return sketch.relu(grouped(sketch, data, plain, 4, (3, 3), 4, padding=(1, 1, 1, 1)))


def grouped_ranges(sketch: Sketch) -> Value:
    """Groups of twelve channels, which are broadcast."""
    data, plain = image(sketch, 24, 9)
    return grouped(sketch, data, plain, 12, (1, 3), 2)


def transposed_layer(sketch: Sketch) -> Value:
    data, plain = image(sketch, 16, 7)
    kernel = (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)
    return sketch.relu(transposed(sketch, data, plain, 24, *kernel))


def normalised_layer(sketch: Sketch, channels: int = 32) -> Value:
    data, plain = image(sketch, channels, 9)
    return sketch.sigmoid(normalised(sketch, sketch.relu(data), np.maximum(plain, 0), 2))


def resized(size: tuple[int, int], method: str) -> Callable[..., Any]:
    rounding = "floor" if method == "nearest_neighbor" else ""
    return lambda emit, x: R.image.resize2d(
        x, size, method=method, coordinate_transformation_mode="asymmetric", rounding_method=rounding
    )


GROUPS: Mapping[str, Mapping[str, Callable[[], Made]]] = {
    "conv2d_pool": {"3x3 relu max pool": sketched(pooled), "3 channels to 24": sketched(stem)},
    "conv2d": {
        "3x3 relu": sketched(lambda s: convolution(s, kernel=(3, 3), padding=(1, 1, 1, 1))),
        "1x1 stride 2 relu add relu": sketched(residual),
        "1x1 relu": sketched(lambda s: convolution(s, kernel=(1, 1))),
    },
    "winograd": {"3x3 relu": sketched(lambda s: convolution(s, kernel=(3, 3), padding=(1, 1, 1, 1)))},
    "depthwise": {"3x3 stride 2 sigmoid": sketched(depthwise), "3x3 by rows": sketched(depthwise_by_rows)},
    "depthwise_pointwise": {"3x3 stride 2 relu, 1x1 relu": sketched(paired(True))},
    "pointwise_depthwise": {"1x1 relu, 3x3 stride 2 sigmoid": sketched(paired(False))},
    "grouped": {"groups of 4, relu": sketched(grouped_layer), "groups of 12": sketched(grouped_ranges)},
    "transposed": {"3x3 stride 2 relu": sketched(transposed_layer)},
    "group_norm": {
        "relu, two groups, sigmoid": sketched(normalised_layer),
        "relu, groups of 12, sigmoid": sketched(partial(normalised_layer, channels=24)),
    },
    "resize": {
        "nearest, twice": lowered(resized((14, 20), "nearest_neighbor"), (1, 3, 7, 10)),
        "nearest": lowered(resized((9, 13), "nearest_neighbor"), (1, 3, 7, 10)),
        "linear": lowered(resized((14, 21), "linear"), (1, 3, 7, 10)),
    },
    "pool": {"max relu": sketched(pooling("max")), "avg relu": sketched(pooling("avg"))},
    "matmul": {
        "matmul add relu": lowered(affine, (7, 32)),
        "batched": lowered(lambda emit, x, y: R.matmul(x, y), (3, 7, 20), (3, 20, 18)),
        "deep, softmax": lowered(deep, (64, 960)),
    },
    "attention": {
        "heads split and merged, mask": lowered(
            attention, (1, 21, 36), (1, 19, 36), (1, 19, 36), (1, 1, 21, 19), (19,)
        ),
    },
    "rows": {
        "softmax": lowered(lambda emit, x: R.nn.softmax(x), (6, 50)),
        "layer norm": lowered(lambda emit, x, g, b: R.nn.layer_norm(x, g, b, [-1]), (2, 3, 48), (48,), (48,)),
        "mean of columns": lowered(lambda emit, x: R.mean(x, [0]), (33, 50)),
    },
    "staged": {
        "squeeze and excitation": lowered(squeeze, (1, 16, 7, 5), behind="nn.conv2d"),
        "pool and product": lowered(head, (1, 16, 7, 5), behind="nn.conv2d"),
    },
    "elementwise": {
        "chain": lowered(lambda emit, x: R.exp(emit(R.nn.relu(emit(R.multiply(x, constant(1)))))), (3, 7, 40)),
        "transpose": lowered(lambda emit, x: R.tanh(emit(R.permute_dims(x, [0, 2, 1]))), (2, 9, 20)),
        "concat": lowered(lambda emit, x, y: R.nn.relu(emit(R.concat([x, y], 2))), (2, 3, 9), (2, 3, 11)),
    },
    "plain": {"three dimensions": lowered(lambda emit, x, w: R.nn.conv3d(x, w), (1, 4, 5, 6, 7), (5, 4, 3, 3, 3))},
}
"""Family → name of a group → how it is made."""

CONFIGURATIONS = 4
"""So many of the configurations that a family offers are looked at, spread over the list."""


def digests(name: str) -> dict[str, str]:
    """Digests of a family's scheduled code: "group [configuration]" → digest."""
    which = family(name)
    found: dict[str, str] = {}
    for label, make in GROUPS[name].items():
        group, func = make()
        refusal = which.match(group, HARDWARE)
        assert refusal is None, f"{name} does not take the group {label!r} of tests/golden_groups.py: {refusal}"
        offered = list(which.configs(group, HARDWARE))
        for config in offered[:: max(1, len(offered) // CONFIGURATIONS)][:CONFIGURATIONS]:
            found[f"{label} [{config.text}]"] = tir_digest(which.apply(func, group, config, HARDWARE))
    return found


def kept() -> dict[str, Any]:
    """What tests/golden_tir.json says: family → {"version": n, "digests": {...}}."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content
