"""Counts reads and uses of an operand's index maps, exactly where that is small.

Takes the `IndexMap`s of one operand (`graph/access.py`), gives how many distinct elements one output element reads and
how many output elements read one element. Index maps nearly always fall apart into independent parts (rows here,
channels there): each part is enumerated on its own and the counts multiply, so that a convolution of any size costs a
few tiny arrays. Where several maps together are too many to enumerate, a part counts their bounding box. A part of
more than `EXACT_POINTS` points is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autofuse.graph.access import IndexMap, OutputAccess
from autofuse.graph.expression import Expr, evaluate, variables

EXACT_POINTS = 1 << 15
SAMPLE_POINTS = 2048

Ints = npt.NDArray[np.int64]

# What came of a part: its variables and their extents, the operand's extents, indices and guards of each map.
_known: dict[tuple[Any, ...], tuple[int, int]] = {}
_MOST_KNOWN = 1 << 14


@dataclass(frozen=True)
class Part:
    """Independent part of the maps of one operand: which variables and which dimensions of the operand it covers."""

    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    dims: tuple[int, ...]


class MapCounts:
    """The index maps of one operand, and what can be counted about them."""

    def __init__(
        self, access: OutputAccess, operand: int, maps: tuple[IndexMap, ...], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        self.access = access
        self.operand = operand
        self.maps = maps
        self.shape = shapes[operand]
        self.out_shape = shapes[access.output]
        self.spatial = dict(access.spatial)
        self.gathered = any(m.gathered for m in maps)

    def counts(self) -> tuple[int, int]:
        """Distinct elements per output element and outputs per element, the largest of each."""
        reads = uses = 1
        covered: set[int] = set()
        for part in self.parts():
            covered.update(part.spatial)
            r, u = self.part_counts(part)
            reads *= r
            uses *= u
        if reads == 0 or uses == 0:
            return 0, 0
        for var, extent in self.spatial.items():
            if var not in covered:
                uses *= extent
        return reads, uses

    def parts(self) -> list[Part]:
        """Splits variables and dimensions into sets that no index and no guard connects."""
        used = dict.fromkeys(v for m in self.maps for expr in (*m.indices, *m.guards) for v in sorted(variables(expr)))
        if len(self.maps) > 1:
            together = self.part(used, range(len(self.shape)))
            if self.points(together) <= EXACT_POINTS:
                return [together]
        parent: dict[object, object] = {}

        def root(node: object) -> object:
            parent.setdefault(node, node)
            while parent[node] != node:
                node = parent[node]
            return node

        for m in self.maps:
            for d, expr in enumerate(m.indices):
                for var in variables(expr):
                    parent[root(("v", var))] = root(("d", d))
            for guard in m.guards:
                linked = sorted(variables(guard))
                for var in linked:
                    parent[root(("v", var))] = root(("v", linked[0]))
        groups: dict[object, tuple[list[int], list[int]]] = {}
        for var in used:
            groups.setdefault(root(("v", var)), ([], []))[0].append(var)
        for d in range(len(self.shape)):
            groups.setdefault(root(("d", d)), ([], []))[1].append(d)
        return [self.part(variables_, dims) for variables_, dims in groups.values() if variables_]

    def part(self, variables_: Iterable[int], dims: Iterable[int]) -> Part:
        chosen = list(variables_)
        return Part(
            tuple(v for v in chosen if v in self.spatial),
            tuple(v for v in chosen if v not in self.spatial),
            tuple(dims),
        )

    def own(self, m: IndexMap, part: Part) -> list[int]:
        """The reduction variables of a part that one map depends on."""
        used = {v for d in part.dims for v in variables(m.indices[d])}
        used.update(v for g in self.guards_of(m, part) for v in variables(g))
        return [v for v in part.reduction if v in used]

    def volume(self, variables_: Iterable[int]) -> int:
        return math.prod(self.extent(v) for v in variables_)

    def points(self, part: Part) -> int:
        """How many reads an enumeration of the part looks at."""
        return self.volume(part.spatial) * sum(self.volume(self.own(m, part)) for m in self.maps)

    def extent(self, var: int) -> int:
        return self.spatial[var] if var in self.spatial else self.access.reductions[var]

    def part_counts(self, part: Part) -> tuple[int, int]:
        extents = [self.extent(v) for v in (*part.spatial, *part.reduction)]
        if len(extents) == 1 and len(self.maps) == 1 and not self.guards_of(self.maps[0], part):
            (expr,) = (self.maps[0].indices[d] for d in part.dims) if len(part.dims) == 1 else (None,)
            if expr is not None and expr[0] == "v":
                return (1, 1) if part.spatial else (extents[0], 1)
        # Operators of a network share heights, widths and windows, and so the parts that depend on these.
        key = (
            part.spatial,
            part.reduction,
            tuple(extents),
            tuple([self.shape[d] for d in part.dims]),
            tuple([(*[m.indices[d] for d in part.dims], *self.guards_of(m, part)) for m in self.maps]),
        )
        found = _known.get(key)
        if found is None:
            whole = self.points(part) <= EXACT_POINTS
            found = exact_counts(self.enumerate(part)) if whole else self.sampled_counts(part)
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[key] = found
        return found

    def guards_of(self, m: IndexMap, part: Part) -> list[Expr]:
        inside = {*part.spatial, *part.reduction}
        return [g for g in m.guards if variables(g) & inside]

    def enumerate(self, part: Part) -> Ints:
        """Element numbers, one row a spatial point, one column a reduction point of each map; -1 where not read."""
        rows = self.volume(part.spatial)
        columns = []
        for m in self.maps:
            names = (*part.spatial, *self.own(m, part))
            grid = tuple(self.extent(v) for v in names)
            values: dict[int, Any] = {
                var: np.arange(extent, dtype=np.int64).reshape([extent if i == n else 1 for n in range(len(names))])
                for i, (var, extent) in enumerate(zip(names, grid, strict=True))
            }
            columns.append(self.elements(m, part, values, grid).reshape(rows, -1))
        return np.concatenate(columns, axis=1)

    def elements(self, m: IndexMap, part: Part, values: dict[int, Any], grid: tuple[int, ...]) -> Ints:
        flat: Any = np.zeros((1,) * len(grid), np.int64)
        for d in part.dims:
            flat = flat * self.shape[d] + evaluate(m.indices[d], values)
        valid: Any = True
        for guard in self.guards_of(m, part):
            valid = np.logical_and(valid, evaluate(guard, values))
        return np.broadcast_to(np.where(valid, flat, -1), grid)

    def sampled_counts(self, part: Part) -> tuple[int, int]:
        """Counts of a part that is too large to enumerate.

        reads: at sampled output points. uses: along each spatial axis by itself through sampled points, the counts
        of the axes multiplied; with the pigeonhole bound (reads of all outputs over elements) as the floor.
        """
        generator = np.random.default_rng(0)
        widest = max(self.volume(self.own(m, part)) for m in self.maps)
        outer = max(8, min(256, EXACT_POINTS // widest))
        base = {v: generator.integers(0, self.extent(v), outer) for v in part.spatial}
        lines = {v: base[v][:, None] for v in part.spatial}
        reads, _ = exact_counts(self.reads_at(part, lines, outer, EXACT_POINTS, generator))
        if widest > EXACT_POINTS:
            reads = max(1, round(reads * widest / EXACT_POINTS))
        uses = 1
        for var in part.spatial:
            uses *= self.uses_along(part, var, base, generator)
        outputs = self.volume(part.spatial)
        elements = math.prod(self.shape[d] for d in part.dims)
        if not any(self.guards_of(m, part) for m in self.maps):
            uses = max(uses, -(-outputs * reads // max(elements, 1)))
        return max(reads, 1), min(uses, outputs)

    def reads_at(
        self, part: Part, points: dict[int, Any], rows: int, most: int, generator: np.random.Generator
    ) -> Ints:
        """What the maps read at spatial points (columns of values), over at most `most` reduction points a map."""
        columns = []
        for m in self.maps:
            own = self.own(m, part)
            extents = [self.extent(v) for v in own] or [1]
            inner = math.prod(extents)
            chosen = np.arange(inner) if inner <= most else generator.integers(0, inner, most)
            picks = np.unravel_index(chosen, extents)
            values = {**points, **{v: p[None, :].astype(np.int64) for v, p in zip(own, picks, strict=False)}}
            columns.append(self.elements(m, part, values, (rows, len(chosen))))
        return np.concatenate(columns, axis=1)

    def uses_along(self, part: Part, var: int, base: dict[int, Ints], generator: np.random.Generator) -> int:
        """Outputs on one line along `var` that read the same element, the largest count over a few lines."""
        length = min(self.extent(var), SAMPLE_POINTS)
        most = 1
        for line in range(4):
            points: dict[int, Any] = {v: base[v][line : line + 1, None] for v in part.spatial}
            points[var] = np.arange(length, dtype=np.int64)[:, None]
            most = max(most, exact_counts(self.reads_at(part, points, length, 64, generator))[1])
        return most


def exact_counts(elements: Ints) -> tuple[int, int]:
    """(distinct elements in a row, rows that hold one element), the largest of each; -1 stands for no element."""
    ordered = np.sort(elements, axis=1)
    fresh = ordered >= 0
    fresh[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    if not fresh.any():
        return 0, 0
    _, counts = np.unique(ordered[fresh], return_counts=True)
    return int(fresh.sum(axis=1).max()), int(counts.max())
