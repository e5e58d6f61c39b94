"""exp, sigmoid, tanh, erf, log and small integer powers as vector arithmetic, instead of one library call an element.

LLVM does not vectorise these functions; replacing how TVM lowers them gives every kernel the fast form. Float32 only,
other types keep the library's. Largest errors, checked by tests/test_intrinsics.py: exp and sigmoid 3e-7, tanh 5e-7,
erf 6e-7, log 3e-7, relative (log: absolute near 1); of what models make of them, mish, gelu and swish, 4e-7 relative to
|x|. exp is zero below -87, sigmoid below -89; NaN stays NaN, exp(-inf) is 0. What bounds their speed is the number of
operations in all, then that of multiply-adds, then the division. The coefficients come from scripts/fit_intrinsics.py.
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
# Added to a float below 2^22 it rounds it to a whole number.
_ROUNDING = 1.5 * (1 << 23)

# 2 e^r, each coefficient rounded to float32 and the next ones fitted to what is left.
TWICE_EXP = (
    2.0, 1.9999994039535522, 0.9999829530715942, 0.3333529531955719, 0.08379649370908737, 0.01657963916659355,
)  # fmt: skip
# r / tanh(r / 2), lowest power of r² first.
EXP_HALVES = (2.0, 0.166666179895401, -0.0027660070918500423)
TANH_P = (
    0.9999999795128895, 0.13381022971714102, 0.0034955848967713633, 2.060902869653054e-05, 1.3354588591717795e-08,
)  # fmt: skip
TANH_Q = (
    1.0, 0.46714338580525777, 0.025876970032604356, 0.0003285629496687802, 7.776528072263446e-07,
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


def _let(value: Any, body: Callable[[Any], Any]) -> Any:
    """body(value) with the value in a variable: what is read several times is written out once."""
    name = tirx.Var("value", _type_name(value))
    return tirx.Let(name, value, body(name))


def _clamped(v: _Vector, x: Any, low: float, high: float) -> Any:
    """x within [low, high]. The constants stand first: a comparison with NaN is false and lets it through."""
    return tirx.max(v.constant(low), tirx.min(v.constant(high), x))


def _reduced(v: _Vector, x: Any, sign: int, bias: int, result: Callable[[Any, Any], Any]) -> Any:
    """result(r, 2^(n + bias)) with n = round(sign · x / ln 2) and r = x - sign · n ln 2, |r| <= ln 2 / 2.

    Adding 1.5 · 2^23 to a float rounds it to a whole number, which is then in its lowest bits: if that number is the
    power's biased exponent, n + bias + 127 in [0, 255], one shift makes the power. 2^-127 counts as zero, 2^128 as
    infinite.
    """
    shifter = v.constant(_ROUNDING + 127 + bias)

    def with_rounded(rounded: Any) -> Any:
        n = rounded - shifter
        power = v.reinterpret("float32", tirx.shift_left(v.reinterpret("int32", rounded), v.constant(23, "int32")))
        rest = x - n * v.constant(sign * _LN2_HIGH) - n * v.constant(sign * _LN2_LOW)
        return _let(rest, lambda r: result(r, power))

    return _let(x * v.constant(sign * _LOG2_E) + shifter, with_rounded)


def _exp(op: Any) -> Any:
    """exp(x) = 2^(n-1) · 2 e^r; the factor 2 keeps n = 128 in range, so that only true overflow is infinite."""
    x = op.args[0]
    if not _is_float32(x):
        return _library(op, "exp")
    v = _Vector(x)
    return _let(
        _clamped(v, x, -87.6, 89.0),
        lambda x: _reduced(v, x, 1, -1, lambda r, power: v.polynomial(TWICE_EXP, r) * power),
    )


def _sigmoid(op: Any) -> Any:
    """1 / (1 + e^-x) = (q + r) / (q + r + 2^n (q - r)), where e^-x = 2^n e^-r and q = r / tanh(r / 2).

    (q + r) / (q - r) is e^r, and q is even in r and nearly constant: it takes fewer operations than e^r, of which few
    wait for each other, and the division is there anyway. Accurate for negative x too, where the result is small.
    """
    x = op.args[0]
    if not _is_float32(x):
        one = _Vector(x).constant(1.0, _type_name(x).partition("x")[0])
        return one / (one + tirx.exp(-x))
    v = _Vector(x)

    def quotient(r: Any, power: Any) -> Any:
        q = v.polynomial(EXP_HALVES, r * r)
        return _let(q + r, lambda above: above / (power * (q - r) + above))

    return _let(_clamped(v, x, -89.0, 87.0), lambda x: _reduced(v, x, -1, 0, quotient))


def _tanh(op: Any) -> Any:
    """x P(x²) / Q(x²) on [-9, 9], beyond which float32 tanh is ±1; no further from zero than ±1."""
    x = op.args[0]
    if not _is_float32(x):
        return op
    v = _Vector(x)
    return _let(_clamped(v, x, -9.0, 9.0), lambda x: _clamped(v, _odd_quotient(v, x, TANH_P, TANH_Q), -1.0, 1.0))


def _odd_quotient(v: _Vector, x: Any, p: Sequence[float], q: Sequence[float]) -> Any:
    return _let(x * x, lambda z: x * v.polynomial(p, z) / v.polynomial(q, z))


def _erf(op: Any) -> Any:
    """x P(x²) / Q(x²) on [-4, 4], beyond which float32 erf is ±1."""
    x = op.args[0]
    if not _is_float32(x):
        return op
    v = _Vector(x)
    return _let(_clamped(v, x, -4.0, 4.0), lambda x: _odd_quotient(v, x, ERF_P, ERF_Q))


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
    rules = {"exp": _exp, "sigmoid": _sigmoid, "tanh": _tanh, "erf": _erf, "log": _log, "pow": _pow}
    for name, rule in rules.items():
        tvm.tirx.register_intrin_lowering(f"tirx.{name}", target="llvm", f=_bound(rule), level=120)
    # Without this a vector loop that calls them falls apart into single elements.
    for name in ("erf", "rsqrt"):
        tvm.ir.register_op_attr(f"tirx.{name}", "TVectorizable", True, level=120)
    _registered = True


# The calibration finds the lowering under this name.
register = register_intrinsics
