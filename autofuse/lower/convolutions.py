"""Convolutions: all that have constant weights end up as one of two forms in blocked channels, dense or depthwise.

One-dimensional ones get a height of one, transposed ones work on an operand with zeros between its elements, and
groups that blocks do not fit are merged, with zero weights between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.lower import operators
from autofuse.lower.following import reshape
from autofuse.lower.lowering import Lowering, as_numpy, shape_of
from autofuse.lower.values import PLAIN, Value, pack_conv2d, pack_depthwise

# Groups of a convolution that are merged at most: each makes the arithmetic as many times more, but vectorised.
_MERGED = 16

Geometry = Mapping[str, list[int]]


def conv2d(state: Lowering, call: Any, hint: str) -> Value | None:
    """NCHW, constant weights OIHW."""
    data, weight = state.value(call.args[0]), state.value(call.args[1])
    attrs = call.attrs
    if attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW" or not weight.constant or data.dtype != "float32":
        return None
    geometry = {name: [int(e) for e in getattr(attrs, name)] for name in ("strides", "padding", "dilation")}
    return _convolve(state, data, weight, call.args[1], int(attrs.groups), geometry, shape_of(call), hint)


def conv1d(state: Lowering, call: Any, hint: str) -> Value | None:
    """NCW, constant weights OIW: a convolution of height one."""
    data, weight = state.value(call.args[0]), state.value(call.args[1])
    attrs = call.attrs
    if attrs.data_layout != "NCW" or attrs.kernel_layout != "OIW" or not weight.constant or data.dtype != "float32":
        return None
    n, c, w = data.shape
    shape = shape_of(call)
    flat = reshape(state, data, (n, c, 1, w), hint)
    if flat is None:
        return None
    before, after = (int(p) for p in attrs.padding)
    geometry = {
        "strides": [1, int(attrs.strides[0])],
        "padding": [0, before, 0, after],
        "dilation": [1, int(attrs.dilation[0])],
    }
    array = as_numpy(weight)
    kernel = Value((*array.shape[:2], 1, array.shape[2]), weight.dtype, PLAIN, {}, array[:, :, None, :])
    wide = (shape[0], shape[1], 1, shape[2])
    made = _convolve(state, flat, kernel, call.args[1], int(attrs.groups), geometry, wide, hint)
    return None if made is None else reshape(state, made, shape, hint)


def conv2d_transpose(state: Lowering, call: Any, hint: str) -> Value | None:
    """NCHW, constant weights IOHW, one group: a convolution with the flipped weights, zeros between the elements."""
    data, weight = state.value(call.args[0]), state.value(call.args[1])
    attrs = call.attrs
    fits = attrs.data_layout == "NCHW" and attrs.kernel_layout == "IOHW" and int(attrs.groups) == 1
    if not fits or not weight.constant or data.dtype != "float32":
        return None
    strides, dilation = [int(s) for s in attrs.strides], [int(d) for d in attrs.dilation]
    given, extra = [int(p) for p in attrs.padding], [int(p) for p in attrs.output_padding]
    reach = [(k - 1) * d for k, d in zip(weight.shape[2:], dilation, strict=True)]
    padding = [reach[0] - given[0], reach[1] - given[1], reach[0] - given[2] + extra[0], reach[1] - given[3] + extra[1]]
    if min(padding) < 0:
        return None
    spread = data
    if strides != [1, 1]:
        n, c, h, w = data.shape
        spread = state.emit_te(
            "dilate",
            lambda x: operators.dilate(x, strides=strides),
            [(data, state.blocked)],
            [state.in_blocks(data)],
            shape=(n, c, (h - 1) * strides[0] + 1, (w - 1) * strides[1] + 1),
            dtype=data.dtype,
            layout=state.blocked,
            attrs={"strides": strides},
            hint=f"{hint}_spread",
        )
        spread.padding = data.padding
    array = as_numpy(weight).transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    kernel = Value(array.shape, weight.dtype, PLAIN, {}, array)
    geometry = {"strides": [1, 1], "padding": padding, "dilation": dilation}
    return _convolve(state, spread, kernel, call.args[1], 1, geometry, shape_of(call), hint, "transposed")


def _convolve(
    state: Lowering,
    data: Value,
    weight: Value,
    source: Any,
    groups: int,
    geometry: Geometry,
    shape: tuple[int, ...],
    hint: str,
    how: str = "",
) -> Value | None:
    """`weight` [OC, IC/groups, KH, KW]; `source` is the prepared module's constant, `how` what was made of it."""
    channels, outputs, lanes = data.shape[1], weight.shape[0], state.lanes
    array = as_numpy(weight)
    if groups > 1 and groups == channels == outputs:
        packed = state.packed(source, f"depthwise {how}", lambda: pack_depthwise(array, lanes))
        return state.emit_te(
            "nn.conv2d",
            lambda x, w: operators.depthwise_conv2d_blocked(x, w, **geometry),
            [(data, state.blocked), (weight, "packed")],
            [state.in_blocks(data), packed.forms[PLAIN]],
            shape=shape,
            dtype=data.dtype,
            layout=state.blocked,
            attrs={**geometry, "groups": groups, "kernel": list(weight.shape[2:]), "variant": "depthwise"},
            hint=hint,
        )
    merged = merged_groups(groups, channels // groups, outputs // groups, lanes)
    if merged is None:
        return None
    left = groups // merged
    # Few input channels (an image) are read where they stand: one channel at a time, broadcast over the outputs.
    in_block = 1 if channels < lanes and data.layout == PLAIN else lanes
    packed = state.packed(
        source, f"conv2d {how} {in_block} {merged}", lambda: pack_conv2d(merge(array, groups, merged), in_block, lanes)
    )
    return state.emit_te(
        "nn.conv2d",
        lambda x, w: operators.conv2d_blocked(x, w, groups=left, **geometry),
        [(data, PLAIN if in_block == 1 else state.blocked), (weight, "packed")],
        [state.plain(data) if in_block == 1 else state.in_blocks(data), packed.forms[PLAIN]],
        shape=shape,
        dtype=data.dtype,
        layout=state.blocked,
        attrs={
            **geometry,
            "groups": left,
            "kernel": list(weight.shape[2:]),
            "variant": "blocked",
            "in_block": in_block,
        },
        hint=hint,
    )


def merged_groups(groups: int, channels: int, outputs: int, lanes: int) -> int | None:
    """How many groups, of so many channels each, have to be taken together so that blocks of `lanes` fit.

    All of them where no smaller number does; None if that is too many.
    """
    for count in range(1, min(groups, _MERGED) + 1):
        aligned = channels * count % lanes == 0 and outputs * count % lanes == 0
        if groups % count == 0 and (aligned or count == groups):
            return count
    return None


def merge(weight: NDArray[Any], groups: int, count: int) -> NDArray[Any]:
    """[OC, IC/groups, KH, KW] → [OC, count * IC/groups, KH, KW], zero where output and input are of other groups."""
    if count == 1:
        return weight
    outputs, channels, kh, kw = weight.shape
    per_group = outputs // groups
    merged = np.zeros((groups // count, count, per_group, count, channels, kh, kw), weight.dtype)
    split = weight.reshape(groups // count, count, per_group, channels, kh, kw)
    for i in range(count):
        merged[:, i, :, i] = split[:, i]
    return merged.reshape(outputs, count * channels, kh, kw)
