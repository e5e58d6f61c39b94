"""A kernel's outputs: what they hold before it runs, and what is wrong with them after. Plain arrays, no TVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Roundings of the largest value that any output may be off: kernels sum float16 values in float16.
_ROUNDINGS = 8


def poison(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An output as it is before the kernel ran: values that show where it did not write."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return np.full(shape, np.nan, kind)
    return np.full(shape, 85, kind) if kind.kind in "iu" else np.ones(shape, kind)


def compare(
    outputs: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], tolerance: float, loose: float = 0.0
) -> str:
    """What is wrong with the outputs, "" if nothing: errors count relative to the largest expected value.

    A type that is coarser than the tolerance is allowed eight of its roundings. Not-a-number matches not-a-number and
    infinities match themselves; integers must be equal. Where `loose` is not zero, integers have the tolerance too, and
    that share of an output's values, or two of them, may be anything finite, if that is no more than an eighth.
    """
    for i, (out, want) in enumerate(zip(outputs, expected, strict=True)):
        if out.shape != want.shape:
            return f"output {i}: shape {out.shape}, expected {want.shape}"
        same = (out == want) | ((out != out) & (want != want))
        finite = np.isfinite(want)
        scale = float(np.max(np.abs(want[finite]), initial=0.0))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(out.astype(np.float64) - want.astype(np.float64)))
        error = np.where(np.isfinite(error), error, np.inf)
        allowed = tolerance * scale if out.dtype.kind == "f" or loose else 0.0
        if out.dtype.kind == "f":
            allowed = max(allowed, _ROUNDINGS * float(np.finfo(out.dtype).eps) * scale)
        worst = float(np.max(error, initial=0.0))
        if worst > allowed and loose and np.isfinite(worst):
            spare = min(max(2, int(loose * error.size)), error.size // 8)
            if int(np.sum(error > allowed)) <= spare:
                continue
        if worst > allowed:
            at = tuple(int(k) for k in np.unravel_index(int(np.argmax(error)), error.shape))
            return (
                f"output {i}: {int(np.sum(error > allowed))} of {error.size} values are wrong, worst at {at}: "
                f"{out[at]!s} instead of {want[at]!s} (largest expected {scale:.4g})"
            )
    return ""
