"""What numpy makes of an operator's own definition: takes its unscheduled function, read as plain expressions, and its
operands as stored; gives its results as stored.

For operators that the oracle has no form of. Nothing is compiled and no loop runs: each block of the function is a
few array operations over all of its points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from autofuse.graph.expression import NUMERIC, Expr
from autofuse.measure.oracle_attributes import Array, NotEvaluated

if TYPE_CHECKING:
    from autofuse.graph.tir import Block, Program

#: Points of a block, those that it reduces over among them: of the largest that is computed (some seconds), and of a
#: part of one (64 MB for each array of float32).
MOST, AT_ONCE = 1 << 28, 1 << 24


def _erf(values: Array) -> Array:
    from scipy.special import erf

    return np.asarray(erf(values))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **NUMERIC,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _erf,
    "pow": np.power,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "bitwise_not": np.invert,
    **{name: getattr(np, name) for name in (
        "exp", "exp2", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "fmod",
        "isnan", "isinf", "isfinite", "hypot", "copysign", "nextafter", "ldexp",
    )},
}  # fmt: skip
_COMBINERS: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def run_program(program: Program, operands: Sequence[Array]) -> list[Array]:
    """The results of a function for its operands. Raises NotEvaluated, saying why, where that is not known or too much.

    Sums and products are made in double precision.
    """
    buffers = dict(enumerate(operands))
    for block in program.blocks:
        buffer = program.buffers[block.target]
        target = buffers.setdefault(block.target, np.zeros(buffer.shape, _dtype(buffer.dtype)))
        with np.errstate(all="ignore"):
            _run_block(block, buffers, target)
    return [buffers[p] for p in program.outputs]


def _run_block(block: Block, buffers: Mapping[int, Array], target: Array) -> None:
    """All of its points, a part of its longest axis after another."""
    extents = [axis.extent for axis in block.axes]
    spatial = [n for n, axis in enumerate(block.axes) if not axis.reduction]
    longest = max(spatial, key=extents.__getitem__, default=None)
    points, whole = prod(extents), 1 if longest is None else extents[longest]
    step = max(1, whole * AT_ONCE // max(points, 1))
    if points > MOST or points // whole * step > AT_ONCE:
        raise NotEvaluated(f"{points} points of its definition are too many")
    for start in range(0, whole, step):
        ranges = [range(extent) for extent in extents]
        if longest is not None:
            ranges[longest] = range(start, min(start + step, whole))
        _run_part(block, ranges, buffers, target)


def _run_part(block: Block, ranges: Sequence[range], buffers: Mapping[int, Array], target: Array) -> None:
    places: dict[int, Array] = {}
    for n, (axis, values) in enumerate(zip(block.axes, ranges, strict=True)):
        places[axis.var] = np.array(values, np.int64).reshape([-1 if i == n else 1 for i in range(len(ranges))])
    at = [np.asarray(_value(e, places, buffers), np.int64) for e in block.write]
    reduced = tuple(n for n, axis in enumerate(block.axes) if axis.reduction)
    if reduced:
        how, term = _combined(block)
        every = np.broadcast_to(_value(term, places, buffers), [len(values) for values in ranges])
        exact = every.astype(np.float64) if every.dtype.kind == "f" and how in ("add", "mul") else every
        value = _COMBINERS[how].reduce(exact, axis=reduced, keepdims=True)
        if block.init is not None:
            value = _COMBINERS[how](value, _value(block.init, places, buffers))
    else:
        value = _value(block.value, places, buffers)
    shape = [1 if n in reduced else len(values) for n, values in enumerate(ranges)]
    target[tuple(np.broadcast_to(i, shape) for i in at)] = np.broadcast_to(value, shape)


def _combined(block: Block) -> tuple[str, Expr]:
    """How a reduction combines what, but for its own result."""
    own = ("ld", block.target, block.write)
    if block.value[0] in _COMBINERS and own in block.value[1:]:
        how, first, second = block.value
        return how, second if first == own else first
    raise NotEvaluated(f"its definition reduces by {block.value[0]!r}")


def _value(expr: Expr, places: Mapping[int, Array], buffers: Mapping[int, Array]) -> Any:
    tag = expr[0]
    if tag == "v":
        return places[expr[1]]
    if tag == "c":
        return _dtype(expr[2]).type(expr[1])
    if tag == "ld":
        source = buffers.get(expr[1])
        if source is None:
            raise NotEvaluated("its definition reads what was not written")
        # Both sides of a condition are computed: what is read outside, as padding is, does not count.
        at = (np.clip(_value(i, places, buffers), 0, e - 1) for i, e in zip(expr[2], source.shape, strict=True))
        return source[tuple(at)]
    if tag == "cast":
        return np.asarray(_value(expr[2], places, buffers)).astype(_dtype(expr[1]))
    if tag not in _FUNCTIONS:
        raise NotEvaluated(f"numpy has no form of {tag!r} in its definition")
    return _FUNCTIONS[tag](*(_value(e, places, buffers) for e in expr[1:]))


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError as error:
        raise NotEvaluated(f"numpy has no {name}") from error
