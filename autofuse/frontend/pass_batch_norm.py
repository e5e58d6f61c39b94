"""Inference batch norm with constant statistics → one multiply and one add by per-channel constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from autofuse.frontend.constants import array_of, constant, is_constant
from autofuse.frontend.walk import Scope, dtype_of, op_name, rewrite, static_shape


def lower_batch_norm(module: tvm.IRModule) -> tvm.IRModule:
    """y = (x − mean) / sqrt(variance + epsilon) · gamma + beta, folded to x · scale + shift in float64.

    An operator marked as training is read as inference, as TVM's DecomposeOpsForInference does: Relax marks it so by
    default. The pass on scales then moves both into the weights of whatever produced x, where that is possible.
    """
    return rewrite(module, _rule)


def _rule(scope: Scope, call: Any) -> Any:
    if op_name(call) != "relax.nn.batch_norm" or not all(is_constant(arg) for arg in call.args[1:]):
        return None
    data = call.args[0]
    shape = static_shape(data)
    if shape is None:
        return None
    gamma, beta, mean, variance = (array_of(arg).astype("float64") for arg in call.args[1:])
    factor = 1.0 / np.sqrt(variance + float(call.attrs.epsilon))
    if bool(call.attrs.scale):
        factor = factor * gamma
    shift = -mean * factor
    if bool(call.attrs.center):
        shift = shift + beta
    dtype = dtype_of(data)
    channels = [1] * len(shape)
    channels[int(call.attrs.axis) % len(shape)] = -1
    scaled = scope.emit(relax.op.multiply(data, constant(factor.astype(dtype).reshape(channels))))
    shifted = scope.emit(relax.op.add(scaled, constant(shift.astype(dtype).reshape(channels))), uses=1)
    # Inference leaves the running statistics as they were.
    return relax.Tuple([shifted, call.args[3], call.args[4]])
