"""Tensors seen as rows: [P, E, I] in linear order: P rows, each of E elements of I lanes; which groups keep to them.

`view` finds P and I of a group from its reductions, or says why its operators cannot share a pass over rows. `Space`
splits and joins TIR indices accordingly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from autofuse.graph.model import Graph, Group, MappingType, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import remembered

INJECTIVE = frozenset({MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY, MappingType.REORGANIZE, MappingType.SHUFFLE})


@dataclass(frozen=True)
class Rows:
    """P rows of E elements of I lanes each: reductions run over E, where I > 1 for all lanes at once."""

    rows: int
    elements: int
    lanes: int


def reduced_axes(op: Operator, graph: Graph) -> tuple[int, ...] | None:
    """The axes of its operand that a reduction reduces over, None if they are not known."""
    source = reduced_operand(op)
    if source is None:
        return None
    shape = graph.tensors[source].shape
    given = op.attrs.get("axes")
    if isinstance(given, list | tuple):
        return tuple(sorted(int(a) for a in given))
    out = graph.tensors[op.outputs[0]].shape
    if len(out) == len(shape) and out != shape:
        return tuple(i for i, (a, b) in enumerate(zip(shape, out, strict=True)) if a != b)
    if prod(out) == 1:
        return tuple(range(len(shape)))
    return None


def reduced_operand(op: Operator) -> int | None:
    """The tensor that a reduction reads many elements of for one result; the first if it reduces single elements."""
    many = next((a.tensor for a in op.accesses if a.mapping is MappingType.MANY_TO_ONE), None)
    return op.inputs[0] if many is None and op.reduction and op.inputs else many


def rows_of(op: Operator, graph: Graph) -> Rows | Refusal:
    """How a reduction's operand splits into rows."""
    axes = reduced_axes(op, graph)
    source = reduced_operand(op)
    if axes is None or source is None:
        return Refusal("axes", f"the axes that {op.name} ({op.kind}) reduces over are not known", (op.index,))
    shape = graph.tensors[source].shape
    axes = tuple(a for a in axes if shape[a] > 1)
    if not axes:
        return Rows(prod(shape), 1, 1)
    between = [a for a in range(axes[0], axes[-1] + 1) if a not in axes and shape[a] > 1]
    if between:
        return Refusal("axes", f"{op.name} ({op.kind}) reduces over axes that do not lie together", (op.index,))
    return Rows(prod(shape[: axes[0]]), prod(shape[axes[0] : axes[-1] + 1]), prod(shape[axes[-1] + 1 :]))


@remembered
def view(group: Group) -> Rows | Refusal:
    """The rows that all reductions of the group share, and that everything after them keeps to."""
    graph = group.graph
    found: list[tuple[Operator, Rows]] = []
    for op in group.operators:
        if op.mapping in INJECTIVE and not op.reduction:
            continue
        if op.mapping is not MappingType.MANY_TO_ONE and op.mapping not in INJECTIVE:
            return Refusal("anchor", f"{op.name} ({op.kind}) is no reduction of rows", (op.index,))
        rows = rows_of(op, graph)
        if isinstance(rows, Refusal):
            return rows
        found.append((op, rows))
    if not found:
        return Refusal("anchor", "no operator reduces", group.members)
    first = found[0][1]
    for op, rows in found[1:]:
        if rows.lanes != first.lanes or (rows.lanes > 1 and rows.rows != first.rows):
            detail = f"{found[0][0].name} and {op.name} reduce over different axes: no common rows"
            return Refusal("axes", detail, (found[0][0].index, op.index))
    count = min(rows.rows for _, rows in found)
    lanes = first.lanes
    widest = max(rows.rows * rows.elements for _, rows in found)
    if any(rows.rows % count for _, rows in found):
        return Refusal(
            "axes", "the reductions have numbers of rows that do not divide", tuple(o.index for o, _ in found)
        )
    refusal = keeps_to_rows(group, count, lanes, {op.index for op, _ in found}, ())
    if refusal is not None:
        return refusal
    return Rows(count, widest // count, lanes)


def keeps_to_rows(
    group: Group, rows: int, lanes: int, reductions: Collection[int], start: Collection[int]
) -> Refusal | None:
    """Whether what depends on the reductions (or on the tensors in `start`) reads its own row alone."""
    graph = group.graph
    after = set(start)
    unit = rows * lanes
    for op in group.operators:
        out = graph.tensors[op.outputs[0]]
        reads_after = [a for a in op.accesses if a.tensor in after]
        if op.index in reductions:
            after.update(op.outputs)
        elif reads_after:
            for access in reads_after:
                shape = graph.tensors[access.tensor].shape
                refusal = _local(op, access.mapping, shape, out.shape, rows, lanes)
                if refusal is not None:
                    return refusal
            after.update(op.outputs)
        elif op.mapping not in INJECTIVE:
            continue
        if (op.outputs[0] in after or op.outputs[0] in group.outputs) and out.elements % unit:
            return Refusal("rows", f"the result of {op.name} ({op.kind}) does not split into the rows", (op.index,))
    return None


def _local(
    op: Operator, mapping: MappingType, source: Sequence[int], out: Sequence[int], rows: int, lanes: int
) -> Refusal | None:
    if mapping in (MappingType.ONE_TO_ONE, MappingType.REORGANIZE) and prod(source) == prod(out):
        return None
    if mapping is MappingType.ONE_TO_MANY and spreads_in_rows(source, out, rows, lanes):
        return None
    if mapping is MappingType.SHUFFLE and moves_nothing(op, source, out):
        return None
    return Refusal("rows", f"{op.name} ({op.kind}) reads other rows than its own", (op.index,))


def moves_nothing(op: Operator, source: Sequence[int], out: Sequence[int]) -> bool:
    """Whether a permutation or a change of layout only moves axes of extent 1."""
    if prod(source) != prod(out):
        return False
    if op.kind == "layout_change":
        # Channels and their blocks change places with rows and columns alone.
        return prod(source[2:4]) == 1 and prod(out[2:4]) == 1
    axes = op.attrs.get("axes")
    if not isinstance(axes, list | tuple):
        return False
    real = [int(a) for a in axes if source[int(a)] > 1]
    return real == sorted(real)


def spreads_in_rows(source: Sequence[int], out: Sequence[int], rows: int, lanes: int) -> bool:
    """Whether a broadcast gives every row of the result only values of the same row (and lane)."""
    padded = (1,) * (len(out) - len(source)) + tuple(source)
    cut = boundaries(out, rows, lanes)
    if cut is None:
        return False
    first, last = cut
    return padded[:first] == tuple(out[:first]) and padded[last:] == tuple(out[last:])


def boundaries(shape: Sequence[int], rows: int, lanes: int) -> tuple[int, int] | None:
    """Axes (a, b) with prod(shape[:a]) = rows and prod(shape[b:]) = lanes; None if the axes do not split so."""
    first = next((a for a in range(len(shape) + 1) if prod(shape[:a]) == rows), None)
    last = next((b for b in range(len(shape), -1, -1) if prod(shape[b:]) == lanes), None)
    if first is None or last is None or first > last:
        return None
    return first, last


class Space:
    """A shape as [rows, elements, lanes]: its indices from (row, element, lane), and back."""

    def __init__(self, shape: Sequence[int], rows: int, lanes: int) -> None:
        total = prod(shape)
        self.fits = total % (rows * lanes) == 0
        self.shape, self.lanes = tuple(shape), lanes
        self.elements = total // (rows * lanes)
        self._cut = boundaries(shape, rows, lanes)
        # Whether lanes (or elements) run over several axes: their index is then split, and put together again.
        a, b = self._cut or (0, len(self.shape))
        self.split_lanes = lanes > 1 and (self._cut is None or sum(e > 1 for e in self.shape[b:]) > 1)
        self.split_elements = self._cut is None or sum(e > 1 for e in self.shape[a:b]) > 1

    def indices(self, row: Any, element: Any, lane: Any) -> list[Any]:
        """The indices of an element."""
        from autofuse.schedule.stages import unravel

        if self._cut is None:
            return unravel((row * self.elements + element) * self.lanes + lane, self.shape)
        a, b = self._cut
        return [
            *unravel(row, self.shape[:a]), *unravel(element, self.shape[a:b]), *unravel(lane, self.shape[b:])
        ]  # fmt: skip

    def place(self, at: Sequence[Any]) -> tuple[Any, Any, Any]:
        """(row, element, lane) of indices."""
        from tvm import tirx

        from autofuse.schedule.stages import index, ravel

        if self._cut is not None:
            a, b = self._cut
            return ravel(at[:a], self.shape[:a]), ravel(at[a:b], self.shape[a:b]), ravel(at[b:], self.shape[b:])
        linear = ravel(at, self.shape)
        inner = self.elements * self.lanes
        rest = tirx.floormod(linear, index(inner))
        return (
            tirx.floordiv(linear, index(inner)), tirx.floordiv(rest, index(self.lanes)),
            tirx.floormod(rest, index(self.lanes)),
        )  # fmt: skip
