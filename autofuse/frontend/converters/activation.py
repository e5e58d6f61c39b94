"""Activations and clamps as operators of Relax: Clip, Hard*, Celu, Mish, Softplus, Swish, ThresholdedRelu.

TVM's own conversion of Clip goes straight to loop nests, and those of some others lose the dtype or are missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from autofuse.frontend.constants import array_of, is_constant
from autofuse.frontend.converters.base import Attributes, OnnxOpConverter, Params, optional, scalar


class Clip(OnnxOpConverter):  # type: ignore[misc]
    """clip with constant bounds; minimum and maximum where a bound is computed."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        return _clip(inputs[0], attr.get("min", -np.inf), attr.get("max", np.inf))

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        data, low, high = inputs[0], optional(inputs, 1), optional(inputs, 2)
        if all(bound is None or is_constant(bound) for bound in (low, high)):
            return _clip(
                data,
                -np.inf if low is None else array_of(low).item(),
                np.inf if high is None else array_of(high).item(),
            )
        if low is not None:
            data = relax.op.maximum(data, low)
        return data if high is None else relax.op.minimum(data, high)


def _clip(data: Any, low: float, high: float) -> Any:
    dtype = str(data.ty.dtype.dtype)
    low = -np.inf if np.isnan(low) else low
    high = np.inf if np.isnan(high) else high
    if low == -np.inf and high == np.inf:
        return data
    if low == 0 and high == np.inf:
        return relax.op.nn.relu(data)
    # Bounds the wrong way round give the upper one, as minimum(maximum(x, low), high) does.
    if dtype.startswith("float") and np.isfinite([low, high]).all() and low <= high:
        return relax.op.clip(data, float(low), float(high))
    if low != -np.inf:
        data = relax.op.maximum(data, relax.const(low, dtype))
    return data if high == np.inf else relax.op.minimum(data, relax.const(high, dtype))


class HardSwish(OnnxOpConverter):  # type: ignore[misc]
    """x · clip(x + 3, 0, 6) / 6"""

    @classmethod
    def _impl_v14(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        x = inputs[0]
        gate = relax.op.clip(relax.op.add(x, scalar(3.0, x)), 0.0, 6.0)
        return relax.op.multiply(relax.op.multiply(x, gate), scalar(1.0 / 6.0, x))


class HardSigmoid(OnnxOpConverter):  # type: ignore[misc]
    """clip(alpha · x + beta, 0, 1)"""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        return hard_sigmoid(inputs[0], attr.get("alpha", 0.2), attr.get("beta", 0.5))


def hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    """clip(alpha · x + beta, 0, 1)"""
    scaled = relax.op.multiply(x, scalar(float(alpha), x))
    return relax.op.clip(relax.op.add(scaled, scalar(float(beta), x)), 0.0, 1.0)


class Celu(OnnxOpConverter):  # type: ignore[misc]
    """max(0, x) + min(0, alpha · (exp(x / alpha) − 1))"""

    @classmethod
    def _impl_v12(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        x, alpha = inputs[0], float(attr.get("alpha", 1.0))
        # exp only ever sees what is not positive, so it cannot overflow.
        negative = relax.op.minimum(x, scalar(0.0, x))
        curve = relax.op.exp(relax.op.multiply(negative, scalar(1.0 / alpha, x)))
        curve = relax.op.multiply(relax.op.subtract(curve, scalar(1.0, x)), scalar(alpha, x))
        return relax.op.add(relax.op.nn.relu(x), curve)


class Swish(OnnxOpConverter):  # type: ignore[misc]
    """x · sigmoid(alpha · x)"""

    @classmethod
    def _impl_v24(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        x, alpha = inputs[0], float(attr.get("alpha", 1.0))
        inner = x if alpha == 1.0 else relax.op.multiply(x, scalar(alpha, x))
        return relax.op.multiply(x, relax.op.sigmoid(inner))


class ThresholdedRelu(OnnxOpConverter):  # type: ignore[misc]
    """x where x > alpha, else 0"""

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        x = inputs[0]
        above = relax.op.greater(x, scalar(float(attr.get("alpha", 1.0)), x))
        return relax.op.where(above, x, scalar(0.0, x))


class Softplus(OnnxOpConverter):  # type: ignore[misc]
    """ln(1 + e^x), as one operator"""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        return relax.op.nn.softplus(inputs[0])


class Mish(OnnxOpConverter):  # type: ignore[misc]
    """x · tanh(ln(1 + e^x)), in the form that the simplifier knows"""

    @classmethod
    def _impl_v18(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        x = inputs[0]
        curve = bb.emit(relax.op.tanh(bb.emit(relax.op.nn.softplus(x))))
        return relax.op.multiply(x, curve)


CONVERTERS: dict[str, Any] = {
    "Clip": Clip,
    "HardSwish": HardSwish,
    "HardSigmoid": HardSigmoid,
    "Celu": Celu,
    "Swish": Swish,
    "Softplus": Softplus,
    "Mish": Mish,
    "ThresholdedRelu": ThresholdedRelu,
}
