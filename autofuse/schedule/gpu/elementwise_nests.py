"""The kernel of a group without reductions: takes the fused function, gives one nest over its results' elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import sequence, store
from autofuse.schedule.gpu.grid import Grid
from autofuse.schedule.gpu.shape import ceil_div
from autofuse.schedule.stages import Home, Stage, finish, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.gpu.elementwise import GpuElementwiseConfig


def build(func: Any, config: GpuElementwiseConfig) -> Any:
    """See the module's description. ScheduleError where the results have different numbers of elements."""
    program = lift(func)
    grid = Grid(program)
    results = [s for s in program.stages if s.output]
    total = results[0].elements
    if any(s.elements != total for s in results) or any(s.how for s in program.stages):
        raise ScheduleError("the results have different numbers of elements, or are reductions")
    block = config.threads * config.vector * config.steps
    groups = ceil_div(total, block)

    def one(workgroup: Any, thread: Any) -> Any:
        def step(s: Any) -> Any:
            chunk = (workgroup * config.steps + s) * config.threads + thread
            first = grid.alias("first", chunk * config.vector, groups * block)
            body = grid.vector(config.vector, lambda lane: _elements(grid, results, first, lane, config.vector))
            return grid.guarded(first, total, groups * block, lambda: body)

        return grid.unroll(config.steps, step)

    return finish(program, grid.resolve(grid.kernel(groups, config.threads, one)))


def _elements(grid: Grid, results: Sequence[Stage], first: Any, lane: Any, vector: int) -> Any:
    """An element of every result; those that read earlier ones at the same place take what was stored."""
    program = grid.program
    homes: dict[Any, Home] = {}
    parts = []
    for stage in results:
        # A vector stays within a row, so that only the row's own index depends on the lane.
        at = unravel(first, stage.shape)
        place = max((i for i, e in enumerate(stage.shape) if e > 1), default=None)
        if vector > 1 and place is not None:
            inner = stage.shape[place]
            column = tirx.floordiv(tirx.floormod(first, index(inner)), index(vector))
            whole = grid.alias("column", column, ceil_div(inner, vector))
            at[place] = whole * index(vector) + lane
        parts.append(store(stage.buffer, program.value(stage, at, [], homes), at))

        def home(where: Sequence[Any], stage: Stage = stage, at: Sequence[Any] = tuple(at)) -> Any | None:
            if all(program.same(a, b) for a, b in zip(where, at, strict=True)):
                return tirx.BufferLoad(stage.buffer, list(at))
            return None

        homes[stage.buffer] = home
    return sequence(*parts)
