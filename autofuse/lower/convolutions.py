"""Convolutions: all that have constant weights end up as one of four forms in blocked channels.

Dense, depthwise, grouped (where groups do not fill blocks) and transposed ones. One-dimensional ones get a height of
one; groups that blocks do not fit are merged, with zero weights between them, where that costs less than reading the
blocks' own channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.lower import operators, window_operators
from autofuse.lower.following import reshape
from autofuse.lower.geometry import channel_ranges, shuffled
from autofuse.lower.lowering import Lowering, as_numpy, shape_of
from autofuse.lower.values import PLAIN, Value, pack_conv2d, pack_depthwise

# Groups of a convolution that are merged at most: each makes the arithmetic as many times more, but vectorised.
_MERGED = 16
# How many times as long a multiply-add takes whose data is not shared by several blocks of results.
_ALONE = 1.2
# Dilated convolutions are taken apart from so many blocks of channels on, and rows and columns of an image, up to so
# many times the results.
_WIDE = 4
_SMALL_IMAGE = 4
_MORE_RESULTS = 1.3

Geometry = Mapping[str, list[int]]


def conv2d(state: Lowering, call: Any, hint: str) -> Value | None:
    """NCHW, constant weights OIHW."""
    data, weight = state.value(call.args[0]), state.value(call.args[1])
    attrs = call.attrs
    if attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW" or not weight.constant or data.dtype != "float32":
        return None
    geometry = {name: [int(e) for e in getattr(attrs, name)] for name in ("strides", "padding", "dilation")}
    if int(attrs.groups) == 1 and _apart(data.shape, weight.shape, geometry, state.lanes):
        return _dilated(state, data, weight, call.args[1], geometry, shape_of(call), hint)
    return _convolve(state, data, weight, call.args[1], int(attrs.groups), geometry, shape_of(call), hint)


def _apart(data: tuple[int, ...], weight: tuple[int, ...], geometry: Geometry, lanes: int) -> bool:
    """Whether a dilated convolution is better one of the images that its taps see, one for each phase.

    Those are dense 3×3 convolutions, which Winograd's algorithm takes; the rows and columns that the dilation does not
    divide must not cost what it saves.
    """
    step = geometry["dilation"][0]
    same = geometry["dilation"] == [step, step] and geometry["padding"] == [step] * 4
    if step == 1 or not same or weight[2:] != (3, 3) or geometry["strides"] != [1, 1]:
        return False
    rows, columns = (-(-extent // step) for extent in data[2:])
    work = rows * columns * step * step / (data[2] * data[3])
    return min(weight[:2]) >= _WIDE * lanes and min(rows, columns) >= _SMALL_IMAGE and work <= _MORE_RESULTS


def _dilated(
    state: Lowering, data: Value, weight: Value, source: Any, geometry: Geometry, shape: tuple[int, ...], hint: str
) -> Value | None:
    """The images apart, convolved, and together again."""
    step = geometry["dilation"][0]
    n, c, h, w = data.shape
    rows, columns = -(-h // step), -(-w // step)
    images = state.emit_te(
        "space_to_batch",
        lambda x: window_operators.space_to_batch(x, step=step),
        [(data, state.blocked)],
        [state.in_blocks(data)],
        shape=(n * step * step, c, rows, columns),
        dtype=data.dtype,
        layout=state.blocked,
        attrs={"step": step},
        hint=f"{hint}_apart",
    )
    images.padding = data.padding
    dense = {"strides": [1, 1], "padding": [1] * 4, "dilation": [1, 1]}
    inner = (n * step * step, shape[1], rows, columns)
    made = _convolve(state, images, weight, source, 1, dense, inner, hint)
    if made is None:
        return None
    return state.emit_te(
        "batch_to_space",
        lambda x: window_operators.batch_to_space(x, step=step, extent=shape[2:]),
        [(made, state.blocked)],
        [state.in_blocks(made)],
        shape=shape,
        dtype=data.dtype,
        layout=state.blocked,
        attrs={"step": step},
        hint=f"{hint}_together",
    )


@dataclass(frozen=True)
class _Flat:
    """A one-dimensional convolution as one over images of height one, whose result has the shape `wide`."""

    data: Value
    kernel: Value
    geometry: Geometry
    wide: tuple[int, ...]


def conv1d(state: Lowering, call: Any, hint: str) -> Value | None:
    """NCW, constant weights OIW: a convolution of height one."""
    flat = _flat(state, call, "OIW", hint)
    if flat is None:
        return None
    groups = int(call.attrs.groups)
    made = _convolve(state, flat.data, flat.kernel, call.args[1], groups, flat.geometry, flat.wide, hint)
    return None if made is None else Value(shape_of(call), made.dtype, PLAIN, wide=made)


def conv1d_transpose(state: Lowering, call: Any, hint: str) -> Value | None:
    """NCW, constant weights IOW: a transposed convolution of height one."""
    flat = _flat(state, call, "IOW", hint)
    if flat is None:
        return None
    groups, extra = int(call.attrs.groups), [0, int(call.attrs.output_padding[0])]
    made = _transposed(state, flat.data, flat.kernel, call.args[1], groups, flat.geometry, extra, flat.wide, hint)
    return None if made is None else Value(shape_of(call), made.dtype, PLAIN, wide=made)


def _flat(state: Lowering, call: Any, kernel_layout: str, hint: str) -> _Flat | None:
    """The parts of a one-dimensional convolution; None where layouts or weights are not what is wanted."""
    data, weight = state.value(call.args[0]), state.value(call.args[1])
    attrs = call.attrs
    fits = attrs.data_layout == "NCW" and attrs.kernel_layout == kernel_layout
    if not fits or not weight.constant or data.dtype != "float32":
        return None
    n, c, w = data.shape
    flat = data.wide or reshape(state, data, (n, c, 1, w), hint)
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
    batch, channels, width = shape_of(call)
    return _Flat(flat, kernel, geometry, (batch, channels, 1, width))


def conv2d_transpose(state: Lowering, call: Any, hint: str) -> Value | None:
    """NCHW, constant weights IOHW. With a stride: results gathered phase by phase; else a convolution with the weights
    flipped."""
    data, weight = state.value(call.args[0]), state.value(call.args[1])
    attrs = call.attrs
    if attrs.data_layout != "NCHW" or attrs.kernel_layout != "IOHW" or not weight.constant or data.dtype != "float32":
        return None
    geometry = {name: [int(e) for e in getattr(attrs, name)] for name in ("strides", "padding", "dilation")}
    extra = [int(p) for p in attrs.output_padding]
    return _transposed(state, data, weight, call.args[1], int(attrs.groups), geometry, extra, shape_of(call), hint)


def _transposed(
    state: Lowering,
    data: Value,
    weight: Value,
    source: Any,
    groups: int,
    geometry: Geometry,
    extra: list[int],
    shape: tuple[int, ...],
    hint: str,
) -> Value | None:
    """`weight` [IC, OC/groups, KH, KW]; `extra`: rows and columns that are added at the end."""
    channels, outputs, kernel, lanes = data.shape[1], shape[1], list(weight.shape[2:]), state.lanes
    array = as_numpy(weight).reshape(groups, channels // groups, outputs // groups, *kernel)
    array = array.transpose(0, 2, 1, 3, 4).reshape(outputs, channels // groups, *kernel)
    strides, dilation, given = geometry["strides"], geometry["dilation"], geometry["padding"]
    if strides == [1, 1]:
        reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
        padding = [
            reach[0] - given[0], reach[1] - given[1], reach[0] - given[2] + extra[0], reach[1] - given[3] + extra[1]
        ]  # fmt: skip
        if min(padding) < 0:
            return None
        flipped = array[:, :, ::-1, ::-1]
        turned = Value(flipped.shape, weight.dtype, PLAIN, {}, flipped)
        forward = {"strides": [1, 1], "padding": padding, "dilation": dilation}
        return _convolve(state, data, turned, source, groups, forward, shape, hint, "transposed")
    if dilation != [1, 1]:
        array = _spread(array, dilation)
        kernel = list(array.shape[2:])
    depthwise = groups > 1 and groups == channels == outputs
    merged = 1 if depthwise else merged_groups(groups, channels // groups, outputs // groups, lanes)
    if merged is None:
        return None
    left = groups // merged
    place = f"{strides} {given} {dilation}"  # on which the order of the taps depends
    packed = state.packed(
        source,
        f"transposed {place} {merged}",
        lambda: window_operators.pack_transposed(merge(array, groups, merged), strides, given, lanes, depthwise),
    )
    arguments: dict[str, Any] = {
        "kernel": kernel, "strides": strides, "padding": given, "out": list(shape[2:]), "groups": left
    }  # fmt: skip
    return state.emit_te(
        "nn.conv2d_transpose",
        lambda x, w: window_operators.transposed_conv2d(x, w, **arguments),
        [(data, state.blocked), (weight, "packed")],
        [state.in_blocks(data), packed.forms[PLAIN]],
        shape=shape,
        dtype=data.dtype,
        layout=state.blocked,
        attrs={**arguments, "variant": "depthwise" if depthwise else "blocked"},
        hint=hint,
    )


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
    if own_channels(groups, channels // groups, outputs // groups, lanes, merged):
        described: dict[str, Any] = {
            **geometry, "channels": [channels // groups, outputs // groups], "groups": groups
        }  # fmt: skip
        packed = state.packed(source, f"grouped {how}", lambda: window_operators.pack_grouped(array, groups, lanes))
        return state.emit_te(
            "nn.conv2d",
            lambda x, w: window_operators.grouped_conv2d(x, w, **described),
            [(data, state.blocked), (weight, "packed")],
            [state.in_blocks(data), packed.forms[PLAIN]],
            shape=shape,
            dtype=data.dtype,
            layout=state.blocked,
            attrs={**described, "kernel": list(weight.shape[2:]), "variant": "grouped"},
            hint=hint,
        )
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


def _spread(weight: NDArray[Any], dilation: list[int]) -> NDArray[Any]:
    """The kernel with `dilation` - 1 zeros between its neighbouring taps."""
    extents = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    wide = np.zeros((*weight.shape[:2], *extents), weight.dtype)
    wide[:, :, :: dilation[0], :: dilation[1]] = weight
    return wide


def own_channels(groups: int, channels: int, outputs: int, lanes: int, merged: int | None) -> bool:
    """Whether each block of results is better computed from its own groups' channels than from merged groups."""
    if groups == 1 or merged == 1:
        return False
    if shuffled(channels, outputs, groups, lanes) or merged is None:
        return True
    ranges = channel_ranges(channels, outputs, groups, lanes)
    own = sum(last - first for first, last in ranges) / len(ranges)
    return own * _ALONE < merged * channels


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
