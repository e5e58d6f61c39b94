"""Multiplications and additions by per-channel constants after a convolution or a matmul → its weights and one bias.

    conv(x, W) · s           → conv(x, W · s)
    (y + b) · s              → y · s + b · s
    (y + b) + c              → y + (b + c)

The second and third only where the inner value has no other reader. Batch norm arrives here as a multiply and an add.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from autofuse.frontend.constants import Array, along_axis, array_of, constant, is_constant
from autofuse.frontend.walk import Scope, op_name, rewrite, static_shape


def fold_scales(module: tvm.IRModule) -> tvm.IRModule:
    """Needs constants folded: a bias still hidden behind a reshape is not seen."""
    return rewrite(module, _rule)


def _rule(scope: Scope, call: Any) -> Any:
    name = op_name(call)
    if name not in ("relax.add", "relax.subtract", "relax.multiply", "relax.divide"):
        return None
    if not static_shape(call) or not _is_float(call):
        return None
    data, operand = _data_and_constant(call)
    if data is None or not scope.used_once(data):
        return None
    array = array_of(operand)
    if static_shape(data) != static_shape(call):
        return None  # the constant widens the result
    if name in ("relax.multiply", "relax.divide"):
        factor = array if name == "relax.multiply" else _inverse(array)
        return None if factor is None else _scaled(scope, data, factor)
    return _shifted(scope, data, array if name == "relax.add" else -array)


def _data_and_constant(call: Any) -> tuple[Any, Any]:
    first, second = call.args
    if is_constant(second) and not is_constant(first):
        return first, second
    if op_name(call) in ("relax.add", "relax.multiply") and is_constant(first) and not is_constant(second):
        return second, first
    return None, None


def _is_float(call: Any) -> bool:
    return str(call.ty.dtype.dtype) in ("float32", "float64")


def _inverse(array: Array) -> Array | None:
    if array.size == 0 or array.size > 65536 or not np.all(array):
        return None
    inverse = 1 / array
    return inverse if np.all(np.isfinite(inverse)) else None


def _scaled(scope: Scope, data: Any, factor: Array) -> Any:
    inner = scope.value(data)
    name = op_name(inner)
    if name == "relax.add":
        base, bias = _data_and_constant(inner)
        if base is None or not scope.used_once(base) or static_shape(base) != static_shape(inner):
            return None
        scaled = _scaled(scope, base, factor)
        if scaled is None:
            return None
        return relax.op.add(scope.emit(scaled), constant(_product(array_of(bias), factor)))
    if name.startswith("relax.nn.conv") and is_constant(inner.args[1]):
        weight = _scaled_kernel(inner, factor)
    elif name == "relax.matmul" and is_constant(inner.args[1]):
        weight = _scaled_matrix(inner, factor)
    else:
        return None
    if weight is None:
        return None
    return relax.Call(inner.op, [inner.args[0], constant(weight)], inner.attrs, inner.ty_args)


def _shifted(scope: Scope, data: Any, shift: Array) -> Any:
    inner = scope.value(data)
    if op_name(inner) not in ("relax.add", "relax.subtract"):
        return None
    base, bias = _data_and_constant(inner)
    if base is None or static_shape(base) != static_shape(inner):
        return None
    first = array_of(bias) if op_name(inner) == "relax.add" else -array_of(bias)
    total = np.asarray(first.astype("float64") + shift)
    if total.size > max(first.size, shift.size):
        return None
    return relax.op.add(base, constant(total.astype(first.dtype)))


def _product(left: Array, right: Array) -> Array:
    return np.asarray(left * right, left.dtype)


def _scaled_kernel(call: Any, factor: Array) -> Array | None:
    out_layout = str(call.attrs.out_layout) or str(call.attrs.data_layout)
    kernel_layout = str(call.attrs.kernel_layout)
    shape = static_shape(call)
    if shape is None or not out_layout.isalpha() or not kernel_layout.isalpha():
        return None
    axis = out_layout.index("C")
    vector = along_axis(factor, len(shape), axis, shape[axis])
    if vector is None:
        return None
    weight = array_of(call.args[1])
    out_axis = kernel_layout.index("O")
    groups = int(call.attrs.groups)
    spread = [1] * weight.ndim
    spread[out_axis] = -1
    if weight.shape[out_axis] == shape[axis]:
        return np.multiply(weight, vector.reshape(spread), dtype=weight.dtype)
    # A grouped transposed convolution: weights [inputs, outputs of one group, ...], groups along the inputs.
    in_axis = kernel_layout.index("I")
    if in_axis != 0 or out_axis != 1:
        return None
    grouped = weight.reshape(groups, -1, *weight.shape[1:])
    tail = [1] * (weight.ndim - 2)
    return (grouped * vector.reshape(groups, 1, -1, *tail)).astype(weight.dtype).reshape(weight.shape)


def _scaled_matrix(call: Any, factor: Array) -> Array | None:
    weight, shape = array_of(call.args[1]), static_shape(call)
    if shape is None or weight.ndim != 2 or len(shape) < 2:
        return None
    vector = along_axis(factor, len(shape), len(shape) - 1, shape[-1])
    return None if vector is None else np.multiply(weight, vector, dtype=weight.dtype)
