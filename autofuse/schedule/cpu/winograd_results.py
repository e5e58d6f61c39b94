"""What a Winograd convolution does with the products of its tiles: inverse transform, operators behind, pool, stores.

The part of the loop nests (`winograd_nests`) that comes after the products; one channel block of a row of tiles at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule.cpu.loops import Cut, Nest, allocate, sequence, store
from autofuse.schedule.cpu.matmul_nests import Follower
from autofuse.schedule.cpu.window_nests import home_at
from autofuse.schedule.cpu.winograd_transforms import Names, output_transform
from autofuse.schedule.stages import Home, Program, Stage, index

if TYPE_CHECKING:
    from autofuse.schedule.cpu.winograd import Layer, WinogradConfiguration


class WinogradResults:
    """From products to results. What it needs of the kernel is set by `WinogradNests`."""

    layer: Layer
    c: WinogradConfiguration
    program: Program
    nest: Nest
    alpha: int
    lanes: int
    anchor: Stage
    pool: Stage | None
    operand: Stage
    followers: Mapping[Any, Follower]
    kept: list[Stage]
    homes: Mapping[Any, Home]
    across: Cut
    down: Cut

    # -- inverse transform -------------------------------------------------------------------------------------

    def _column(self, first: Any, x: Any) -> Any:
        """The place in its row of tile `x` of the segment that begins with tile `first`."""
        whole = self.c.cols == self.across.tiles
        return x if whole else self.nest.alias("tx", first + x, self.across.tiles)

    def _results(
        self, n: Any, block: Any, ty: Any, first: Any, offset: Any, width: int, result: Any, distance: int
    ) -> Any:
        """One channel block of a row's segment, which begins with tile `first`."""
        nest, m, alpha, lanes = self.nest, self.c.m, self.alpha, self.lanes

        def tile(number: Any) -> Any:
            done = nest.buffer("tile", (m * m * lanes,), scope="local")
            place, tx = offset + number * index(width), self._column(first, number)

            def one(lane: Any) -> Any:
                names = Names()
                grid = [
                    [names(result[index((i * alpha + k) * distance) + place + lane]) for k in range(alpha)]
                    for i in range(alpha)
                ]
                results = names.transformed(output_transform, m, grid)
                kept = [
                    store(done, results[y][x], [index((y * m + x) * lanes) + lane]) for y in range(m) for x in range(m)
                ]
                return sequence(names.statements, kept)

            def follow(y: Any, x: Any) -> Any:
                at = [n, block, ty * index(m) + y, tx * index(m) + x]
                return self._follow(at, done, (y * index(m) + x) * index(lanes))

            if self.pool is not None:
                last = self._pooled(n, block, ty, tx, done)
                return sequence(allocate(done), nest.vector(lanes, one), last)

            def whole() -> Any:
                return nest.loop("y", m, lambda y: nest.unrolled(m, lambda x: follow(y, index(x))))

            def ragged() -> Any:
                def checked(y: Any, x: Any) -> Any:
                    inside = tirx.all(
                        ty * index(m) + y < index(self.layer.oh), tx * index(m) + x < index(self.layer.ow)
                    )
                    return tirx.IfThenElse(inside, follow(y, x), None)

                return nest.loop("y", m, lambda y: nest.loop("x", m, lambda x: checked(y, x)))

            if self.across.rest == 0 and self.down.rest == 0:
                last = whole()
            elif self.across.full == 0 or self.down.full == 0:
                last = ragged()
            else:
                inside = tirx.all(tx < index(self.across.full), ty < index(self.down.full))
                last = tirx.IfThenElse(inside, whole(), ragged())
            return sequence(allocate(done), nest.vector(lanes, one), last)

        return nest.loop("x", self.c.cols, tile)

    # -- what follows ------------------------------------------------------------------------------------------

    def _pooled(self, n: Any, block: Any, ty: Any, tx: Any, tile: Any) -> Any:
        """The pool's results of one tile: windows of 2 × 2, whole ones inside a tile or outside the results."""
        assert self.pool is not None
        nest, m, lanes, pool = self.nest, self.c.m, self.lanes, self.pool
        half = index(m // 2)
        shape = pool.shape

        def window(y: Any, x: Any) -> Any:
            best = nest.registers("best", (lanes,))
            parts: list[Any] = [allocate(best)]
            for dy in range(2):
                for dx in range(2):
                    row, column = y * index(2) + index(dy), x * index(2) + index(dx)
                    at = [n, block, ty * index(m) + row, tx * index(m) + column]
                    place = (row * index(m) + column) * index(lanes)
                    made, local = self._values(at, tile, place)

                    def better(lane: Any, first: bool = dy == dx == 0, local: Any = local) -> Any:
                        buffer, offset = local[self.operand.buffer]
                        value = buffer[offset + lane]
                        return store(best, value if first else tirx.max(best[lane], value), [lane])

                    parts.append(sequence(made, nest.vector(lanes, better)))
            where = [n, block, ty * half + y, tx * half + x]
            parts.append(nest.vector(lanes, lambda lane: store(pool.buffer, best[lane], [*where, lane])))
            return sequence(parts)

        def checked(y: Any, x: Any) -> Any:
            inside = tirx.all(ty * half + y < index(shape[2]), tx * half + x < index(shape[3]))
            return tirx.IfThenElse(inside, window(y, x), None)

        ragged = self.across.rest or self.down.rest
        return nest.loop("y", m // 2, lambda y: nest.loop("x", m // 2, lambda x: (checked if ragged else window)(y, x)))

    def _follow(self, at: Sequence[Any], tile: Any, place: Any) -> Any:
        """The stages after the convolution for one vector of channels."""
        return sequence(self._values(at, tile, place)[0])

    def _values(self, at: Sequence[Any], tile: Any, place: Any) -> tuple[list[Any], dict[Any, tuple[Any, Any]]]:
        """Statements that compute the kept stages for one vector of channels, and where each is then."""
        local: dict[Any, tuple[Any, Any]] = {self.anchor.buffer: (tile, place)}
        parts: list[Any] = []
        for stage in self.kept:
            if not stage.output:
                buffer = self.nest.registers(stage.name, (self.lanes,), str(stage.buffer.dtype))
                local[stage.buffer] = (buffer, index(0))
                parts.append(allocate(buffer))
        for number, stage in enumerate(self.kept):
            done = [self.anchor, *self.kept[:number]]

            def one(lane: Any, stage: Stage = stage, done: Sequence[Stage] = tuple(done)) -> Any:
                return self._write(stage, [*at, lane], done, local, lane)

            parts.append(self.nest.vector(self.lanes, one))
        return parts, local

    def _write(
        self, stage: Stage, here: Sequence[Any], done: Sequence[Stage], local: Mapping[Any, tuple[Any, Any]], lane: Any
    ) -> Any:
        homes = dict(self.homes)
        for other in done:
            source = self.followers[other.buffer].source
            homes[other.buffer] = home_at(self.program, other.buffer, here, local.get(other.buffer), lane, source)
        target = self.followers[stage.buffer].target(here)
        if stage is self.anchor:
            buffer, place = local[stage.buffer]
            value = buffer[place + lane]
        else:
            value = self.program.value(stage, target, [], homes)
        if stage.output:
            return store(stage.buffer, value, [self.program.simplify(i) for i in target])
        return store(local[stage.buffer][0], value, [lane])
