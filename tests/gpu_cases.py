"""Groups for every GPU family, in sizes that tiles divide and in sizes that nothing divides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from isa_harness import (
    _affine,
    _attention,
    _chain,
    _conv,
    _depthwise,
    _depthwise_pointwise,
    _inside,
    _pool,
    _resized,
)
from tvm import relax
from tvm.relax import op as R

Emit = Callable[..., Any]
Shapes = Sequence[Sequence[int]]


def _two_results(bb: Any, x: Any, y: Any) -> list[Any]:
    total = bb(R.add(x, y))
    return [total, R.nn.relu(bb(R.multiply(total, y)))]


def _by_transposed(bb: Any, x: Any, y: Any) -> Any:
    return R.matmul(x, bb(R.permute_dims(y, [0, 2, 1])))


def _masked(bb: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = bb(R.matmul(q, bb(R.permute_dims(k, [0, 1, 3, 2]))))
    shown = bb(R.add(bb(R.multiply(scores, relax.const(0.25, "float32"))), mask))
    return R.matmul(bb(R.nn.softmax(shown)), v)


def _gathered(bb: Any, x: Any) -> Any:
    rows = np.random.default_rng(7).integers(0, 19, (5, 6))
    return R.nn.relu(bb(R.take(x, relax.const(rows, "int64"), axis=0)))


def _pooled(kernel: int, by: str, window: tuple[int, int], **how: Any) -> Emit:
    def emit(bb: Any, x: Any) -> Any:
        made = bb(_conv(20, 16, kernel, padding=kernel // 2)(bb, x))
        return R.tanh(bb(getattr(R.nn, by)(made, window, **how)))

    return emit


# (family, what, program, shapes of its inputs, operator that the group stands behind)
CASES: list[tuple[str, str, Emit, Shapes, str]] = [
    ("gpu_elementwise", "functions, rows of 41", _chain, [(3, 7, 41)], ""),
    ("gpu_elementwise", "two results, broadcast", _two_results, [(5, 6, 32), (6, 1)], ""),
    ("gpu_elementwise", "transposed", lambda bb, x: R.permute_dims(x, [0, 2, 1]), [(2, 9, 21)], ""),
    ("gpu_elementwise", "concat", lambda bb, x, y: R.concat([x, y], 2), [(2, 3, 9), (2, 3, 11)], ""),
    ("gpu_elementwise", "nearest resize", _resized((21, 27), "nearest_neighbor"), [(1, 3, 9, 8)], ""),
    ("gpu_elementwise", "gather", _gathered, [(19, 33)], ""),
    ("gpu_rows", "softmax of 51", lambda bb, x: R.nn.softmax(x), [(6, 51)], ""),
    ("gpu_rows", "softmax of 1000", lambda bb, x: R.nn.softmax(bb(R.add(x, x))), [(3, 1000)], ""),
    ("gpu_rows", "softmax along a middle axis", lambda bb, x: R.nn.softmax(x, axis=1), [(3, 10, 33)], ""),
    ("gpu_rows", "layer norm", lambda bb, x, g, b: R.nn.layer_norm(x, g, b, [-1]), [(5, 77), (77,), (77,)], ""),
    ("gpu_rows", "means of columns", lambda bb, x: R.mean(x, [0]), [(33, 51)], ""),
    ("gpu_gemm", "product, odd", _affine(37, 45), [(13, 37)], ""),
    ("gpu_gemm", "batches, transposed", _by_transposed, [(3, 24, 32), (3, 20, 32)], ""),
    ("gpu_gemm", "convolution, odd", _conv(20, 16, 3, padding=1), [(1, 16, 13, 11)], ""),
    ("gpu_gemm", "first convolution", _conv(32, 3, 3, padding=1, strides=2), [(1, 3, 25, 23)], ""),
    ("gpu_depthwise_gemm", "strided, odd", _depthwise_pointwise, [(1, 20, 13, 11)], ""),
    ("gpu_conv_pool", "largest of 2×2, odd", _pooled(3, "max_pool2d", (2, 2), strides=2), [(1, 16, 13, 11)], ""),
    ("gpu_conv_pool", "means of 2×2, padded", _pooled(1, "avg_pool2d", (2, 2), padding=1), [(2, 16, 7, 6)], ""),
    ("gpu_attention", "heads, odd", _attention, [(1, 21, 36), (1, 19, 36), (1, 19, 36)], ""),
    (
        "gpu_attention",
        "scaled and masked",
        _masked,
        [(2, 3, 40, 16), (2, 3, 48, 16), (2, 3, 48, 20), (2, 1, 1, 48)],
        "",
    ),
    ("gpu_direct", "depthwise", _depthwise(20, 2), [(1, 16, 13, 11)], "nn.conv2d"),
    ("gpu_direct", "average pool", _pool, [(1, 16, 13, 11)], "nn.conv2d"),
    ("gpu_elementwise", "linear resize of blocks", _inside(_resized((21, 27), "linear")), [(1, 16, 9, 8)], "nn.conv2d"),
    ("gpu_direct", "grouped convolution", _conv(20, 5, 3, padding=1, groups=4), [(1, 20, 9, 11)], ""),
]
