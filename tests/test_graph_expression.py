"""Plain expressions: simplification keeps values, bounds hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.graph.expression import (
    Expr,
    NotNumeric,
    bounds,
    evaluate,
    number,
    simplify,
    substitute,
    variables,
)  # fmt: skip

EXTENTS = {0: 1, 1: 5, 2: 7}

constants = st.integers(-9, 9).map(number)
leaves = st.one_of(constants, st.sampled_from([("v", n) for n in EXTENTS]))


def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    two = st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), inner, inner)
    divided = st.tuples(st.sampled_from(["floordiv", "floormod"]), inner, st.integers(1, 9).map(number))
    return st.one_of(two, divided)


integers: st.SearchStrategy[Expr] = st.recursive(leaves, grown, max_leaves=10)
comparisons = st.tuples(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), integers, integers)
conditions: st.SearchStrategy[Expr] = st.recursive(
    comparisons, lambda c: st.tuples(st.sampled_from(["and", "or"]), c, c), max_leaves=4
)
GRID = {0: np.arange(1)[:, None, None], 1: np.arange(5)[None, :, None], 2: np.arange(7)[None, None, :]}


def everywhere(expr: Expr) -> np.ndarray:
    return np.broadcast_to(evaluate(expr, GRID), (1, 5, 7))


@settings(deadline=None, derandomize=True)
@given(st.one_of(integers, conditions))
def test_simplified_expressions_have_the_same_value_everywhere(expr: Expr) -> None:
    assert np.array_equal(everywhere(expr), everywhere(simplify(expr, EXTENTS)))


@settings(deadline=None, derandomize=True)
@given(integers)
def test_bounds_hold(expr: Expr) -> None:
    range_ = bounds(expr, EXTENTS)
    assert range_ is not None
    values = everywhere(expr)
    assert range_[0] <= values.min() and values.max() <= range_[1]


def test_ranges_decide_divisions_and_guards() -> None:
    v = ("v", 2)
    assert simplify(("floordiv", v, number(7)), EXTENTS) == number(0)
    assert simplify(("floormod", v, number(9)), EXTENTS) == v
    assert simplify(("lt", v, number(7)), EXTENTS) == ("c", True, "bool")
    assert simplify(("add", ("v", 0), v), EXTENTS) == v


def test_substitution_reaches_into_loads() -> None:
    expr = ("ld", 3, (("v", 0), ("add", ("v", 1), number(2))))
    replaced = substitute(expr, {1: ("v", 2)})
    assert replaced == ("ld", 3, (("v", 0), ("add", ("v", 2), number(2))))
    assert variables(replaced) == {0, 2}


def test_what_depends_on_contents_has_no_number() -> None:
    with pytest.raises(NotNumeric):
        evaluate(("ld", 0, (number(0),)), {})
