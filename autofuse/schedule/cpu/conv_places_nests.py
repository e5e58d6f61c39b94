"""The loop nests of a pointwise convolution whose register tiles run on over the ends of rows; see `conv2d`.

Takes the fused function and a configuration; gives the scheduled function. The places of an image are one axis, so that
small images fill their tiles; a task takes tiles of places and tiles of channel blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.loops import Cut, allocate, sequence, store
from autofuse.schedule.cpu.window_nests import WindowNests, padded, product
from autofuse.schedule.stages import finish, index

if TYPE_CHECKING:
    from autofuse.schedule.cpu.conv_tiling import Conv2dConfiguration, Extents


class PlacesNests(WindowNests):
    """Builds the kernel of one pointwise convolution."""

    def __init__(self, func: Any, window: W.Window, e: Extents, config: Conv2dConfiguration) -> None:
        super().__init__(func, window, "conv", e.ob)
        self.e, self.c = e, config
        self.channels = Cut(e.oc, config.nb)
        self.places = Cut(e.oh * e.ow, config.mt)
        if not config.pad and self.source.computed:
            raise ScheduleError(f"conv2d {config.text}: the data are computed, they have to be staged")
        self.staged: Any = None
        self.origin: Any = index(0)

    def build(self) -> Any:
        """The scheduled function."""
        nest, e, c = self.nest, self.e, self.c
        parts, shares = -(-self.places.tiles // c.hb), -(-self.channels.tiles // c.cob)
        before: list[Any] = [sequence(self.first)] if self.first else []
        if c.pad == 2:
            before += self._stage_all()

        def task(t: Any) -> Any:
            n = nest.alias("n", tirx.floordiv(t, index(parts * shares)), e.n)
            share = nest.alias("share", tirx.floormod(tirx.floordiv(t, index(parts)), index(shares)), shares)
            part = nest.alias("part", tirx.floormod(t, index(parts)), parts)
            made = self._stage_part(n, part) if c.pad == 1 else []

            def channels(k: Any, blocks: int) -> Any:
                return self._channels(n, part, k * index(c.nb), blocks)

            return sequence(made, nest.tiles(share * index(c.cob), c.cob, self.channels, channels))

        body = nest.parallel("task", e.n * parts * shares, task, c.parallel)
        return finish(self.program, nest.resolve(sequence(before, body)))

    # -- data --------------------------------------------------------------------------------------------------

    def _at(self, place: Any) -> tuple[Any, Any]:
        across = index(self.e.ow)
        return tirx.floordiv(place, across), tirx.floormod(place, across)

    def _copy(self, n: Any, b: Any, place: Any, target: Any, at: list[Any]) -> Any:
        y, x = self._at(place)

        def one(lane: Any) -> Any:
            value = self.program.load(self.data, [n, b, y, x, lane], self.source.homes)
            return store(target, value, [*at, lane])

        return self.nest.vector(self.lanes, one)

    def _stage_all(self) -> list[Any]:
        """All data, computed by a loop of their own."""
        nest, e = self.nest, self.e
        staged = self.staged = nest.buffer("staged", (e.n, e.ic, padded(self.places.extent, self.lanes), e.ib))

        def block(t: Any) -> Any:
            n = nest.alias("n", tirx.floordiv(t, index(e.ic)), e.n)
            b = nest.alias("b", tirx.floormod(t, index(e.ic)), e.ic)
            return nest.loop("p", self.places.extent, lambda p: self._copy(n, b, p, staged, [n, b, p]))

        return [allocate(staged), nest.parallel("block", e.n * e.ic, block, self.c.parallel)]

    def _stage_part(self, n: Any, part: Any) -> list[Any]:
        """A task's data."""
        nest, e, c = self.nest, self.e, self.c
        most = min(c.hb * c.mt, self.places.extent)
        staged = self.staged = nest.buffer("staged", (1, e.ic, padded(most, self.lanes), e.ib))
        self.origin = first = part * index(c.hb * c.mt)

        def copy(b: Any, p: Any) -> Any:
            place = nest.alias("place", first + p, self.places.extent)
            made = self._copy(n, b, place, staged, [index(0), b, p])
            if self.places.extent % (c.hb * c.mt) == 0:
                return made
            return tirx.IfThenElse(first + p < index(self.places.extent), made, None)

        return [allocate(staged), nest.loop("b", e.ic, lambda b: nest.loop("p", most, lambda p: copy(b, p)))]

    def _read(self, n: Any, co: Any, place: Any, ci: Any) -> Any:
        if self.staged is None:
            y, x = self._at(place)
            return tirx.BufferLoad(self.data, [n, co, y, x, ci])
        image = n if self.c.pad == 2 else index(0)
        return tirx.BufferLoad(self.staged, [image, co, self.program.simplify(place - self.origin), ci])

    # -- products ----------------------------------------------------------------------------------------------

    def _channels(self, n: Any, part: Any, block: Any, blocks: int) -> Any:
        """A tile of channel blocks for all tiles of places of a task."""
        nest, c, lanes = self.nest, self.c, self.lanes

        def tile(number: Any, count: int) -> Any:
            start = number * index(c.mt)

            def done(i: int, j: int, acc: Any, at: Any) -> Any:
                place = nest.alias("place", start + index(i), self.places.extent)
                return self.follow([n, block + index(j), *self._at(place)], acc, at)

            def read(i: int, co: Any, ci: Any) -> Any:
                return self._read(n, co, start + index(i), ci)

            return product(nest, lanes, self.weights, (block, blocks), self.e.ic, count, read, done)

        return nest.tiles(part * index(c.hb), c.hb, self.places, tile)
