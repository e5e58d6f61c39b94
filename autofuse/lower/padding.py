"""How large the padding lanes of a partly filled channel block can become: elementwise operator → a bound.

Padded lanes meet zero weights in the next convolution, and zero times infinity (or NaN) would spoil every channel. So
an operator may run on such blocks only while its result in the padding is known to be finite. Bounds are magnitudes;
what has no bound here is computed in the model's own layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

#: Beyond this, polynomials inside an operator (a cube in GELU) could overflow float32 although its result does not.
LIMIT = 1e12

_SAME = {"nn.relu", "nn.silu", "nn.gelu", "nn.gelu_tanh", "abs", "negative", "astype"}
_WHOLE = {"int8": 128.0, "uint8": 255.0, "int16": 2.0**15, "uint16": 2.0**16}
_AT_MOST_ONE = {"sigmoid", "tanh", "erf", "sin", "cos", "sign"}


def _constant(expr: Any) -> float:
    """The value of a scalar argument; NaN where it is not known."""
    value = getattr(expr, "value", math.nan)
    if hasattr(value, "numpy"):
        array = value.numpy()
        return float(array.reshape(())) if array.size == 1 else math.nan
    return float(getattr(value, "value", value))


def _clip(call: Any, bounds: Sequence[float]) -> float:
    return max(bounds[0], *(abs(c) for c in map(_constant, call.args[1:3]) if math.isfinite(c)))


def _divide(call: Any, bounds: Sequence[float]) -> float:
    divisor = abs(_constant(call.args[1]))
    return bounds[0] / divisor if divisor > 0 else math.inf


def _exp(call: Any, bounds: Sequence[float]) -> float:
    return math.exp(min(bounds[0], 80.0))


_RULES: dict[str, Callable[[Any, Sequence[float]], float]] = {
    "nn.relu6": lambda call, b: 6.0,
    "nn.leakyrelu": lambda call, b: b[0] * max(1.0, abs(float(call.attrs.alpha))),
    "nn.softplus": lambda call, b: b[0] + math.log(2.0) / abs(float(call.attrs.beta)),
    "floor": lambda call, b: b[0] + 1,
    "ceil": lambda call, b: b[0] + 1,
    "round": lambda call, b: b[0] + 1,
    "square": lambda call, b: b[0] * b[0],
    "add": lambda call, b: b[0] + b[1],
    "subtract": lambda call, b: b[0] + b[1],
    "multiply": lambda call, b: b[0] * b[1],
    "maximum": lambda call, b: max(b),
    "minimum": lambda call, b: max(b),
    "atan": lambda call, b: math.pi / 2,
    "clip": _clip,
    "divide": _divide,
    "exp": _exp,
    "quantize": lambda call, b: _WHOLE.get(str(call.attrs.out_dtype), 2.0**32),
    "dequantize": lambda call, b: (b[0] + b[2]) * b[1],
}


def padding_bound(call: Any, bounds: Sequence[float]) -> float:
    """Bound of the result's padding from those of the tensor operands, infinite if there is none below `LIMIT`."""
    kind = call.op.name.removeprefix("relax.")
    if not all(b <= LIMIT for b in bounds):  # NaN too
        return math.inf
    if kind in _SAME:
        bound = bounds[0]
    elif kind in _AT_MOST_ONE:
        bound = 1.0
    elif kind in _RULES:
        bound = _RULES[kind](call, bounds)
    else:
        return math.inf
    return bound if bound <= LIMIT else math.inf
