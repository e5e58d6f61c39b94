"""Tensor expressions of the operators that autofuse defines itself, in the layouts that its schedules want.

Blocked layout: NCHW with the channels split into blocks of `lanes` that stand innermost, [N, C/lanes, H, W, lanes];
channels that `lanes` does not divide are padded with zeros. Stages that a schedule looks for carry the block
annotation "autofuse.role".
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

ROLE = "autofuse.role"


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def static_shape(tensor: te.Tensor) -> list[int]:
    """A tensor's extents."""
    return [int(extent) for extent in tensor.shape]


def pad_spatial(data: te.Tensor, padding: Sequence[int], value: float) -> te.Tensor:
    """Pad axes 2 and 3 by (top, left, bottom, right) with `value`; the tensor itself when there is nothing to pad."""
    top, left, bottom, right = padding
    if not any(padding):
        return data
    shape = static_shape(data)
    height, width = shape[2], shape[3]
    padded = [*shape[:2], height + top + bottom, width + left + right, *shape[4:]]

    def read(*index: tirx.Var) -> tirx.Expr:
        h, w = index[2] - top, index[3] - left
        inside = []
        if top:
            inside.append(index[2] >= top)
        if bottom:
            inside.append(index[2] < height + top)
        if left:
            inside.append(index[3] >= left)
        if right:
            inside.append(index[3] < width + left)
        return tirx.if_then_else(tirx.all(*inside), data[(*index[:2], h, w, *index[4:])], tirx.const(value, data.dtype))

    return te.compute(padded, read, name="pad", attrs={ROLE: "pad"})


def output_extent(extent: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """Results of a window along one axis with `before` and `after` zeros around its data."""
    return (extent + before + after - (kernel - 1) * dilation - 1) // stride + 1


def conv2d_blocked(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> te.Tensor:
    """2-D convolution with blocked output.

    data: [N, IC/ib, H, W, ib] blocked, or [N, IC, H, W] (then ib = 1); weight: [OC/ob, IC/groups/ib, KH, KW, ib, ob];
    result: [N, OC/ob, OH, OW, ob].
    """
    outer, inner_outer, kh, kw, ib, ob = static_shape(weight)
    plain = len(static_shape(data)) == 4
    n, _, h, w = static_shape(data)[:4]
    oh = output_extent(h, kh, strides[0], dilation[0], padding[0], padding[2])
    ow = output_extent(w, kw, strides[1], dilation[1], padding[1], padding[3])
    source = pad_spatial(data, padding, 0.0)
    per_group = outer // groups
    ic_o = te.reduce_axis((0, inner_outer), "ic_o")
    ry = te.reduce_axis((0, kh), "kh")
    rx = te.reduce_axis((0, kw), "kw")
    ic_i = te.reduce_axis((0, ib), "ic_i")

    def multiply_add(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        channel = ic_o if groups == 1 else (co // per_group) * inner_outer + ic_o
        where = (b, channel, y * strides[0] + ry * dilation[0], x * strides[1] + rx * dilation[1])
        value = source[where] if plain else source[(*where, ic_i)]
        return te.sum(value * weight[co, ic_o, ry, rx, ic_i, ci], axis=[ic_o, ry, rx, ic_i])

    return te.compute((n, outer, oh, ow, ob), multiply_add, name="conv", attrs={ROLE: "conv"})


def depthwise_conv2d_blocked(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """Depthwise convolution. data: [N, C/b, H, W, b]; weight: [C/b, KH, KW, b]; result: [N, C/b, OH, OW, b]."""
    outer, kh, kw, block = static_shape(weight)
    n, _, h, w, _ = static_shape(data)
    oh = output_extent(h, kh, strides[0], dilation[0], padding[0], padding[2])
    ow = output_extent(w, kw, strides[1], dilation[1], padding[1], padding[3])
    source = pad_spatial(data, padding, 0.0)
    ry = te.reduce_axis((0, kh), "kh")
    rx = te.reduce_axis((0, kw), "kw")
    return te.compute(
        (n, outer, oh, ow, block),
        lambda b, co, y, x, ci: te.sum(
            source[b, co, y * strides[0] + ry * dilation[0], x * strides[1] + rx * dilation[1], ci]
            * weight[co, ry, rx, ci],
            axis=[ry, rx],
        ),
        name="dwconv",
        attrs={ROLE: "dwconv"},
    )


def matmul_packed(left: te.Tensor, right: te.Tensor, *, columns: int) -> te.Tensor:
    """Matrix product with a packed constant. left: [..., M, K]; right: [N/nv, K, nv]; result: [..., M, columns]."""
    _, depth, block = static_shape(right)
    shape = static_shape(left)
    k = te.reduce_axis((0, depth), "k")
    return te.compute(
        (*shape[:-1], columns),
        lambda *index: te.sum(
            left[(*index[:-1], k)] * right[tirx.floordiv(index[-1], block), k, tirx.floormod(index[-1], block)],
            axis=k,
        ),
        name="matmul",
        attrs={ROLE: "matmul"},
    )


def matmul_batched(left: te.Tensor, right: te.Tensor) -> te.Tensor:
    """Matrix product of two activations. left: [..., M, K]; right: [..., K, N], leading axes equal or broadcast."""
    a, b = static_shape(left), static_shape(right)
    rank = max(len(a), len(b))
    lead_a, lead_b = [1] * (rank - len(a)) + a[:-2], [1] * (rank - len(b)) + b[:-2]
    lead = [max(p, q) for p, q in zip(lead_a, lead_b, strict=True)]
    k = te.reduce_axis((0, a[-1]), "k")

    def one(own: Sequence[int], index: Sequence[tirx.Var]) -> list[tirx.Expr]:
        offset = len(lead) - len(own)
        return [0 if own[i] == 1 and lead[offset + i] != 1 else index[offset + i] for i in range(len(own))]

    return te.compute(
        (*lead, a[-2], b[-1]),
        lambda *index: te.sum(
            left[(*one(a[:-2], index[:-2]), index[-2], k)] * right[(*one(b[:-2], index[:-2]), k, index[-1])], axis=k
        ),
        name="matmul",
        attrs={ROLE: "matmul"},
    )


def pool2d(
    data: te.Tensor,
    *,
    kind: str,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extent: Sequence[int],
    count_include_pad: bool,
) -> te.Tensor:
    """Pooling over axes 2 and 3 of [N, C, H, W] or [N, C/b, H, W, b]; `extent` is the output's (OH, OW)."""
    shape = static_shape(data)
    height, width = shape[2], shape[3]
    # A window of ceil mode may reach over the far edge: the pad grows by what it lacks.
    need = [(extent[i] - 1) * strides[i] + (window[i] - 1) * dilation[i] + 1 for i in range(2)]
    top, left = padding[0], padding[1]
    bottom = max(padding[2], need[0] - height - top)
    right = max(padding[3], need[1] - width - left)
    empty = float(te.min_value(data.dtype).value) if kind == "max" else 0.0
    source = pad_spatial(data, (top, left, bottom, right), empty)
    ry = te.reduce_axis((0, window[0]), "kh")
    rx = te.reduce_axis((0, window[1]), "kw")
    combine = te.max if kind == "max" else te.sum
    out_shape = (*shape[:2], extent[0], extent[1], *shape[4:])

    def reduce(*index: tirx.Var) -> tirx.Expr:
        where = (*index[:2], index[2] * strides[0] + ry * dilation[0], index[3] * strides[1] + rx * dilation[1])
        return combine(source[(*where, *index[4:])], axis=[ry, rx])

    pooled = te.compute(out_shape, reduce, name="pool", attrs={ROLE: "pool"})
    if kind == "max":
        return pooled

    def inside(position: tirx.Expr, axis: int) -> tirx.Expr | int:
        """How many of the window's taps along `axis` are counted at an output position."""
        before, after, size = (top, padding[2], height) if axis == 0 else (left, padding[3], width)
        if not (before or after or need[axis] > size):
            return window[axis]
        start = position * strides[axis]
        if count_include_pad:
            low, high = 0, size + before + after
        else:
            low, high = before, before + size
        taps: tirx.Expr = tirx.const(0, "int64")
        for tap in range(window[axis]):
            at = start + tap * dilation[axis]
            taps = taps + tirx.Select(tirx.all(at >= low, at < high), tirx.const(1, "int64"), tirx.const(0, "int64"))
        return taps

    def divide(*index: tirx.Var) -> tirx.Expr:
        count = inside(index[2], 0) * inside(index[3], 1)
        if isinstance(count, int):
            return pooled(*index) * tirx.const(1.0 / count, data.dtype)
        return pooled(*index) / tirx.Cast(data.dtype, tirx.max(count, tirx.const(1, "int64")))

    return te.compute(out_shape, divide, name="average", attrs={ROLE: "average"})


def block_channels(data: te.Tensor, *, lanes: int) -> te.Tensor:
    """[N, C, H, W] → [N, ceil(C/lanes), H, W, lanes], channels past C zero."""
    n, c, h, w = static_shape(data)

    def read(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        value = data[b, co * lanes + ci, y, x]
        if c % lanes == 0:
            return value
        return tirx.if_then_else(co * lanes + ci < c, value, tirx.const(0, data.dtype))

    return te.compute((n, _ceil_div(c, lanes), h, w, lanes), read, name="block_channels", attrs={ROLE: "layout_change"})


def unblock_channels(data: te.Tensor, *, channels: int) -> te.Tensor:
    """[N, ceil(C/lanes), H, W, lanes] → [N, C, H, W], the padding dropped."""
    n, _, h, w, lanes = static_shape(data)
    return te.compute(
        (n, channels, h, w),
        lambda b, c, y, x: data[b, tirx.floordiv(c, lanes), y, x, tirx.floormod(c, lanes)],
        name="unblock_channels",
        attrs={ROLE: "layout_change"},
    )
