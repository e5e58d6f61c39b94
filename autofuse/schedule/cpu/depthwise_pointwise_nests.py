"""The loop nests of a depthwise convolution and the pointwise one behind it; see `depthwise_pointwise`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule.cpu.loops import Cut, allocate, sequence, store
from autofuse.schedule.cpu.pair_nests import PairNests
from autofuse.schedule.cpu.window_nests import padded, product
from autofuse.schedule.cpu.window_pair import Pair
from autofuse.schedule.stages import index

if TYPE_CHECKING:
    from autofuse.schedule.cpu.pair_family import PairConfiguration


class DepthwisePointwiseNests(PairNests):
    """Builds the kernel of one pair."""

    def __init__(self, func: Any, pair: Pair, config: PairConfiguration, what: str) -> None:
        super().__init__(func, pair, config, what)
        self.places = Cut(config.hb * self.layer.ow, config.mt)

    def build(self) -> Any:
        """The scheduled function."""
        lanes = self.lanes

        def task(n: Any, row0: Any, share: Any) -> Any:
            between = self.nest.buffer("between", (self.layer.blocks, padded(self.places.extent, lanes), lanes))
            return sequence(
                allocate(between), self._depthwise(n, row0, between), self._pointwise(n, row0, share, between)
            )

        return self.by_tasks(task)

    # -- depthwise ---------------------------------------------------------------------------------------------

    def _depthwise(self, n: Any, row0: Any, between: Any) -> Any:
        """All channels of a task's rows, with what follows them, into the buffer."""
        nest, layer = self.nest, self.layer
        if self.c.pad == 0:
            return nest.loop(
                "c", layer.blocks,
                lambda b: nest.loop("r", self.c.hb, lambda r: self._row(n, b, row0, r, between)),
            )  # fmt: skip
        ring = self.ring(1)
        first, last = self.span

        def channels(b: Any) -> Any:
            def fill(y: Any, slot: Any) -> Any:
                def copy(x: Any) -> Any:
                    def one(lane: Any) -> Any:
                        value = self.program.load(self.source.data, [n, b, y, x, lane], self.source.homes)
                        return store(ring, value, [index(0), slot, index(first) + x, lane])

                    return nest.vector(self.lanes, one)

                return nest.loop("x", last - first, copy)

            def result(r: Any, place: Callable[[Any], Any]) -> Any:
                keep = self._keep(n, b, row0, r, between)
                return self.row_from_ring(ring, index(0), self.weights[0], b, self.c.ct, place, keep)

            return self.stream(ring, 1, row0, self.c.hb, fill, result)

        return sequence(allocate(ring), self.clear_edges(ring, 1), nest.loop("c", layer.blocks, channels))

    def _keep(self, n: Any, b: Any, row0: Any, r: Any, between: Any) -> Callable[[Any, Any, Any], Any]:
        """What is done with a vector of depthwise results."""

        def done(x: Any, acc: Any, at: Any) -> Any:
            place = self.program.simplify(r * index(self.layer.ow) + x)

            def hand(lane: Any, value: Any) -> Any:
                return store(between, value, [b, place, lane])

            return self.between.follow([n, b, row0 + r, x], acc, at, hand)

        return done

    def _row(self, n: Any, b: Any, row0: Any, r: Any, between: Any) -> Any:
        """A row of results straight from the data: zeros around them are left out, not read."""
        layer = self.layer
        y = self.program.simplify((row0 + r) * index(layer.strides[0]) - index(layer.top))
        last = (layer.kh - 1) * layer.dilation[0]
        bound = self.program.analyzer.const_int_bound(y)
        low, high = int(bound.min_value) < 0, int(bound.max_value) + last >= layer.height

        def columns(guarded: bool) -> Any:
            return self._columns(n, b, y, guarded, self._keep(n, b, row0, r, between))

        if not low and not high:
            return columns(False)
        if layer.height <= last:
            return columns(True)
        return tirx.IfThenElse(
            tirx.all(y >= index(0), y < index(layer.height - last)), columns(False), columns(True)
        )  # fmt: skip

    def _columns(self, n: Any, b: Any, y: Any, guarded: bool, keep: Callable[[Any, Any, Any], Any]) -> Any:
        """A row in tiles of columns: those at its ends, which miss data on a side, one by one, the others in a loop."""
        nest, layer, size = self.nest, self.layer, self.c.ct
        step, spread = layer.strides[1], layer.dilation[1]
        cut = Cut(layer.ow, size)

        def column(x: int, k: int) -> int:
            return x * step - layer.left + k * spread

        def guard(kh: Any) -> Any:
            row = y + kh * index(layer.dilation[0])
            return tirx.all(row >= index(0), row < index(layer.height))

        def tile(x0: Any, width: int, seen: Callable[[int, int], bool] | None = None) -> Any:
            def read(kh: Any, k: int, j: int, lane: Any) -> Any:
                x = (x0 + index(j)) * index(step) + index(k * spread - layer.left)
                row = y + kh * index(layer.dilation[0])
                return self.program.load(self.source.data, [n, b, row, x, lane], {})

            return self.taps(
                self.weights[0], b, width, read, lambda j, acc, at: keep(x0 + index(j), acc, at), seen,
                guard if guarded else None,
            )  # fmt: skip

        def whole(t: int) -> bool:
            return column(t * size, 0) >= 0 and column((t + 1) * size - 1, layer.kw - 1) < layer.width

        def single(t: int) -> Any:
            def seen(k: int, j: int) -> bool:
                return 0 <= column(t * size + j, k) < layer.width

            return tile(index(t * size), size if t < cut.full else cut.rest, seen)

        inner = [t for t in range(cut.full) if whole(t)]
        if len(inner) < 2:
            return sequence([single(t) for t in range(cut.tiles)])
        low, high = inner[0], inner[-1] + 1
        middle = nest.loop("t", high - low, lambda t: tile((t + index(low)) * index(size), size))
        return sequence([single(t) for t in range(low)], middle, [single(t) for t in range(high, cut.tiles)])

    # -- pointwise ---------------------------------------------------------------------------------------------

    def _pointwise(self, n: Any, row0: Any, share: Any, between: Any) -> Any:
        """`cob` tiles of channels from the buffer, with what follows them."""
        nest, layer, c, pair = self.nest, self.layer, self.c, self.pair
        across = index(layer.ow)

        def channels(k: Any, blocks: int) -> Any:
            block = k * index(c.nb)

            def tile(number: Any, count: int) -> Any:
                start = number * index(c.mt)

                def read(i: int, co: Any, ci: Any) -> Any:
                    return between[co, start + index(i), ci]

                def done(i: int, j: int, acc: Any, at: Any) -> Any:
                    place = nest.alias("place", start + index(i), self.places.extent)
                    y, x = row0 + tirx.floordiv(place, across), tirx.floormod(place, across)
                    return self.behind.follow([n, block + index(j), y, x], acc, at)

                return product(nest, self.lanes, self.weights[1], (block, blocks), pair.inputs, count, read, done)

            return nest.tiles(index(0), self.places.tiles, self.places, tile)

        return nest.tiles(share * index(c.cob), c.cob, self.channels, channels)
