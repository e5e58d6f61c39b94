"""Grouped and transposed convolutions and group normalisations for sketches, with numpy's answers."""

from __future__ import annotations

import numpy as np
from schedule_harness import Role, Sketch, Value, block, convolve

from autofuse.graph.model import MappingType, Work
from autofuse.lower.normalizations import group_norm_blocked, group_norm_lanes
from autofuse.lower.window_operators import grouped_conv2d, pack_grouped, pack_transposed, transposed_conv2d


def grouped(
    sketch: Sketch, data: Value, plain: np.ndarray, outputs: int, kernel: tuple[int, int], groups: int,
    strides: tuple[int, int] = (1, 1), padding: tuple[int, ...] = (0, 0, 0, 0), dilation: tuple[int, int] = (1, 1),
) -> Value:  # fmt: skip
    """A grouped convolution of `outputs` channels a group; `plain` is what `data` holds, as [N, C, H, W]."""
    inputs = plain.shape[1] // groups
    weight = sketch.uniform((outputs * groups, inputs, *kernel), (inputs * kernel[0] * kernel[1]) ** -0.5)
    constant = sketch.source((), Role.CONSTANT, pack_grouped(weight, groups, 8))
    answer = convolve(plain, weight, strides, padding, dilation, groups)
    attrs = {
        "strides": strides, "padding": padding, "dilation": dilation, "groups": groups, "channels": (inputs, outputs)
    }  # fmt: skip
    return sketch.op(
        "nn.conv2d", grouped_conv2d, [data, constant], block(answer), mappings=[MappingType.MANY_TO_MANY] * 2,
        work=Work(fma=int(answer.size) * constant.answer.shape[1] * kernel[0] * kernel[1]),
        attrs={**attrs, "variant": "grouped"}, **attrs,
    )  # fmt: skip


def scattered(
    x: np.ndarray, weight: np.ndarray, strides: tuple[int, int], padding: tuple[int, ...], extra: tuple[int, int],
    groups: int,
) -> np.ndarray:  # fmt: skip
    """Transposed convolution by its definition, in float64. x: NCHW; weight: [IC, OC/groups, KH, KW]."""
    n, c, h, w = x.shape
    _, per, kh, kw = weight.shape
    size = (h - 1) * strides[0] + kh, (w - 1) * strides[1] + kw
    out = np.zeros((n, groups, per, size[0] + extra[0], size[1] + extra[1]))
    data = x.astype("float64").reshape(n, groups, c // groups, h, w)
    kernel = weight.astype("float64").reshape(groups, c // groups, per, kh, kw)
    for i in range(kh):
        for j in range(kw):
            rows = slice(i, i + (h - 1) * strides[0] + 1, strides[0])
            columns = slice(j, j + (w - 1) * strides[1] + 1, strides[1])
            out[:, :, :, rows, columns] += np.einsum("ngihw,gio->ngohw", data, kernel[:, :, :, i, j])
    out = out.reshape(n, groups * per, *out.shape[3:])
    top, left, bottom, right = padding
    return out[:, :, top : out.shape[2] - bottom, left : out.shape[3] - right].astype("float32")


def transposed(
    sketch: Sketch, data: Value, plain: np.ndarray, outputs: int, kernel: tuple[int, int], strides: tuple[int, int],
    padding: tuple[int, ...], extra: tuple[int, int], groups: int = 1,
) -> Value:  # fmt: skip
    """A transposed convolution; `plain` is what `data` holds, as [N, C, H, W]."""
    channels = plain.shape[1]
    weight = sketch.uniform((channels, outputs // groups, *kernel), (channels // groups) ** -0.5)
    answer = scattered(plain, weight, strides, padding, extra, groups)
    depthwise = 1 < groups == channels == outputs
    forward = weight.reshape(groups, channels // groups, outputs // groups, *kernel).transpose(0, 2, 1, 3, 4)
    forward = forward.reshape(outputs, channels // groups, *kernel)
    constant = sketch.source((), Role.CONSTANT, pack_transposed(forward, strides, padding, 8, depthwise))
    attrs = {
        "kernel": kernel, "strides": strides, "padding": padding, "out": answer.shape[2:], "groups": groups
    }  # fmt: skip
    taps = -(-kernel[0] // strides[0]) * -(-kernel[1] // strides[1])
    return sketch.op(
        "nn.conv2d_transpose", transposed_conv2d, [data, constant], block(answer),
        mappings=[MappingType.MANY_TO_MANY] * 2, work=Work(fma=int(answer.size) * taps * channels // groups),
        attrs={**attrs, "variant": "depthwise" if depthwise else "blocked"}, **attrs,
    )  # fmt: skip


def normalised(sketch: Sketch, data: Value, plain: np.ndarray, groups: int, epsilon: float = 1e-5) -> Value:
    """A group normalisation; `plain` is what `data` holds, as [N, C, H, W]."""
    n, channels = plain.shape[:2]
    scale, bias = sketch.uniform((1, channels, 1, 1)) + 1, sketch.uniform((1, channels, 1, 1))
    rows = plain.astype("float64").reshape(n, groups, -1)
    rows = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + epsilon)
    answer = (rows.reshape(plain.shape) * scale + bias).astype("float32")
    constants = [sketch.source((), Role.CONSTANT, block(a)) for a in (scale, bias)]
    many = [MappingType.MANY_TO_ONE, MappingType.ONE_TO_MANY, MappingType.ONE_TO_MANY]
    attrs: dict[str, float] = {"groups": groups, "epsilon": epsilon}
    whole = channels // groups % 8 == 0
    return sketch.op(
        "nn.group_norm", group_norm_blocked if whole else group_norm_lanes, [data, *constants], block(answer),
        mappings=many, attrs={**attrs, "variant": "blocked" if whole else "lanes"}, **attrs,
        **({} if whole else {"channels": channels}),
    )  # fmt: skip
