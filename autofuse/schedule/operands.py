"""Concatenations of many operands: takes a value that chooses between operands along an axis, gives one that does not.

Written out, such a value is a chain of conditions, and a nest without conditions is a copy for each operand: code that
grows with their number, and building it does faster. Instead the operands' addresses stand in a table; the loop that
drives the axis looks its operand up, and the loops below read a view of what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call, PointerType, PrimType
from tvm.ir.expr import TensorLoad

from autofuse.schedule.stages import ravel

#: With fewer operands a copy of the loops for each is small, and its addresses are known.
FEWEST = 5
# TVM's name for the eight bytes of a TVMFFIAny that hold a value or an address.
_ADDRESS = 15
# Comparisons with a constant on the right: whether they hold below, and what is added to the constant.
_COMPARISONS = {tirx.LT: (True, 0), tirx.LE: (True, 1), tirx.GE: (False, 0), tirx.GT: (False, 1)}
_MIRRORED = {tirx.LT: tirx.GT, tirx.LE: tirx.GE, tirx.GE: tirx.LE, tirx.GT: tirx.LT}


@dataclass(frozen=True)
class _Part:
    """What the value is for an axis in [low, high): an element of an operand."""

    low: int
    high: int
    load: Any


@dataclass(frozen=True, eq=False)
class Operands:
    """`parts` along the block axis that is `driver` in terms of the loops, the innermost of which is that at `depth`.

    `view`, `shift` and `rows` stand in the value for what `opened` makes of them: an operand as [rows, …], what is
    added to the axis, and the operand's extent along the axis.
    """

    parts: tuple[_Part, ...]
    driver: Any
    depth: int
    view: Any
    shift: Any
    rows: Any
    shifts: tuple[int, ...]
    extents: tuple[int, ...]
    table: Any

    def defined(self) -> list[Any]:
        """The statements that fill the table, to stand before the nest."""
        size = tirx.tvm_stack_alloca("tvm_ffi_any", len(self.parts))
        stores = [
            tirx.Evaluate(tirx.tvm_struct_set(self.table, k, _ADDRESS, tirx.buffer_data(part.load.source)))
            for k, part in enumerate(self.parts)
        ]
        return [tirx.Bind(self.table, size), *stores]

    def opened(self, value: Any) -> tuple[Any, list[Any]]:
        """The value below the loop at `depth`, and the statements that stand there before what uses it."""
        view = tirx.decl_buffer(self.view.shape, self.view.dtype, self.view.name)
        number, shift = tirx.Var("operand", "int64"), tirx.Var("shift", "int64")
        rows = tirx.Var("rows", "int64")
        fresh = {self.view: view, self.shift: shift, self.rows: rows}
        made = tvm_ffi.structural_map(value, (tirx.Var, lambda var: fresh.get(var, var)))
        address = tirx.tvm_struct_get(self.table, number.astype("int32"), _ADDRESS, PointerType(PrimType("float32")))
        statements = [
            tirx.Bind(number, self._chosen(range(len(self.parts)))),
            tirx.Bind(shift, self._chosen(self.shifts)),
        ]
        if len(set(self.extents)) > 1:
            statements.append(tirx.Bind(rows, self._chosen(self.extents)))
        return made, [*statements, tirx.DeclBuffer(view, data=address)]

    def _chosen(self, numbers: Sequence[int]) -> Any:
        """The number that belongs to the operand at the axis' present value: sums instead of branches."""
        total = tirx.const(numbers[0], "int64")
        for before, now, part in zip(numbers, numbers[1:], self.parts[1:], strict=False):
            if now != before:
                reached = (self.driver >= tirx.const(part.low, "int64")).astype("int64")
                total = total + reached * tirx.const(now - before, "int64")
        return total


def selects(node: Any) -> bool:
    """Whether a call chooses one of two values."""
    return str(getattr(node.op, "name", "")).endswith(".if_then_else")


def many_operands(params: Sequence[Any], leaf: Any, value: Any, driven: Any) -> tuple[Operands, Any] | None:
    """The operands between which a block's value chooses, and the value with a view in their place.

    `driven(axis)` gives an axis' expression in terms of the loops and the depth of the innermost of these, or None
    where looking up does not pay. None if the value is of another form, or the operands are few.
    """
    calls: list[Any] = []
    tvm_ffi.structural_walk(value, (Call, lambda call: calls.append(call) if selects(call) else None))
    extents = {i.var: int(i.dom.extent) for i in leaf.block.iter_vars if isinstance(i.dom.extent, tirx.IntImm)}
    for call in reversed(calls):
        compared = _compared(call.args[0], extents)
        if compared is None:
            continue
        axis = compared[0]
        parts = _parts(call, axis, extents, 0, extents[axis])
        if parts is None or len(parts) < FEWEST:
            continue
        place = driven(axis)
        made = None if place is None else _operands(params, tuple(parts), axis, *place)
        if made is not None:
            return made[0], _replaced(value, call, made[1])
    return None


def _replaced(value: Any, call: Any, load: Any) -> Any:
    """`value` with a load in the place of a call."""
    return tvm_ffi.structural_map(value, (Call, lambda c: load if tvm_ffi.structural_equal(c, call) else c))


def _compared(condition: Any, extents: Mapping[Any, int]) -> tuple[Any, int, bool] | None:
    """(axis, cut, whether the condition holds below the cut) of a comparison of an axis with a constant."""
    kind = type(condition)
    if kind not in (*_COMPARISONS, tirx.EQ):
        return None
    left, right = condition.a, condition.b
    if isinstance(left, tirx.IntImm):
        left, right, kind = right, left, _MIRRORED.get(kind, kind)
    if not isinstance(left, tirx.Var) or not isinstance(right, tirx.IntImm) or left not in extents:
        return None
    if kind is tirx.EQ:  # what is left of a comparison with the first or the last number of the axis
        ends = {0: (1, True), extents[left] - 1: (extents[left] - 1, False)}
        end = ends.get(int(right))
        return None if end is None else (left, *end)
    below, more = _COMPARISONS[kind]
    return left, int(right) + more, below


def _parts(value: Any, axis: Any, extents: Mapping[Any, int], low: int, high: int) -> list[_Part] | None:
    """The operands that a value reads for an axis in [low, high); None if it is more than a choice between them."""
    if isinstance(value, TensorLoad):
        return [_Part(low, high, value)]
    compared = _compared(value.args[0], extents) if isinstance(value, Call) and selects(value) else None
    if compared is None or not compared[0].same_as(axis):
        return None
    _, cut, below = compared
    first, second = (value.args[1], value.args[2]) if below else (value.args[2], value.args[1])
    if cut <= low:
        return _parts(second, axis, extents, low, high)
    if cut >= high:
        return _parts(first, axis, extents, low, high)
    left, right = _parts(first, axis, extents, low, cut), _parts(second, axis, extents, cut, high)
    return None if left is None or right is None else [*left, *right]


def _operands(params: Sequence[Any], parts: tuple[_Part, ...], axis: Any, driver: Any, depth: int) -> Any | None:
    """`Operands` of these parts and the load of their view; None if they do not lie alike."""
    analyzer = sym.Analyzer()
    first = parts[0].load
    places = [p for p, i in enumerate(first.indices) if _uses(i, axis)]
    if len(places) != 1 or str(first.source.dtype) != "float32":
        return None
    (place,) = places
    rest = [i for p, i in enumerate(first.indices) if p != place]
    inner = [int(e) for e in first.source.shape[place + 1 :]]
    outer = [int(e) for e in first.source.shape[:place]]
    shifts = []
    for part in parts:
        source, indices = part.load.source, list(part.load.indices)
        if not any(source.same_as(param) for param in params) or str(source.dtype) != "float32":
            return None
        shape = [int(e) for e in source.shape]
        shift = analyzer.simplify(indices[place] - axis) if len(indices) == len(first.indices) else None
        if shape[:place] != outer or shape[place + 1 :] != inner or not isinstance(shift, tirx.IntImm):
            return None
        del indices[place]
        if any(_uses(i, axis) for i in indices) or not tvm_ffi.structural_equal(indices, rest):
            return None
        shifts.append(int(shift))
    extents = tuple(int(part.load.source.shape[place]) for part in parts)
    view = tirx.decl_buffer((prod(outer) * max(extents), *inner), "float32", "operand")
    shift, rows, table = (tirx.Var(n, "int64") for n in ("shift", "rows", "table"))
    table = tirx.Var("table", tirx.tvm_stack_alloca("tvm_ffi_any", len(parts)).ty)
    row = axis + shift
    if prod(outer) > 1:
        extent = rows if len(set(extents)) > 1 else tirx.const(extents[0], "int64")
        row = ravel(list(first.indices[:place]), outer) * extent + row
    load = tirx.BufferLoad(view, [row, *first.indices[place + 1 :]])
    return Operands(parts, driver, depth, view, shift, rows, tuple(shifts), extents, table), load


def _uses(expr: Any, var: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (tirx.Var, found.append))
    return any(var.same_as(other) for other in found)
