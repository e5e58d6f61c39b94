"""What the product of a fused function is: its axes by what they index, and how each operand lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from autofuse.schedule import ScheduleError
from autofuse.schedule.stages import Stage

# Elements of the widest access of a lane, and of a vector of LDS.
WIDE = 4
# Elements that lie together from which on a wave's lanes stand along them.
LONG = 16


@dataclass(frozen=True, eq=False)
class Axes:
    """The iteration variables of a product and their extents, by what they index. `stage` is the product."""

    stage: Stage
    left: Any
    right: Any
    batches: tuple[int, ...]  # positions among the stage's axes
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def extent(self, places: Sequence[int]) -> int:
        """Product of the extents of axes."""
        return prod(self.stage.shape[p] for p in places)


def axes_of(stage: Stage) -> Axes:
    """The axes of a product, by what they index."""
    if stage.how != "add" or not isinstance(stage.value, tirx.Mul):
        raise ScheduleError(f"stage {stage.name} is no sum of products")
    left, right = stage.value.a, stage.value.b
    in_left, in_right = _variables(left), _variables(right)
    places: dict[str, list[int]] = {"batches": [], "rows": [], "columns": []}
    for place, var in enumerate(stage.iters):
        if stage.shape[place] == 1:
            continue
        kind = ("batches" if var in in_right else "rows") if var in in_left else "columns"
        places[kind].append(place)
    return Axes(stage, left, right, *(tuple(places[k]) for k in ("batches", "rows", "columns")))


def _variables(expr: Any) -> set[Any]:
    """Those that an expression holds."""
    found: set[Any] = set()
    tvm_ffi.structural_walk(expr, (tirx.Var, found.add))
    return found


@dataclass(frozen=True)
class Side:
    """How one operand is brought: `size` of a tile along its own axis (rows or columns), `total` of all tiles.

    along_depth: vectors stand along the depth, else along the operand's axis; vector: their elements; run: elements
    that lie together in memory along that axis.
    """

    size: int
    total: int
    along_depth: bool
    vector: int
    run: int

    @property
    def pitch(self) -> int:
        """Elements from one depth of the tile in LDS to the next: more than its size where lanes stand along the depth,
        which would write to the same banks."""
        return self.size + (WIDE if self.along_depth and self.run > LONG else 0)


def side_of(axes: Axes, operand: Any, places: Sequence[int], size: int) -> Side:
    """How an operand, whose stages before are written out, is brought: by what lies together in the largest tensor
    that it reads. `places`: its own axes; `size`: elements of a tile along them."""
    stage = axes.stage
    loads: list[Any] = []
    tvm_ffi.structural_walk(operand, (TensorLoad, loads.append))
    total = axes.extent(places)
    if not loads:
        return Side(size, total, False, 1, 1)
    load = max(loads, key=lambda n: prod(int(e) for e in n.source.shape))
    last = max((i for i, e in enumerate(load.source.shape) if int(e) > 1), default=0)
    used = _variables(load.indices[last])
    depths = [(v, e) for v, e in zip(stage.reduces, stage.reduced, strict=True) if e > 1]
    own = [(stage.iters[p], stage.shape[p]) for p in places]
    for along_depth, found in ((True, depths), (False, own)):
        # Only the innermost axis counts: the linear index runs along it.
        if found and found[-1][0] in used:
            extent = found[-1][1]
            if _divides(load.indices[last], found[-1][0]):
                extent = min(extent, int(load.source.shape[last]))
            vector = next(w for w in (WIDE, 2, 1) if extent % w == 0 and size % w == 0)
            return Side(size, total, along_depth, vector, extent)
    return Side(size, total, False, 1, 1)


def _divides(expr: Any, var: Any) -> bool:
    """Whether an index takes a remainder (or quotient) of what holds `var`."""
    found = False

    def visit(node: Any) -> None:
        nonlocal found
        found = found or var in _variables(node)

    tvm_ffi.structural_walk(expr, ((tirx.FloorDiv, tirx.FloorMod), visit))
    return found
