"""Layers of random models with windows: convolutions of all kinds, blocks of them, pools, resizes."""

from __future__ import annotations

import numpy as np
from random_elementwise import activate
from random_models import CHANNELS, RefusedError, Sketch, Value, floats, ints


def convolve(
    s: Sketch, v: Value, out: int, kernel: tuple[int, ...], groups: int = 1, op: str = "Conv", **attributes: object
) -> Value:
    inner = v.shape[1] // groups
    scale = float(1 / np.sqrt(inner * np.prod(kernel)))
    shape = (out, inner, *kernel) if op == "Conv" else (v.shape[1], out // groups, *kernel)
    bias = [s.numbers(out, scale=0.3)] if s.chance(0.5) else []
    return s.add(op, v, s.numbers(*shape, scale=scale), *bias, kernel_shape=list(kernel), group=groups, **attributes)


def window(s: Sketch, kernel: tuple[int, ...]) -> dict[str, object]:
    """Strides, dilations and padding of a convolution."""
    dims = len(kernel)
    dilations = [1] * dims if s.chance(0.6) else [s.pick(1, 2, 3) for _ in range(dims)]
    same = [(k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True)]
    pads = s.pick(same * 2, same * 2, [0] * 2 * dims, [s.pick(0, 1, 2) for _ in range(2 * dims)])
    strides = s.pick([1] * dims, [1] * dims, [2] * dims, [s.pick(1, 2, 3) for _ in range(dims)])
    return {"strides": strides, "dilations": dilations, "pads": pads}


def convolution(s: Sketch) -> None:
    v = s.find(4)
    kernel = s.pick((3, 3), (3, 3), (1, 1), (2, 3), (5, 5), (1, 7))
    activate(s, convolve(s, v, s.pick(*CHANNELS), kernel, **window(s, kernel)))


def convolution_1d_3d(s: Sketch) -> None:
    v = s.find(3, 5)
    kernel = (s.pick(1, 2, 3),) * (v.rank - 2)
    activate(s, convolve(s, v, s.pick(*CHANNELS), kernel, **window(s, kernel)))


def grouped(s: Sketch) -> None:
    v = s.find(4)
    groups = s.pick(*(g for g in range(1, v.shape[1] + 1) if v.shape[1] % g == 0))
    kernel = s.pick((3, 3), (1, 1), (2, 2), (5, 3))
    activate(s, convolve(s, v, groups * s.pick(1, 2, 3, 4), kernel, groups, **window(s, kernel)))


def depthwise(s: Sketch, v: Value) -> Value:
    kernel = s.pick((3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2), (7, 7))
    multiple = s.pick(1, 1, 1, 2) if v.shape[1] < 40 else 1
    return activate(s, convolve(s, v, v.shape[1] * multiple, kernel, v.shape[1], **window(s, kernel)))


def pointwise(s: Sketch, v: Value) -> Value:
    return activate(s, convolve(s, v, s.pick(*CHANNELS), (1, 1), strides=s.pick([1, 1], [1, 1], [1, 1], [2, 2])))


def separable(s: Sketch) -> None:
    if s.chance(0.5):
        pointwise(s, depthwise(s, s.find(4)))
    else:
        depthwise(s, pointwise(s, s.find(4)))


def inverted_residual(s: Sketch) -> None:
    v = s.find(4)
    wide = activate(s, convolve(s, v, min(2 * v.shape[1], 64), (1, 1)))
    inner = activate(s, convolve(s, wide, wide.shape[1], (3, 3), wide.shape[1], pads=[1] * 4))
    made = convolve(s, inner, v.shape[1], (1, 1))
    s.add("Add", *((v, made) if s.chance(0.5) else (made, v)))


def transposed(s: Sketch) -> None:
    v = s.find(4)
    groups = s.pick(1, 1, v.shape[1], *(g for g in (2, 3, 4) if v.shape[1] % g == 0))
    kernel = s.pick((2, 2), (3, 3), (4, 4), (1, 3), (5, 2))
    strides = [s.pick(1, 2, 2, 3) for _ in range(2)]
    more = {
        "strides": strides,
        "pads": s.pick([0] * 4, [1] * 4, [0, 1, 1, 0]),
        "output_padding": [s.pick(0, 0, stride - 1) for stride in strides],
        "dilations": s.pick([1, 1], [1, 1], [2, 2]),
    }
    activate(s, convolve(s, v, groups * s.pick(1, 2, 3, 8), kernel, groups, "ConvTranspose", **more))


def pool(s: Sketch) -> None:
    v = s.find(4)
    kernel = s.pick((2, 2), (3, 3), (1, 2), (5, 5))
    more: dict[str, object] = {
        "strides": s.pick([1, 1], [2, 2], [1, 2], [3, 3]),
        "pads": [int(s.rng.integers(0, (kernel[i % 2] + 1) // 2)) for i in range(4)],
        "ceil_mode": int(s.chance(0.3)),
    }
    if any(size < 2 * k - 1 for size, k in zip(v.shape[2:], kernel, strict=True)):
        raise RefusedError  # ONNX Runtime runs windows larger than the data
    if s.chance(0.5):
        more["dilations"] = s.pick([1, 1], [1, 1], [2, 1])
        s.add("MaxPool", v, kernel_shape=list(kernel), **more)
    else:
        s.add("AveragePool", v, kernel_shape=list(kernel), count_include_pad=int(s.chance(0.5)), **more)


def global_pool(s: Sketch) -> None:
    s.add(s.pick("GlobalAveragePool", "GlobalMaxPool"), s.find(3, 4))


def excitation(s: Sketch) -> None:
    v = s.find(4)
    mean = s.add("GlobalAveragePool", v, hidden=True)
    inner = activate(s, convolve(s, mean, max(1, v.shape[1] // 4), (1, 1)))
    made = s.add("Mul", v, s.add(s.pick("Sigmoid", "HardSigmoid"), convolve(s, inner, v.shape[1], (1, 1)), hidden=True))
    if s.chance(0.5):
        pointwise(s, made)


def resize(s: Sketch) -> None:
    v = s.find(4)
    scales = floats(1, 1, s.pick(1, 2, 3, 1.5, 1.7), s.pick(1, 2, 3, 0.5, 0.7))
    way = s.pick("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
    if s.chance(0.5):
        rounding = s.pick("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")
        way = s.pick("asymmetric", "half_pixel")
        s.add("Resize", v, None, scales, mode="nearest", coordinate_transformation_mode=way, nearest_mode=rounding)
    elif s.chance(0.5):
        # Where a scaled length is not whole, ONNX's own tests align corners otherwise than ONNX Runtime.
        way = "half_pixel" if way == "align_corners" else way
        s.add("Resize", v, None, scales, mode="linear", coordinate_transformation_mode=way)
    else:
        sizes = ints(*v.shape[:2], s.pick(1, 5, 8, 13), s.pick(1, 4, 7, 16))
        s.add("Resize", v, None, None, sizes, mode=s.pick("linear", "cubic"), coordinate_transformation_mode=way)
