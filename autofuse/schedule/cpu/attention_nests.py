"""The loop nests of attention: scores with queries in the vector lanes, their softmax, and the values they weigh.

Takes the fused function and a configuration, gives the scheduled function; see `attention` for the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule.cpu.attention_parts import Attention, turned
from autofuse.schedule.cpu.attention_stages import AttentionStages, shape_of
from autofuse.schedule.cpu.loops import Cut, Nest, allocate, pieces, sequence, store
from autofuse.schedule.cpu.matmul_nests import Fetch, MatmulNests, Tile, followers
from autofuse.schedule.stages import Home, Stage, finish, index, lift, ravel, unravel

if TYPE_CHECKING:
    from autofuse.schedule.cpu.attention import AttentionConfiguration

# Elements of a mask from which on several threads turn it.
_SERIAL_ELEMENTS = 16_384


class AttentionNests(AttentionStages, MatmulNests):
    """Builds the kernel of one attention.

    The second product's tiles, and what follows them, are those of a matrix product; its left-hand side is what a task
    left in `weights`: for each key a row of queries.
    """

    def __init__(self, func: Any, attention: Attention, config: AttentionConfiguration, lanes: int) -> None:
        # Not the constructor of a single product: there are two.
        self.program = lift(func)
        self.nest = Nest(self.program)
        self.a, self.config, self.lanes = attention, config, lanes
        self.p = attention.values
        after = self.find(self.program)
        self.kept = self.program.kept(after)
        self.followers = followers(self.program, self.anchor, after)
        self.homes: dict[Any, Home] = {}
        self.columns = Cut(attention.width, config.dt * lanes)
        self.weights: Any = None
        self.shares: Any = None
        self.packed: Any = None
        self.query0: Any = index(0)
        self.turned: dict[Any, Home] = {}

    # -- masks -------------------------------------------------------------------------------------------------

    def _turn_masks(self) -> list[Any]:
        """What several heads read beside their scores, as [keys, queries]: vectors of queries then lie together."""
        nest, a = self.nest, self.a
        parts: list[Any] = []
        for mask in self._beside():
            shape = shape_of(mask)
            heads = prod(shape[:-2])
            if min(a.queries, a.keys) == 1 or shape[-2:] != (a.queries, a.keys) or not turned(heads, a.batch):
                continue
            buffer = nest.buffer("turned", (heads, a.keys, a.queries), str(mask.dtype))

            def line(t: Any, mask: Any = mask, buffer: Any = buffer, shape: Sequence[int] = shape) -> Any:
                head, key = tirx.floordiv(t, index(a.keys)), tirx.floormod(t, index(a.keys))

                def one(query: Any) -> Any:
                    value = tirx.BufferLoad(mask, [*unravel(head, shape[:-2]), query, key])
                    return store(buffer, value, [head, key, query])

                return nest.lanes_over(a.queries, self.lanes, one)

            def read(at: Sequence[Any], buffer: Any = buffer, shape: Sequence[int] = shape) -> Any:
                head = self.program.simplify(ravel(at[:-2], shape[:-2]))
                return buffer[head, self.program.simplify(at[-1]), self.program.simplify(at[-2])]

            wanted = self.config.parallel and heads * a.keys * a.queries > _SERIAL_ELEMENTS
            parts += [allocate(buffer), nest.parallel("key", heads * a.keys, line, int(wanted))]
            self.turned[mask] = read
        return parts

    def _beside(self) -> list[Any]:
        """The parameters that are read beside the scores."""
        todo = [load.source for stage in self.before for load in stage.loads]
        seen: dict[Any, None] = {}
        while todo:
            buffer = todo.pop()
            if buffer not in seen and not buffer.same_as(self.scored.buffer):
                seen[buffer] = None
                stage = self.program.by_buffer.get(buffer)
                todo.extend(load.source for load in (stage.loads if stage is not None else ()))
        return [buffer for buffer in seen if buffer not in self.program.by_buffer]

    # -- the kernel --------------------------------------------------------------------------------------------

    def build(self) -> Any:
        """The scheduled function."""
        nest, c, a = self.nest, self.config, self.a
        blocks = Cut(a.queries, c.lq)
        groups = -(-blocks.tiles // c.qb)

        def task(t: Any) -> Any:
            b = nest.alias("batch", tirx.floordiv(t, index(groups)), a.batch) if a.batch > 1 else index(0)
            group = nest.alias("group", tirx.floormod(t, index(groups)), groups) if groups > 1 else index(0)
            values, panel = self._pack_values(b)
            keys, staged = self._stage_keys(b) if c.stage else ([], None)
            self.packed = panel
            width = -(-min(c.lq, a.queries) // self.lanes) * self.lanes
            queries = nest.buffer("queries", (a.depth, width))
            self.weights = nest.buffer("weights", (a.keys, width))

            def block(number: Any, count: int) -> Any:
                return self._block(b, number * index(c.lq), count, queries, staged)

            rows = nest.tiles(group * index(c.qb), c.qb, blocks, block)
            return sequence(values, keys, allocate(queries), allocate(self.weights), rows)

        masks = self._turn_masks()
        body = nest.parallel("task", a.batch * groups, task, c.parallel)
        return finish(self.program, nest.resolve(sequence(masks, body)))

    def _pack_values(self, b: Any) -> tuple[list[Any], Any]:
        """The values of one batch in panels of whole vectors, `dt` vectors wide."""
        nest, a, size = self.nest, self.a, self.columns.size
        panel = nest.buffer("values", (self.columns.tiles, a.keys, size))
        zero = tirx.const(0.0, "float32")
        padding = -a.width % self.lanes

        def line(key: Any) -> Any:
            def at(column: int, lane: Any) -> list[Any]:
                return [index(column // size), key, index(column % size) + lane]

            parts = []
            for piece in pieces(a.width, self.lanes):

                def copy(lane: Any, start: int = piece.start) -> Any:
                    value = self.element(self.anchor, self.anchor.value.b, b, index(0), index(start) + lane, key)
                    return store(panel, value, at(start, lane))

                parts.append(nest.vector(piece.lanes, copy))
            parts += nest.in_pieces(pieces(padding, self.lanes), lambda i: store(panel, zero, at(a.width, i)))
            return sequence(parts)

        return [allocate(panel), nest.loop("key", a.keys, line)], panel

    def _stage_keys(self, b: Any) -> tuple[list[Any], Any]:
        """The keys of one batch, each a row."""
        nest, a = self.nest, self.a
        staged = nest.buffer("keys", (a.keys, a.depth))

        def line(key: Any) -> Any:
            def copy(k: Any) -> Any:
                return store(staged, self.element(self.scored, self.scored.value.b, b, index(0), key, k), [key, k])

            return nest.lanes_over(a.depth, self.lanes, copy)

        return [allocate(staged), nest.loop("key", a.keys, line)], staged

    def _block(self, b: Any, query0: Any, count: int, queries: Any, staged: Any) -> Any:
        """All of `count` queries from `query0` on. Lanes that have no query repeat the last one."""
        nest, a, c = self.nest, self.a, self.config
        width = -(-count // self.lanes) * self.lanes
        vectors = pieces(width, self.lanes)

        def query(lane: Any) -> Any:
            here = query0 + lane
            return here if count == width else tirx.min(here, index(a.queries - 1))

        def fetch(k: Any) -> Any:
            def one(lane: Any) -> Any:
                value = self.element(self.scored, self.scored.value.a, b, query(lane), index(0), k)
                return store(queries, value, [k, lane])

            return sequence(nest.in_pieces(vectors, one))

        peak, total = nest.registers("peak", (width,)), nest.registers("total", (width,))
        self.shares = nest.registers("share", (width,))
        lowest = nest.in_pieces(vectors, lambda lane: store(peak, self.peak.identity, [lane]))
        # A narrow block has room for more keys in the registers.
        high = min(c.jt * c.lq // width, a.keys)
        keys = Cut(a.keys, max(1, high))

        def scores(number: Any, high: int) -> Any:
            return self._scores(b, query, number * index(keys.size), high, width, queries, staged, peak)

        def weigh(key: Any) -> Any:
            def one(lane: Any) -> Any:
                row = (b, query(lane))
                homes = {
                    self.score: self.held(shape_of(self.score), (*row, key), self.weights, (key, lane)),
                    self.peak.buffer: self.held(self.peak.shape, row, peak, (lane,)),
                }
                at = self.place(self.exponent.shape, b, query(lane), key)
                return store(self.weights, self.program.value(self.exponent, at, [], homes), [key, lane])

            def add(lane: Any) -> Any:
                return store(total, total[lane] + self.weights[key, lane], [lane])

            return sequence(nest.in_pieces(vectors, one), nest.in_pieces(vectors, add))

        one = tirx.const(1.0, "float32")
        nothing = nest.in_pieces(vectors, lambda lane: store(total, self.total.identity, [lane]))
        shares = nest.in_pieces(vectors, lambda lane: store(self.shares, one / total[lane], [lane]))
        self.query0 = query0
        rows = Cut(count, c.mt)
        size = index(self.columns.size)

        def panel(column: Any, wide: int) -> Any:
            def tile(number: Any, high: int) -> Any:
                return self._tile(Tile(b, query0 + number * index(c.mt), high, column * size, wide))

            return nest.tiles(index(0), rows.tiles, rows, tile)

        columns = self.columns
        weighed = [nest.loop("panel", columns.full, lambda p: panel(p, columns.size))] if columns.full else []
        if columns.rest:
            weighed.append(panel(index(columns.full), columns.rest))
        return sequence(
            allocate(peak), allocate(total), allocate(self.shares), lowest, nest.loop("k", a.depth, fetch),
            nest.tiles(index(0), keys.tiles, keys, scores), nothing, nest.loop("key", a.keys, weigh), shares, weighed,
        )  # fmt: skip

    # -- scores ------------------------------------------------------------------------------------------------

    def _scores(
        self, b: Any, query: Callable[[Any], Any], key0: Any, high: int, width: int, queries: Any, staged: Any,
        peak: Any,
    ) -> Any:  # fmt: skip
        """`high` keys times all queries of the block, and what stands between the product and the softmax."""
        nest, a = self.nest, self.a
        acc = nest.registers("acc", (high, width))
        vectors = pieces(width, self.lanes)

        def each(body: Callable[[int, Any], Any]) -> list[Any]:
            return [s for i in range(high) for s in nest.in_pieces(vectors, partial(body, i))]

        def multiply_add(k: Any) -> Any:
            def step(i: int, lane: Any) -> Any:
                key = key0 + index(i)
                if staged is None:
                    left = self.element(self.scored, self.scored.value.b, b, index(0), key, k)
                else:
                    left = staged[key, k]
                return store(acc, acc[index(i), lane] + left * queries[k, lane], [index(i), lane])

            return sequence(each(step))

        kept = [s for s in self.program.kept(self.before) if not s.buffer.same_as(self.score)]
        local: dict[Any, Any] = {self.scored.buffer: acc}
        parts: list[Any] = []
        for stage in kept:
            local[stage.buffer] = nest.registers(stage.name, (high, width), str(stage.buffer.dtype))
            parts.append(allocate(local[stage.buffer]))
        final = self.program.by_buffer[self.score]

        def homes(i: int, lane: Any) -> dict[Any, Home]:
            want = (b, query(lane), key0 + index(i))
            return {s: self.held(shape_of(s), want, kept_in, (index(i), lane)) for s, kept_in in local.items()}

        def value(stage: Stage, i: int, lane: Any) -> Any:
            if stage is self.scored:
                return acc[index(i), lane]
            at = self.place(stage.shape, b, query(lane), key0 + index(i))
            return self.program.value(stage, at, [], {**self.turned, **homes(i, lane)})

        def keep(stage: Stage, i: int, lane: Any) -> Any:
            return store(local[stage.buffer], value(stage, i, lane), [index(i), lane])

        for stage in kept:
            parts += each(partial(keep, stage))
        parts += each(lambda i, lane: store(self.weights, value(final, i, lane), [key0 + index(i), lane]))
        parts += each(lambda i, lane: store(peak, tirx.max(peak[lane], self.weights[key0 + index(i), lane]), [lane]))
        clear = each(lambda i, lane: store(acc, tirx.const(0.0, "float32"), [index(i), lane]))
        return sequence(allocate(acc), clear, nest.loop("k", a.depth, multiply_add), parts)

    # -- values ------------------------------------------------------------------------------------------------

    def _column(self, tile: Tile, start: int, lane: Any) -> Any:
        """The column `start + lane` of a tile, in a form in which its vector is seen to lie inside one head."""
        first = self.program.simplify(tile.column0)
        if isinstance(first, tirx.IntImm):
            return index(int(first) + start) + lane
        vectors = self.columns.full * self.columns.size // self.lanes
        number = self.nest.alias("vector", tirx.floordiv(first + index(start), index(self.lanes)), vectors)
        return number * index(self.lanes) + lane

    def _accumulate(self, tile: Tile, ahead: Fetch | None = None) -> tuple[Any, list[Any]]:
        """The registers of a tile of the second product and the statements that fill them."""
        nest, size = self.nest, self.columns.size
        width = -(-tile.columns // self.lanes) * self.lanes
        vectors = pieces(width, self.lanes)
        acc = nest.registers("acc", (tile.rows, width))
        simplify = self.program.simplify
        panel = simplify(tirx.floordiv(tile.column0, index(size)))
        first = simplify(tile.row0 - self.query0)

        def each(body: Callable[[int, Any], Any]) -> list[Any]:
            return [s for i in range(tile.rows) for s in nest.in_pieces(vectors, partial(body, i))]

        def multiply_add(key: Any) -> Any:
            def step(i: int, lane: Any) -> Any:
                left = self.weights[key, first + index(i)]
                return store(acc, acc[index(i), lane] + left * self.packed[panel, key, lane], [index(i), lane])

            return sequence(each(step))

        clear = each(lambda i, lane: store(acc, tirx.const(0.0, "float32"), [index(i), lane]))
        divide = each(lambda i, lane: store(acc, acc[index(i), lane] * self.shares[first + index(i)], [index(i), lane]))
        return acc, [allocate(acc), *clear, nest.loop("key", self.a.keys, multiply_add), *divide]
