"""What families of convolutions that write their own loop nests share: data staged by tasks, operators behind a tile.

Takes the fused function and its window; gives statements that copy the data a task reads, padding and all, and that
apply everything after the anchor to one vector of its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.loops import Nest, allocate, sequence, store
from autofuse.schedule.cpu.row_nests import whole_stages
from autofuse.schedule.stages import Home, Program, Stage, index, lift


class WindowNests:
    """The anchor (of `role`), its operands, and what stands around it. Data are addressed with their padding."""

    def __init__(self, func: Any, window: W.Window, role: str, lanes: int) -> None:
        self.program: Program = lift(func)
        self.nest = Nest(self.program)
        self.lanes = lanes
        self.anchor = self.program.with_role(role)
        self.weights = self.program.params[window.group.inputs.index(window.weight.index)]
        self.data, self.top, self.left, feeding = self._source()
        self.height, self.width = window.data.shape[2:4]
        after = self.program.downstream(self.anchor)
        self.changes = [s for s in after if s.role == "layout_change"]
        read = {load.source for stage in self.changes for load in stage.loads}
        behind = self.program.kept(after)
        behind = [s for s in after if s in behind or (s.buffer in read and s is not self.anchor)]
        self.kept = ([self.anchor] if self.anchor.output else []) + behind
        if any(s.how for s in behind):
            raise ScheduleError("an operator after the convolution reduces")
        rest = [s for s in self.program.stages if s is not self.anchor and s not in after and s.buffer not in feeding]
        self.first, self.homes = whole_stages(self.nest, self.program.kept(rest), lanes)

    def _source(self) -> tuple[Any, int, int, set[Any]]:
        """The buffer of the data before padding, rows and columns of zeros before it, and what it depends on."""
        found = {load.source for load in self.anchor.loads if not load.source.same_as(self.weights)}
        if len(found) != 1:
            raise ScheduleError("the convolution does not read one tensor of data")
        data, top, left = found.pop(), 0, 0
        feeding: set[Any] = set()
        stage = self.program.by_buffer.get(data)
        if stage is not None and stage.role == "pad":
            feeding.add(data)
            (load,) = stage.loads
            data = load.source
            zeros = dict.fromkeys(stage.iters, index(0))
            top, left = (-int(self.program.simplify(_at(self.program, i, zeros))) for i in load.indices[2:4])
        return data, top, left, feeding | self._feeding(data)

    def _feeding(self, data: Any) -> set[Any]:
        """The buffers that `data` depends on, itself included, operands left out."""
        found: set[Any] = set()
        queue = [data]
        while queue:
            stage = self.program.by_buffer.get(queue.pop())
            if stage is not None and stage.buffer not in found:
                found.add(stage.buffer)
                queue += [load.source for load in stage.loads]
        return found

    # -- data --------------------------------------------------------------------------------------------------

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

    # -- results -----------------------------------------------------------------------------------------------

    def follow(self, at: Sequence[Any], tile: Any, place: Any) -> Any:
        """All stages after the anchor for the vector of results at [n, block, y, x], which is tile[place:]."""
        local: dict[Any, tuple[Any, Any]] = {self.anchor.buffer: (tile, place)}
        parts: list[Any] = []
        for stage in self.kept:
            if not stage.output:
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
                        homes[other.buffer] = self._home(other, here, local.get(other.buffer), lane)
                    value = self.program.value(stage, here, [], homes)
                if stage.output:
                    return store(stage.buffer, value, [self.program.simplify(i) for i in here])
                return store(local[stage.buffer][0], value, [lane])

            parts.append(self.nest.vector(self.lanes, one))
        return sequence(parts)

    def _home(self, stage: Stage, here: Sequence[Any], kept: tuple[Any, Any] | None, lane: Any) -> Home:
        def read(at: Sequence[Any]) -> Any | None:
            if not all(self.program.same(a, b) for a, b in zip(at, here, strict=True)):
                return None
            if kept is None:
                return tirx.BufferLoad(stage.buffer, [self.program.simplify(i) for i in at])
            buffer, place = kept
            return buffer[place + lane]

        return read

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
            stored = store(stage.buffer, read, [n, channel, y, x])
            if channels % self.lanes == 0 or lane < channels % self.lanes:
                return stored
            return tirx.IfThenElse(channel < index(channels), stored, None)

        return self.nest.unrolled(self.lanes, one)


def _at(program: Program, expr: Any, values: Mapping[Any, Any]) -> Any:
    return program.substitute(expr, values, {})
