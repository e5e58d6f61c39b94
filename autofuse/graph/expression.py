"""Scalar expressions as plain nested tuples: what a PrimFunc's indices, conditions and values are read into.

Forms: `("c", value, dtype)` a constant, `("v", n)` the n-th iteration variable of the function, `("ld", buffer,
indices)` a load, `("cast", dtype, e)`, and `(operation, operand, ...)` for the rest. Plain tuples hash, compare, print
and evaluate the same everywhere, which TVM's own objects do not. Takes such tuples, gives simplified, renamed or
numerically evaluated ones; no TVM here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

Expr = tuple[Any, ...]
Interval = tuple[int, int]

ZERO: Expr = ("c", 0, "int64")
TRUE: Expr = ("c", True, "bool")
FALSE: Expr = ("c", False, "bool")


class NotNumeric(Exception):
    """The expression cannot be evaluated without the tensors' values, or uses an operation that no index uses."""


def number(value: int) -> Expr:
    """An integer constant."""
    return ("c", int(value), "int64")


def operands(expr: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions, a load's indices included."""
    tag = expr[0]
    if tag in ("c", "v"):
        return ()
    if tag == "ld":
        return tuple(expr[2])
    return expr[2:] if tag == "cast" else expr[1:]


def rebuilt(expr: Expr, parts: Sequence[Expr]) -> Expr:
    """The same operation on other subexpressions."""
    tag = expr[0]
    if tag in ("c", "v"):
        return expr
    if tag == "ld":
        return ("ld", expr[1], tuple(parts))
    return (tag, expr[1], *parts) if tag == "cast" else (tag, *parts)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every subexpression, itself included, indices of loads included."""
    stack = [expr]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(operands(top))


@lru_cache(maxsize=1 << 15)
def variables(expr: Expr) -> frozenset[int]:
    """The iteration variables that it depends on."""
    if expr[0] == "v":
        return frozenset((expr[1],))
    return frozenset(e[1] for e in walk(expr) if e[0] == "v")


@lru_cache(maxsize=1 << 15)
def loads_from_memory(expr: Expr) -> bool:
    """Whether its value depends on the contents of some tensor."""
    if expr[0] in ("c", "v"):
        return False
    return any(e[0] == "ld" for e in walk(expr))


def substitute(expr: Expr, values: Mapping[int, Expr]) -> Expr:
    """Replaces iteration variables."""
    if expr[0] == "v":
        return values.get(expr[1], expr)
    if expr[0] == "c":
        return expr
    return rebuilt(expr, [substitute(e, values) for e in operands(expr)])


def bounds(expr: Expr, extents: Mapping[int, int]) -> Interval | None:
    """Inclusive lower and upper bound of an integer expression by interval arithmetic; None when unknown."""
    tag = expr[0]
    if tag == "c":
        return (expr[1], expr[1]) if isinstance(expr[1], int) else None
    if tag == "v":
        extent = extents.get(expr[1])
        return None if extent is None else (0, max(extent - 1, 0))
    if tag not in ("add", "sub", "mul", "floordiv", "floormod", "min", "max"):
        return None
    a, b = bounds(expr[1], extents), bounds(expr[2], extents)
    if a is None or b is None:
        return None
    if tag == "add":
        return a[0] + b[0], a[1] + b[1]
    if tag == "sub":
        return a[0] - b[1], a[1] - b[0]
    if tag == "mul":
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if tag == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if tag == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    if b[0] != b[1] or b[0] <= 0:
        return None
    if tag == "floordiv":
        return a[0] // b[0], a[1] // b[0]
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[0] - 1)


def simplify(expr: Expr, extents: Mapping[int, int]) -> Expr:
    """Removes what the variables' ranges decide: `v // 36` of a v below 36 is 0, a guard that always holds is true.

    Only integer and boolean index arithmetic is touched, values of tensors never are.
    """
    tag = expr[0]
    if tag == "c":
        return expr
    if tag == "v":
        return ZERO if extents.get(expr[1]) == 1 else expr
    parts = tuple(simplify(e, extents) for e in operands(expr))
    expr = rebuilt(expr, parts)
    rule = _RULES.get(tag)
    return expr if rule is None else rule(expr, extents)


def _constant(expr: Expr) -> int | None:
    return expr[1] if expr[0] == "c" and isinstance(expr[1], int) and not isinstance(expr[1], bool) else None


def _fold(expr: Expr) -> Expr | None:
    """The constant that an operation on two integer constants gives."""
    a, b = _constant(expr[1]), _constant(expr[2])
    if a is None or b is None or (expr[0] in ("floordiv", "floormod") and b == 0):
        return None
    value: int = int(NUMERIC[expr[0]](a, b))
    return ("c", value, expr[1][2])


def _add(expr: Expr, extents: Mapping[int, int]) -> Expr:
    folded = _fold(expr)
    if folded is not None:
        return folded
    if _constant(expr[1]) == 0 and expr[0] == "add":
        return expr[2]  # type: ignore[no-any-return]
    return expr[1] if _constant(expr[2]) == 0 else expr


def _mul(expr: Expr, extents: Mapping[int, int]) -> Expr:
    folded = _fold(expr)
    if folded is not None:
        return folded
    for one, other in ((expr[1], expr[2]), (expr[2], expr[1])):
        if _constant(one) == 1:
            return other  # type: ignore[no-any-return]
        if _constant(one) == 0 and not loads_from_memory(other):
            return one  # type: ignore[no-any-return]
    return expr


def _division(expr: Expr, extents: Mapping[int, int]) -> Expr:
    folded = _fold(expr)
    if folded is not None:
        return folded
    divisor = _constant(expr[2])
    if divisor is None or divisor <= 0:
        return expr
    if divisor == 1:
        return expr[1] if expr[0] == "floordiv" else ZERO
    range_ = bounds(expr[1], extents)
    if range_ is not None and range_[0] >= 0 and range_[1] < divisor:
        return ZERO if expr[0] == "floordiv" else expr[1]
    return expr


def _compare(expr: Expr, extents: Mapping[int, int]) -> Expr:
    a, b = bounds(expr[1], extents), bounds(expr[2], extents)
    if a is None or b is None:
        return expr
    tag = expr[0]
    if tag in ("gt", "ge"):
        tag, a, b = {"gt": "lt", "ge": "le"}[tag], b, a
    if tag == "lt":
        return TRUE if a[1] < b[0] else FALSE if a[0] >= b[1] else expr
    if tag == "le":
        return TRUE if a[1] <= b[0] else FALSE if a[0] > b[1] else expr
    return expr


def _logic(expr: Expr, extents: Mapping[int, int]) -> Expr:
    neutral, absorbing = (TRUE, FALSE) if expr[0] == "and" else (FALSE, TRUE)
    if absorbing in expr[1:]:
        return absorbing
    if expr[1] == neutral:
        return expr[2]  # type: ignore[no-any-return]
    return expr[1] if expr[2] == neutral else expr


def _extremum(expr: Expr, extents: Mapping[int, int]) -> Expr:
    a, b = bounds(expr[1], extents), bounds(expr[2], extents)
    if a is None or b is None:
        return expr
    smaller = expr[1] if a[1] <= b[0] else expr[2] if b[1] <= a[0] else None
    if smaller is None:
        return expr
    if expr[0] == "min":
        return smaller  # type: ignore[no-any-return]
    return expr[2] if smaller is expr[1] else expr[1]  # type: ignore[no-any-return]


_RULES: dict[str, Callable[[Expr, Mapping[int, int]], Expr]] = {
    "add": _add, "sub": _add, "mul": _mul, "floordiv": _division, "floormod": _division,
    "lt": _compare, "le": _compare, "gt": _compare, "ge": _compare, "and": _logic, "or": _logic,
    "min": _extremum, "max": _extremum,
}  # fmt: skip

#: Operation → what it does to numbers and to arrays of them; functions of real numbers are not among them.
NUMERIC: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "floormod": np.mod,
    "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or,
    "not": np.logical_not, "select": np.where, "if_then_else": np.where, "div": np.true_divide,
    "truncdiv": lambda a, b: np.trunc(np.true_divide(a, b)).astype(np.int64), "truncmod": np.fmod,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "nearbyint": np.rint, "trunc": np.trunc, "abs": np.abs,
    "fabs": np.abs, "likely": lambda a: a, "shift_right": np.right_shift, "shift_left": np.left_shift,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
}  # fmt: skip


@lru_cache(maxsize=64)
def _numpy_type(dtype: str) -> Any:
    # bfloat16 never appears in index arithmetic that matters; float32 holds it.
    return np.dtype({"bool": "bool", "bfloat16": "float32"}.get(dtype, dtype)).type


def evaluate(expr: Expr, values: Mapping[int, Any]) -> Any:
    """Value for arrays of the variables' values (they broadcast). Floats keep their own precision, as at run time.

    Raises:
        NotNumeric: it loads from a tensor, or uses an operation unknown here.
    """
    tag = expr[0]
    if tag == "v":
        return values[expr[1]]
    if tag == "c":
        return expr[1] if isinstance(expr[1], int) else _numpy_type(expr[2])(expr[1])
    if tag == "cast":
        return np.asarray(evaluate(expr[2], values)).astype(_numpy_type(expr[1]))
    function = NUMERIC.get(tag)
    if function is None:
        raise NotNumeric(f"the operation {tag!r} in an index")
    return function(*(evaluate(e, values) for e in expr[1:]))
