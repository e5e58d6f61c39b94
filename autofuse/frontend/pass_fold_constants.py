"""Operators whose inputs are all constant → their value, computed with numpy.

TVM's own FoldConstant compiles and runs a kernel for every one of them, which takes seconds to half a minute a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autofuse.frontend.constants import Array, array_of, constant, is_constant
from autofuse.frontend.walk import Scope, dtype_of, op_name, rewrite, static_shape

Evaluate = Callable[[Any, Sequence[Array]], Array]

# A value that an operator blows up past this many bytes (a broadcast, a fill) is cheaper computed than stored; weights
# of a byte that are dequantised become four times as large.
_LARGEST_GROWTH = 1 << 20


def fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Evaluates what is constant; an operator that is not in the table, or a dtype numpy lacks, stays."""
    return rewrite(module, _rule)


def _rule(scope: Scope, call: Any) -> Any:
    name = op_name(call)
    if name == "relax.split":
        return _fold_split(call)
    evaluate = _TABLE.get(name)
    if evaluate is None:
        return None
    operands = _operands(call)
    if operands is None:
        return None
    shape, dtype = static_shape(call), dtype_of(call)
    if shape is None or not _worth_storing(shape, dtype, operands):
        return None
    arrays = [array_of(operand) for operand in operands]
    with np.errstate(all="ignore"):  # 1/0 is inf at run time as well
        try:
            result = np.asarray(evaluate(call, arrays))
        except (ValueError, IndexError, TypeError, ZeroDivisionError):
            return None  # left to fail, or not, where it is run
    if result.shape != shape:
        return None
    return constant(result.astype(dtype, copy=False))


def _operands(call: Any) -> list[Any] | None:
    """The tensor arguments when all are constants; shapes and numbers among the arguments are not tensors."""
    found: list[Any] = []
    for arg in call.args:
        items = arg.fields if isinstance(arg, relax.Tuple) else [arg]
        for item in items:
            if isinstance(item, relax.ShapeExpr | tvm.tirx.IntImm | tvm.tirx.FloatImm):
                continue
            if not is_constant(item):
                return None
            found.append(item)
    return found


def _worth_storing(shape: tuple[int, ...], dtype: str, operands: Sequence[Any]) -> bool:
    try:
        size = math.prod(shape) * np.dtype(dtype).itemsize
    except TypeError:
        return False
    return size <= max(_LARGEST_GROWTH, 4 * sum(array_of(operand).nbytes for operand in operands))


def _fold_split(call: Any) -> Any:
    if not is_constant(call.args[0]):
        return None
    data, axis = array_of(call.args[0]), int(call.attrs.axis)
    where = call.attrs.indices_or_sections
    if isinstance(where, tvm.tirx.IntImm):
        count = int(where)
        step = -(-data.shape[axis] // count)
        points = [step * k for k in range(1, count)]
    else:
        points = [int(point) for point in where]
    return relax.Tuple([constant(piece) for piece in np.split(data, points, axis=axis)])


def _axes(call: Any) -> tuple[int, ...] | None:
    axis = call.attrs.axis
    return None if axis is None else tuple(int(a) for a in axis)


def _shaped(call: Any, arrays: Sequence[Array]) -> Array:
    return arrays[0].reshape(static_shape(call) or ())


def _broadcast(call: Any, arrays: Sequence[Array]) -> Array:
    return np.broadcast_to(arrays[0], static_shape(call) or ())


def _permute(call: Any, arrays: Sequence[Array]) -> Array:
    axes = call.attrs.axes
    return np.transpose(arrays[0], None if axes is None else [int(a) for a in axes])


def _slice(call: Any, arrays: Sequence[Array]) -> Array:
    axes, begins, ends = ([int(v) for v in arg.fields] for arg in call.args[1:4])
    strides = [int(v) for v in call.args[4].fields] if len(call.args) > 4 else [1] * len(axes)
    cut = [slice(None)] * arrays[0].ndim
    for axis, begin, end, stride in zip(axes, begins, ends, strides, strict=True):
        # going down past the first element is "to the very start", which numpy writes as None
        stop = None if stride < 0 and end < -arrays[0].shape[axis] else end
        cut[axis] = slice(begin, stop, stride)
    return arrays[0][tuple(cut)]


def _take(call: Any, arrays: Sequence[Array]) -> Array:
    axis = call.attrs.axis
    modes: dict[str, Any] = {"clip": "clip", "wrap": "wrap"}
    mode = modes.get(str(call.attrs.mode), "raise")
    return np.take(arrays[0], arrays[1], axis=None if axis is None else int(axis), mode=mode)


def _clip(call: Any, arrays: Sequence[Array]) -> Array:
    low, high = (bound.value for bound in call.args[1:3])
    return np.clip(arrays[0], low, high)


def _reduction(function: Callable[..., Any]) -> Evaluate:
    def evaluate(call: Any, arrays: Sequence[Array]) -> Array:
        return np.asarray(function(arrays[0], axis=_axes(call), keepdims=bool(call.attrs.keepdims)))

    return evaluate


def _elementwise(function: Callable[..., Any]) -> Evaluate:
    return lambda call, arrays: np.asarray(function(*arrays))


def _divide(call: Any, arrays: Sequence[Array]) -> Array:
    if arrays[0].dtype.kind in "iu":
        # TVM divides integers as C does: towards zero.
        quotient = np.abs(arrays[0]) // np.abs(arrays[1])
        return quotient * np.sign(arrays[0]) * np.sign(arrays[1])
    return arrays[0] / arrays[1]


def _arange(call: Any, arrays: Sequence[Array]) -> Array:
    return np.arange(*(arg.value for arg in call.args))


def _one_hot(call: Any, arrays: Sequence[Array]) -> Array:
    depth, axis = int(call.attrs.depth), int(call.attrs.axis)
    on, off = (arg.value for arg in call.args[1:3])
    hot = arrays[0][..., None] == np.arange(depth)
    return np.moveaxis(np.where(hot, on, off), -1, axis)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _quantisation(call: Any, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Scale and zero point, shaped to go with the data: one for each place along an axis, or one for all."""
    axis = int(call.attrs.axis)
    along = [1] * arrays[0].ndim
    if along:
        along[axis] = -1
    scale, zero = (a.reshape(along) if a.size > 1 else a.reshape(()) for a in arrays[1:3])
    return scale, zero


def _dequantize(call: Any, arrays: Sequence[Array]) -> Array:
    scale, zero = _quantisation(call, arrays)
    return (arrays[0].astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale


def _quantize(call: Any, arrays: Sequence[Array]) -> Array:
    scale, zero = _quantisation(call, arrays)
    limits = np.iinfo(dtype_of(call))
    return np.clip(np.round(arrays[0] / scale) + zero, limits.min, limits.max)


_TABLE: dict[str, Evaluate] = {
    **{f"relax.{name}": _shaped for name in ("reshape", "flatten", "expand_dims", "squeeze")},
    "relax.broadcast_to": _broadcast,
    "relax.permute_dims": _permute,
    "relax.strided_slice": _slice,
    "relax.take": _take,
    "relax.clip": _clip,
    "relax.arange": _arange,
    "relax.one_hot": _one_hot,
    "relax.divide": _divide,
    "relax.concat": lambda call, arrays: np.concatenate(
        arrays, axis=None if call.attrs.axis is None else int(call.attrs.axis)
    ),
    "relax.stack": lambda call, arrays: np.stack(arrays, axis=int(call.attrs.axis or 0)),
    "relax.astype": lambda call, arrays: arrays[0].astype(dtype_of(call)),
    "relax.full": _broadcast,
    "relax.zeros": lambda call, arrays: np.zeros(static_shape(call) or ()),
    "relax.ones": lambda call, arrays: np.ones(static_shape(call) or ()),
    "relax.zeros_like": lambda call, arrays: np.zeros_like(arrays[0]),
    "relax.ones_like": lambda call, arrays: np.ones_like(arrays[0]),
    "relax.dequantize": _dequantize,
    "relax.quantize": _quantize,
    "relax.shape_to_tensor": lambda call, arrays: np.asarray([int(v) for v in call.args[0].values]),
    "relax.where": _elementwise(np.where),
    "relax.tile": lambda call, arrays: np.tile(arrays[0], [int(r) for r in call.attrs.repeats]),
    "relax.repeat": lambda call, arrays: np.repeat(
        arrays[0], int(call.attrs.repeats), None if call.attrs.axis is None else int(call.attrs.axis)
    ),
    "relax.flip": lambda call, arrays: np.flip(arrays[0], int(call.attrs.axis)),
    "relax.triu": lambda call, arrays: np.triu(arrays[0], int(call.args[1])),
    "relax.tril": lambda call, arrays: np.tril(arrays[0], int(call.args[1])),
    "relax.matmul": _elementwise(np.matmul),
    "relax.sum": _reduction(np.sum),
    "relax.prod": _reduction(np.prod),
    "relax.max": _reduction(np.max),
    "relax.min": _reduction(np.min),
    "relax.mean": _reduction(np.mean),
    "relax.variance": _reduction(np.var),
    "relax.add": _elementwise(np.add),
    "relax.subtract": _elementwise(np.subtract),
    "relax.multiply": _elementwise(np.multiply),
    "relax.power": _elementwise(np.power),
    "relax.maximum": _elementwise(np.maximum),
    "relax.minimum": _elementwise(np.minimum),
    "relax.floor_divide": _elementwise(np.floor_divide),
    "relax.mod": _elementwise(np.fmod),
    "relax.floor_mod": _elementwise(np.mod),
    "relax.equal": _elementwise(np.equal),
    "relax.not_equal": _elementwise(np.not_equal),
    "relax.less": _elementwise(np.less),
    "relax.less_equal": _elementwise(np.less_equal),
    "relax.greater": _elementwise(np.greater),
    "relax.greater_equal": _elementwise(np.greater_equal),
    "relax.logical_and": _elementwise(np.logical_and),
    "relax.logical_or": _elementwise(np.logical_or),
    "relax.logical_not": _elementwise(np.logical_not),
    "relax.negative": _elementwise(np.negative),
    "relax.abs": _elementwise(np.abs),
    "relax.sign": _elementwise(np.sign),
    "relax.exp": _elementwise(np.exp),
    "relax.log": _elementwise(np.log),
    "relax.sqrt": _elementwise(np.sqrt),
    "relax.rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
    "relax.square": _elementwise(np.square),
    "relax.floor": _elementwise(np.floor),
    "relax.ceil": _elementwise(np.ceil),
    "relax.round": _elementwise(np.round),
    "relax.sin": _elementwise(np.sin),
    "relax.cos": _elementwise(np.cos),
    "relax.tanh": _elementwise(np.tanh),
    "relax.sigmoid": _elementwise(_sigmoid),
    "relax.isnan": _elementwise(np.isnan),
    "relax.isinf": _elementwise(np.isinf),
    "relax.isfinite": _elementwise(np.isfinite),
}
