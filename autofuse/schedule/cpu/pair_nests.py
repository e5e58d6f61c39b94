"""What kernels of two convolutions share: the stages of both, register tiles of either, rows that pass through a ring.

Takes the fused function of a `Pair`; gives statements. A ring holds the rows of data that a row of depthwise results
reads; each row of data takes the place of the one that is no longer needed, so that no row is made twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import SERIAL, Cut, Nest, allocate, sequence, store
from autofuse.schedule.cpu.row_nests import whole_stages
from autofuse.schedule.cpu.window_nests import Epilogue, Source, feeding
from autofuse.schedule.cpu.window_pair import Pair
from autofuse.schedule.stages import Program, finish, index, lift

if TYPE_CHECKING:
    from autofuse.schedule.cpu.pair_family import PairConfiguration

# Multiply-adds up to which the taps of a tile of columns are written out row by row.
_MOST_UNROLLED = 256

# Gives an element of data: tap row, tap column, column of the tile, lane.
Read = Callable[[Any, int, int, Any], Any]


class PairNests:
    """The two anchors, their operands and what stands around them; the kernel's tasks.

    Raises ScheduleError, which says `what` could not be scheduled, unless the configuration suits the layer.
    """

    def __init__(self, func: Any, pair: Pair, config: PairConfiguration, what: str) -> None:
        self.pair, self.layer, self.c = pair, pair.depthwise, config
        self.lanes = lanes = self.layer.lanes
        self.program: Program = lift(func)
        self.nest = Nest(self.program)
        program, inputs = self.program, pair.group.inputs
        anchors = []
        weights = []
        for window in (pair.first, pair.second):
            variant = str(window.anchor.attrs["variant"])
            anchors.append(program.with_role("dwconv" if variant == "depthwise" else "conv"))
            weights.append(program.params[inputs.index(window.weight.index)])
        one, two = anchors
        self.source = Source.of(self.nest, one, weights[0], lanes)
        second = Source.of(self.nest, two, weights[1], lanes)
        self.weights = weights
        handed = second.data
        leading = feeding(program, handed)
        between = [s for s in program.downstream(one) if s.buffer in leading]
        behind = program.downstream(two)
        placed = {one.buffer, two.buffer, *self.source.feeding, *(s.buffer for s in (*between, *behind))}
        rest = [s for s in program.stages if s.buffer not in placed and (s.role != "pad" or s.buffer in leading)]
        self.before, homes = whole_stages(self.nest, program.kept(rest), lanes)
        self.source.homes = homes
        self.between = Epilogue(self.nest, lanes, one, between, homes, handed)
        self.behind = Epilogue(self.nest, lanes, two, behind, homes)
        self.channels = Cut(pair.outputs, config.nb)
        suits = config.nb <= pair.outputs and config.cob <= self.channels.tiles and config.hb <= self.layer.oh
        if not suits or (config.pad != 1 and self.source.computed):
            raise ScheduleError(f"{what}: the tiles do not divide the layer")

    def by_tasks(self, task: Callable[[Any, Any, Any], Any]) -> Any:
        """The scheduled function. task: (image, first row of results, share of the channels) → statements."""
        nest, layer, c = self.nest, self.layer, self.c
        parts, shares = -(-layer.oh // c.hb), -(-self.channels.tiles // c.cob)

        def numbered(t: Any) -> Any:
            n = nest.alias("n", tirx.floordiv(t, index(parts * shares)), layer.n)
            part = nest.alias("part", tirx.floormod(tirx.floordiv(t, index(shares)), index(parts)), parts)
            share = nest.alias("share", tirx.floormod(t, index(shares)), shares)
            return task(n, self.rows_of(layer.oh, c.hb, part), share)

        body = nest.parallel("task", layer.n * parts * shares, numbered, c.parallel)
        return finish(self.program, nest.resolve(sequence(self.before, body)))

    # -- depthwise ---------------------------------------------------------------------------------------------

    def taps(
        self, weights: Any, block: Any, width: int, read: Read, done: Callable[[int, Any, Any], Any],
        seen: Callable[[int, int], bool] | None = None, guard: Callable[[Any], Any] | None = None,
    ) -> Any:  # fmt: skip
        """`width` columns of a row of depthwise results in registers.

        done: (column of the tile, buffer, where its vector starts there) → what is done with it. seen: whether a tap
        column meets data in a column of the tile; guard: the condition under which a tap row does.
        """
        nest, lanes, layer = self.nest, self.lanes, self.layer
        acc = nest.registers("acc", (width * lanes,))
        zero = tirx.const(0.0, "float32")

        def clear(j: int) -> Any:
            return nest.vector(lanes, lambda lane: store(acc, zero, [index(j * lanes) + lane]))

        def line(kh: Any) -> Any:
            def add(k: int, j: int) -> Any:
                def one(lane: Any) -> Any:
                    at = index(j * lanes) + lane
                    weight = tirx.BufferLoad(weights, [block, kh, index(k), lane])
                    return store(acc, acc[at] + read(kh, k, j, lane) * weight, [at])

                return nest.vector(lanes, one)

            made = [add(k, j) for k in range(layer.kw) for j in range(width) if seen is None or seen(k, j)]
            if not made:
                return None
            return sequence(*made) if guard is None else tirx.IfThenElse(guard(kh), sequence(*made), None)

        if guard is None and layer.taps * width <= _MOST_UNROLLED:
            main = [line(index(kh)) for kh in range(layer.kh)]
        else:
            kh = nest.variable("kh", layer.kh)
            inner = line(kh)
            main = [] if inner is None else [tirx.For(kh, index(0), index(layer.kh), SERIAL, inner)]
        last = [done(j, acc, index(j * lanes)) for j in range(width)]
        return sequence(allocate(acc), [clear(j) for j in range(width)], main, last)

    # -- rows through a ring -----------------------------------------------------------------------------------

    def ring(self, blocks: int) -> Any:
        """The buffer [blocks, rows, columns of padded data, lanes]."""
        return self.nest.buffer("ring", (blocks, self.layer.reach, self.layer.columns, self.lanes))

    @property
    def span(self) -> tuple[int, int]:
        """The columns of padded data that hold data: the first, and the one after the last."""
        layer = self.layer
        return min(layer.left, layer.columns), min(layer.left + layer.width, layer.columns)

    def clear_edges(self, ring: Any, blocks: int) -> Any:
        """Zeros in the columns that only pad; they stay there."""
        first, last = self.span
        clear = [self._clear(ring, 0, first), self._clear(ring, last, self.layer.columns)]
        if not any(c is not None for c in clear):
            return None
        nest, layer = self.nest, self.layer
        return nest.loop(
            "b", blocks, lambda b: nest.loop("r", layer.reach, lambda r: sequence(*[c(b, r) for c in clear if c]))
        )

    def _clear(self, ring: Any, start: int, stop: int) -> Callable[[Any, Any], Any] | None:
        if stop <= start:
            return None
        nest, zero = self.nest, tirx.const(0.0, "float32")

        def clear(b: Any, r: Any) -> Any:
            def one(x: Any) -> Any:
                return nest.vector(self.lanes, lambda lane: store(ring, zero, [b, r, index(start) + x, lane]))

            return nest.loop("x", stop - start, one)

        return clear

    def stream(
        self, ring: Any, blocks: int, row0: Any, count: int, fill: Callable[[Any, Any], Any],
        result: Callable[[Any, Any], Any],
    ) -> Any:  # fmt: skip
        """`count` rows of results from row0 on, each as soon as its rows of data are there.

        fill: (row of data, its place in the ring) → statements that make it for all blocks; result: (number of the row
        from row0 on, tap row → place in the ring) → statements.
        """
        nest, layer = self.nest, self.layer
        step, reach = layer.strides[0], layer.reach

        def row(g: Any) -> Any:
            slot = tirx.floormod(g, index(reach)) if reach > 1 else index(0)
            y = self.program.simplify(row0 * index(step) + g - index(layer.top))
            bound = self.program.analyzer.const_int_bound(y)
            made = fill(nest.alias("y", y, layer.height), slot)
            if int(bound.min_value) < 0 or int(bound.max_value) >= layer.height:
                clear = self._clear(ring, *self.span)
                assert clear is not None
                empty = nest.loop("b", blocks, lambda b: clear(b, slot))
                made = tirx.IfThenElse(tirx.all(y >= index(0), y < index(layer.height)), made, empty)
            past = g - index(reach - 1)
            r = nest.alias("r", tirx.floordiv(past, index(step)), count)

            def place(kh: Any) -> Any:
                if reach == 1:
                    return index(0)
                return tirx.floormod(r * index(step) + kh * index(layer.dilation[0]), index(reach))

            last = result(r, place)
            ready = [past >= index(0)] if reach > 1 else []
            if step > 1:
                ready.append(tirx.EQ(tirx.floormod(past, index(step)), index(0)))
            return sequence(made, tirx.IfThenElse(tirx.all(*ready), last, None) if ready else last)

        return nest.loop("g", layer.rows(count), row)

    def row_from_ring(
        self, ring: Any, b: Any, weights: Any, block: Any, size: int, place: Callable[[Any], Any],
        done: Callable[[Any, Any, Any], Any],
    ) -> Any:  # fmt: skip
        """A row of depthwise results of the ring's block `b` in tiles of `size` columns.

        done: (column, buffer, where its vector starts there) → what is done with it.
        """
        nest, layer = self.nest, self.layer

        def tile(number: Any, width: int) -> Any:
            x0 = number * index(size)

            def read(kh: Any, k: int, j: int, lane: Any) -> Any:
                column = (x0 + index(j)) * index(layer.strides[1]) + index(k * layer.dilation[1])
                return ring[b, place(kh), self.program.simplify(column), lane]

            return self.taps(weights, block, width, read, lambda j, acc, at: done(x0 + index(j), acc, at))

        return nest.tiles(index(0), Cut(layer.ow, size).tiles, Cut(layer.ow, size), tile)

    def rows_of(self, rows: int, each: int, part: Any) -> Any:
        """The first row of a part of `each` rows; the last part overlaps the one before it where they do not divide."""
        if rows % each == 0:
            return part * index(each)
        parts = -(-rows // each)
        start = tirx.min(part * index(each), index(rows - each))
        return self.nest.alias("row", start, rows - each + 1) if parts > 1 else index(0)
