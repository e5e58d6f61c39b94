"""Fit the polynomials of autofuse/codegen/intrinsics.py and print them with their errors.

Chebyshev interpolation for log, reweighted least squares for exp; for tanh and erf a rational function in x², fitted by
iterating a weighted linear least-squares problem (Sanathanan and Koerner, 1963) in extended precision.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, log, sqrt, tanh

import numpy as np
from numpy.polynomial import Polynomial
from numpy.polynomial.chebyshev import Chebyshev


def interpolate(function, degree: int, low: float, high: float) -> list[float]:
    """Coefficients, lowest power first, of the Chebyshev interpolant of `function` over [low, high]."""
    fitted = Chebyshev.interpolate(function, degree, domain=[low, high])
    return [float(c) for c in fitted.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1]).coef]


def fit_linear(columns: np.ndarray, target: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """Factors of the columns that come closest to `target`, and the largest error times `weight` (Lawson, 1961)."""
    importance = np.ones_like(target)
    best: tuple[np.ndarray, float] | None = None
    for _ in range(300):
        scale = weight * np.sqrt(importance)
        factors = np.linalg.lstsq(columns * scale[:, None], target * scale, rcond=None)[0]
        error = np.abs(columns @ factors - target) * weight
        if best is None or error.max() < best[1]:
            best = (factors, float(error.max()))
        importance = importance * (error / error.max() + 1e-3)
    assert best is not None
    return best


def fit_rounded(x: np.ndarray, target: np.ndarray, weight: np.ndarray, first: float, degree: int) -> list[float]:
    """A polynomial with the constant term `first`; each coefficient is rounded to float32 before the next is fitted."""
    coefficients = [first]
    for power in range(1, degree + 1):
        rest = target - sum(c * x**k for k, c in enumerate(coefficients))
        columns = np.stack([x**k for k in range(power, degree + 1)], 1)
        coefficients.append(float(np.float32(fit_linear(columns, rest, weight)[0][0])))
    return coefficients


def log_tail(f: np.ndarray) -> np.ndarray:
    """(log(1 + f) - f + f²/2) / f³."""
    f = np.where(np.abs(f) < 1e-3, np.nan, f)
    value = (np.log1p(f) - f + f * f / 2) / f**3
    return np.where(np.isnan(value), 1 / 3, value)


def fit_odd(
    function: Callable[[float], float], numerator: int, denominator: int, limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """P, Q (lowest power first, Q[0] = 1) so that function(x) ≈ x P(x²) / Q(x²) for |x| <= limit, in relative error."""
    nodes = limit * (1 - np.cos(np.pi * (np.arange(4000) + 0.5) / 4000)) / 2
    z = (nodes**2).astype(np.longdouble)
    y = np.array([function(float(x)) / float(x) for x in nodes], dtype=np.longdouble)
    scale = np.longdouble(limit**2)
    u = z / scale
    powers = [u**k for k in range(max(numerator, denominator) + 1)]
    q = np.ones_like(z)
    weight = np.ones_like(z)
    best = None
    for _ in range(60):
        columns = [p / q / y for p in powers[: numerator + 1]] + [-p / q for p in powers[1 : denominator + 1]]
        matrix = np.stack(columns, 1) * weight[:, None]
        solution = np.linalg.lstsq(matrix.astype(float), (weight / q).astype(float), rcond=None)[0]
        p_coef, q_coef = solution[: numerator + 1], np.concatenate([[1.0], solution[numerator + 1 :]])
        q = sum(c * p for c, p in zip(q_coef, powers, strict=False))
        error = np.abs(sum(c * p for c, p in zip(p_coef, powers, strict=False)) / q / y - 1)
        if best is None or error.max() < best[0]:
            best = (error.max(), p_coef.copy(), q_coef.copy())
        weight = weight * (0.2 + error / error.max())  # Lawson's reweighting towards the minimax fit
        weight /= weight.max()
    _, p_coef, q_coef = best
    factors = np.array([float(scale) ** -k for k in range(len(powers))])
    return p_coef * factors[: len(p_coef)], q_coef * factors[: len(q_coef)]


def report(name: str, function: Callable[[float], float], p: np.ndarray, q: np.ndarray, limit: float) -> None:
    """Print a quotient's coefficients and its largest relative error, in double and in single precision."""
    print(f"{name}_P =", tuple(float(c) for c in p))
    print(f"{name}_Q =", tuple(float(c) for c in q))
    for dtype in (np.float64, np.float32):
        x = np.linspace(1e-6, limit, 20001).astype(dtype)
        z = x * x
        top, bottom = dtype(p[-1]), dtype(q[-1])
        for c in p[-2::-1]:
            top = top * z + dtype(c)
        for c in q[-2::-1]:
            bottom = bottom * z + dtype(c)
        true = np.array([function(float(v)) for v in x])
        print(f"{name}: largest relative error in {dtype.__name__}", np.abs(x * top / bottom / true - 1).max())


def main() -> None:
    half = 1.001 * log(2) / 2
    r = half * np.cos(np.pi * (np.arange(801) + 0.5) / 801)
    print("TWICE_EXP =", tuple(2 * c for c in fit_rounded(r, np.exp(r), np.exp(-r), 1.0, 5)))
    r = np.linspace(1e-3, half, 600)
    halves = r / np.tanh(r / 2)
    # The error of (q + r) / (q - r), relative, for one of q.
    print("EXP_HALVES =", tuple(fit_rounded(r * r, halves, 2 * r / (halves**2 - r * r), 2.0, 2)))
    print("LOG_TAIL =", tuple(interpolate(log_tail, 7, sqrt(0.5) - 1, sqrt(2) - 1)))
    report("TANH", tanh, *fit_odd(tanh, 4, 4, 9.0), 9.0)
    report("ERF", erf, *fit_odd(erf, 5, 5, 4.0), 4.0)


if __name__ == "__main__":
    main()
