"""The kernel of attention on a GPU: takes the fused function and a configuration, gives one nest over workgroups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.attention_parts import Attention
from autofuse.schedule.cpu.attention_stages import AttentionStages, shape_of
from autofuse.schedule.cpu.loops import sequence, store
from autofuse.schedule.cpu.matmul_nests import followers
from autofuse.schedule.gpu.attention import TOGETHER, pitch
from autofuse.schedule.gpu.grid import Grid
from autofuse.schedule.gpu.shape import ceil_div
from autofuse.schedule.stages import Home, combine, finish, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.gpu.attention import GpuAttentionConfig

# Keys whose values are added up in one piece of code.
_UNROLLED = 4


def build(func: Any, attention: Attention, config: GpuAttentionConfig) -> Any:
    """See the module's description. ScheduleError where the function has another form than its group."""
    return _Kernel(func, attention, config).build()


class _Kernel(AttentionStages):
    """State while the statements of one kernel are made."""

    def __init__(self, func: Any, attention: Attention, config: GpuAttentionConfig) -> None:
        after = self.find(lift(func))
        self.a, self.config = attention, config
        self.grid = Grid(self.program)
        self.followers = followers(self.program, self.anchor, after)
        self.outputs = [s for s in self.program.stages if s.output]
        if any(s.buffer not in self.followers for s in self.outputs):
            raise ScheduleError("a result does not depend on the second product")

    def build(self) -> Any:
        """The scheduled function."""
        workgroups = self.a.batch * ceil_div(self.a.queries, self.config.rows)
        kernel = self.grid.kernel(workgroups, self.config.threads, self._workgroup)
        return finish(self.program, self.grid.resolve(kernel))

    def _workgroup(self, block: Any, thread: Any) -> Any:
        grid, a, config = self.grid, self.a, self.config
        tiles = ceil_div(a.queries, config.rows)
        self.block, self.thread = block, thread
        self.batch = grid.alias("batch", tirx.floordiv(block, index(tiles)), a.batch)
        self.tile = grid.alias("tile", tirx.floormod(block, index(tiles)), tiles)
        self.queries = grid.lds("queries", (a.depth, config.rows))
        # Weights have a place of their own: TVM would put a barrier between a score that is read and its weight.
        self.scores = grid.lds("scores", (config.rows, pitch(a.keys)))
        self.weights = grid.lds("weights", (config.rows, pitch(a.keys)))
        self.partial = (grid.lds("partial", (config.threads,)), grid.lds("partial", (config.threads,)))
        self.shares = grid.lds("share", (config.rows,))
        return sequence(
            self._bring(), grid.barrier(), self._score(), grid.barrier(), self._weigh(), grid.barrier(), self._add()
        )

    def _query(self, row: Any) -> Any:
        """The query of a row of the tile; rows past the last query repeat it and are not stored."""
        a, rows = self.a, self.config.rows
        query = self.tile * index(rows) + row
        if a.queries % rows == 0:
            return query
        return self.grid.alias("query", tirx.min(query, index(a.queries - 1)), a.queries)

    def _each(self, count: int, body: Callable[[Any], Any]) -> Any:
        """body(number) for all numbers below `count`, the threads' in turn."""
        grid, threads = self.grid, self.config.threads
        slots = ceil_div(count, threads)

        def one(slot: Any) -> Any:
            linear = slot * index(threads) + self.thread
            number = grid.alias("number", linear, count)
            return grid.guarded(linear, count, slots * threads, lambda: body(number))

        return grid.loop("slot", slots, one)

    # -- scores ------------------------------------------------------------------------------------------------

    def _bring(self) -> Any:
        """The queries to LDS, [depth, rows]."""
        a, grid, rows = self.a, self.grid, self.config.rows

        def one(number: Any) -> Any:
            row = grid.alias("row", tirx.floordiv(number, index(a.depth)), rows)
            k = grid.alias("k", tirx.floormod(number, index(a.depth)), a.depth)
            value = self.element(self.scored, self.scored.value.a, self.batch, self._query(row), index(0), k)
            return store(self.queries, value, [k, row])

        return self._each(a.depth * rows, one)

    def _score(self) -> Any:
        """The scores of the tile: a thread takes TOGETHER queries and every so many-th key."""
        a, grid, config = self.a, self.grid, self.config
        across = config.threads * TOGETHER // config.rows
        first = grid.alias("first", tirx.floordiv(self.thread, index(across)), config.rows // TOGETHER)
        own = grid.alias("own", tirx.floormod(self.thread, index(across)), across)
        steps = ceil_div(a.keys, across)
        wide = next(w for w in (4, 2, 1) if a.depth % w == 0)
        acc, part = grid.private("acc", (TOGETHER,)), grid.private("part", (TOGETHER,))
        key_part = grid.private("key", (wide,))
        final = self.program.by_buffer[self.score]

        def step(s: Any) -> Any:
            linear = s * index(across) + own
            key = grid.alias("key", linear, a.keys)
            return grid.guarded(linear, a.keys, steps * across, lambda: one(key))

        def one(key: Any) -> Any:
            def piece(p: Any) -> Any:
                def fetch(lane: Any) -> Any:
                    k = p * index(wide) + lane
                    value = self.element(self.scored, self.scored.value.b, self.batch, index(0), key, k)
                    return store(key_part, value, [lane])

                def multiply(k: Any) -> Any:
                    row = first * index(TOGETHER)
                    load = grid.vector(
                        TOGETHER,
                        lambda lane: store(part, self.queries[p * index(wide) + k, row + lane], [lane]),
                    )
                    add = grid.unroll(TOGETHER, lambda i: store(acc, acc[i] + part[i] * key_part[k], [i]))
                    return sequence(load, add)

                return sequence(grid.vector(wide, fetch), grid.unroll(wide, multiply))

            def keep(i: int) -> Any:
                row = first * index(TOGETHER) + index(i)
                want = (self.batch, self._query(row), key)
                if final is self.scored:
                    value = acc[index(i)]
                else:
                    at = self.place(final.shape, *want)
                    home = self.held(shape_of(self.scored.buffer), want, acc, (index(i),))
                    value = self.program.value(final, at, [], {self.scored.buffer: home})
                return store(self.scores, value, [row, key])

            clear = grid.unroll(TOGETHER, lambda i: store(acc, self.scored.identity, [i]))
            return sequence(clear, grid.rolled("k", a.depth // wide, self.block, piece), grid.unrolled(TOGETHER, keep))

        return grid.loop("step", steps, step)

    # -- softmax -----------------------------------------------------------------------------------------------

    def _weigh(self) -> Any:
        """Exponentials of the scores, and for each query one over their sum."""
        a, grid, config = self.a, self.grid, self.config
        sharing = config.sharing
        row = grid.alias("row", tirx.floordiv(self.thread, index(sharing)), config.rows)
        part = grid.alias("part", tirx.floormod(self.thread, index(sharing)), sharing)
        query = self._query(row)
        steps = ceil_div(a.keys, sharing)
        peak, total, own = grid.private("peak", (1,)), grid.private("total", (1,)), grid.private("own", (1,))
        zero = index(0)

        def over(body: Callable[[Any], Any]) -> Any:
            def step(s: Any) -> Any:
                linear = s * index(sharing) + part
                key = grid.alias("key", linear, a.keys)
                return grid.guarded(linear, a.keys, steps * sharing, lambda: body(key))

            return grid.loop("step", steps, step)

        def highest(key: Any) -> Any:
            return store(peak, tirx.max(peak[zero], self.scores[row, key]), [zero])

        def weigh(key: Any) -> Any:
            homes: dict[Any, Home] = {
                self.score: self.held(shape_of(self.score), (self.batch, query, key), self.scores, (row, key)),
                self.peak.buffer: self.held(self.peak.shape, (self.batch, query), peak, (zero,)),
            }
            at = self.place(self.exponent.shape, self.batch, query, key)
            value = self.program.value(self.exponent, at, [], homes)
            return sequence(
                store(own, value, [zero]), store(self.weights, own[zero], [row, key]),
                store(total, total[zero] + own[zero], [zero]),
            )  # fmt: skip

        def together(how: str, buffer: Any, value: Any) -> Any:
            """Statements that combine the sharing threads' values into all of their registers."""
            if sharing == 1:
                return None
            base = row * index(sharing)
            values = [buffer[base + index(p)] for p in range(sharing)]
            while len(values) > 1:
                values = [combine(how, x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
            return sequence(store(buffer, value[zero], [self.thread]), grid.barrier(), store(value, values[0], [zero]))

        share = store(self.shares, tirx.const(1.0, "float32") / total[zero], [row])
        return sequence(
            store(peak, self.peak.identity, [zero]), over(highest), together("max", self.partial[0], peak),
            store(total, self.total.identity, [zero]), over(weigh), together("add", self.partial[1], total),
            tirx.IfThenElse(part < index(1), share, None) if sharing > 1 else share,
        )  # fmt: skip

    # -- values ------------------------------------------------------------------------------------------------

    def _add(self) -> Any:
        """The values by their weights, and what follows: a thread takes a vector of one query's results."""
        a, grid, config = self.a, self.grid, self.config
        wide = next(w for w in (4, 2, 1) if a.width % w == 0)
        columns = a.width // wide
        together = next(n for n in (_UNROLLED, 2, 1) if a.keys % n == 0)
        acc, part = grid.private("sum", (wide,)), grid.private("value", (wide,))

        def one(number: Any) -> Any:
            row = grid.alias("row", tirx.floordiv(number, index(columns)), config.rows)
            column = grid.alias("column", tirx.floormod(number, index(columns)), columns)

            def add(key: Any) -> Any:
                def fetch(lane: Any) -> Any:
                    at = column * index(wide) + lane
                    value = self.element(self.anchor, self.anchor.value.b, self.batch, index(0), at, key)
                    return store(part, value, [lane])

                def multiply(lane: Any) -> Any:
                    return store(acc, acc[lane] + self.weights[row, key] * part[lane], [lane])

                return sequence(grid.vector(wide, fetch), grid.vector(wide, multiply))

            def several(k: Any) -> Any:
                return grid.unroll(together, lambda i: add(k * index(together) + i))

            clear = grid.vector(wide, lambda lane: store(acc, self.anchor.identity, [lane]))
            scale = grid.vector(wide, lambda lane: store(acc, acc[lane] * self.shares[row], [lane]))
            query = self.tile * index(config.rows) + row
            tiles = ceil_div(a.queries, config.rows)
            results = grid.guarded(
                query, a.queries, tiles * config.rows,
                lambda: grid.vector(wide, lambda lane: self._results(query, column * index(wide) + lane, acc, lane)),
            )  # fmt: skip
            return sequence(clear, grid.rolled("key", a.keys // together, self.block, several), scale, results)

        return self._each(config.rows * columns, one)

    def _results(self, query: Any, column: Any, acc: Any, lane: Any) -> Any:
        """All results at one place of the second product."""
        shape = self.anchor.shape
        here = [*unravel(self.batch, shape[:-2]), query, column]
        home = self.held(shape, (self.batch, query, column), acc, (lane,))
        parts = []
        for output in self.outputs:
            at = self.followers[output.buffer].target(here)
            homes = {self.anchor.buffer: home}
            value = acc[lane] if output is self.anchor else self.program.value(output, at, [], homes)
            parts.append(store(output.buffer, value, self.program.address(output.buffer, at)))
        return sequence(*parts)
