"""Tensor expressions of convolutions whose channels or taps do not lie in whole blocks: grouped, transposed, dilated.

The layouts are those of `operators`; the packing functions give the weights in the form that the expressions read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tvm import te, tirx

from autofuse.lower.geometry import Phases, channel_ranges, shuffled, transposed_phases
from autofuse.lower.operators import ROLE, output_extent, pad_spatial, static_shape
from autofuse.lower.values import ceil_div


def pack_grouped(weight: NDArray[np.float32], groups: int, lanes: int) -> NDArray[np.float32]:
    """[OC, IC/groups, KH, KW] → [OC/lanes, R, KH, KW, lanes], zero where a lane's group does not have the channel.

    R is the channels of a group where they are shuffled, else of the widest block's groups together.
    """
    total, inputs, kh, kw = weight.shape
    outputs = total // groups
    blocks = ceil_div(total, lanes)
    if shuffled(inputs, outputs, groups, lanes):
        padded = np.zeros((blocks * lanes, inputs, kh, kw), weight.dtype)
        padded[:total] = weight
        return padded.reshape(blocks, lanes, inputs, kh, kw).transpose(0, 2, 3, 4, 1)
    ranges = channel_ranges(inputs, outputs, groups, lanes)
    packed = np.zeros((blocks, max(last - first for first, last in ranges), kh, kw, lanes), weight.dtype)
    for channel in range(total):
        block, lane = divmod(channel, lanes)
        start = channel // outputs * inputs - ranges[block][0]
        packed[block, start : start + inputs, :, :, lane] = weight[channel]
    return packed


def grouped_conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels: Sequence[int],
) -> te.Tensor:
    """Grouped convolution. data: [N, IC/b, H, W, b]; weight: of `pack_grouped`; result: [N, OC/b, OH, OW, b].

    channels: inputs and outputs of one group.
    """
    outer, depth, kh, kw, block = static_shape(weight)
    inputs, outputs = channels
    n, _, h, w, _ = static_shape(data)
    oh = output_extent(h, kh, strides[0], dilation[0], padding[0], padding[2])
    ow = output_extent(w, kw, strides[1], dilation[1], padding[1], padding[3])
    source = pad_spatial(data, padding, 0.0)
    rc = te.reduce_axis((0, depth), "rc")
    ry = te.reduce_axis((0, kh), "kh")
    rx = te.reduce_axis((0, kw), "kw")
    exact = shuffled(inputs, outputs, groups, block)

    def multiply_add(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        if exact:
            channel = tirx.floordiv(co * block + ci, outputs) * inputs + rc
        else:
            # A block with fewer channels than the widest one has zero weights behind them.
            first = tirx.floordiv(co * block, outputs) * inputs
            channel = tirx.min(first + rc, groups * inputs - 1)
        where = (tirx.floordiv(channel, block), y * strides[0] + ry * dilation[0], x * strides[1] + rx * dilation[1])
        value = source[(b, *where, tirx.floormod(channel, block))]
        return te.sum(value * weight[co, rc, ry, rx, ci], axis=[rc, ry, rx])

    return te.compute((n, outer, oh, ow, block), multiply_add, name="gconv", attrs={ROLE: "gconv"})


def pack_transposed(weight: NDArray[np.float32], strides: Sequence[int], padding: Sequence[int], lanes: int,
                    depthwise: bool) -> NDArray[np.float32]:  # fmt: skip
    """[OC, IC, KH, KW] → [OC/b, IC/b, sh, sw, th, tw, b, b] (depthwise: [OC/b, sh, sw, th, tw, b]), zero-padded.

    For each phase of rows and columns its taps, those of the kernel that are `stride` apart, the last one first, behind
    zeros where other phases have more of them: so taps and the data that they meet run in the same direction.
    """
    oc, ic, kh, kw = weight.shape
    taps = [ceil_div(k, s) for k, s in zip((kh, kw), strides, strict=True)]
    outer = ceil_div(oc, lanes)
    inner = ceil_div(ic, lanes)
    width = 1 if depthwise else lanes
    packed = np.zeros((outer * lanes, inner * width, *strides, *taps), weight.dtype)
    for py in range(strides[0]):
        for px in range(strides[1]):
            k = (py + padding[0]) % strides[0], (px + padding[1]) % strides[1]
            part = weight[:, :, k[0] :: strides[0], k[1] :: strides[1]]
            rows, columns = taps[0] - part.shape[2], taps[1] - part.shape[3]
            packed[:oc, :ic, py, px, rows:, columns:] = part[:, :, ::-1, ::-1]
    split = packed.reshape(outer, lanes, inner, width, *strides, *taps)
    return split[:, :, 0, 0].transpose(0, 2, 3, 4, 5, 1) if depthwise else split.transpose(0, 2, 4, 5, 6, 7, 3, 1)


def transposed_conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    out: Sequence[int],
    groups: int,
) -> te.Tensor:
    """Transposed convolution, every result gathered from the data. data: [N, IC/b, H, W, b]; weight: of
    `pack_transposed`, with a group's input channels, or without them where each channel is a group; result:
    [N, OC/b, *out, b].

    Result y of phase p = y mod stride is the sum over taps t of data[y div stride + low + t] times the phase's tap t,
    low the phase's `Phases.low`.
    """
    shape = static_shape(weight)
    depthwise = len(shape) == 6
    outer, block = shape[0], shape[-1]
    n, _, h, w, _ = static_shape(data)
    rows, columns = transposed_phases((h, w), kernel, strides, padding, out)
    source = pad_spatial(data, (rows.before, columns.before, rows.after, columns.after), 0.0)
    ry = te.reduce_axis((0, rows.taps), "kh")
    rx = te.reduce_axis((0, columns.taps), "kw")

    def place(at: tirx.Var, axis: Phases, before: int, tap: tirx.IterVar) -> tuple[tirx.Expr, tirx.Expr]:
        shift = axis.first[0][0]  # the padding, modulo the stride
        start = tirx.floordiv(at + shift, axis.stride) + axis.first[0][1]
        return tirx.floormod(at, axis.stride), start + (tap + (before - (axis.taps - 1)))

    if depthwise:

        def along(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
            py, iy = place(y, rows, rows.before, ry)
            px, ix = place(x, columns, columns.before, rx)
            return te.sum(source[b, co, iy, ix, ci] * weight[co, py, px, ry, rx, ci], axis=[ry, rx])

        return te.compute((n, outer, *out, block), along, name="tconv", attrs={ROLE: "tconv"})
    ic_o = te.reduce_axis((0, shape[1]), "ic_o")
    ic_i = te.reduce_axis((0, block), "ic_i")
    per_group = outer // groups

    def multiply_add(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        py, iy = place(y, rows, rows.before, ry)
        px, ix = place(x, columns, columns.before, rx)
        channel = ic_o if groups == 1 else tirx.floordiv(co, per_group) * shape[1] + ic_o
        value = source[b, channel, iy, ix, ic_i]
        return te.sum(value * weight[co, ic_o, py, px, ry, rx, ic_i, ci], axis=[ic_o, ry, rx, ic_i])

    return te.compute((n, outer, *out, block), multiply_add, name="tconv", attrs={ROLE: "tconv"})


def space_to_batch(data: te.Tensor, *, step: int) -> te.Tensor:
    """[N, C/b, H, W, b] → [N·step², C/b, ⌈H/step⌉, ⌈W/step⌉, b]: an image for each phase of rows and columns.

    Where `step` does not divide the extents, images end with zeros.
    """
    n, outer, h, w, block = static_shape(data)
    rows, columns = ceil_div(h, step), ceil_div(w, step)

    def read(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        phase = tirx.floormod(b, step * step)
        row, column = y * step + tirx.floordiv(phase, step), x * step + tirx.floormod(phase, step)
        value = data[tirx.floordiv(b, step * step), co, row, column, ci]
        inside = [*([row < h] if h % step else []), *([column < w] if w % step else [])]
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, data.dtype)) if inside else value

    return te.compute((n * step * step, outer, rows, columns, block), read, name="space_to_batch")


def batch_to_space(data: te.Tensor, *, step: int, extent: Sequence[int]) -> te.Tensor:
    """The inverse of `space_to_batch`; `extent`: rows and columns of the result."""
    n, outer, _, _, block = static_shape(data)

    def read(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        image = (b * step + tirx.floormod(y, step)) * step + tirx.floormod(x, step)
        return data[image, co, tirx.floordiv(y, step), tirx.floordiv(x, step), ci]

    return te.compute((n // (step * step), outer, *extent, block), read, name="batch_to_space")
