"""The loop nests of a pointwise convolution and the depthwise one behind it; see `pointwise_depthwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from autofuse.schedule.cpu.loops import Cut, allocate, sequence, store
from autofuse.schedule.cpu.pair_nests import PairNests
from autofuse.schedule.cpu.window_nests import product
from autofuse.schedule.stages import index


class PointwiseDepthwiseNests(PairNests):
    """Builds the kernel of one pair."""

    def build(self) -> Any:
        """The scheduled function."""
        nest, c = self.nest, self.c

        def task(n: Any, row0: Any, share: Any) -> Any:
            ring = self.ring(c.nb)
            staged, made = self._staged(n, row0) if c.pad else (None, [])

            def channels(k: Any, blocks: int) -> Any:
                block = k * index(c.nb)

                def fill(y: Any, slot: Any) -> Any:
                    return self._expand(n, block, blocks, y, slot, ring, staged, row0)

                def result(r: Any, place: Callable[[Any], Any]) -> Any:
                    return nest.loop("b", blocks, lambda b: self._row(n, block, b, row0 + r, ring, place))

                return self.stream(ring, blocks, row0, c.hb, fill, result)

            tiles = nest.tiles(share * index(c.cob), c.cob, self.channels, channels)
            return sequence(made, allocate(ring), self.clear_edges(ring, c.nb), tiles)

        return self.by_tasks(task)

    def _staged(self, n: Any, row0: Any) -> tuple[Any, list[Any]]:
        """The rows of data that a task reads, computed: [blocks, rows, columns, lanes]."""
        nest, layer, lanes = self.nest, self.layer, self.lanes
        first, last = self.span
        rows, columns = layer.rows(self.c.hb), last - first
        staged = nest.buffer("staged", (self.pair.inputs, rows, columns, lanes))

        def row(b: Any, g: Any) -> Any:
            y = self.program.simplify(row0 * index(layer.strides[0]) + g - index(layer.top))

            def copy(x: Any) -> Any:
                def one(lane: Any) -> Any:
                    value = self.program.load(self.source.data, [n, b, y, x, lane], self.source.homes)
                    return store(staged, value, [b, g, x, lane])

                return nest.vector(lanes, one)

            made = nest.loop("x", columns, copy)
            bound = self.program.analyzer.const_int_bound(y)
            if int(bound.min_value) >= 0 and int(bound.max_value) < layer.height:
                return made
            return tirx.IfThenElse(tirx.all(y >= index(0), y < index(layer.height)), made, None)

        fill = nest.loop("b", self.pair.inputs, lambda b: nest.loop("g", rows, lambda g: row(b, g)))
        return staged, [allocate(staged), fill]

    def _expand(
        self, n: Any, block: Any, blocks: int, y: Any, slot: Any, ring: Any, staged: Any, row0: Any
    ) -> Any:  # fmt: skip
        """A row of pointwise results of some blocks, with what follows them, into its place in the ring."""
        nest, layer, c = self.nest, self.layer, self.c
        first, last = self.span
        cut = Cut(last - first, c.mt)

        def tile(number: Any, count: int) -> Any:
            x0 = number * index(c.mt)

            def read(i: int, co: Any, ci: Any) -> Any:
                if staged is not None:
                    g = self.program.simplify(y + index(layer.top) - row0 * index(layer.strides[0]))
                    return staged[co, g, x0 + index(i), ci]
                return self.program.load(self.source.data, [n, co, y, x0 + index(i), ci], {})

            def done(i: int, j: int, acc: Any, at: Any) -> Any:
                x = x0 + index(i)

                def hand(lane: Any, value: Any) -> Any:
                    return store(ring, value, [index(j), slot, index(first) + x, lane])

                return self.between.follow([n, block + index(j), y, x], acc, at, hand)

            return product(nest, self.lanes, self.weights[0], (block, blocks), self.pair.inputs, count, read, done)

        return nest.tiles(index(0), cut.tiles, cut, tile)

    def _row(self, n: Any, block: Any, b: Any, y: Any, ring: Any, place: Callable[[Any], Any]) -> Any:
        """A row of depthwise results, with what follows them."""

        def done(x: Any, acc: Any, at: Any) -> Any:
            return self.behind.follow([n, block + b, y, x], acc, at)

        return self.row_from_ring(ring, b, self.weights[1], block + b, self.c.ct, place, done)
