"""Fit the polynomials of autofuse/codegen/intrinsics.py and print them with their errors.

Chebyshev interpolation for exp and log; for erf a rational function in x², fitted by iterating a weighted linear
least-squares problem (Sanathanan and Koerner, 1963) in extended precision.
"""

from __future__ import annotations

from math import erf, log, sqrt

import numpy as np
from numpy.polynomial import Polynomial
from numpy.polynomial.chebyshev import Chebyshev


def interpolate(function, degree: int, low: float, high: float) -> list[float]:
    """Coefficients, lowest power first, of the Chebyshev interpolant of `function` over [low, high]."""
    fitted = Chebyshev.interpolate(function, degree, domain=[low, high])
    return [float(c) for c in fitted.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1]).coef]


def exp_tail(r: np.ndarray) -> np.ndarray:
    """(exp(r) - 1 - r) / r², by its series (r is small)."""
    total, term = np.zeros_like(r), np.full_like(r, 0.5)
    for n in range(3, 30):
        total, term = total + term, term * r / n
    return total


def log_tail(f: np.ndarray) -> np.ndarray:
    """(log(1 + f) - f + f²/2) / f³."""
    f = np.where(np.abs(f) < 1e-3, np.nan, f)
    value = (np.log1p(f) - f + f * f / 2) / f**3
    return np.where(np.isnan(value), 1 / 3, value)


def fit_erf(numerator: int, denominator: int, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """P, Q (lowest power first, Q[0] = 1) so that erf(x) ≈ x P(x²) / Q(x²) for |x| <= limit, in relative error."""
    nodes = limit * (1 - np.cos(np.pi * (np.arange(4000) + 0.5) / 4000)) / 2
    z = (nodes**2).astype(np.longdouble)
    y = np.array([erf(float(x)) / float(x) for x in nodes], dtype=np.longdouble)
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


def main() -> None:
    half = log(2) / 2
    print("EXP_TAIL =", tuple(interpolate(exp_tail, 4, -half, half)))
    print("LOG_TAIL =", tuple(interpolate(log_tail, 7, sqrt(0.5) - 1, sqrt(2) - 1)))
    p, q = fit_erf(5, 5, 4.0)
    print("ERF_P =", tuple(float(c) for c in p))
    print("ERF_Q =", tuple(float(c) for c in q))
    x = np.linspace(1e-6, 4, 20001)
    fitted = x * np.polyval(p[::-1], x * x) / np.polyval(q[::-1], x * x)
    true = np.array([erf(v) for v in x])
    print("erf: largest relative error in double", np.abs(fitted / true - 1).max())
    x32 = x.astype("float32")
    z32 = x32 * x32
    top, bottom = np.float32(p[-1]), np.float32(q[-1])
    for c in p[-2::-1]:
        top = top * z32 + np.float32(c)
    for c in q[-2::-1]:
        bottom = bottom * z32 + np.float32(c)
    print(
        "erf: largest relative error in single",
        np.abs(x32 * top / bottom / np.array([erf(float(v)) for v in x32]) - 1).max(),
    )


if __name__ == "__main__":
    main()
