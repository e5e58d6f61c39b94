"""What counts as a wrong output of a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from autofuse.measure.outputs import compare


def test_sums_in_float16_are_right_within_its_roundings() -> None:
    random = np.random.default_rng(0)
    a, b = (random.uniform(0, 1, (2, 64, 72))).astype("float16")
    exact = np.sum(a.astype("float64") * b.astype("float64"), axis=1)
    total = np.zeros(64, "float16")
    for k in range(a.shape[1]):
        total += a[:, k] * b[:, k]
    # Off by more than the tolerance of float32, and right for all that.
    assert np.max(np.abs(total - exact)) > 1e-3 * np.max(exact)
    assert not compare([total], [exact.astype("float16")], 1e-3)
    assert compare([total.astype("float32")], [exact.astype("float32")], 1e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_wrong_values_are_wrong_in_every_type(dtype: str) -> None:
    want = np.linspace(-1, 1, 32).astype(dtype)
    got = want.copy()
    got[7] += 0.02
    assert "1 of 32 values are wrong, worst at (7,)" in compare([got], [want], 1e-3)
