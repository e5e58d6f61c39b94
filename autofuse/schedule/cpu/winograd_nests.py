"""The loop nests of a Winograd convolution: input transform, products, inverse transform with what follows applied.

Takes the fused function, the layer and a configuration (see `winograd`), gives the scheduled function; its weights are
the transformed ones. A layer's results are cut into tiles of m × m, a row of tiles after another over the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import Cut, Nest, allocate, sequence, store
from autofuse.schedule.cpu.matmul_nests import INTO_L2, Follower, followers
from autofuse.schedule.cpu.row_nests import whole_stages
from autofuse.schedule.cpu.winograd_results import WinogradResults
from autofuse.schedule.cpu.winograd_transforms import Names, constant, input_transform
from autofuse.schedule.preparations import prepared_shape
from autofuse.schedule.stages import Program, Stage, finish, index, lift

if TYPE_CHECKING:
    from autofuse.schedule.cpu.winograd import Layer, WinogradConfiguration


#: Elements of a line of the caches.
LINE = 16
# Depth between two places where lines are asked for at least, and lines at one place at most while that allows it.
_STRETCH, _AT_ONCE = 96, 16


@dataclass(frozen=True)
class Fetch:
    """Weights to bring near: `lines` from the line `first` on of those of block `number` at place `a`."""

    number: Any
    a: Any
    first: Any
    lines: int


class WinogradNests(WinogradResults):
    """Builds the kernel of one layer."""

    def __init__(self, func: Any, layer: Layer, config: WinogradConfiguration, text: str) -> None:
        self.layer, self.c = layer, config
        self.program: Program = lift(func)
        self.nest = Nest(self.program)
        self.alpha = config.m + 2
        self.products = self.alpha**2
        self.lanes = layer.lanes
        self.anchor = self.program.with_role("conv")
        raw = self.program.params[layer.weight]
        self.weights = tirx.decl_buffer(
            prepared_shape(text, [int(e) for e in raw.shape]), "float32", name="transformed"
        )
        self.params = [self.weights if p is raw else p for p in self.program.params]
        self.data, feeding = self._source(raw)
        after = self.program.downstream(self.anchor)
        self.pool = next((s for s in after if s.how), None) if layer.pooled else None
        follow = [s for s in after if s is not self.pool]
        self.followers: dict[Any, Follower] = followers(self.program, self.anchor, follow)
        self.kept = ([self.anchor] if self.anchor.output else []) + self.program.kept(follow)
        if self.pool is not None:
            # What the pool reads is kept a vector at a time.
            self.operand = self._pooled_operand()
            if self.operand is not self.anchor and self.operand not in self.kept:
                self.kept.append(self.operand)
        rest = [s for s in self.program.stages if s is not self.anchor and s not in after and s.buffer not in feeding]
        self.first, self.homes = whole_stages(self.nest, self.program.kept(rest), self.lanes)
        self.across = Cut(layer.ow, config.m)
        self.down = Cut(layer.oh, config.m)
        self.segments = self.across.tiles // config.cols
        self.rows = Cut(layer.n * self.down.tiles * self.segments, config.rows)
        self.channels = Cut(layer.oc, config.nb)
        self.groups = -(-self.channels.tiles // config.cob)
        self.depth = layer.ic * self.lanes

    def _source(self, raw: Any) -> tuple[Any, set[Any]]:
        """The buffer that holds the data before padding, and the buffers of all stages that it depends on."""
        found = {load.source for load in self.anchor.loads if not load.source.same_as(raw)}
        if self.layer.padded and len(found) == 1:
            stage = self.program.by_buffer.get(found.pop())
            found = {load.source for load in stage.loads} if stage is not None else set()
            feeding = {stage.buffer} if stage is not None else set()
        else:
            feeding = set()
        if len(found) != 1:
            raise ScheduleError("the convolution does not read one tensor of data")
        data = next(iter(found))
        queue = [data]
        while queue:
            stage = self.program.by_buffer.get(queue.pop())
            if stage is not None:
                feeding.add(stage.buffer)
                queue += [load.source for load in stage.loads]
        return data, feeding

    def _pooled_operand(self) -> Stage:
        """The stage that the pool reads."""
        assert self.pool is not None
        (source,) = {load.source for load in self.pool.loads}
        stage = self.program.by_buffer.get(source)
        if stage is None or stage.output or self.pool.how != "max" or not self.pool.output:
            raise ScheduleError("the pool does not end the function")
        return stage

    # -- the kernel --------------------------------------------------------------------------------------------

    def build(self) -> Any:
        """The scheduled function."""
        c, nest = self.c, self.nest
        parts = list(self.first)
        if c.split:
            everything = self.rows.extent
            scratch, stride = self._scratch(everything * c.cols * self.depth)
            total = everything * self.layer.ic

            def transform(t: Any) -> Any:
                row = nest.alias("row", tirx.floordiv(t, index(self.layer.ic)), everything)
                block = nest.alias("block", tirx.floormod(t, index(self.layer.ic)), self.layer.ic)
                return self._transform_row(row, row, block, scratch, stride)

            parts += [allocate(scratch), nest.parallel("task", total, transform, c.parallel)]
            parts.append(self._multiplied(scratch, stride))
        else:
            parts.append(
                nest.parallel(
                    "task", self.rows.tiles, lambda t: nest.tiles(t, 1, self.rows, self._task), c.parallel
                )
            )  # fmt: skip
        return finish(self.program, nest.resolve(sequence(parts)), self.params)

    def _multiplied(self, scratch: Any, stride: int) -> Any:
        """From transformed data to results: a loop over groups of channels and chunks of segments."""
        c, nest = self.c, self.nest

        def multiply(t: Any) -> Any:
            group = nest.alias("group", tirx.floordiv(t, index(self.rows.tiles)), self.groups)
            chunk = nest.alias("chunk", tirx.floormod(t, index(self.rows.tiles)), self.rows.tiles)
            return nest.tiles(
                chunk, 1, self.rows,
                lambda tile, rows: self._group(tile, rows, group, scratch, stride, tile * index(c.rows)),
            )  # fmt: skip

        return nest.parallel("task", self.groups * self.rows.tiles, multiply, c.parallel)

    def _task(self, tile: Any, rows: int) -> Any:
        """All of `rows` rows of tiles: transformed data stays with the task."""
        nest = self.nest
        scratch, stride = self._scratch(rows * self.c.cols * self.depth)
        base = tile * index(self.c.rows)

        def transform(r: Any) -> Any:
            row = nest.alias("row", base + r, self.rows.extent)
            return nest.loop("block", self.layer.ic, lambda b: self._transform_row(row, r, b, scratch, stride))

        return sequence(
            allocate(scratch),
            nest.loop("r", rows, transform),
            nest.loop("group", self.groups, lambda g: self._group(tile, rows, g, scratch, stride, index(0))),
        )

    def _scratch(self, plane: int) -> tuple[Any, int]:
        """A buffer of one plane a product, and the distance of planes: an odd number of lines.

        The transforms touch all planes at one place, which would otherwise share a few sets of the nearest cache.
        """
        stride = (-(-plane // LINE) | 1) * LINE
        return self.nest.buffer("scratch", (self.products * stride,)), stride

    # -- input transform ---------------------------------------------------------------------------------------

    def _transform_row(self, row: Any, local: Any, block: Any, scratch: Any, stride: int) -> Any:
        """One channel block of a row's segment; `local`: the segment's place in the scratch.

        A tile that reaches over the data's edge is copied first, with zeros around it.
        """
        nest, layer, m, alpha, lanes = self.nest, self.layer, self.c.m, self.alpha, self.lanes
        n, ty, first = self._place(row)

        def value(tx: Any, i: Any, k: Any, lane: Any) -> Any:
            y, x = ty * index(m) + (i - index(layer.top)), tx * index(m) + (k - index(layer.left))
            return self.program.load(self.data, [n, block, y, x, lane], {})

        def transform(x: Any, read: Callable[[int, int, Any], Any]) -> Any:
            place = (local * index(self.c.cols) + x) * index(self.depth) + block * index(lanes)

            def one(lane: Any) -> Any:
                names = Names()
                grid = [[names(read(i, k, lane)) for k in range(alpha)] for i in range(alpha)]
                results = names.transformed(input_transform, m, grid)
                kept = [
                    store(scratch, results[i][k], [index((i * alpha + k) * stride) + place + lane])
                    for i in range(alpha)
                    for k in range(alpha)
                ]
                return sequence(names.statements, kept)

            return nest.vector(lanes, one)

        def interior(x: Any, tx: Any) -> Any:
            return transform(x, lambda i, k, lane: value(tx, index(i), index(k), lane))

        def edge(x: Any, tx: Any) -> Any:
            copy = nest.buffer("copy", (self.products * lanes,), scope="local")

            def element(i: Any, k: Any) -> Any:
                y, x = ty * index(m) + (i - index(layer.top)), tx * index(m) + (k - index(layer.left))
                at = (i * index(alpha) + k) * index(lanes)
                inside = tirx.all(y >= index(0), y < index(layer.height), x >= index(0), x < index(layer.width))
                taken = nest.vector(lanes, lambda lane: store(copy, value(tx, i, k, lane), [at + lane]))
                cleared = nest.vector(lanes, lambda lane: store(copy, constant(0.0), [at + lane]))
                return tirx.IfThenElse(inside, taken, cleared)

            filled = nest.loop("i", alpha, lambda i: nest.loop("k", alpha, lambda k: element(i, k)))
            read = transform(x, lambda i, k, lane: copy[index((i * alpha + k) * lanes) + lane])
            return sequence(allocate(copy), filled, read)

        def tile(x: Any) -> Any:
            tx = self._column(first, x)
            x_low, x_high = _interior(self.across.tiles, m, alpha, layer.left, layer.width)
            y_low, y_high = _interior(self.down.tiles, m, alpha, layer.top, layer.height)
            if x_high <= x_low or y_high <= y_low:
                return edge(x, tx)
            inside = tirx.all(tx >= index(x_low), tx < index(x_high), ty >= index(y_low), ty < index(y_high))
            return tirx.IfThenElse(inside, interior(x, tx), edge(x, tx))

        return nest.loop("x", self.c.cols, tile)

    def _place(self, segment: Any) -> tuple[Any, Any, Any]:
        """The image, the row of tiles within it, and the segment's first tile in that row."""
        nest, row, first = self.nest, segment, index(0)
        if self.segments > 1:
            part = nest.alias("part", tirx.floormod(segment, index(self.segments)), self.segments)
            rows = self.layer.n * self.down.tiles
            row = nest.alias("whole", tirx.floordiv(segment, index(self.segments)), rows)
            first = part * index(self.c.cols)
        if self.layer.n == 1:
            return index(0), row, first
        tiles = index(self.down.tiles)
        return (
            nest.alias("n", tirx.floordiv(row, tiles), self.layer.n),
            nest.alias("ty", tirx.floormod(row, tiles), self.down.tiles),
            first,
        )

    # -- products ----------------------------------------------------------------------------------------------

    def _group(self, tile: Any, rows: int, group: Any, scratch: Any, stride: int, start: Any) -> Any:
        """`cob` tiles of channels for `rows` rows of tiles; start: their first row in the scratch."""
        c, nest = self.c, self.nest
        places = Cut(rows * c.cols, c.mt)
        width = c.cob * c.nb * self.lanes
        result, distance = self._scratch(places.extent * width)
        first = group * index(c.cob)
        begin = start * index(c.cols * self.depth)

        def product(a: Any) -> Any:
            def channels(number: Any, blocks: int) -> Any:
                def tiles(p: Any, count: int) -> Any:
                    left = a * index(stride) + begin + p * index(c.mt * self.depth)
                    target = a * index(distance) + p * index(c.mt * width) + (number - first) * index(c.nb * self.lanes)
                    following = (number, tirx.min(a + index(1), index(self.products - 1)))
                    if c.cob > 1:
                        following = (tirx.min(number + index(1), index(self.channels.tiles - 1)), a)
                    ahead = self._ahead(*following, p, places)
                    return self._product(a, number, blocks, count, left, target, scratch, result, width, ahead)

                return nest.tiles(index(0), places.tiles, places, tiles)

            return nest.tiles(first, c.cob, self.channels, channels)

        def finished(r: Any) -> Any:
            row = nest.alias("row", tile * index(c.rows) + r, self.rows.extent)
            n, ty, across = self._place(row)

            def channels(number: Any, blocks: int) -> Any:
                def one(j: Any) -> Any:
                    offset = (number - first) * index(c.nb * self.lanes) + j * index(self.lanes)
                    block = nest.alias("block", number * index(c.nb) + j, self.layer.oc)
                    offset = offset + r * index(c.cols * width)
                    return self._results(n, block, ty, across, offset, width, result, distance)

                return nest.loop("j", blocks, one)

            return nest.tiles(first, c.cob, self.channels, channels)

        return sequence(
            allocate(result), nest.loop("a", self.products, product), nest.loop("r", rows, finished)
        )  # fmt: skip

    def _ahead(self, number: Any, a: Any, tile: Any, places: Cut) -> Fetch:
        """The share of one register tile of `places` in asking for the lines of a block of weights."""
        lines = -(-self.depth * self.c.nb * self.lanes // LINE)
        each = -(-lines // places.tiles)
        return Fetch(number, a, tile * index(each), each)

    def _deep(self, step: Callable[[Any], Any], ahead: Fetch) -> Any:
        """step(k) for the whole depth; on the way the lines of `ahead` are asked for, a few every now and then."""
        nest, width = self.nest, self.c.nb * self.lanes
        if not self.c.ahead:
            return nest.loop("k", self.depth, step)
        count = max(1, min(self.depth // _STRETCH, -(-ahead.lines // _AT_ONCE)))
        stretch, together = self.depth // count, -(-ahead.lines // count)

        def fetch(line: Any) -> Any:
            at = line * index(LINE)
            place = [ahead.number, ahead.a, tirx.floordiv(at, index(width)), tirx.floormod(at, index(width))]
            load = tirx.BufferLoad(self.weights, place)
            return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", tirx.address_of(load), *INTO_L2))

        def one(number: Any) -> Any:
            asked = [fetch(ahead.first + number * index(together) + index(i)) for i in range(together)]
            return sequence(asked, nest.loop("k", stretch, lambda k: step(number * index(stretch) + k)))

        rest = self.depth - count * stretch
        end = nest.loop("k", rest, lambda k: step(index(count * stretch) + k)) if rest else None
        return sequence(nest.loop("stretch", count, one), end)

    def _product(
        self, a: Any, number: Any, blocks: int, count: int, left: Any, target: Any, scratch: Any, result: Any,
        width: int, ahead: Fetch,
    ) -> Any:  # fmt: skip
        """One register tile: `count` tiles of data × `blocks` channel blocks over all input channels."""
        nest, lanes = self.nest, self.lanes
        acc = nest.registers("acc", (count, blocks * lanes))
        zero = constant(0.0)

        def each(body: Callable[[int, int, Any], Any]) -> list[Any]:
            def one(i: int, j: int) -> Any:
                return nest.vector(lanes, lambda lane: body(i, j, index(j * lanes) + lane))

            return [one(i, j) for i in range(count) for j in range(blocks)]

        def step(k: Any) -> Any:
            def one(i: int, _: int, at: Any) -> Any:
                data = scratch[left + index(i * self.depth) + k]
                return store(acc, acc[index(i), at] + data * self.weights[number, a, k, at], [index(i), at])

            return sequence(each(one))

        return sequence(
            allocate(acc),
            each(lambda i, _, at: store(acc, zero, [index(i), at])),
            self._deep(step, ahead),
            each(lambda i, _, at: store(result, acc[index(i), at], [target + index(i * width) + at])),
        )


def _interior(tiles: int, m: int, alpha: int, before: int, extent: int) -> tuple[int, int]:
    """The range of the tiles along an axis that read inside the data alone."""
    whole = [t for t in range(tiles) if t * m >= before and t * m - before + alpha <= extent]
    return (whole[0], whole[-1] + 1) if whole else (0, 0)
