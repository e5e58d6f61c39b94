"""Operators that do nothing or less than they say → gone, merged or cheaper.

- reshape, flatten, expand_dims, squeeze are all reshapes; of several in a row the last stays; to the same shape none
- a transpose that only moves axes of size 1 is a reshape; two in a row are one; one that moves nothing goes
- x·1, x/1, x+0, x−0, x^1, a cast to the same dtype, a slice of everything, a concat of one, dropout, an unbounded clip
- the shape of a tensor is known without looking at it
- a take of constant indices is a slice; one of others never reads out of bounds (TVM's "fast" mode does, at -1 too)
- x/c is x·(1/c), x^2 is x·x, x^0.5 is sqrt(x); Mish takes one exponential in place of three transcendentals
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autofuse.errors import ModelError
from autofuse.frontend.constants import array_of, constant, is_constant, scalar_value
from autofuse.frontend.indexing import take_constant
from autofuse.frontend.walk import Scope, dtype_of, op_name, rewrite, static_shape


def simplify(module: tvm.IRModule) -> tvm.IRModule:
    """One walk over `main`, in order, so that chains collapse as they are met."""
    return rewrite(module, _rule)


def _rule(scope: Scope, call: Any) -> Any:
    name = op_name(call).removeprefix("relax.")
    if name in ("reshape", "flatten", "expand_dims", "squeeze"):
        return _reshape(scope, call)
    rule = _RULES.get(name)
    return None if rule is None else rule(scope, call)


def _reshape(scope: Scope, call: Any) -> Any:
    shape = static_shape(call)
    if shape is None:
        return None
    data = call.args[0]
    inner = scope.value(data)
    if op_name(inner) == "relax.reshape":
        data = inner.args[0]
    if static_shape(data) == shape:
        return data
    if op_name(call) == "relax.reshape" and data.same_as(call.args[0]):
        return None
    return relax.op.reshape(data, shape)


def _permute(scope: Scope, call: Any) -> Any:
    shape = static_shape(call.args[0])
    if shape is None:
        return None
    axes = _permutation(call, len(shape))
    data = call.args[0]
    inner = scope.value(data)
    if op_name(inner) == "relax.permute_dims":
        first = _permutation(inner, len(shape))
        axes = [first[axis] for axis in axes]
        data = inner.args[0]
        shape = static_shape(data) or shape
    if axes == sorted(axes):
        return data
    moving = [axis for axis in axes if shape[axis] != 1]
    if moving == sorted(moving):
        merged = relax.op.reshape(data, [shape[axis] for axis in axes])
        source = scope.value(data)
        if op_name(source) == "relax.reshape":
            merged = relax.op.reshape(source.args[0], [shape[axis] for axis in axes])
        return merged
    return None if data.same_as(call.args[0]) else relax.op.permute_dims(data, axes)


def _permutation(call: Any, rank: int) -> list[int]:
    axes = call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]


def _binary_neutral(neutral: float, commutes: bool) -> Any:
    def rule(scope: Scope, call: Any) -> Any:
        pairs = [(call.args[0], call.args[1])]
        if commutes:
            pairs.append((call.args[1], call.args[0]))
        for data, other in pairs:
            if scalar_value(other) == neutral and static_shape(data) == static_shape(call) is not None:
                return data
        return None

    return rule


def _divide(scope: Scope, call: Any) -> Any:
    data, divisor = call.args
    kept = _binary_neutral(1, False)(scope, call)
    if kept is not None:
        return kept
    if not is_constant(divisor) or is_constant(data) or not dtype_of(call).startswith("float"):
        return None
    array = array_of(divisor)
    if array.size > 65536 or not np.all(array):
        return None
    with np.errstate(over="ignore"):
        inverse = (1 / array.astype("float64")).astype(array.dtype)
    if not np.all(np.isfinite(inverse)) or not np.all(inverse):
        return None
    return relax.op.multiply(data, constant(inverse))


_multiply_by_one = _binary_neutral(1, True)


def _multiply(scope: Scope, call: Any) -> Any:
    kept = _multiply_by_one(scope, call)
    if kept is not None or dtype_of(call) not in ("float32", "float64"):
        return kept
    for x, other in ((call.args[0], call.args[1]), (call.args[1], call.args[0])):
        outer = scope.value(other)
        if op_name(outer) == "relax.tanh":
            inner = scope.value(outer.args[0])
            if op_name(inner) == "relax.nn.softplus" and inner.args[0].same_as(x) and float(inner.attrs.beta) == 1:
                return _mish(scope, x)
    return None


def _mish(scope: Scope, x: Any) -> Any:
    """x·tanh(ln(1 + e^x)) = x·n / (n + 2) with n = e^x·(e^x + 2); past x = 20 the quotient is 1 in float32."""
    dtype = dtype_of(x)
    op, two = relax.op, relax.const(2.0, dtype)
    growth = scope.emit(op.exp(scope.emit(op.minimum(x, relax.const(20.0, dtype)))), uses=2)
    numerator = scope.emit(op.multiply(growth, scope.emit(op.add(growth, two))), uses=2)
    quotient = op.divide(numerator, scope.emit(op.add(numerator, two)))
    return op.multiply(x, scope.emit(quotient))


def _power(scope: Scope, call: Any) -> Any:
    data = call.args[0]
    exponent = scalar_value(call.args[1])
    if exponent is None or static_shape(data) != static_shape(call) or not dtype_of(call).startswith("float"):
        return None
    if exponent == 1:
        return data
    if exponent == 2:
        return relax.op.multiply(data, data)
    if exponent == 3:
        return relax.op.multiply(scope.emit(relax.op.multiply(data, data)), data)
    return relax.op.sqrt(data) if exponent == 0.5 else None


def _astype(scope: Scope, call: Any) -> Any:
    return call.args[0] if dtype_of(call.args[0]) == dtype_of(call) else None


def _slice(scope: Scope, call: Any) -> Any:
    strides = call.args[4].fields if len(call.args) > 4 else []
    same = static_shape(call) == static_shape(call.args[0]) is not None
    return call.args[0] if same and all(int(stride) == 1 for stride in strides) else None


def _same_shape(scope: Scope, call: Any) -> Any:
    return call.args[0] if static_shape(call) == static_shape(call.args[0]) is not None else None


def _concat(scope: Scope, call: Any) -> Any:
    parts = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else []
    if len(parts) == 1:
        return parts[0]
    filled = [part for part in parts if 0 not in (static_shape(part) or (1,))]
    if 0 < len(filled) < len(parts):
        return relax.op.concat(filled, axis=call.attrs.axis) if len(filled) > 1 else filled[0]
    return None


def _dropout(scope: Scope, call: Any) -> Any:
    shape = static_shape(call.args[0])
    if shape is None:
        return None
    mask = constant(np.ones((), dtype_of(call.args[0])))
    return relax.Tuple([call.args[0], scope.emit(relax.op.broadcast_to(mask, shape))])


def _clip(scope: Scope, call: Any) -> Any:
    low, high = (getattr(bound, "value", None) for bound in call.args[1:3])
    if low is None or high is None:
        return None
    if low == 0 and high == math.inf:
        return relax.op.nn.relu(call.args[0])
    return call.args[0] if low == -math.inf and high == math.inf else None


def _take(scope: Scope, call: Any) -> Any:
    data, indices = call.args
    shape = static_shape(data)
    if call.attrs.mode != "fast" or shape is None:
        return None
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    if not is_constant(indices):
        return relax.op.take(data, indices, axis=axis, mode="wrap")
    try:
        return take_constant(scope.emit, data, shape, array_of(indices), axis)
    except ModelError as error:
        raise ModelError(f"a take cannot be compiled: {error}; export the model again") from None


def _index_tensor(scope: Scope, call: Any) -> Any:
    """Indices for the leading axes together: a take along those axes made one."""
    data, indices = call.args
    shape = static_shape(data)
    fields = list(indices.fields) if isinstance(indices, relax.Tuple) else []
    if shape is None or not fields or not all(dtype_of(f).startswith("int") for f in fields):
        return None
    sizes, rest = shape[: len(fields)], shape[len(fields) :]
    merged = relax.op.reshape(data, (math.prod(sizes), *rest))
    if all(is_constant(f) for f in fields):
        try:
            flat = np.ravel_multi_index(
                tuple(_from_start(array_of(f), n) for f, n in zip(fields, sizes, strict=True)), sizes
            )
        except ValueError:
            raise ModelError(
                f"an index reaches past the end of a tensor of shape {list(shape)}; correct the model"
            ) from None
        return take_constant(scope.emit, scope.emit(merged), (math.prod(sizes), *rest), np.asarray(flat), 0)
    position: Any = None
    for field, size in zip(fields, sizes, strict=True):
        extent = relax.const(size, "int64")
        here = scope.emit(relax.op.floor_mod(scope.emit(relax.op.astype(field, "int64")), extent))
        position = (
            here
            if position is None
            else scope.emit(relax.op.add(scope.emit(relax.op.multiply(position, extent)), here))
        )
    return relax.op.take(scope.emit(merged), position, axis=0, mode="wrap")


def _from_start(indices: Any, size: int) -> Any:
    return np.where(indices < 0, indices + size, indices)


def _shape_of(scope: Scope, call: Any) -> Any:
    shape = static_shape(call.args[0])
    return None if shape is None else relax.ShapeExpr(list(shape))


_RULES: dict[str, Any] = {
    "permute_dims": _permute,
    "multiply": _multiply,
    "add": _binary_neutral(0, True),
    "subtract": _binary_neutral(0, False),
    "divide": _divide,
    "power": _power,
    "astype": _astype,
    "strided_slice": _slice,
    "broadcast_to": _same_shape,
    "concat": _concat,
    "nn.dropout": _dropout,
    "clip": _clip,
    "shape_of": _shape_of,
    "take": _take,
    "index_tensor": _index_tensor,
    # importers write checks of run-time values, which no result depends on
    "assert_op": lambda scope, call: relax.Tuple([]),
}
