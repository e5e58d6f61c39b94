"""The loop nests of a matrix product: register tiles, packing, staging, and what follows applied to the tile.

Takes the fused function and a configuration, gives the scheduled function; see `matmul` for the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import Cut, Nest, Piece, allocate, pieces, sequence, store
from autofuse.schedule.cpu.product import Product
from autofuse.schedule.cpu.row_nests import RowNests, Strip, whole_stages
from autofuse.schedule.stages import Home, Program, Stage, finish, index, lift, ravel, unravel

if TYPE_CHECKING:
    from autofuse.schedule.cpu.matmul import MatmulConfiguration


@dataclass(frozen=True)
class Tile:
    """One register tile: batch `b`, rows from `row0` (in the batch), columns from `column0`; `columns` are real."""

    b: Any
    row0: Any
    rows: int
    column0: Any
    columns: int


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


class MatmulNests:
    """Builds the kernel of one product."""

    def __init__(self, func: Any, product: Product, config: MatmulConfiguration, lanes: int) -> None:
        self.program = lift(func)
        self.nest = Nest(self.program)
        self.p, self.c, self.lanes = product, config, lanes
        self.block = 2 * lanes
        self.anchor = self.program.with_role("matmul")
        if not isinstance(self.anchor.value, tirx.Mul) or len(self.anchor.reduces) != 1:
            raise ScheduleError("the product is not a sum of products")
        self.left, self.right = self.anchor.value.a, self.anchor.value.b
        self.rows = Cut(product.rows, config.mt)
        self.columns = Cut(product.columns, config.jt * self.block)
        after = self.program.downstream(self.anchor)
        before = [s for s in self.program.stages if s is not self.anchor and s not in after]
        self.followers: dict[Any, Follower] = {}
        self.kept = self.program.kept(after)
        if not product.along_rows:
            self._follow(after)
        self.first, self.homes = whole_stages(self.nest, self.program.kept(before), lanes)
        self.packed: Any = None
        self.packed_from: Any = index(0)
        self.staged: Any = None
        self.staged_from: Any = index(0)

    def _follow(self, after: Sequence[Stage]) -> None:
        """Where every stage after the product takes its elements from."""
        extents = self.anchor.shape
        known = {self.anchor.buffer: Follower(self.program, self.anchor, self.anchor.iters, extents)}
        for var, extent in zip(self.anchor.iters, extents, strict=True):
            self.program.bound(var, extent)
        for stage in after:
            for var, extent in zip(stage.iters, stage.shape, strict=True):
                self.program.bound(var, extent)
            found: list[Any] | None = None
            for load in stage.loads:
                source = known.get(load.source)
                if source is None:
                    continue
                here = [self.program.simplify(c) for c in source.source(list(load.indices))]
                if found is not None and not all(self.program.same(a, b) for a, b in zip(found, here, strict=True)):
                    raise ScheduleError(f"stage {stage.name} mixes different elements of the product")
                found = here
            if found is None:
                raise ScheduleError(f"stage {stage.name} does not read the product")
            known[stage.buffer] = Follower(self.program, stage, found, extents)
        self.followers = known

    # -- elements of the operands ------------------------------------------------------------------------------

    def at(self, b: Any, row: Any, column: Any) -> list[Any]:
        """Indices of an element of the product."""
        lead = self.anchor.shape[:-1]
        if self.p.packed:
            return [*unravel(row, lead), column]
        return [*unravel(b, lead[:-1]), row, column]

    def operand(self, expr: Any, b: Any, row: Any, column: Any, k: Any) -> Any:
        """One side of the product's term."""
        values = dict(zip((*self.anchor.iters, *self.anchor.reduces), (*self.at(b, row, column), k), strict=True))
        return self.program.substitute(expr, values, self.homes)

    def left_at(self, b: Any, row: Any, k: Any) -> Any:
        """An element of the left-hand side, from its stage if it was staged."""
        if self.staged is None:
            return self.operand(self.left, b, row, index(0), k)
        return self.staged[self.program.simplify(row - self.staged_from), k]

    def right_at(self, b: Any, column: Any, k: Any) -> Any:
        """An element of the right-hand side; `column` may lie in the padding of the last block if it is packed."""
        if self.packed is None:
            return self.operand(self.right, b, index(0), column, k)
        block = tirx.floordiv(column, index(self.block)) - self.packed_from
        lane = tirx.floormod(column, index(self.block))
        return self.packed[self.program.simplify(block), k, self.program.simplify(lane)]

    @property
    def padded(self) -> bool:
        """Whether the right-hand side has whole blocks, so that a ragged tile may compute whole vectors."""
        return self.p.packed or self.c.pack > 0

    # -- the kernel --------------------------------------------------------------------------------------------

    def build(self) -> Any:
        """The scheduled function."""
        c, nest = self.c, self.nest
        row_tasks, column_tasks = -(-self.rows.tiles // c.rb), -(-self.columns.tiles // c.cb)
        first = [*self.first]
        if c.pack == 2:
            first.append(self._pack_all())
        if c.stage == 2:
            first.append(self._stage_all())

        def task(t: Any) -> Any:
            total = row_tasks * column_tasks
            b = nest.alias("batch", tirx.floordiv(t, index(total)), self.p.batch) if self.p.batch > 1 else index(0)
            within = tirx.floormod(t, index(total)) if self.p.batch > 1 else t
            down = nest.alias("down", tirx.floordiv(within, index(column_tasks)), row_tasks)
            across = nest.alias("across", tirx.floormod(within, index(column_tasks)), column_tasks)
            return self._task(b, down * index(c.rb), across * index(c.cb))

        body = nest.parallel("task", self.p.batch * row_tasks * column_tasks, task, c.parallel)
        return finish(self.program, nest.resolve(sequence(first, body)))

    def _task(self, b: Any, row_tile: Any, column_tile: Any) -> Any:
        c, nest = self.c, self.nest
        parts: list[Any] = []
        all_packed, all_staged = self.packed, self.staged
        if c.pack == 1:
            parts += self._pack(b, column_tile)
        elif c.pack == 2:
            self.packed_from = index(0) - b * index(self.blocks)
        if c.stage == 1:
            parts += self._stage(b, row_tile)
        elif c.stage == 2:
            self.staged_from = index(0) - b * index(self.p.rows)
        if self.p.along_rows:
            parts.append(self._rows(b, row_tile))
        else:

            def tile(row: Any, rows: int, column: Any, columns: int) -> Any:
                width = index(self.columns.size)
                return self._tile(Tile(b, row * index(c.mt), rows, column * width, columns))

            def rows_inside(column: Any, columns: int) -> Any:
                return nest.tiles(row_tile, c.rb, self.rows, lambda row, n: tile(row, n, column, columns))

            def columns_inside(row: Any, rows: int) -> Any:
                return nest.tiles(column_tile, c.cb, self.columns, lambda column, n: tile(row, rows, column, n))

            if c.order:
                parts.append(nest.tiles(row_tile, c.rb, self.rows, columns_inside))
            else:
                parts.append(nest.tiles(column_tile, c.cb, self.columns, rows_inside))
        self.packed, self.staged = all_packed, all_staged
        return sequence(parts)

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

    @property
    def blocks(self) -> int:
        """Blocks of columns of the right-hand side."""
        return -(-self.p.columns // self.block)

    def _accumulate(self, tile: Tile) -> tuple[Any, list[Any]]:
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
        return acc, [allocate(acc), *clear, nest.loop("k", self.p.depth, multiply_add)]

    def _tile(self, tile: Tile) -> Any:
        """One register tile, and what follows applied to it."""
        acc, parts = self._accumulate(tile)
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

    def _rows(self, b: Any, row_tile: Any) -> Any:
        """Tiles of rows with all their columns; then what follows, row by row."""
        c, nest, anchor = self.c, self.nest, self.anchor
        total = self.p.batch * self.p.rows
        nests = RowNests(nest, self.kept, total, 1, 1, self.lanes, 4)
        if nests.shared:
            raise ScheduleError("a stage after the product does not split into its rows")
        result = None if anchor.output else nest.buffer("result", (c.mt, self.p.columns))
        parts: list[Any] = [] if result is None else [allocate(result)]
        parts += nests.allocations(self.kept)

        def rows(tile: Any, count: int) -> Any:
            row0 = tile * index(c.mt)

            def columns(column: Any, width: int) -> Any:
                here = Tile(b, row0, count, column * index(self.columns.size), width)
                acc, steps = self._accumulate(here)
                for i in range(count):
                    for piece in pieces(width, self.lanes):
                        steps.append(self._keep(here, acc, result, i, piece))
                return sequence(steps)

            def one(i: Any) -> Any:
                row = nest.alias("row", b * index(self.p.rows) + row0 + i, total)
                outside = {**self.homes, anchor.buffer: self._row_home(row, i, result)}
                return nests.row(Strip(row, index(0), 1), self.kept, outside)

            return sequence(nest.tiles(index(0), self.columns.tiles, self.columns, columns), nest.loop("r", count, one))

        parts.append(nest.tiles(row_tile, c.rb, self.rows, rows))
        return sequence(parts)

    def _keep(self, tile: Tile, acc: Any, result: Any, i: int, piece: Piece) -> Any:
        def one(lane: Any) -> Any:
            value = acc[index(i), index(piece.start) + lane]
            column = self._column(tile, piece.start, lane)
            if result is None:
                at = self.at(tile.b, tile.row0 + index(i), column)
                return store(self.anchor.buffer, value, [self.program.simplify(x) for x in at])
            return store(result, value, [index(i), column])

        return self.nest.vector(piece.lanes, one)

    def _row_home(self, row: Any, i: Any, result: Any) -> Home:
        def read(at: Sequence[Any]) -> Any | None:
            if not self.program.same(ravel(at[:-1], self.anchor.shape[:-1]), row):
                return None
            if result is None:
                return tirx.BufferLoad(self.anchor.buffer, [self.program.simplify(x) for x in at])
            return result[i, self.program.simplify(at[-1])]

        return read

    # -- packing and staging -----------------------------------------------------------------------------------

    def _pack_blocks(self, buffer: Any, b: Any, block: Any, to: Any) -> Any:
        """One block of columns of the right-hand side, its missing columns zero."""
        nest, size, p = self.nest, self.block, self.p
        zero = tirx.const(0.0, "float32")
        cut = Cut(p.columns, size)

        def part(number: Any, columns: int) -> Any:
            def line(k: Any) -> Any:
                def copy(lane: Any) -> Any:
                    value = self.operand(self.right, b, index(0), number * index(size) + lane, k)
                    return store(buffer, value, [to, k, lane])

                def clear(lane: Any) -> Any:
                    return store(buffer, zero, [to, k, index(columns) + lane])

                return sequence(
                    nest.in_pieces(pieces(columns, self.lanes), copy),
                    nest.in_pieces(pieces(size - columns, self.lanes), clear),
                )

            return nest.loop("k", p.depth, line)

        if not cut.full:
            return part(index(0), cut.rest)
        if not cut.rest:
            return part(block, size)
        return tirx.IfThenElse(block < index(cut.full), part(block, size), part(index(cut.full), cut.rest))

    def _pack(self, b: Any, column_tile: Any) -> list[Any]:
        """The blocks of a task, in a buffer of its own."""
        nest, c = self.nest, self.c
        count = min(c.cb * c.jt, self.blocks)
        buffer = nest.buffer("packed", (count, self.p.depth, self.block))
        start = column_tile * index(c.jt)

        def one(j: Any) -> Any:
            block = nest.alias("block", start + j, -(-self.blocks // count) * count)
            made = self._pack_blocks(buffer, b, block, j)
            if self.blocks % count:
                return tirx.IfThenElse(block < index(self.blocks), made, None)
            return made

        self.packed, self.packed_from = buffer, start
        return [allocate(buffer), nest.loop("j", count, one)]

    def _pack_all(self) -> Any:
        """All blocks of all batches, before the product."""
        nest, p = self.nest, self.p
        buffer = nest.buffer("packed", (p.batch * self.blocks, p.depth, self.block))

        def one(j: Any) -> Any:
            b = nest.alias("batch", tirx.floordiv(j, index(self.blocks)), p.batch) if p.batch > 1 else index(0)
            block = nest.alias("block", tirx.floormod(j, index(self.blocks)), self.blocks)
            return self._pack_blocks(buffer, b, block, j)

        made = nest.parallel("pack", p.batch * self.blocks, one, self.c.parallel)
        self.packed, self.packed_from = buffer, index(0)
        return sequence(allocate(buffer), made)

    def _stage(self, b: Any, row_tile: Any) -> list[Any]:
        """The left-hand side's rows of a task, in a buffer of its own."""
        nest, c, p = self.nest, self.c, self.p
        buffer = nest.buffer("staged", (c.rb * c.mt, p.depth))
        base = row_tile * index(c.mt)

        def tile(number: Any, rows: int) -> Any:
            def line(i: Any) -> Any:
                row = number * index(c.mt) + i

                def one(k: Any) -> Any:
                    return store(
                        buffer, self.operand(self.left, b, row, index(0), k), [self.program.simplify(row - base), k]
                    )

                return nest.lanes_over(p.depth, self.lanes, one)

            return nest.loop("i", rows, line)

        made = nest.tiles(row_tile, c.rb, self.rows, tile)
        self.staged, self.staged_from = buffer, base
        return [allocate(buffer), made]

    def _stage_all(self) -> Any:
        """The whole left-hand side, before the product."""
        nest, p = self.nest, self.p
        buffer = nest.buffer("staged", (p.batch * p.rows, p.depth))

        def line(t: Any) -> Any:
            b = nest.alias("batch", tirx.floordiv(t, index(p.rows)), p.batch) if p.batch > 1 else index(0)
            row = nest.alias("row", tirx.floormod(t, index(p.rows)), p.rows)
            return nest.lanes_over(
                p.depth, self.lanes, lambda k: store(buffer, self.operand(self.left, b, row, index(0), k), [t, k])
            )

        made = nest.parallel("stage", p.batch * p.rows, line, self.c.parallel)
        self.staged = buffer
        return sequence(allocate(buffer), made)
