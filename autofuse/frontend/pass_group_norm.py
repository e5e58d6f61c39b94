"""Group normalisation written with reshapes, as PyTorch's ONNX export writes it → one `nn.group_norm`.

    reshape((r − mean(r)) / sqrt(variance(r) + ε)), r = reshape(x, [N, groups, rest])  → group_norm(x)
    group_norm(x) · s + b                                                               → group_norm(x; s, b)

One operator stays in the channel blocks of the convolutions around it; the reshapes would leave them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autofuse.frontend.constants import Array, along_axis, array_of, constant, is_constant
from autofuse.frontend.walk import Scope, dtype_of, op_name, rewrite, static_shape


def gather_group_norm(module: tvm.IRModule) -> tvm.IRModule:
    """Needs constants folded, reshapes merged and neutral factors gone. Leaves the old operators as dead code."""
    return rewrite(module, _rule)


def _rule(scope: Scope, call: Any) -> Any:
    name = op_name(call)
    if name == "relax.reshape":
        return _gathered(scope, call)
    if name in ("relax.multiply", "relax.add"):
        return _absorbed(scope, call, name)
    return None


@dataclass
class _Rows:
    """What was found behind the last reshape: rows' variable, ε, and what follows the division (numbers a group)."""

    rows: Any
    epsilon: float
    scale: Array
    bias: Array


def _gathered(scope: Scope, call: Any) -> Any:
    shape = static_shape(call)
    if shape is None or len(shape) < 3 or dtype_of(call) != "float32":
        return None
    found = _normalised_rows(scope, scope.value(call.args[0]))
    if found is None:
        return None
    data = scope.value(found.rows).args[0]
    groups = found.scale.size
    if static_shape(data) != shape or (static_shape(found.rows) or ())[:1] != shape[:1] or shape[1] % groups:
        return None
    each = shape[1] // groups
    return relax.op.nn.group_norm(
        data,
        constant(np.repeat(found.scale, each)),
        constant(np.repeat(found.bias, each)),
        groups,
        channel_axis=1,
        axes=list(range(2, len(shape))),
        epsilon=found.epsilon,
    )


def _normalised_rows(scope: Scope, value: Any) -> _Rows | None:
    """Reads [N, groups, rest] backwards from its last operator: shift, scale, division by the deviation."""
    shape = static_shape(value)
    if shape is None or len(shape) != 3:
        return None
    bias, scale = np.zeros(shape[1], "float32"), np.ones(shape[1], "float32")
    for name in ("relax.add", "relax.multiply"):
        if op_name(value) == name:
            vector = _vector(value.args[1], shape)
            if vector is None:
                return None
            bias, scale = (vector, scale) if name == "relax.add" else (bias, vector)
            value = scope.value(value.args[0])
    if op_name(value) != "relax.divide":
        return None
    centred, deviation = (scope.value(arg) for arg in value.args)
    if op_name(centred) != "relax.subtract" or op_name(deviation) != "relax.sqrt":
        return None
    shifted = scope.value(deviation.args[0])
    if op_name(shifted) != "relax.add" or not is_constant(shifted.args[1]) or array_of(shifted.args[1]).size != 1:
        return None
    rows = centred.args[0]
    mean, variance = scope.value(centred.args[1]), scope.value(shifted.args[0])
    for statistic, name in ((mean, "relax.mean"), (variance, "relax.variance")):
        if op_name(statistic) != name or not statistic.args[0].same_as(rows):
            return None
        if [int(a) % 3 for a in statistic.attrs.axis] != [2] or not bool(statistic.attrs.keepdims):
            return None
    if op_name(scope.value(rows)) != "relax.reshape":
        return None
    return _Rows(rows, float(array_of(shifted.args[1]).reshape(-1)[0]), scale, bias)


def _absorbed(scope: Scope, call: Any, name: str) -> Any:
    data, operand = call.args
    if is_constant(data):
        data, operand = operand, data
    norm, shape = scope.value(data), static_shape(call)
    if op_name(norm) != "relax.nn.group_norm" or not scope.used_once(data) or shape != static_shape(data):
        return None
    if shape is None or not all(is_constant(arg) for arg in norm.args[1:]) or int(norm.attrs.channel_axis) != 1:
        return None
    vector = _vector(operand, shape)
    if vector is None:
        return None
    scale, bias = (array_of(arg) for arg in norm.args[1:])
    if name == "relax.multiply":
        scale, bias = scale * vector, bias * vector
    else:
        bias = bias + vector
    arguments = [norm.args[0], constant(scale.astype("float32")), constant(bias.astype("float32"))]
    return relax.Call(norm.op, arguments, norm.attrs, norm.ty_args)


def _vector(operand: Any, shape: tuple[int, ...]) -> Array | None:
    """A constant with a number for each index of axis 1 (or one for all), as a vector; None for anything else."""
    if not is_constant(operand) or dtype_of(operand) != "float32":
        return None
    return along_axis(array_of(operand), len(shape), 1, shape[1])
