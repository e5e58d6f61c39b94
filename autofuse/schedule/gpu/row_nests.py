"""The kernel of a group of row reductions: takes the fused function and its rows, gives one nest over workgroups.

A stage is a reduction (a result a row and lane, in a register of every thread that shares the row), a value a row, or
elements, of which a thread computes its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import sequence, store
from autofuse.schedule.cpu.rowspace import Rows, Space
from autofuse.schedule.gpu.grid import Grid
from autofuse.schedule.gpu.shape import ceil_div
from autofuse.schedule.stages import Home, Program, Stage, combine, finish, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.gpu.rows import GpuRowsConfig


def build(func: Any, rows: Rows, config: GpuRowsConfig) -> Any:
    """See the module's description. ScheduleError where a stage does not split into the rows."""
    program = lift(func)
    return _Kernel(program, rows, config).build()


class _Kernel:
    """State while the statements of one kernel are made."""

    def __init__(self, program: Program, rows: Rows, config: GpuRowsConfig) -> None:
        self.program, self.rows, self.config = program, rows, config
        self.grid = Grid(program)
        self.spaces = {s.buffer: Space(s.shape, rows.rows, rows.lanes) for s in program.stages}
        self.stages = [s for s in program.kept(program.stages) if self.spaces[s.buffer].fits or s.how or s.output]
        for stage in self.stages:
            space = self.spaces[stage.buffer]
            if not space.fits or (stage.how and space.elements != 1):
                raise ScheduleError(f"stage {stage.name} does not split into {rows.rows} rows")
        self.homes: dict[Any, Home] = {}
        # The element that a loop is at, and its position among the thread's own.
        self.element: Any = index(0)
        self.position: Any = index(0)
        self.exchanges = 0
        self.buffers: tuple[Any, ...] = ()

    def build(self) -> Any:
        """The scheduled function."""
        rows, config = self.rows, self.config
        tiles = ceil_div(rows.lanes, config.along)
        workgroups = ceil_div(rows.rows, config.rows) * tiles
        return finish(self.program, self.grid.resolve(self.grid.kernel(workgroups, config.threads, self._workgroup)))

    def _workgroup(self, block: Any, thread: Any) -> Any:
        grid, rows, config = self.grid, self.rows, self.config
        tiles = ceil_div(rows.lanes, config.along)
        self.thread = thread
        self.part = grid.alias(
            "part", tirx.floormod(tirx.floordiv(thread, index(config.along)), index(config.across)), config.across
        )
        self.inside = tirx.floordiv(thread, index(config.along * config.across))
        row = tirx.floordiv(block, index(tiles)) * index(config.rows) + self.inside
        lane = tirx.floormod(block, index(tiles)) * index(config.along) + tirx.floormod(thread, index(config.along))
        # Threads past the end compute the last row (or lane) again, for the barriers' sake, and store nothing.
        self.valid: list[Any] = []
        self.row = self._clamped("row", row, rows.rows, rows.rows % config.rows)
        self.lane = self._clamped("lane", lane, rows.lanes, rows.lanes % config.along)
        if config.across > 1:
            self.buffers = (grid.lds("partial", (config.threads,)), grid.lds("partial", (config.threads,)))
        return sequence(*[self._stage(stage) for stage in self.stages])

    def _clamped(self, stem: str, value: Any, extent: int, ragged: int) -> Any:
        if ragged:
            self.valid.append(value < index(extent))
            value = tirx.min(value, index(extent - 1))
        return self.grid.alias(stem, value, extent)

    # -- stages ------------------------------------------------------------------------------------------------

    def _stage(self, stage: Stage) -> Any:
        if stage.how:
            return self._reduction(stage)
        if self.spaces[stage.buffer].elements == 1:
            return self._single(stage)
        return self._elements(stage)

    def _indices(self, stage: Stage, element: Any) -> list[Any]:
        return self.spaces[stage.buffer].indices(self.row, element, self.lane)

    def _store(self, stage: Stage, at: Sequence[Any], value: Any, once: bool) -> Any:
        """Store an element of a result; `once`: the first of the threads that share the row does."""
        statement = store(stage.buffer, value, self.program.address(stage.buffer, at))
        conditions = list(self.valid)
        if once and self.config.across > 1:
            conditions.append(self.part < index(1))
        return tirx.IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement

    def _own(self, stage: Stage, value: Any) -> Any | None:
        """The statements that make a value a row known: in a register, and in memory where it is a result."""
        register = self.grid.private(stage.name, (1,), str(stage.buffer.dtype))
        self.homes[stage.buffer] = self._home(stage, lambda element: register[index(0)])
        kept = store(register, value, [index(0)])
        at = self._indices(stage, index(0))
        return sequence(kept, self._store(stage, at, register[index(0)], True) if stage.output else None)

    def _single(self, stage: Stage) -> Any:
        """A value a row, which every thread computes for itself."""
        return self._own(stage, self.program.value(stage, self._indices(stage, index(0)), [], self.homes))

    def _elements(self, stage: Stage) -> Any:
        """Elements: each thread its own."""
        config, count = self.config, self.spaces[stage.buffer].elements
        size = config.steps(count) * config.vector
        register = None
        if config.keep and not stage.output:
            register = self.grid.private(stage.name, (size,), str(stage.buffer.dtype))
        if register is None and not stage.output:
            return None  # computed again wherever it is read

        def one(element: Any) -> Any:
            at = self._indices(stage, element)
            value = self.program.value(stage, at, [], self.homes)
            if register is not None:
                return store(register, value, [self.position])
            return self._store(stage, at, value, False)

        made = self._over(count, one)
        if register is not None:
            kept = register
            self.homes[stage.buffer] = self._home(
                stage, lambda element: kept[self.position] if self.program.same(element, self.element) else None
            )
        return made

    def _home(self, stage: Stage, find: Any) -> Home:
        space = self.spaces[stage.buffer]

        def read(at: Sequence[Any]) -> Any | None:
            row, element, lane = space.place(at)
            if not self.program.same(row, self.row) or not self.program.same(lane, self.lane):
                return None
            return find(element)

        return read

    def _over(self, count: int, body: Any) -> Any:
        """body(element) for the thread's elements of a row, in vectors; unrolled where they are kept in registers."""
        config, grid = self.config, self.grid
        steps = config.steps(count)

        def step(s: Any) -> Any:
            first = (s * index(config.across) + self.part) * index(config.vector)

            def one(v: Any) -> Any:
                self.element, self.position = first + v, s * index(config.vector) + v
                return body(self.element)

            return grid.guarded(
                first, count, steps * config.across * config.vector, lambda: grid.vector(config.vector, one)
            )

        return grid.unroll(steps, step) if config.keep else grid.loop("step", steps, step)

    # -- reductions --------------------------------------------------------------------------------------------

    def _reduction(self, stage: Stage) -> Any:
        """Each thread its share, then the threads of a row together."""
        config, grid, dtype = self.config, self.grid, str(stage.buffer.dtype)
        partial = grid.private("partial", (config.vector,), dtype)
        where = self._indices(stage, index(0))
        lane_of: dict[str, Any] = {}

        def add(element: Any) -> Any:
            lane = lane_of["v"]
            term = self.program.value(stage, where, unravel(element, stage.reduced), self.homes)
            return store(partial, combine(stage.how, partial[lane], term), [lane])

        steps = config.steps(stage.reads)

        def step(s: Any) -> Any:
            first = (s * index(config.across) + self.part) * index(config.vector)

            def one(v: Any) -> Any:
                self.element, self.position, lane_of["v"] = first + v, s * index(config.vector) + v, v
                return add(self.element)

            return grid.guarded(
                first, stage.reads, steps * config.across * config.vector, lambda: grid.vector(config.vector, one)
            )

        clear = grid.vector(config.vector, lambda v: store(partial, stage.identity, [v]))
        main = grid.unroll(steps, step) if config.keep else grid.loop("step", steps, step)
        values = [partial[index(v)] for v in range(config.vector)]
        while len(values) > 1:
            values = [combine(stage.how, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        together, total = self._together(stage, values[0])
        return sequence(clear, main, together, self._own(stage, total))

    def _together(self, stage: Stage, own: Any) -> tuple[list[Any], Any]:
        """Statements that combine the threads' values of a row, and the result; every thread gets it."""
        from autofuse.schedule.gpu.rows import FEW

        config, grid = self.config, self.grid
        across, along = config.across, config.along
        if across == 1:
            return [], own
        base = self.inside * index(across * along) + tirx.floormod(self.thread, index(along))

        def slot(part: Any) -> Any:
            return base + part * index(along)

        def folded(buffer: Any, parts: Sequence[Any]) -> Any:
            values = [buffer[slot(part)] for part in parts]
            while len(values) > 1:
                odd = values[len(values) // 2 * 2 :]
                values = [combine(stage.how, a, b) for a, b in zip(values[::2], values[1::2], strict=False)] + odd
            return values[0]

        # Two buffers in turn: what one exchange leaves is read until the barrier of the next.
        first, second = self.buffers if self.exchanges % 2 == 0 else self.buffers[::-1]
        statements = [store(first, own, [self.thread]), grid.barrier()]
        if across <= FEW:
            self.exchanges += 1
            return statements, folded(first, [index(p) for p in range(across)])
        groups = across // FEW if across // FEW <= FEW else FEW
        # The first threads of a row add up every so many-th value, then all of them what those found.
        members = across // groups
        sum_up = store(second, folded(first, [self.part + index(groups * m) for m in range(members)]), [self.thread])
        statements += [tirx.IfThenElse(self.part < index(groups), sum_up, None), grid.barrier()]
        return statements, folded(second, [index(p) for p in range(groups)])
