"""The operands of a matrix product: their elements, put in blocks (packed) or computed ahead (staged) for a task.

`MatmulNests` builds the kernel on top of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import Cut, Nest, allocate, pieces, sequence, store
from autofuse.schedule.cpu.product import Product
from autofuse.schedule.stages import Home, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.cpu.matmul import MatmulConfiguration


class OperandNests:
    """The product's stage, its two operands, and the nests that pack and stage them."""

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
        self.homes: dict[Any, Home] = {}
        self.packed: Any = None
        self.packed_from: Any = index(0)
        self.staged: Any = None
        self.staged_from: Any = index(0)

    @property
    def blocks(self) -> int:
        """Blocks of columns of the right-hand side."""
        return -(-self.p.columns // self.block)

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

    def pack(self, b: Any, column_tile: Any) -> list[Any]:
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

    def pack_all(self) -> Any:
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

    def stage(self, b: Any, row_tile: Any) -> list[Any]:
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

    def stage_all(self) -> Any:
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
