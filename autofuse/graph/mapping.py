"""Mapping types: classifies the index maps of an operand.

Takes an `OutputAccess` (`graph/access.py`), gives one `Access` per operand: the type by the counts of
`graph/counting.py`, and for maps that only move elements by the order in which they are read; the stride.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autofuse.graph.access import IndexMap, OutputAccess
from autofuse.graph.counting import EXACT_POINTS, SAMPLE_POINTS, Ints, MapCounts
from autofuse.graph.expression import Expr, evaluate, variables
from autofuse.graph.model import Access, MappingType

ROW_LOCAL = "reduced and read back over the same axes"
GATHERED = "data-dependent index"
WINDOW = "shifted window"
NOT_READ = "not read"
PADDED = "a reduction that all but one read pads"

Bools = npt.NDArray[np.bool_]


def classify(access: OutputAccess, operand: int, shapes: Sequence[tuple[int, ...]], tensor: int) -> Access:
    """The `Access` of one operand (a parameter number); `shapes` are the shapes of the parameters.

    Raises:
        NotNumeric: an index uses an operation that cannot be evaluated.
    """
    maps = access.maps.get(operand, ())
    if not maps:
        return Access(operand, tensor, MappingType.ONE_TO_MANY, 0, 0, 0, NOT_READ)
    return _Classifier(access, operand, maps, shapes).result(tensor)


class _Classifier(MapCounts):
    def result(self, tensor: int) -> Access:
        if self.is_identity(self.maps) and len(self.maps) == 1:
            return self.access_of(tensor, MappingType.ONE_TO_ONE, 1, 1, "")
        reads, uses = self.counts()
        if self.gathered:
            mapping = MappingType.ONE_TO_MANY if reads <= 1 else MappingType.MANY_TO_MANY
            return self.access_of(tensor, mapping, reads, uses, GATHERED)
        if self.is_row_local():
            return self.access_of(tensor, MappingType.MANY_TO_ONE, reads, uses, ROW_LOCAL)
        if reads > 1:
            mapping = MappingType.MANY_TO_MANY if uses > 1 else MappingType.MANY_TO_ONE
            return self.access_of(tensor, mapping, reads, uses, "")
        if uses > 1:
            return self.access_of(tensor, MappingType.ONE_TO_MANY, reads, uses, "")
        if any(v not in self.spatial for m in self.maps for v in m.variables):
            return self.access_of(tensor, MappingType.MANY_TO_ONE, reads, uses, PADDED)
        mapping, reason = self.movement()
        return self.access_of(tensor, mapping, max(reads, 1), max(uses, 1), reason)

    def access_of(self, tensor: int, mapping: MappingType, reads: int, uses: int, reason: str) -> Access:
        return Access(self.operand, tensor, mapping, reads, uses, self.stride(), reason)

    # -- one element to one element -----------------------------------------------------------------------------

    def is_identity(self, maps: Iterable[IndexMap]) -> bool:
        """Whether output[i] reads operand[i] and nothing else, told from the expressions alone."""
        axes = self.access.axes
        if axes is None or self.shape != self.out_shape:
            return False
        return all(
            not m.guards
            and not m.gathered
            and all(
                extent == 1 or (index[0] == "v" and index[1] == axis)
                for index, axis, extent in zip(m.indices, axes, self.shape, strict=True)
            )
            for m in maps
        )

    def is_row_local(self) -> bool:
        """Whether it is read One-to-One and, besides, only through reductions over whole axes of the same rows."""
        reduced = [m for m in self.maps if any(v not in self.spatial for v in m.variables)]
        direct = [m for m in self.maps if m not in reduced]
        if not reduced or not direct or not self.is_identity(direct):
            return False
        axes = self.access.axes or ()
        for m in reduced:
            for index, axis, extent in zip(m.indices, axes, self.shape, strict=True):
                if extent == 1 or index == ("v", axis):
                    continue
                whole = index[0] == "v" and self.access.reductions.get(index[1]) == extent
                if not whole or m.guards:
                    return False
        return True

    def movement(self) -> tuple[MappingType, str]:
        """Type of a map that moves each element to at most one place."""
        if len(self.maps) == 1 and self.is_window(self.maps[0]):
            return MappingType.ONE_TO_ONE, WINDOW
        out, read = self.sample()
        taken = read >= 0
        order = np.argsort(out[taken], kind="stable")
        moved = read[taken][order]
        if bool(np.all(np.diff(moved) > 0)):
            whole = bool(taken.all()) and math.prod(self.shape) == math.prod(self.out_shape)
            if whole and self.shape == self.out_shape:
                return MappingType.ONE_TO_ONE, ""
            return MappingType.REORGANIZE, "" if whole else "a part, in the same order"
        return MappingType.SHUFFLE, ""

    def is_window(self, m: IndexMap) -> bool:
        """Slices, pads, concatenations: each axis of the operand follows one axis of the output, in the same order."""
        axes = self.access.axes
        if axes is None:
            return False
        last = -1
        for index, extent in zip(m.indices, self.shape, strict=True):
            used = variables(index)
            if not used:
                continue
            if len(used) != 1:
                return False
            (var,) = used
            if var not in axes or axes.index(var) <= last:
                return False
            last = axes.index(var)
            if _shifted(index):
                continue
            line = np.arange(self.extent(var), dtype=np.int64)
            place = np.broadcast_to(evaluate(index, {var: line}), line.shape)
            inside = place[(place >= 0) & (place < extent)]
            if bool(np.any(np.diff(inside) <= 0)):
                return False
        # All elements, in order, under another shape: that is a reshape, however simple its indices are.
        return bool(m.guards) or self.shape == self.out_shape or math.prod(self.shape) != math.prod(self.out_shape)

    def sample(self) -> tuple[Ints, Ints]:
        """Output element numbers, distinct, and the operand's element that each reads (-1: none)."""
        total = math.prod(self.spatial.values())
        if total <= 2 * SAMPLE_POINTS or (self.access.axes is None and total <= EXACT_POINTS):
            points = np.arange(total)
        else:
            starts = np.random.default_rng(0).integers(0, total - 64, SAMPLE_POINTS // 64)
            starts = np.concatenate([[0, total - 64], starts])
            points = np.unique((starts[:, None] + np.arange(64)[None, :]).ravel())
        return self.at(self.unravel(points), len(points))

    def unravel(self, points: Ints) -> dict[int, Any]:
        extents = [e for _, e in self.access.spatial]
        if not extents:
            return {}
        grid = np.unravel_index(points, extents)
        return {v: g.astype(np.int64) for (v, _), g in zip(self.access.spatial, grid, strict=True)}

    def at(self, values: dict[int, Any], count: int) -> tuple[Ints, Ints]:
        """Output element numbers and, through the first map that is needed there, the operand's element numbers."""
        out: Any = 0
        for expr, extent in zip(self.access.write, self.out_shape, strict=True):
            out = out * extent + evaluate(expr, values)
        read = np.full(count, -1, np.int64)
        for m in self.maps:
            read = np.where(read < 0, self.places(m, values, (count,)), read)
        return np.broadcast_to(np.asarray(out, np.int64), (count,)), read

    # -- stride -------------------------------------------------------------------------------------------------

    def stride(self) -> int:
        """See `Access`; a distance that three neighbours in four keep counts as constant (rows have ends)."""
        axes = self.access.axes
        direct = [m for m in self.maps if all(v in self.spatial for v in m.variables)] or list(self.maps)
        if axes is None:
            return self.stride_of_stores()
        inner = next((axis for axis in reversed(axes) if axis >= 0), None)
        if inner is None:
            return 0
        found = {self.stride_along(m, inner) for m in direct}
        return found.pop() if len(found) == 1 else -1

    def stride_along(self, m: IndexMap, inner: int) -> int:
        if m.gathered and not any(inner in variables(i) for i in m.indices):
            # The index that was left out may depend on the innermost axis; if it does not, another one does.
            return -1
        weight, total = 1, 0
        for index, extent in zip(reversed(m.indices), reversed(self.shape), strict=True):
            if inner in variables(index):
                if not _shifted(index):
                    break
                total += weight
            weight *= extent
        else:
            return total
        others = {v for e in (*m.indices, *m.guards) for v in variables(e)} - {inner}
        generator = np.random.default_rng(0)
        bases = 32 if others else 1
        run = min(self.extent(inner) - 1, 64)
        first: Any = np.arange(run, dtype=np.int64)
        if self.extent(inner) - 1 > run:
            first = first[None, :] + generator.integers(0, self.extent(inner) - run, bases)[:, None]
        values: dict[int, Any] = {v: generator.integers(0, self.extent(v), bases)[:, None] for v in sorted(others)}
        here = self.places(m, {**values, inner: np.broadcast_to(first, (bases, run))}, (bases, run))
        there = self.places(m, {**values, inner: np.broadcast_to(first + 1, (bases, run))}, (bases, run))
        return _common(there - here, (here >= 0) & (there >= 0))

    def places(self, m: IndexMap, values: dict[int, Any], grid: tuple[int, ...]) -> Ints:
        """The operand's element numbers through one map (-1: none), for values of the variables over a grid."""
        flat: Any = 0
        for index, extent in zip(m.indices, self.shape, strict=True):
            flat = flat * extent + evaluate(index, values)
        valid: Any = True
        for guard in m.guards:
            valid = np.logical_and(valid, evaluate(guard, values))
        return np.broadcast_to(np.where(valid, flat, -1), grid)

    def stride_of_stores(self) -> int:
        if any(v not in self.spatial for m in self.maps for v in m.variables):
            return -1
        out, read = self.sample()
        order = np.argsort(out)
        out, read = out[order], read[order]
        return _common(np.diff(read), (np.diff(out) == 1) & (read[1:] >= 0) & (read[:-1] >= 0))


def _shifted(index: Expr) -> bool:
    """Whether an index is a variable, or one plus or minus a constant: it goes up in steps of one."""
    if index[0] in ("add", "sub"):
        return bool(index[1][0] == "v" and index[2][0] == "c")
    return bool(index[0] == "v")


def _common(steps: Ints, valid: Bools) -> int:
    """The step that at least three pairs in four make, else -1."""
    chosen = steps[valid]
    if chosen.size == 0:
        return -1
    values, counts = np.unique(chosen, return_counts=True)
    best = int(counts.argmax())
    return int(values[best]) if 4 * counts[best] >= 3 * chosen.size else -1
