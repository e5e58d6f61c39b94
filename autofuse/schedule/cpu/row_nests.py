"""The loop nests of row kernels: every stage of a row, one after another, from buffers that hold one row.

Takes the stages of a function and how its tensors split into rows; gives the statements that compute one row. Shared by
the reductions (`rows`) and by matrix products whose results are reduced along their rows (`matmul`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import NARROW, Nest, allocate, pieces, sequence, store
from autofuse.schedule.cpu.rowspace import Space
from autofuse.schedule.stages import Home, Program, Stage, combine, index, ravel, unravel

# Elements of a row buffer up to which it may live in registers.
_FEW = 64


@dataclass(frozen=True)
class Strip:
    """The part of the rows that a task works on: one row, and of its lanes `width` from `lane0` on."""

    row: Any
    lane0: Any
    width: int


class RowNests:
    """Builds the nests of one kernel. `rows`, `lanes`: how tensors split; `width`: lanes of a task; `vectors`: how many
    vector registers of partial results a reduction keeps."""

    def __init__(
        self, nest: Nest, stages: Sequence[Stage], rows: int, lanes: int, width: int, vector: int, vectors: int
    ) -> None:
        self.nest = nest
        self.program: Program = nest.program
        self.rows, self.lanes, self.width = rows, lanes, width
        self.vector, self.vectors = vector, vectors
        self.spaces = {s.buffer: Space(s.shape, rows, lanes) for s in stages}
        self.stages = [s for s in stages if self.spaces[s.buffer].fits]
        self.shared = [s for s in stages if not self.spaces[s.buffer].fits]
        for stage in self.shared:
            if stage.how:
                raise ScheduleError(f"stage {stage.name} does not split into {rows} rows")
        self.buffers: dict[Any, Any] = {}
        # Stages whose values are kept for a whole block of rows, and the position in it of the row being built.
        self.blocked: set[Any] = set()
        self.position: Any = index(0)
        # Placeholders for indices that are split over several axes, and for lanes their offset in the strip.
        self.offsets: dict[Any, Any] = {}
        self.split_lanes = any(space.split_lanes for space in self.spaces.values())

    # -- where values are kept ---------------------------------------------------------------------------------

    def allocations(self, stages: Sequence[Stage]) -> list[Any]:
        """Buffers that hold one row of each stage that is no result."""
        made = []
        for stage in stages:
            if stage.output or stage.buffer in self.buffers:
                continue
            size = self.spaces[stage.buffer].elements * self.width
            scope = "local" if size <= _FEW else "global"
            buffer = self.nest.buffer(stage.name, (size,), str(stage.buffer.dtype), scope)
            self.buffers[stage.buffer] = buffer
            made.append(allocate(buffer))
        return made

    def block_allocations(self, early: Sequence[Stage], late: Sequence[Stage], block: int) -> list[Any]:
        """Like `allocations`, but what the late stages read is kept for all rows of a block."""
        self.blocked = {
            s.buffer for s in early if not s.output and self.spaces[s.buffer].elements == 1 and self._reaches(s, late)
        }
        made = []
        for stage in (*early, *late):
            if stage.buffer in self.blocked or (stage in late and not stage.output):
                scope = "local" if block <= _FEW else "global"
                self.buffers[stage.buffer] = self.nest.buffer(stage.name, (block,), str(stage.buffer.dtype), scope)
                self.blocked.add(stage.buffer)
                made.append(allocate(self.buffers[stage.buffer]))
        return made + self.allocations([s for s in early if s.buffer not in self.buffers])

    def _reaches(self, stage: Stage, late: Sequence[Stage]) -> bool:
        """Whether a late stage reads this one, directly or through what is computed in place."""
        todo = [stage.buffer]
        while todo:
            for reader in self.program.readers.get(todo.pop(), ()):
                if reader in late:
                    return True
                if reader not in self.stages:
                    todo.append(reader.buffer)
        return False

    def block(
        self, base: Any, block: int, late: Sequence[Stage], early: Sequence[Stage], outside: Mapping[Any, Home]
    ) -> Any:
        """The late stages of all rows of a block, rows in vector lanes."""
        parts = []
        for number, stage in enumerate(late):
            done = [s for s in early if s.buffer in self.blocked or s.output] + list(late[:number])

            def one(i: Any, stage: Stage = stage, done: Sequence[Stage] = tuple(done)) -> Any:
                self.position = i
                strip = Strip(base + i, index(0), 1)
                homes = self.homes(strip, done, outside)
                at = self.spaces[stage.buffer].indices(strip.row, index(0), index(0))
                return self.write(stage, strip, index(0), index(0), self.program.value(stage, at, [], homes))

            parts.append(self.nest.lanes_over(block, self.vector, one))
        return sequence(*parts)

    def homes(self, strip: Strip, done: Sequence[Stage], outside: Mapping[Any, Home]) -> dict[Any, Home]:
        """Where the stages in `done` left the values of this strip."""
        found = dict(outside)
        for stage in done:
            found[stage.buffer] = self._home(stage, strip)
        return found

    def _home(self, stage: Stage, strip: Strip) -> Home:
        space = self.spaces[stage.buffer]

        def read(at: Sequence[Any]) -> Any | None:
            row, element, lane = space.place(at)
            lane = self.program.simplify(lane)
            offset = self.offsets.get(lane) if isinstance(lane, tirx.Var) else None
            if offset is None:
                offset = self.program.simplify(lane - strip.lane0)
            if not self.program.same(row, strip.row) or not self._inside(offset):
                return None
            if stage.output:
                return tirx.BufferLoad(stage.buffer, self.program.address(stage.buffer, at))
            if stage.buffer in self.blocked:
                return self.buffers[stage.buffer][self.position]
            return self.buffers[stage.buffer][self.program.simplify(element * index(self.width) + offset)]

        return read

    def _inside(self, offset: Any) -> bool:
        bound = self.program.analyzer.const_int_bound(offset)
        return int(bound.min_value) >= 0 and int(bound.max_value) < self.width

    def indices(self, stage: Stage, strip: Strip, element: Any, lane: Any) -> list[Any]:
        """Indices of a stage's element."""
        whole = strip.lane0 + lane
        if self.split_lanes:
            whole = self.nest.alias("whole", whole, self.lanes)
            self.offsets[whole] = lane
        return self.spaces[stage.buffer].indices(strip.row, element, whole)

    def single(self, at: Any, shape: Sequence[int], extent: int) -> Any:
        """An index that is to be split over axes of `shape`, as one placeholder where whole vectors would not fit."""
        inner = next((e for e in reversed(shape) if e > 1), 1)
        return at if inner % self.vector == 0 or inner == extent else self.nest.alias("element", at, extent)

    def write(self, stage: Stage, strip: Strip, element: Any, lane: Any, value: Any) -> Any:
        """Keep one value: at its place in the result, or in the row's buffer."""
        if stage.output:
            at = self.indices(stage, strip, element, lane)
            return store(stage.buffer, value, self.program.address(stage.buffer, at))
        if stage.buffer in self.blocked:
            return store(self.buffers[stage.buffer], value, [self.position])
        return store(self.buffers[stage.buffer], value, [self.program.simplify(element * index(self.width) + lane)])

    # -- nests -------------------------------------------------------------------------------------------------

    def row(self, strip: Strip, stages: Sequence[Stage], outside: Mapping[Any, Home]) -> Any:
        """All of `stages` for one strip, in order; results of `outside` are read where its homes say."""
        parts = []
        for position, stage in enumerate(stages):
            homes = self.homes(strip, stages[:position], outside)
            parts.append(self.reduction(stage, strip, homes) if stage.how else self.pointwise(stage, strip, homes))
        return sequence(*parts)

    def pointwise(self, stage: Stage, strip: Strip, homes: Mapping[Any, Home]) -> Any:
        """A stage without a reduction."""
        space = self.spaces[stage.buffer]

        def one(element: Any, lane: Any) -> Any:
            if space.split_elements:
                element = self.single(element, space.shape, space.elements)
            at = self.indices(stage, strip, element, lane)
            return self.write(stage, strip, element, lane, self.program.value(stage, at, [], homes))

        if self.lanes > 1:
            looped = space.elements > 1

            def line(e: Any) -> Any:
                return self.nest.lanes_over(strip.width, self.vector, lambda i: one(e, i), again=True, looped=looped)

            return self.nest.loop("e", space.elements, line)
        return self.nest.lanes_over(space.elements, self.vector, lambda e: one(e, index(0)), again=True)

    def reduction(self, stage: Stage, strip: Strip, homes: Mapping[Any, Home]) -> Any:
        """A reduction: over vectors of lanes where rows have lanes, else with vectors of partial results."""
        space = self.spaces[stage.buffer]
        one = self._by_lanes if self.lanes > 1 else self._by_partials
        return self.nest.loop("e", space.elements, lambda e: one(stage, strip, e, homes))

    def _term(self, stage: Stage, strip: Strip, element: Any, lane: Any, at: Any, homes: Mapping[Any, Home]) -> Any:
        where = self.indices(stage, strip, element, lane)
        over = unravel(self.single(at, stage.reduced, stage.reads), stage.reduced)
        return self.program.value(stage, where, over, homes)

    def _by_lanes(self, stage: Stage, strip: Strip, element: Any, homes: Mapping[Any, Home]) -> Any:
        """Every lane has its own result: vectors of lanes, several sums in turn where there are few of them."""
        parts = pieces(strip.width, self.vector)
        turns = 1
        while turns * 2 * len(parts) <= max(self.vectors, 1) and stage.reads >= 4 * turns:
            turns *= 2
        full, rest = divmod(stage.reads, turns)
        acc = self.nest.registers("acc", (turns, strip.width), str(stage.buffer.dtype))

        def each(body: Any) -> Any:
            return sequence(self.nest.in_pieces(parts, body))

        def add(turn: int, q: Any) -> Any:
            def step(i: Any) -> Any:
                term = self._term(stage, strip, element, i, q, homes)
                return store(acc, combine(stage.how, acc[index(turn), i], term), [index(turn), i])

            return each(step)

        def clear(turn: int) -> Any:
            return each(lambda i: store(acc, stage.identity, [index(turn), i]))

        def fold(turn: int) -> Any:
            return each(lambda i: store(acc, combine(stage.how, acc[index(0), i], acc[index(turn), i]), [index(0), i]))

        init = [clear(t) for t in range(turns)]
        main = self.nest.loop(
            "q", full, lambda q: sequence(*[add(t, q * index(turns) + index(t)) for t in range(turns)])
        )
        tail = [add(0, index(full * turns + t)) for t in range(rest)]
        join = [fold(t) for t in range(1, turns)]
        last = each(lambda i: self.write(stage, strip, element, i, acc[index(0), i]))
        return sequence(allocate(acc), init, main, tail, join, last)

    def _by_partials(self, stage: Stage, strip: Strip, element: Any, homes: Mapping[Any, Home]) -> Any:
        """One result a row: partial results in vector lanes, joined at the end as a tree."""
        lanes, reads, zero = self.vector, stage.reads, index(0)
        dtype = str(stage.buffer.dtype)

        def term(q: Any) -> Any:
            return self._term(stage, strip, element, zero, q, homes)

        total = self.nest.registers("total", (1,), dtype)

        def accumulate(q: Any) -> Any:
            return store(total, combine(stage.how, total[zero], term(q)), [zero])

        lanes = min(lanes, 1 << reads.bit_length() - 1)
        if lanes < NARROW:
            start = store(total, stage.identity, [zero])
            steps = [accumulate(index(q)) for q in range(reads)]
            return sequence(allocate(total), start, steps, self.write(stage, strip, element, zero, total[zero]))

        count = max(1, min(self.vectors, reads // (2 * lanes)))
        step = count * lanes
        full, rest = divmod(reads, step)
        extra, left = divmod(rest, lanes)
        acc = self.nest.registers("acc", (count, lanes), dtype)

        def clear(u: int) -> Any:
            return self.nest.vector(lanes, lambda i: store(acc, stage.identity, [index(u), i]))

        def fold(u: int) -> Any:
            return self.nest.vector(
                lanes, lambda i: store(acc, combine(stage.how, acc[zero, i], acc[index(u), i]), [zero, i])
            )

        init = [clear(u) for u in range(count)]

        def add(u: int, start: Any) -> Any:
            return self.nest.vector(
                lanes, lambda i: store(acc, combine(stage.how, acc[index(u), i], term(start + i)), [index(u), i])
            )

        def finish(u: int) -> Any:
            """The elements that fill no vector: those of the vector that ends with them which were not there yet."""

            def one(i: Any) -> Any:
                fresh = tirx.Select(i >= index(lanes - left), term(index(reads - lanes) + i), stage.identity)
                return store(acc, combine(stage.how, acc[index(u), i], fresh), [index(u), i])

            return self.nest.vector(lanes, one)

        main = self.nest.loop(
            "q", full,
            lambda q: sequence(*[add(u, q * index(step) + index(u * lanes)) for u in range(count)]),
        )  # fmt: skip
        more = [add(u % count, index(full * step + u * lanes)) for u in range(extra)]
        tail = [finish(extra % count)] if left else []
        join = [fold(u) for u in range(1, count)]
        values = [acc[zero, index(i)] for i in range(lanes)]
        while len(values) > 1:
            values = [
                combine(stage.how, values[i], values[i + 1]) if i + 1 < len(values) else values[i]
                for i in range(0, len(values), 2)
            ]
        return sequence(
            allocate(acc), allocate(total), init, main, more, tail, join, store(total, values[0], [zero]),
            self.write(stage, strip, element, zero, total[zero]),
        )  # fmt: skip


def whole_stages(nest: Nest, stages: Sequence[Stage], lanes: int) -> tuple[list[Any], dict[Any, Home]]:
    """Nests that compute stages as a whole, before everything else, and where their values are then read."""
    program = nest.program
    parts: list[Any] = []
    homes: dict[Any, Home] = {}
    for stage in stages:
        buffer = stage.buffer
        if not stage.output:
            buffer = nest.buffer(stage.name, (stage.elements,), str(stage.buffer.dtype))
            parts.append(allocate(buffer))

        def one(i: Any, stage: Stage = stage, buffer: Any = buffer) -> Any:
            i = nest.alias("element", i, stage.elements)
            at = unravel(i, stage.shape)
            place = program.address(buffer, at) if stage.output else [i]
            return store(buffer, program.value(stage, at, [], dict(homes)), place)

        parts.append(nest.lanes_over(stage.elements, lanes, one, again=True))
        homes[stage.buffer] = reader(program, buffer, None if stage.output else stage.shape)
    return parts, homes


def reader(program: Program, buffer: Any, shape: Sequence[int] | None = None) -> Home:
    """The home of a stage that is kept as a whole; `shape` where its buffer is flat."""
    if shape is not None:
        return lambda at: tirx.BufferLoad(buffer, [program.simplify(ravel(at, shape))])
    return lambda at: tirx.BufferLoad(buffer, program.address(buffer, at))
