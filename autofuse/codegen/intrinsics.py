"""exp, tanh, erf, log and small integer powers as vector arithmetic, instead of one library call an element.

LLVM does not vectorise these functions; replacing how TVM lowers them gives every kernel the fast form. Float32 only,
other types keep the library's. Largest errors, checked by tests/test_intrinsics.py: exp 3e-7, tanh 5e-7, erf 6e-7, log
3e-7, relative (log: absolute near 1). exp is zero below -87; NaN stays NaN, exp(-inf) is 0.
The coefficients come from scripts/fit_intrinsics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx

_LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first exact in 12 bits so that n · LN2_HIGH is exact in float32 for |n| < 2^12.
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440054690583e-4
_SQRT_2 = 1.4142135623730951

EXP_TAIL = (
    0.49999999999999994, 0.16666577025597948, 0.04166655466205872, 0.008363173074516405, 0.0013926176119143712,
)  # fmt: skip
LOG_TAIL = (
    0.3333333072807741, -0.25000306422372987, 0.20001045103775728, -0.16641281478714662, 0.14214495718259712,
    -0.12998183394287474, 0.1262232112242892, -0.07902746353433843,
)  # fmt: skip
ERF_P = (
    1.128379139379353, 0.1935439030392163, 0.053101582647272084, 0.003883290331691358, 0.00028456409794374796,
    1.9867844955061957e-06,
)  # fmt: skip
ERF_Q = (
    1.0, 0.504856374286696, 0.11534951158545932, 0.015207145741452634, 0.0011855569112892688, 3.7420100371657245e-05,
)  # fmt: skip

_registered = False


class _Vector:
    """Constants and casts of the lane count of one expression."""

    def __init__(self, like: Any) -> None:
        self.lanes = int(_type_name(like).partition("x")[2] or 1)

    def constant(self, value: float, dtype: str = "float32") -> Any:
        scalar = tirx.const(value, dtype)
        return tirx.Broadcast(scalar, self.lanes) if self.lanes > 1 else scalar

    def dtype(self, scalar: str) -> str:
        return f"{scalar}x{self.lanes}" if self.lanes > 1 else scalar

    def cast(self, scalar: str, value: Any) -> Any:
        return tirx.Cast(self.dtype(scalar), value)

    def reinterpret(self, scalar: str, value: Any) -> Any:
        return tirx.reinterpret(self.dtype(scalar), value)

    def polynomial(self, coefficients: Sequence[float], x: Any) -> Any:
        """Horner's rule, lowest power first."""
        value = self.constant(coefficients[-1])
        for c in coefficients[-2::-1]:
            value = value * x + self.constant(c)
        return value


def _type_name(value: Any) -> str:
    """ "float32", or "float32x8" for a vector."""
    return str(getattr(value.ty, "dtype", value.ty))


def _is_float32(value: Any) -> bool:
    return _type_name(value).partition("x")[0] == "float32"


def _bound(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The rule with its argument in a variable, since rules read it many times and calls stand inside each other."""

    def lower(op: Any) -> Any:
        x = op.args[0]
        if not _is_float32(x) or isinstance(x, tirx.Var):
            return rule(op)
        name = tirx.Var("argument", _type_name(x))
        return tirx.Let(name, x, rule(tirx.call_intrin(_type_name(op), op.op, name, *op.args[1:])))

    return lower


def _library(op: Any, name: str) -> Any:
    """LLVM's own function, for the types that have no vector form here."""
    return tirx.call_llvm_pure_intrin(_type_name(op), f"llvm.{name}", *op.args)


def _reduce_exponent(v: _Vector, x: Any) -> tuple[Any, Any]:
    """n = round(x / ln 2) and r = x - n ln 2, |r| <= ln 2 / 2."""
    n = tirx.floor(x * v.constant(_LOG2_E) + v.constant(0.5))
    r = x - n * v.constant(_LN2_HIGH) - n * v.constant(_LN2_LOW)
    return n, r


def _power_of_two(v: _Vector, n: Any) -> Any:
    """2^n for a whole float n in [-127, 128]; 2^-127 counts as zero."""
    bits = (v.cast("int32", n) + v.constant(127, "int32")) * v.constant(1 << 23, "int32")
    return v.reinterpret("float32", bits)


def _exp(op: Any) -> Any:
    """exp(x) = 2^(n-1) · 2 e^r; the factor 2 keeps n = 128 in range, so that only true overflow is infinite."""
    x = op.args[0]
    if not _is_float32(x):
        return _library(op, "exp")
    v = _Vector(x)
    # The constants stand first: a comparison with NaN is false and lets it through.
    x = tirx.max(v.constant(-87.6), tirx.min(v.constant(89.0), x))
    n, r = _reduce_exponent(v, x)
    value = v.constant(1.0) + (r + r * r * v.polynomial(EXP_TAIL, r))
    return (value + value) * _power_of_two(v, n - v.constant(1.0))


def _tanh(op: Any) -> Any:
    """tanh(x) = t / (t + 2) with t = e^2x - 1 = 2^n (e^r - 1) + (2^n - 1), accurate near zero too."""
    x = op.args[0]
    if not _is_float32(x):
        return op
    v = _Vector(x)
    x = tirx.max(v.constant(-18.5), tirx.min(v.constant(18.5), x + x))
    n, r = _reduce_exponent(v, x)
    scale = _power_of_two(v, n)
    t = scale * (r + r * r * v.polynomial(EXP_TAIL, r)) + (scale - v.constant(1.0))
    return t / (t + v.constant(2.0))


def _erf(op: Any) -> Any:
    """x P(x²) / Q(x²) on [-4, 4], beyond which float32 erf is ±1."""
    x = op.args[0]
    if not _is_float32(x):
        return op
    v = _Vector(x)
    x = tirx.max(v.constant(-4.0), tirx.min(v.constant(4.0), x))
    z = x * x
    return x * v.polynomial(ERF_P, z) / v.polynomial(ERF_Q, z)


def _log(op: Any) -> Any:
    """log(x) = e ln 2 + log(m), m in [√½, √2), by its series' remainder."""
    x = op.args[0]
    if not _is_float32(x):
        return _library(op, "log")
    v = _Vector(x)
    bits = v.reinterpret("int32", x)
    # Adding the distance from √½ to 1 in the mantissa makes the exponent round at √2.
    shifted = bits - v.constant(0x3F3504F3, "int32")
    exponent = tirx.shift_right(shifted, v.constant(23, "int32"))
    mantissa = v.reinterpret("float32", bits - exponent * v.constant(1 << 23, "int32"))
    f = mantissa - v.constant(1.0)
    e = v.cast("float32", exponent)
    z = f * f
    value = f * z * v.polynomial(LOG_TAIL, f) + e * v.constant(_LN2_LOW) - v.constant(0.5) * z + f
    value = value + e * v.constant(_LN2_HIGH)
    zero = v.constant(0.0)
    infinity = v.constant(float("inf"))
    outside = tirx.Select(x == zero, -infinity, v.constant(float("nan")))
    return tirx.Select(x > zero, tirx.Select(x == infinity, infinity, value), outside)


def _pow(op: Any) -> Any:
    """x^2, x^3, x^4 as products, x^0.5 as a square root."""
    x, exponent = op.args
    scalar = exponent.value if isinstance(exponent, tirx.Broadcast) else exponent
    if not isinstance(scalar, tirx.FloatImm | tirx.IntImm):
        return _library(op, "pow")
    power = float(scalar.value)
    if power == 2.0:
        return x * x
    if power == 3.0:
        return x * x * x
    if power == 4.0:
        return (x * x) * (x * x)
    if power == 0.5:
        return tirx.sqrt(x)
    return _library(op, "pow")


def register_intrinsics() -> None:
    """Replace the lowering of the functions for CPU targets, once a process."""
    global _registered
    if _registered:
        return
    rules = {"exp": _exp, "tanh": _tanh, "erf": _erf, "log": _log, "pow": _pow}
    for name, rule in rules.items():
        tvm.tirx.register_intrin_lowering(f"tirx.{name}", target="llvm", f=_bound(rule), level=120)
    _registered = True


# The calibration finds the lowering under this name.
register = register_intrinsics
