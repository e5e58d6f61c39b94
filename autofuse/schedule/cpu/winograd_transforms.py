"""Winograd's transforms of data and of products as expressions: takes values of a tile, gives the transformed ones.

The matrices belong to those of the weights in `schedule/preparations.py` (the interpolation points are the same). Sums
that several results share are bound to names, so that they are computed once and a kernel's text stays short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

Values = Sequence[Any]


def constant(value: float) -> Any:
    """A number of the kernel's arithmetic."""
    return tirx.const(value, "float32")


def input_transform(m: int, d: Values, keep: Callable[[Any], Any]) -> list[Any]:
    """Bᵀ d: m + 2 values of a row or column of the data; `keep` names a value that is read more than once."""
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    # The points ±√½ and ±√2: (x² - 2)(x² ± √½ x) and (x² - ½)(x² ± √2 x), each at d[1] … d[4].
    half, two, middle = constant(0.5), constant(2.0), constant(2.5)
    even, odd = keep(d[4] - two * d[2]), keep(constant(0.5**0.5) * (d[3] - two * d[1]))
    near, far = keep(d[4] - half * d[2]), keep(constant(2**0.5) * (d[3] - half * d[1]))
    return [
        (d[0] + d[4]) - middle * d[2], even + odd, even - odd, near + far, near - far, (d[1] + d[5]) - middle * d[3],
    ]  # fmt: skip


def output_transform(m: int, v: Values, keep: Callable[[Any], Any]) -> list[Any]:
    """Aᵀ v: m results of m + 2 products; `keep` names a value that is read more than once."""
    if m == 2:
        return [(v[0] + v[1]) + v[2], (v[1] - v[2]) - v[3]]
    plus, minus = keep(v[1] + v[2]), keep(v[1] - v[2])
    plus2, minus2 = keep(v[3] + v[4]), keep(v[3] - v[4])
    return [
        (v[0] + plus) + plus2,
        constant(0.5**0.5) * minus + constant(2**0.5) * minus2,
        constant(0.5) * plus + constant(2.0) * plus2,
        (constant(0.5**1.5) * minus + constant(2**1.5) * minus2) + v[5],
    ]


class Names:
    """Values of one vector's lanes that are kept by name: statements that bind them, in order."""

    def __init__(self) -> None:
        self.statements: list[Any] = []

    def __call__(self, value: Any) -> Any:
        var = tirx.Var(f"v{len(self.statements)}", "float32")
        self.statements.append(tirx.Bind(var, value))
        return var

    def transformed(
        self, transform: Callable[[int, Values, Callable[[Any], Any]], list[Any]], m: int, grid: Sequence[Values]
    ) -> list[list[Any]]:
        """`transform` applied to the columns of `grid` (rows of values), then to the rows; results are not named."""
        columns = [transform(m, [row[k] for row in grid], self) for k in range(len(grid[0]))]
        named = [[self(value) for value in column] for column in columns]
        return [transform(m, [column[i] for column in named], self) for i in range(len(named[0]))]
