"""What families of convolutions that write their own loop nests share: data staged by tasks, operators behind a tile.

Takes the stages of a fused function; gives statements that copy the data a task reads, padding and all (`Source`), and
that apply everything after an anchor to one vector of its results (`Epilogue`). `WindowNests` is both for a group with
one anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.loops import Nest, allocate, sequence, store
from autofuse.schedule.cpu.row_nests import whole_stages
from autofuse.schedule.stages import Home, Program, Stage, index, lift


class Source:
    """The data that an anchor reads from memory, addressed with their padding.

    data: the buffer before padding, [N, C/b, H, W, b], maybe computed where it is read; top, left: rows and columns of
    zeros before it; apart: buffers of stages that only lead to the anchor, beside those that the data depend on.
    """

    def __init__(
        self, nest: Nest, lanes: int, data: Any, padding: tuple[int, int] = (0, 0), apart: Collection[Any] = ()
    ) -> None:
        self.nest, self.program, self.lanes = nest, nest.program, lanes
        self.data, (self.top, self.left) = data, padding
        self.height, self.width = (int(e) for e in data.shape[2:4])
        self.feeding = {*apart, *feeding(self.program, data)}
        self.homes: Mapping[Any, Home] = {}

    @classmethod
    def of(cls, nest: Nest, anchor: Stage, weights: Any, lanes: int) -> Source:
        """The only tensor that the anchor reads beside its weights."""
        program = nest.program
        found = {load.source for load in anchor.loads if not load.source.same_as(weights)}
        if len(found) != 1:
            raise ScheduleError("the convolution does not read one tensor of data")
        (data,) = found
        stage = program.by_buffer.get(data)
        if stage is None or stage.role != "pad":
            return cls(nest, lanes, data)
        (load,) = stage.loads
        zeros = dict.fromkeys(stage.iters, index(0))
        top, left = (-int(program.simplify(program.substitute(i, zeros, {}))) for i in load.indices[2:4])
        return cls(nest, lanes, load.source, (top, left), (data,))

    @property
    def computed(self) -> bool:
        """Whether the data are computed by stages of the group."""
        return not any(self.data.same_as(p) for p in self.program.params)

    def stage(self, n: Any, block0: Any, blocks: int, row0: Any, rows: int, columns: int) -> tuple[Any, list[Any]]:
        """A buffer [blocks, rows, columns, lanes] of padded data from (block0, row0) on, and what fills it."""
        nest, lanes = self.nest, self.lanes
        buffer = nest.buffer("staged", (blocks, rows, columns, lanes))
        first, last = min(self.left, columns), min(self.left + self.width, columns)
        zero = tirx.const(0.0, "float32")

        def clear(b: Any, r: Any, start: int, count: int) -> Any:
            if count <= 0:
                return None
            return nest.loop("x", count, lambda x: nest.vector(
                lanes, lambda lane: store(buffer, zero, [b, r, index(start) + x, lane])))  # fmt: skip

        def copy(b: Any, r: Any, y: Any) -> Any:
            def one(x: Any) -> Any:
                def element(lane: Any) -> Any:
                    value = self.program.load(self.data, [n, block0 + b, y, x, lane], self.homes)
                    return store(buffer, value, [b, r, index(first) + x, lane])

                return nest.vector(lanes, element)

            return nest.loop("x", last - first, one)

        def row(b: Any, r: Any) -> Any:
            y = self.program.simplify(row0 + r - index(self.top))
            bound = self.program.analyzer.const_int_bound(y)
            low, high = int(bound.min_value), int(bound.max_value)
            inside = sequence(clear(b, r, 0, first), copy(b, r, y), clear(b, r, last, columns - last))
            if low >= 0 and high < self.height:
                return inside
            return tirx.IfThenElse(tirx.all(y >= index(0), y < index(self.height)), inside, clear(b, r, 0, columns))

        fill = nest.loop("b", blocks, lambda b: nest.loop("r", rows, lambda r: row(b, r)))
        return buffer, [allocate(buffer), fill]


def home_at(
    program: Program, made: Any, here: Sequence[Any], kept: tuple[Any, Any] | None, lane: Any,
    source: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> Home:  # fmt: skip
    """The value at `here` of a stage that was computed before, with the vector that holds it.

    made: its buffer; kept: (buffer, place) of the vector where that is in registers, else it is read from `made`;
    source: index of an element → what is compared with `here`.
    """

    def read(at: Sequence[Any]) -> Any | None:
        place = at if source is None else source(at)
        if not all(program.same(a, b) for a, b in zip(place, here, strict=True)):
            return None
        if kept is None:
            return tirx.BufferLoad(made, [program.simplify(i) for i in at])
        return kept[0][kept[1] + lane]

    return read


class Epilogue:
    """The stages `after` an anchor, applied to one vector of its results at a time.

    homes: where the values of stages beside it are. handed: the buffer among those of `after`, or the anchor's own,
    whose values go to whoever calls `follow`.
    """

    def __init__(
        self, nest: Nest, lanes: int, anchor: Stage, after: Sequence[Stage], homes: Mapping[Any, Home],
        handed: Any = None,
    ) -> None:  # fmt: skip
        self.nest, self.program, self.lanes = nest, nest.program, lanes
        self.anchor, self.homes, self.handed = anchor, homes, handed
        self.changes = [s for s in after if s.role == "layout_change"]
        read = {load.source for stage in self.changes for load in stage.loads}
        behind = self.program.kept(after)
        behind = [s for s in after if s in behind or self._handed(s) or (s.buffer in read and s is not anchor)]
        self.kept = ([anchor] if anchor.output or self._handed(anchor) else []) + behind
        if any(s.how for s in behind):
            raise ScheduleError("an operator after the convolution reduces")

    def _handed(self, stage: Stage) -> bool:
        return self.handed is not None and bool(stage.buffer.same_as(self.handed))

    def follow(self, at: Sequence[Any], tile: Any, place: Any, hand: Callable[[Any, Any], Any] | None = None) -> Any:
        """All stages after the anchor for the vector of results at [n, block, y, x], which is tile[place:].

        hand: (lane, value) → what becomes of a value of the buffer that is handed on.
        """
        local: dict[Any, tuple[Any, Any]] = {self.anchor.buffer: (tile, place)}
        parts: list[Any] = []
        for stage in self.kept:
            if not stage.output and not self._handed(stage):
                buffer = self.nest.registers(stage.name, (self.lanes,), str(stage.buffer.dtype))
                local[stage.buffer] = (buffer, index(0))
                parts.append(allocate(buffer))
        for number, stage in enumerate(self.kept):
            done = [self.anchor, *self.kept[:number]]
            if stage in self.changes:
                parts.append(self._unblocked(stage, at, local))
                continue

            def one(lane: Any, stage: Stage = stage, done: Sequence[Stage] = tuple(done)) -> Any:
                here = [*at, lane]
                if stage is self.anchor:
                    value = tile[place + lane]
                else:
                    homes = dict(self.homes)
                    for other in done:
                        homes[other.buffer] = home_at(self.program, other.buffer, here, local.get(other.buffer), lane)
                    value = self.program.value(stage, here, [], homes)
                if hand is not None and self._handed(stage):
                    return hand(lane, value)
                if stage.output:
                    return store(stage.buffer, value, self.program.address(stage.buffer, here))
                return store(local[stage.buffer][0], value, [lane])

            parts.append(self.nest.vector(self.lanes, one))
        return sequence(parts)

    def _unblocked(self, stage: Stage, at: Sequence[Any], local: Mapping[Any, tuple[Any, Any]]) -> Any:
        """A vector of channels stored as [N, C, H, W], one channel after another; lanes past the last are left out."""
        if not stage.output or len(stage.loads) != 1 or not isinstance(stage.value, TensorLoad):
            raise ScheduleError(f"layout change {stage.name} is no store of the tile")
        n, block, y, x = at
        channels = stage.shape[1]
        source = stage.loads[0].source
        kept = local.get(source)

        def one(lane: int) -> Any:
            channel = block * index(self.lanes) + index(lane)
            read = tirx.BufferLoad(source, [*at, index(lane)]) if kept is None else kept[0][kept[1] + index(lane)]
            stored = store(stage.buffer, read, self.program.address(stage.buffer, [n, channel, y, x]))
            if channels % self.lanes == 0 or lane < channels % self.lanes:
                return stored
            return tirx.IfThenElse(channel < index(channels), stored, None)

        return self.nest.unrolled(self.lanes, one)


class WindowNests:
    """The anchor (of `role`), its operands, and what stands around it. Data are addressed with their padding."""

    def __init__(self, func: Any, window: W.Window, role: str, lanes: int) -> None:
        self.program: Program = lift(func)
        self.nest = Nest(self.program)
        self.lanes = lanes
        self.anchor = self.program.with_role(role)
        self.weights = self.program.params[window.group.inputs.index(window.weight.index)]
        self.source = self._source()
        self.data, self.top, self.left = self.source.data, self.source.top, self.source.left
        after = self.program.downstream(self.anchor)
        apart = self.source.feeding
        rest = [s for s in self.program.stages if s is not self.anchor and s not in after and s.buffer not in apart]
        self.first, self.homes = whole_stages(self.nest, self.program.kept(rest), lanes)
        self.source.homes = self.homes
        self.epilogue = Epilogue(self.nest, lanes, self.anchor, after, self.homes)
        self.stage, self.follow = self.source.stage, self.epilogue.follow

    def _source(self) -> Source:
        """What the anchor reads."""
        return Source.of(self.nest, self.anchor, self.weights, self.lanes)


def feeding(program: Program, buffer: Any) -> set[Any]:
    """The buffers that `buffer` depends on, itself included, operands left out."""
    found: set[Any] = set()
    queue = [buffer]
    while queue:
        stage = program.by_buffer.get(queue.pop())
        if stage is not None and stage.buffer not in found:
            found.add(stage.buffer)
            queue += [load.source for load in stage.loads]
    return found


def product(
    nest: Nest, lanes: int, weights: Any, channels: tuple[Any, int], depth: int, count: int,
    read: Callable[[int, Any, Any], Any], done: Callable[[int, int, Any, Any], Any],
) -> Any:  # fmt: skip
    """A register tile of a pointwise convolution: `count` places × channel blocks (the first one, their number).

    depth: channel blocks of data; read: (place, block, channel in it) → element; done: (place, number of the block,
    buffer, where its vector starts there) → what is done with a vector of results.
    """
    block, blocks = channels
    acc = nest.registers("acc", (count * blocks * lanes,))
    tile = [(i, j, (i * blocks + j) * lanes) for i in range(count) for j in range(blocks)]
    zero = tirx.const(0.0, "float32")

    def clear(place: int) -> Any:
        return nest.vector(lanes, lambda lane: store(acc, zero, [index(place) + lane]))

    def step(co: Any, ci: Any) -> Any:
        def one(i: int, j: int, place: int) -> Any:
            def add(lane: Any) -> Any:
                weight = tirx.BufferLoad(weights, [block + index(j), co, index(0), index(0), ci, lane])
                return store(acc, acc[index(place) + lane] + read(i, co, ci) * weight, [index(place) + lane])

            return nest.vector(lanes, add)

        return sequence(*[one(*item) for item in tile])

    return sequence(
        allocate(acc),
        [clear(place) for _, _, place in tile],
        nest.loop("co", depth, lambda co: nest.loop("ci", lanes, lambda ci: step(co, ci))),
        [done(i, j, acc, index(place)) for i, j, place in tile],
    )


def padded(places: int, lanes: int) -> int:
    """Places of a channel block in the buffer: blocks a multiple of 512 bytes apart would share few lines of L1."""
    return places + 1 if places * lanes * 4 % 512 == 0 else places
