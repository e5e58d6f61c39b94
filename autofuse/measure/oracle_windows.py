"""What the oracle makes of operators on images [N, C, H, W]: convolutions, pools, normalised groups of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from autofuse.graph.model import Operator
from autofuse.measure.oracle_attributes import Array, NotEvaluated, ints, logical, number_of


def conv2d(op: Operator, operands: list[Array]) -> Array:
    """Convolutions; how the weights are stored depends on the variant."""
    data, weight = operands
    variant, groups = op.attrs.get("variant"), cast(int, op.attrs.get("groups", 1))
    strides, dilation, padding = ints(op, "strides"), ints(op, "dilation"), ints(op, "padding")
    if variant == "depthwise":  # [C/b, KH, KW, b]
        kernel = weight.transpose(0, 3, 1, 2).reshape(-1, *weight.shape[1:3])
        return _taps(data, kernel.shape[1:], strides, dilation, padding, 0.0,
                     lambda total, x, i, j: total + x * kernel[None, :, i, j, None, None])  # fmt: skip
    if variant == "grouped":
        return _grouped(op, data, weight)
    if variant != "blocked":
        raise NotEvaluated(f"{op.name}: convolution of variant {variant!r}")
    # [OC/b, IC/i, KH, KW, i, b], IC a group's
    full = weight.transpose(0, 5, 1, 4, 2, 3)
    full = full.reshape(full.shape[0] * full.shape[1], full.shape[2] * full.shape[3], *full.shape[4:])
    if data.shape[1] != full.shape[1] * groups:
        raise NotEvaluated(f"{op.name}: {data.shape[1]} channels for weights of {full.shape[1]} in {groups} groups")
    parts = []
    for part, kernel in zip(np.split(data, groups, axis=1), np.split(full, groups), strict=True):

        def add(total: Array | float, x: Array, i: int, j: int, kernel: Array = kernel) -> Array:
            n, c, h, w = x.shape
            product = np.matmul(np.ascontiguousarray(kernel[:, :, i, j]), x.reshape(n, c, h * w))
            return cast(Array, total + product.reshape(n, -1, h, w))

        parts.append(_taps(part, kernel.shape[2:], strides, dilation, padding, 0.0, add))
    return np.concatenate(parts, axis=1)


def _grouped(op: Operator, data: Array, weight: Array) -> Array:
    """Weights [OC/b, R, KH, KW, b]: R channels of a lane's own group, or of all groups of its block."""
    inputs, outputs = ints(op, "channels")
    count, block, depth = cast(int, op.attrs["groups"]), weight.shape[-1], weight.shape[1]
    parts = []
    for channel in range(count * outputs):
        first = channel // outputs * inputs
        start = 0 if depth == inputs else first - channel // block * block // outputs * inputs
        kernel = weight[channel // block, start : start + inputs, :, :, channel % block]

        def add(total: Any, x: Array, i: int, j: int, kernel: Array = kernel) -> Any:
            return total + np.einsum("nchw,c->nhw", x, kernel[:, i, j])[:, None]

        group = data[:, first : first + inputs]
        parts.append(
            _taps(group, kernel.shape[1:], ints(op, "strides"), ints(op, "dilation"), ints(op, "padding"), 0.0, add)
        )
    return np.concatenate(parts, axis=1)


def conv2d_transpose(op: Operator, operands: list[Array]) -> Array:
    """By its definition: every element of the data is spread over the results that its taps reach."""
    data, weight = operands
    kernel, strides, padding = ints(op, "kernel"), ints(op, "strides"), ints(op, "padding")
    height, width = ints(op, "out")
    depthwise = op.attrs.get("variant") == "depthwise"
    if depthwise:  # [C/b, sh, sw, th, tw, b]
        taps, groups = weight.transpose(0, 5, 1, 2, 3, 4).reshape(-1, 1, *weight.shape[1:5]), data.shape[1]
    else:  # [OC/b, IC/b, sh, sw, th, tw, b, b]
        taps, groups = weight.transpose(0, 7, 1, 6, 2, 3, 4, 5), cast(int, op.attrs.get("groups", 1))
        taps = taps.reshape(taps.shape[0] * taps.shape[1], -1, *taps.shape[4:])
    n, channels, rows, columns = data.shape
    data = data.reshape(n, groups, -1, rows, columns)
    taps = taps.reshape(groups, -1, *taps.shape[1:])
    if channels != groups * taps.shape[2]:
        raise NotEvaluated(f"{op.name}: {channels} channels for weights of {taps.shape[2]} in {groups} groups")
    reach = [max((e - 1) * s + k, p + o) for e, s, k, p, o in
             zip((rows, columns), strides, kernel, padding, (height, width), strict=False)]  # fmt: skip
    total = np.zeros((n, groups, taps.shape[1], *reach))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            # The phase that sees this element of the kernel, and which of its taps it is: the last one comes first.
            phase = [(k - p) % s for k, p, s in zip((i, j), padding, strides, strict=False)]
            at = [taps.shape[5 + a] - 1 - k // strides[a] for a, k in enumerate((i, j))]
            part = np.einsum("ngihw,goi->ngohw", data, taps[:, :, :, phase[0], phase[1], at[0], at[1]])
            total[:, :, :, i : i + (rows - 1) * strides[0] + 1 : strides[0],
                  j : j + (columns - 1) * strides[1] + 1 : strides[1]] += part  # fmt: skip
    total = total.reshape(n, -1, *reach)
    return total[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width].astype("float32")


def space_to_batch(op: Operator, operands: list[Array]) -> Array:
    """An image for each phase of rows and columns, phases of columns in a row."""
    (step,) = ints(op, "step")
    (data,) = operands
    n, c, h, w = data.shape
    rows, columns = -(-h // step), -(-w // step)
    whole = np.pad(data, ((0, 0), (0, 0), (0, rows * step - h), (0, columns * step - w)))
    return whole.reshape(n, c, rows, step, columns, step).transpose(0, 3, 5, 1, 2, 4).reshape(-1, c, rows, columns)


def batch_to_space(op: Operator, operands: list[Array]) -> Array:
    """The inverse: phases of rows and columns back in their places."""
    (step,) = ints(op, "step")
    (data,) = operands
    _, c, rows, columns = data.shape
    whole = data.reshape(-1, step, step, c, rows, columns).transpose(0, 3, 4, 1, 5, 2)
    height, width = logical(op)[2:]
    return whole.reshape(-1, c, rows * step, columns * step)[:, :, :height, :width]


def group_norm(op: Operator, operands: list[Array]) -> Array:
    """Scale and bias have the channels of the data. Those that only fill the last block are treated as the last group
    is, and do not count in it."""
    data, scale, bias = operands
    (groups,), channels = ints(op, "groups"), logical(op)[1]
    rows = data[:, :channels].astype("float64").reshape(data.shape[0], groups, -1)
    mean, deviation = rows.mean(2), np.sqrt(rows.var(2) + number_of(op, "epsilon"))
    of = np.minimum(np.arange(data.shape[1]) * groups // channels, groups - 1)
    off = (data - mean[:, of, None, None]) / deviation[:, of, None, None]
    return cast(Array, (off * scale + bias).astype("float32"))


def max_pool(op: Operator, operands: list[Array]) -> Array:
    """What lies outside never wins."""
    return _taps(operands[0], *_window(op), -np.inf, lambda total, x, i, j: np.maximum(total, x), -np.inf)


def avg_pool(op: Operator, operands: list[Array]) -> Array:
    """Divided by the window, or by what of it lies inside."""

    def add(total: Any, x: Array, i: int, j: int) -> Any:
        return total + x

    window = _window(op)
    total = _taps(operands[0], *window, 0.0, add)
    if op.attrs.get("count_include_pad"):
        return total / (window[0][0] * window[0][1])
    return total / _taps(np.ones_like(operands[0][:1, :1]), *window, 0.0, add)


def _window(op: Operator) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return ints(op, "window"), ints(op, "strides"), ints(op, "dilation"), ints(op, "padding")


def _taps(
    data: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    border: float,
    step: Callable[[Any, Array, int, int], Any],
    start: Any = 0.0,
) -> Array:
    """Walks over a window's taps: `step(total, what the tap sees, row, column)`. Padding: top, left, bottom, right."""
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=border)
    height = (padded.shape[2] - (kernel[0] - 1) * dilation[0] - 1) // strides[0] + 1
    width = (padded.shape[3] - (kernel[1] - 1) * dilation[1] - 1) // strides[1] + 1
    total = start
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            y, x = i * dilation[0], j * dilation[1]
            seen = padded[:, :, y : y + (height - 1) * strides[0] + 1 : strides[0],
                          x : x + (width - 1) * strides[1] + 1 : strides[1]]  # fmt: skip
            total = step(total, np.ascontiguousarray(seen), i, j)
    return cast(Array, total)
