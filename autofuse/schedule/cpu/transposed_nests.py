"""The loop nests of a transposed convolution, phase by phase; see `transposed`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.loops import Cut, allocate, sequence, store
from autofuse.schedule.cpu.window_nests import WindowNests
from autofuse.schedule.stages import finish, index

if TYPE_CHECKING:
    from autofuse.schedule.cpu.transposed import Layer, TransposedConfiguration


class TransposedNests(WindowNests):
    """Builds the kernel of one layer."""

    def __init__(self, func: Any, window: W.Window, layer: Layer, config: TransposedConfiguration) -> None:
        super().__init__(func, window, "tconv", layer.lanes)
        self.layer, self.c = layer, config
        self.tiles = layer.oc // config.nb
        if layer.steps % config.hb or layer.oc % config.nb or self.tiles % config.cob:
            raise ScheduleError(f"transposed {config.text}: the tiles do not divide {layer.oc} × {layer.steps}")
        if not config.pad and (self.data not in self.program.params or self.top or self.left):
            raise ScheduleError(f"transposed {config.text}: the data are computed or padded: they have to be copied")
        # The first row of padded data that results of row 0 read.
        self.low = min(layer.rows.low) + layer.rows.before

    def build(self) -> Any:
        """The scheduled function."""
        nest, layer, c = self.nest, self.layer, self.c
        parts, shares = layer.steps // c.hb, self.tiles // c.cob
        per_group = layer.oc // layer.groups

        def task(t: Any) -> Any:
            n = nest.alias("n", tirx.floordiv(t, index(shares * parts)), layer.n)
            share = nest.alias("share", tirx.floormod(tirx.floordiv(t, index(parts)), index(shares)), shares)
            part = nest.alias("part", tirx.floormod(t, index(parts)), parts)
            row0 = part * index(c.hb) + index(self.low)
            made: list[Any] = []
            staged: Any = None
            # A task of several groups copies the data of all of them.
            first = tirx.floordiv(share * index(c.cob * c.nb), index(per_group)) * index(layer.ic)
            whole = c.cob * c.nb <= per_group and per_group % (c.cob * c.nb) == 0
            held = layer.ic if whole else layer.ic * layer.groups
            if not whole:
                first = index(0)
            if c.pad:
                staged, made = self.stage(n, first, held, row0, layer.data_rows(c.hb), layer.data_columns)

            def channels(k: Any) -> Any:
                co = nest.alias("tile", share * index(c.cob) + k, self.tiles) * index(c.nb)
                source = tirx.floordiv(co, index(per_group)) * index(layer.ic)

                def data(block: Any, row: Any, column: Any, lane: Any) -> Any:
                    if staged is not None:
                        at = [source + block - first, row - row0, column]
                        return tirx.BufferLoad(staged, [self.program.simplify(i) for i in at] + [lane])
                    at = [n, source + block, row, column]
                    return tirx.BufferLoad(self.data, [self.program.simplify(i) for i in at] + [lane])

                return nest.unrolled(
                    layer.rows.stride,
                    lambda py: nest.unrolled(
                        layer.columns.stride, lambda px: self._phase(n, co, part * index(c.hb), py, px, data)
                    ),
                )

            return sequence(made, nest.loop("k", c.cob, channels))

        body = nest.parallel("task", layer.n * shares * parts, task, c.parallel)
        return finish(self.program, nest.resolve(sequence(self.first, body)))

    def _phase(self, n: Any, co: Any, row0: Any, py: int, px: int, data: Any) -> Any:
        """All results of one phase in a task's rows."""
        nest, layer, c = self.nest, self.layer, self.c
        count, width = layer.rows.counts[py], layer.columns.counts[px]
        if not count or not width:
            return []
        across = Cut(width, c.mt)

        def row(r: Any) -> Any:
            i = nest.alias("i", row0 + r, layer.steps)

            def tiles() -> Any:
                return nest.tiles(
                    index(0), across.tiles, across,
                    lambda number, columns: self._tile(n, co, i, number * index(c.mt), columns, py, px, data),
                )  # fmt: skip

            return nest.either(i, count, layer.steps, tiles, lambda: tirx.Evaluate(tirx.const(0, "int32")))

        return nest.loop("r", c.hb, row)

    def _tile(self, n: Any, co: Any, i: Any, j0: Any, columns: int, py: int, px: int, data: Any) -> Any:
        """`nb` blocks × `columns` results of a phase in registers."""
        nest, layer, c, lanes = self.nest, self.layer, self.c, self.lanes
        rows, across = layer.rows, layer.columns
        acc = nest.registers("acc", (c.nb * columns * lanes,))
        zero = tirx.Broadcast(tirx.const(0.0, "float32"), lanes)
        places = [(b, j, (b * columns + j) * lanes) for b in range(c.nb) for j in range(columns)]
        clear = [store(acc, zero, [_vector(place, lanes)]) for _, _, place in places]
        # Taps that a phase lacks stand before its own as zeros: they are left out.
        lack = rows.taps - rows.lengths[py], across.taps - across.lengths[px]
        row = i + index(rows.low[py] + rows.before + lack[0])
        column = j0 + index(across.low[px] + across.before + lack[1])

        def add(b: int, j: int, place: int, seen: Any, weight: Any) -> Any:
            here = _vector(place, lanes)
            return store(acc, acc[here] + seen * weight, [here])

        def dense(block: Any, ty: Any, q: Any) -> Any:
            tx, ci = tirx.floordiv(q, index(lanes)), tirx.floormod(q, index(lanes))
            made: list[Any] = []
            weights = nest.registers("w", (c.nb * lanes,))
            made.append(allocate(weights))
            for b in range(c.nb):
                at = [co + index(b), block, index(py), index(px), ty + index(lack[0]), tx + index(lack[1]), ci]
                value = tirx.BufferLoad(self.weights, [*at, _vector(0, lanes)])
                made.append(store(weights, value, [_vector(b * lanes, lanes)]))
            for j in range(columns):
                seen = nest.registers("v", (lanes,))
                value = tirx.Broadcast(data(block, row + ty, column + tx + index(j), ci), lanes)
                made += [allocate(seen), store(seen, value, [_vector(0, lanes)])]
                for b in range(c.nb):
                    place = (b * columns + j) * lanes
                    made.append(add(b, j, place, seen[_vector(0, lanes)], weights[_vector(b * lanes, lanes)]))
            return sequence(made)

        def single(ty: Any, tx: Any) -> Any:
            at = [co, index(py), index(px), ty + index(lack[0]), tx + index(lack[1])]
            weight = tirx.BufferLoad(self.weights, [*at, _vector(0, lanes)])
            # Where each channel is a group, blocks of data and results are the same.
            return sequence(
                [
                    add(0, j, place, data(index(0), row + ty, column + tx + index(j), _vector(0, lanes)), weight)
                    for _, j, place in places
                ]
            )

        taps = rows.lengths[py], across.lengths[px]
        if not all(taps):
            main: Any = None
        elif layer.depthwise:
            main = nest.unrolled(taps[0], lambda y: nest.unrolled(taps[1], lambda x: single(index(y), index(x))))
        else:
            main = nest.loop(
                "block", layer.ic,
                lambda block: nest.loop(
                    "ty", taps[0], lambda ty: nest.loop("q", taps[1] * lanes, lambda q: dense(block, ty, q))
                ),
            )  # fmt: skip
        y, stride = i * index(rows.stride) + index(py), index(across.stride)
        last = [
            self.follow([n, co + index(b), y, (j0 + index(j)) * stride + index(px)], acc, index(place))
            for b, j, place in places
        ]
        return sequence(allocate(acc), clear, main, last)


def _vector(start: int, lanes: int) -> Any:
    return tirx.Ramp(index(start), index(1), lanes)
