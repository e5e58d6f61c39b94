"""The loop nests of a grouped convolution whose groups do not fill channel blocks; see `grouped`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.loops import SERIAL, Cut, allocate, sequence, store
from autofuse.schedule.cpu.window_nests import WindowNests
from autofuse.schedule.stages import finish, index

if TYPE_CHECKING:
    from autofuse.schedule.cpu.grouped import GroupedConfiguration, Layer


class GroupedNests(WindowNests):
    """Builds the kernel of one layer."""

    def __init__(self, func: Any, window: W.Window, layer: Layer, config: GroupedConfiguration) -> None:
        super().__init__(func, window, "gconv", layer.lanes)
        self.layer, self.c = layer, config
        self.across = Cut(layer.ow, config.mt)
        if layer.oh % config.hb:
            raise ScheduleError(f"grouped {config.text}: the rows do not divide {layer.oh}")
        if not config.pad and (self.data not in self.program.params or window.padded):
            raise ScheduleError(f"grouped {config.text}: the data are computed or padded: they have to be copied")
        self.staged: Any = None

    def build(self) -> Any:
        """The scheduled function."""
        nest, layer, c = self.nest, self.layer, self.c
        parts = layer.oh // c.hb

        def task(t: Any) -> Any:
            n = nest.alias("n", tirx.floordiv(t, index(layer.oc * parts)), layer.n)
            co = nest.alias("co", tirx.floormod(tirx.floordiv(t, index(parts)), index(layer.oc)), layer.oc)
            part = nest.alias("part", tirx.floormod(t, index(parts)), parts)
            made: list[Any] = []
            first = nest.alias("first", tirx.floordiv(self._first(co), index(layer.lanes)), layer.ic)
            if layer.sources + 1 > layer.ic:
                first = index(0)
            elif not layer.exact:
                first = tirx.min(first, index(layer.ic - layer.sources))
            row0 = part * index(c.hb * layer.strides[0])
            if c.pad:
                self.staged, made = self.stage(
                    n, first, min(layer.sources, layer.ic), row0, layer.rows(c.hb), layer.columns
                )
            # What the data are read from: offsets of its first block and row.
            origin = (n, first, row0)

            def row(r: Any) -> Any:
                y = part * index(c.hb) + r

                def tile(number: Any, width: int) -> Any:
                    return self._tile(n, co, y, r, number * index(c.mt), width, origin)

                return nest.tiles(index(0), self.across.tiles, self.across, tile)

            return sequence(made, nest.loop("r", c.hb, row))

        body = nest.parallel("task", layer.n * layer.oc * parts, task, c.parallel)
        return finish(self.program, nest.resolve(sequence(self.first, body)))

    def _first(self, co: Any) -> Any:
        layer = self.layer
        return tirx.floordiv(co * index(layer.lanes), index(layer.outputs)) * index(layer.inputs)

    def _data(self, origin: tuple[Any, Any, Any], block: Any, row: Any, column: Any, lane: Any) -> Any:
        """An element (or vector) of the data; block and row count from the task's first."""
        n, first, row0 = origin
        if self.staged is not None and self.c.pad:
            return tirx.BufferLoad(self.staged, [self.program.simplify(i) for i in (block, row, column)] + [lane])
        at = [n, first + block, row0 + row, column]
        return tirx.BufferLoad(self.data, [self.program.simplify(i) for i in at] + [lane])

    def _tile(self, n: Any, co: Any, y: Any, r: Any, x0: Any, width: int, origin: tuple[Any, Any, Any]) -> Any:
        """`width` columns of a row of results in registers."""
        nest, lanes = self.nest, self.lanes
        acc = nest.registers("acc", (width * lanes,))
        zero = tirx.Broadcast(tirx.const(0.0, "float32"), lanes)
        clear = [store(acc, zero, [_vector(j * lanes, lanes)]) for j in range(width)]
        row = r * index(self.layer.strides[0])
        build = self._rearranged if self.layer.exact else self._broadcast
        last = [self.follow([n, co, y, x0 + index(j)], acc, index(j * lanes)) for j in range(width)]
        return sequence(allocate(acc), clear, build(acc, co, row, x0, width, origin), last)

    def _rearranged(self, acc: Any, co: Any, row: Any, x0: Any, width: int, origin: tuple[Any, Any, Any]) -> Any:
        """Vectors of data whose lanes are put in their groups' places meet all taps of a row that see them."""
        nest, layer, lanes = self.nest, self.layer, self.lanes
        span = lanes // layer.outputs * layer.inputs
        step, spread = layer.strides[1], layer.dilation[1]
        taps: dict[int, list[tuple[int, int]]] = {}
        for j in range(width):
            for k in range(layer.kw):
                taps.setdefault(j * step + k * spread, []).append((j, k))

        def line(kh: Any) -> Any:
            made: list[Any] = []
            for r in range(layer.depth):
                weights = nest.registers("w", (layer.kw * lanes,))
                made.append(allocate(weights))
                for k in range(layer.kw):
                    value = tirx.BufferLoad(self.weights, [co, index(r), kh, index(k), _vector(0, lanes)])
                    made.append(store(weights, value, [_vector(k * lanes, lanes)]))
                places = [lane // layer.outputs * layer.inputs + r for lane in range(lanes)]
                for column in sorted(taps):
                    value = self._lanes(co, span, places, row + kh * index(layer.dilation[0]),
                                        x0 * index(step) + index(column), origin)  # fmt: skip
                    seen = nest.registers("v", (lanes,))
                    made += [allocate(seen), store(seen, value, [_vector(0, lanes)])]
                    for j, k in taps[column]:
                        here = [_vector(j * lanes, lanes)]
                        product = seen[_vector(0, lanes)] * weights[_vector(k * lanes, lanes)]
                        made.append(store(acc, acc[here[0]] + product, here))
            return sequence(made)

        return nest.loop("kh", layer.kh, line)

    def _lanes(self, co: Any, span: int, places: list[int], row: Any, column: Any, origin: tuple[Any, Any, Any]) -> Any:
        """The data at a place, lane i holding channel places[i] of the `span` channels that the block reads."""
        lanes = self.lanes
        if span <= lanes:
            start = tirx.floormod(co * index(span), index(lanes)) if span < lanes else index(0)
            start = self.program.simplify(start)
            lane = tirx.Ramp(start, index(1), span) if span > 1 else start
            block = index(0)
            if self.c.pad == 0 or self.layer.sources + 1 > self.layer.ic:
                block = tirx.floordiv(co * index(span), index(lanes)) - origin[1]
            vectors = [self._data(origin, self.program.simplify(block), row, column, lane)]
        else:
            vectors = [
                self._data(origin, self._block(co, span, b, origin), row, column, _vector(0, lanes))
                for b in range(span // lanes)
            ]
        if span == 1:
            return tirx.Broadcast(vectors[0], lanes)
        while len(vectors) * min(span, lanes) < lanes:  # TVM wants as many lanes to choose from as are chosen
            vectors = vectors * 2
        return tirx.Shuffle(vectors, [tirx.const(p, "int32") for p in places])

    def _block(self, co: Any, span: int, number: int, origin: tuple[Any, Any, Any]) -> Any:
        return self.program.simplify(co * index(span // self.lanes) + index(number) - origin[1])

    def _broadcast(self, acc: Any, co: Any, row: Any, x0: Any, width: int, origin: tuple[Any, Any, Any]) -> Any:
        """The channels of the block's groups one after another, each broadcast to all lanes."""
        nest, layer, lanes = self.nest, self.layer, self.lanes
        first = self._first(co)
        last = tirx.min(co * index(lanes) + index(lanes - 1), index(layer.groups * layer.outputs - 1))
        count = (tirx.floordiv(last, index(layer.outputs)) + index(1)) * index(layer.inputs) - first
        depth = nest.variable("rc", layer.depth)
        channel = first + depth
        block = tirx.floordiv(channel, index(lanes)) - origin[1]
        lane = tirx.floormod(channel, index(lanes))

        def tap(kh: Any, kw: Any) -> Any:
            weights = nest.registers("w", (lanes,))
            value = tirx.BufferLoad(self.weights, [co, depth, kh, kw, _vector(0, lanes)])
            made: list[Any] = [allocate(weights), store(weights, value, [_vector(0, lanes)])]
            for j in range(width):
                column = (x0 + index(j)) * index(layer.strides[1]) + kw * index(layer.dilation[1])
                seen = self._data(origin, block, row + kh * index(layer.dilation[0]), column, lane)
                here = _vector(j * lanes, lanes)
                made.append(store(acc, acc[here] + tirx.Broadcast(seen, lanes) * weights[_vector(0, lanes)], [here]))
            return sequence(made)

        body = nest.loop("kh", layer.kh, lambda kh: nest.loop("kw", layer.kw, lambda kw: tap(kh, kw)))
        return tirx.For(depth, index(0), self.program.simplify(count), SERIAL, body)


def _vector(start: int, lanes: int) -> Any:
    return tirx.Ramp(index(start), index(1), lanes)
