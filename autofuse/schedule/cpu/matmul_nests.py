"""The loop nests of a matrix product: register tiles, packing, staging, and what follows applied to the tile.

Takes the fused function and a configuration, gives the scheduled function; see `matmul` for the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import Cut, Piece, allocate, pieces, sequence, store
from autofuse.schedule.cpu.matmul_operands import OperandNests
from autofuse.schedule.cpu.product import Product
from autofuse.schedule.cpu.row_nests import RowNests, Strip, whole_stages
from autofuse.schedule.stages import Home, Program, Stage, finish, index, ravel

if TYPE_CHECKING:
    from autofuse.schedule.cpu.matmul import MatmulConfiguration


# Floats to a cache line.
_LINE = 16
# Depth between two places where lines are asked for, how many such stretches pay off, and most lines at one place: a
# core waits when more are on their way.
_STRETCH, _FEWEST_STRETCHES, _MOST_AT_ONCE = 96, 3, 16
#: Arguments of a prefetch: for reading, into L2, data.
INTO_L2 = (tirx.const(0, "int32"), tirx.const(2, "int32"), tirx.const(1, "int32"))


@dataclass(frozen=True)
class Tile:
    """One register tile: batch `b`, rows from `row0` (in the batch), columns from `column0`; `columns` are real."""

    b: Any
    row0: Any
    rows: int
    column0: Any
    columns: int


@dataclass(frozen=True)
class Fetch:
    """What a tile asks for ahead: its part of the columns of the right-hand side from `column` on."""

    column: Any
    part: Any
    parts: int


class Follower:
    """A stage after the product whose elements are the product's, moved: where each of them goes."""

    def __init__(self, program: Program, stage: Stage, coordinates: Sequence[Any], extents: Sequence[int]) -> None:
        self.program, self.stage = program, stage
        self.coordinates = [program.simplify(c) for c in coordinates]
        self.extents = tuple(extents)

    def source(self, at: Sequence[Any]) -> list[Any]:
        """Indices of the product's element that the stage's element at `at` comes from."""
        values = dict(zip(self.stage.iters, at, strict=True))
        return [_replace(c, values) for c in self.coordinates]

    @cached_property
    def _inverse(self) -> Any:
        try:
            return tirx.IndexMap(list(self.stage.iters), self.coordinates, None).inverse(list(self.stage.shape))
        except Exception as error:
            raise ScheduleError(f"stage {self.stage.name} rearranges the product's results irregularly") from error

    def target(self, at: Sequence[Any]) -> list[Any]:
        """Indices of the stage's element that the product's element at `at` becomes."""
        if len(self.coordinates) == len(self.stage.iters) and all(
            c.same_as(v) or (extent == 1) for c, v, extent in
            zip(self.coordinates, self.stage.iters, self.stage.shape, strict=True)
        ):  # fmt: skip
            return list(at)
        inverse = self._inverse
        values = dict(zip(inverse.initial_indices, at, strict=True))
        return [self.program.simplify(_replace(i, values)) for i in inverse.final_indices]


def _replace(expr: Any, values: Mapping[Any, Any]) -> Any:
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda v: values.get(v, v)))


def followers(program: Program, anchor: Stage, after: Sequence[Stage]) -> dict[Any, Follower]:
    """Where every stage after the anchor takes its elements from, by its buffer; the anchor's own with them.

    ScheduleError for a stage that mixes different elements of the anchor.
    """
    extents = anchor.shape
    known = {anchor.buffer: Follower(program, anchor, anchor.iters, extents)}
    for var, extent in zip(anchor.iters, extents, strict=True):
        program.bound(var, extent)
    for stage in after:
        for var, extent in zip(stage.iters, stage.shape, strict=True):
            program.bound(var, extent)
        found: list[Any] | None = None
        for load in stage.loads:
            source = known.get(load.source)
            if source is None:
                continue
            here = [program.simplify(c) for c in source.source(list(load.indices))]
            if found is not None and not all(program.same(a, b) for a, b in zip(found, here, strict=True)):
                raise ScheduleError(f"stage {stage.name} mixes different elements of {anchor.name}")
            found = here
        if found is None:
            raise ScheduleError(f"stage {stage.name} does not read {anchor.name}")
        known[stage.buffer] = Follower(program, stage, found, extents)
    return known


class MatmulNests(OperandNests):
    """Builds the kernel of one product."""

    def __init__(self, func: Any, product: Product, config: MatmulConfiguration, lanes: int) -> None:
        super().__init__(func, product, config, lanes)
        self.columns = Cut(product.columns, config.jt * self.block)
        after = self.program.downstream(self.anchor)
        before = [s for s in self.program.stages if s is not self.anchor and s not in after]
        self.kept = self.program.kept(after)
        self.followers = {} if product.along_rows else followers(self.program, self.anchor, after)
        self.result: Any = None
        self.first, self.homes = whole_stages(self.nest, self.program.kept(before), lanes)

    # -- the kernel --------------------------------------------------------------------------------------------

    def build(self) -> Any:
        """The scheduled function."""
        c, nest = self.c, self.nest
        row_tasks, column_tasks = -(-self.rows.tiles // c.rb), -(-self.columns.tiles // c.cb)
        first = [*self.first]
        if c.pack == 2:
            first.append(self.pack_all())
        if c.stage == 2:
            first.append(self.stage_all())

        def task(t: Any) -> Any:
            total = row_tasks * column_tasks
            b = nest.alias("batch", tirx.floordiv(t, index(total)), self.p.batch) if self.p.batch > 1 else index(0)
            within = tirx.floormod(t, index(total)) if self.p.batch > 1 else t
            down = nest.alias("down", tirx.floordiv(within, index(column_tasks)), row_tasks)
            across = nest.alias("across", tirx.floormod(within, index(column_tasks)), column_tasks)
            return self._task(b, down * index(c.rb), across * index(c.cb))

        whole = self.p.along_rows and c.order == 2
        if whole and not self.anchor.output:
            self.result = nest.buffer("result", (self.p.batch * self.p.rows, self.p.columns))
            first.append(allocate(self.result))
        body = nest.parallel("task", self.p.batch * row_tasks * column_tasks, task, c.parallel)
        if whole:
            body = sequence(body, self._finish_rows())
        return finish(self.program, nest.resolve(sequence(first, body)))

    def _task(self, b: Any, row_tile: Any, column_tile: Any) -> Any:
        c, nest = self.c, self.nest
        parts: list[Any] = []
        all_packed, all_staged = self.packed, self.staged
        if c.pack == 1:
            parts += self.pack(b, column_tile)
        elif c.pack == 2:
            self.packed_from = index(0) - b * index(self.blocks)
        if c.stage == 1:
            parts += self.stage(b, row_tile)
        elif c.stage == 2:
            self.staged_from = index(0) - b * index(self.p.rows)
        if self.p.along_rows and c.order < 2:
            parts.append(self._rows(b, row_tile))
        else:
            width = index(self.columns.size)

            def tile(row: Any, rows: int, column: Any, columns: int) -> Any:
                return self._tile(
                    Tile(b, row * index(c.mt), rows, column * width, columns), self._next(row, row_tile, column)
                )

            def columns_inside(row: Any, rows: int) -> Any:
                return nest.tiles(column_tile, c.cb, self.columns, lambda column, n: tile(row, rows, column, n))

            if c.order == 1:
                parts.append(nest.tiles(row_tile, c.rb, self.rows, columns_inside))
            else:
                parts.append(self._panels(row_tile, column_tile, tile))
        self.packed, self.staged = all_packed, all_staged
        return sequence(parts)

    def _panels(self, row_tile: Any, column_tile: Any, tile: Callable[[Any, int, Any, int], Any]) -> Any:
        """Columns outside, rows inside."""
        c, nest = self.c, self.nest

        def rows_inside(column: Any, columns: int) -> Any:
            return nest.tiles(row_tile, c.rb, self.rows, lambda row, n: tile(row, n, column, columns))

        return nest.tiles(column_tile, c.cb, self.columns, rows_inside)

    def _next(self, row: Any, row_tile: Any, column: Any) -> Fetch | None:
        """What to fetch while a tile is computed: its share of the next columns of a constant."""
        c = self.c
        parts = min(c.rb, self.rows.tiles)
        if c.order == 1 or not self.p.packed or parts < 2:
            return None
        return Fetch((column + index(1)) * index(self.columns.size), row - row_tile, parts)

    # -- tiles -------------------------------------------------------------------------------------------------

    def _column(self, tile: Tile, start: int, lane: Any) -> Any:
        """The column `start + lane` of a tile, in a form in which its vector is seen to be contiguous."""
        if self.columns.size % self.lanes == 0 and start % self.lanes == 0:
            vectors = tile.column0 + index(start)
            number = self.nest.alias(
                "vector", tirx.floordiv(vectors, index(self.lanes)), -(-self.p.columns // self.lanes)
            )
            return number * index(self.lanes) + lane
        return tile.column0 + index(start) + lane

    def _accumulate(self, tile: Tile, ahead: Fetch | None = None) -> tuple[Any, list[Any]]:
        """The registers of a tile and the statements that fill them."""
        nest, zero = self.nest, tirx.const(0.0, "float32")
        lanes = self.lanes
        width = -(-tile.columns // lanes) * lanes if self.padded else tile.columns
        parts = pieces(width, lanes)
        acc = nest.registers("acc", (tile.rows, width))

        def each(body: Any) -> list[Any]:
            def one(i: int, piece: Piece) -> Any:
                return nest.vector(piece.lanes, lambda lane: body(i, piece.start, lane))

            return [one(i, piece) for i in range(tile.rows) for piece in parts]

        def multiply_add(k: Any) -> Any:
            def step(i: int, start: int, lane: Any) -> Any:
                where = [index(i), index(start) + lane]
                left = self.left_at(tile.b, tile.row0 + index(i), k)
                right = self.right_at(tile.b, self._column(tile, start, lane), k)
                return store(acc, acc[tuple(where)] + left * right, where)

            return sequence(each(step))

        clear = each(lambda i, start, lane: store(acc, zero, [index(i), index(start) + lane]))
        return acc, [allocate(acc), *clear, self._deep(tile, multiply_add, ahead)]

    def _deep(self, tile: Tile, step: Callable[[Any], Any], ahead: Fetch | None) -> Any:
        """step(k) for the whole depth, and the lines of `ahead` asked for on the way, some every now and then.

        The stretches between are long: with short ones, tiles of 5 and 6 rows were 8 to 16 % slower.
        """
        nest, depth = self.nest, self.p.depth
        # Depths to a cache line, lines to a depth.
        together, lines = max(1, _LINE // self.block), max(1, self.block // _LINE)
        times = -(-_STRETCH // (ahead.parts * together)) if ahead else 0
        stretch = ahead.parts * together * times if ahead else depth
        count, rest = divmod(depth, stretch)
        if ahead is None or count < _FEWEST_STRETCHES or times * self.c.jt * lines > _MOST_AT_ONCE:
            return nest.loop("k", depth, step)

        def fetch(number: Any, block: int, line: int) -> Any:
            k = (ahead.part * index(count * times) + number) * index(together)
            load = self.right_at(tile.b, ahead.column + index(block * self.block + line * _LINE), k)
            return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", tirx.address_of(load), *INTO_L2))

        def one(number: Any) -> Any:
            asked = [
                fetch(number * index(times) + index(i), j, line)
                for j in range(self.c.jt) for i in range(times) for line in range(lines)
            ]  # fmt: skip
            return sequence(asked, nest.loop("k", stretch, lambda k: step(number * index(stretch) + k)))

        end = nest.loop("k", rest, lambda k: step(index(count * stretch) + k)) if rest else None
        return sequence(nest.loop("stretch", count, one), end)

    def _tile(self, tile: Tile, ahead: Fetch | None = None) -> Any:
        """One register tile, and what follows applied to it."""
        acc, parts = self._accumulate(tile, ahead)
        if self.p.along_rows:
            base = index(0) - tile.b * index(self.p.rows)
            for i in range(tile.rows):
                parts += [
                    self._keep(tile, acc, self.result, base, i, piece) for piece in pieces(tile.columns, self.lanes)
                ]
            return sequence(parts)
        kept = [self.anchor] if self.anchor.output else []
        kept += self.kept
        local: dict[Any, Any] = {self.anchor.buffer: acc}
        for stage in kept:
            if stage.output:
                continue
            local[stage.buffer] = self.nest.registers(stage.name, (tile.rows, tile.columns), str(stage.buffer.dtype))
            parts.append(allocate(local[stage.buffer]))
        for number, stage in enumerate(kept):
            done = [self.anchor, *kept[:number]]
            for i in range(tile.rows):
                for piece in pieces(tile.columns, self.lanes):
                    parts.append(self._apply(tile, stage, done, local, i, piece))
        return sequence(parts)

    def _apply(
        self, tile: Tile, stage: Stage, done: Sequence[Stage], local: Mapping[Any, Any], i: int, piece: Piece
    ) -> Any:
        """One vector of a stage after the product."""

        def one(lane: Any) -> Any:
            row = tile.row0 + index(i)
            column = self._column(tile, piece.start, lane)
            here = self.at(tile.b, row, column)
            inside = [index(i), index(piece.start) + lane]
            homes = dict(self.homes)
            for other in done:
                homes[other.buffer] = self._home(other, here, local.get(other.buffer), inside)
            at = self.followers[stage.buffer].target(here)
            if stage is self.anchor:
                value = local[stage.buffer][tuple(inside)]
            else:
                value = self.program.value(stage, at, [], homes)
            if stage.output:
                return store(stage.buffer, value, [self.program.simplify(x) for x in at])
            return store(local[stage.buffer], value, inside)

        return self.nest.vector(piece.lanes, one)

    def _home(self, stage: Stage, here: Sequence[Any], buffer: Any, inside: Sequence[Any]) -> Home:
        follower = self.followers[stage.buffer]
        shape = self.anchor.shape

        def read(at: Sequence[Any]) -> Any | None:
            source = follower.source(at)
            row, now = ravel(source[:-1], shape[:-1]), ravel(here[:-1], shape[:-1])
            if not self.program.same(source[-1], here[-1]) or not self.program.same(row, now):
                return None
            if buffer is None:
                return tirx.BufferLoad(stage.buffer, [self.program.simplify(i) for i in at])
            return buffer[tuple(inside)]

        return read

    # -- whole rows --------------------------------------------------------------------------------------------

    def _row_nests(self) -> RowNests:
        nests = RowNests(self.nest, self.kept, self.p.batch * self.p.rows, 1, 1, self.lanes, 4)
        if nests.shared:
            raise ScheduleError("a stage after the product does not split into its rows")
        return nests

    def _finished(self, nests: RowNests, b: Any, tile: Any, count: int, base: Any, result: Any) -> Any:
        """What follows the product, for the rows of a tile; row `base` of the batch is row 0 of `result`."""

        def one(i: Any) -> Any:
            within = tile * index(self.c.mt) + i
            row = self.nest.alias("row", b * index(self.p.rows) + within, self.p.batch * self.p.rows)
            kept = self.program.simplify(within - base)
            outside = {**self.homes, self.anchor.buffer: self._row_home(row, kept, result)}
            return nests.row(Strip(row, index(0), 1), self.kept, outside)

        return self.nest.loop("r", count, one)

    def _finish_rows(self) -> Any:
        """What follows the product, once all of it is there."""
        nest, tiles = self.nest, self.rows.tiles

        def task(t: Any) -> Any:
            nests = self._row_nests()
            b = nest.alias("batch", tirx.floordiv(t, index(tiles)), self.p.batch) if self.p.batch > 1 else index(0)
            down = nest.alias("down", tirx.floormod(t, index(tiles)), tiles) if self.p.batch > 1 else t
            base = index(0) - b * index(self.p.rows)
            buffers = nests.allocations(self.kept)
            rows = nest.tiles(down, 1, self.rows, lambda i, n: self._finished(nests, b, i, n, base, self.result))
            return sequence(buffers, rows)

        return nest.parallel("finish", self.p.batch * tiles, task, self.c.parallel)

    def _rows(self, b: Any, row_tile: Any) -> Any:
        """Tiles of rows with all their columns; then what follows, row by row.

        order 0: the columns' panels pass by all rows of the task before its rows are finished; order 1: each tile of
        rows is finished before the next.
        """
        c, nest, anchor = self.c, self.nest, self.anchor
        nests = self._row_nests()
        height = c.mt if c.order else c.mt * c.rb
        result = None if anchor.output else nest.buffer("result", (height, self.p.columns))
        parts: list[Any] = [] if result is None else [allocate(result)]
        parts += nests.allocations(self.kept)

        def base(tile: Any) -> Any:
            return (tile if c.order else row_tile) * index(c.mt)

        def product(tile: Any, count: int, column: Any, width: int) -> Any:
            here = Tile(b, tile * index(c.mt), count, column * index(self.columns.size), width)
            acc, steps = self._accumulate(here, self._next(tile, row_tile, column))
            for i in range(count):
                for piece in pieces(width, self.lanes):
                    steps.append(self._keep(here, acc, result, base(tile), i, piece))
            return sequence(steps)

        def finished(tile: Any, count: int) -> Any:
            return self._finished(nests, b, tile, count, base(tile), result)

        def panels(body: Any) -> Any:
            return nest.tiles(index(0), self.columns.tiles, self.columns, body)

        def strips(body: Any) -> Any:
            return nest.tiles(row_tile, c.rb, self.rows, body)

        if c.order:
            parts.append(strips(lambda t, n: sequence(panels(lambda col, w: product(t, n, col, w)), finished(t, n))))
        else:
            parts.append(panels(lambda col, w: strips(lambda t, n: product(t, n, col, w))))
            parts.append(strips(finished))
        return sequence(parts)

    def _keep(self, tile: Tile, acc: Any, result: Any, base: Any, i: int, piece: Piece) -> Any:
        def one(lane: Any) -> Any:
            value = acc[index(i), index(piece.start) + lane]
            column = self._column(tile, piece.start, lane)
            if result is None:
                at = self.at(tile.b, tile.row0 + index(i), column)
                return store(self.anchor.buffer, value, [self.program.simplify(x) for x in at])
            return store(result, value, [self.program.simplify(tile.row0 + index(i) - base), column])

        return self.nest.vector(piece.lanes, one)

    def _row_home(self, row: Any, i: Any, result: Any) -> Home:
        def read(at: Sequence[Any]) -> Any | None:
            if not self.program.same(ravel(at[:-1], self.anchor.shape[:-1]), row):
                return None
            if result is None:
                return tirx.BufferLoad(self.anchor.buffer, [self.program.simplify(x) for x in at])
            return result[i, self.program.simplify(at[-1])]

        return read
