"""The kernel of a reduction whose threads work alone: takes the fused function, gives one nest over its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import sequence, store
from autofuse.schedule.gpu.direct import split
from autofuse.schedule.gpu.grid import Grid
from autofuse.schedule.gpu.shape import ceil_div
from autofuse.schedule.stages import Program, Stage, combine, finish, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.gpu.direct import GpuDirectConfig

# Steps of a reduction that are written out in the code.
_UNROLLED = 32


def build(func: Any, config: GpuDirectConfig) -> Any:
    """See the module's description. ScheduleError where the function is not one reduction."""
    program = lift(func)
    found = [s for s in program.stages if s.how]
    if len(found) != 1:
        raise ScheduleError(f"expected one reduction, found {len(found)}")
    return _Kernel(program, found[0], config).build()


class _Kernel:
    """State while the statements of one kernel are made."""

    def __init__(self, program: Program, stage: Stage, config: GpuDirectConfig) -> None:
        self.program, self.stage, self.config = program, stage, config
        self.grid = Grid(program)
        self.outer, self.columns, self.vector = split(stage.shape)
        self.outputs = [s for s in program.stages if s.output]
        if any(s.shape != stage.shape for s in self.outputs):
            raise ScheduleError("a result does not have the reduction's shape")
        # Reduction axes from the innermost on that are written out; the others are loops.
        self.inner = len(stage.reduced)
        count = 1
        while self.inner > 0 and count * stage.reduced[self.inner - 1] <= _UNROLLED:
            self.inner -= 1
            count *= stage.reduced[self.inner]

    def build(self) -> Any:
        """The scheduled function."""
        blocks = ceil_div(self.columns, self.config.places)
        total = self.outer * blocks
        workgroups = ceil_div(total, self.config.threads)
        grid = self.grid

        def one(workgroup: Any, thread: Any) -> Any:
            linear = workgroup * index(self.config.threads) + thread
            body = self._results(
                grid.alias("outer", tirx.floordiv(linear, index(blocks)), self.outer),
                grid.alias("block", tirx.floormod(linear, index(blocks)), blocks),
            )
            return grid.guarded(linear, total, workgroups * self.config.threads, lambda: body)

        return finish(self.program, grid.resolve(grid.kernel(workgroups, self.config.threads, one)))

    def _results(self, outer: Any, block: Any) -> Any:
        """A thread's results."""
        grid, stage, places = self.grid, self.stage, self.config.places
        acc = grid.private("acc", (places * self.vector,), str(stage.buffer.dtype))
        ragged = self.columns % places
        columns = []
        for p in range(places):
            column = block * index(places) + index(p)
            # Past the end of a row the last place is computed again and not stored.
            columns.append(grid.alias("column", tirx.min(column, index(self.columns - 1)), self.columns)
                           if ragged else column)  # fmt: skip

        def each(body: Callable[[int, Any], Any]) -> list[Any]:
            return [grid.vector(self.vector, partial(body, p)) for p in range(places)]

        def at(p: int, v: Any) -> list[Any]:
            return self._indices(outer, columns[p], v)

        def term(over: Sequence[Any]) -> list[Any]:
            def add(p: int, v: Any) -> Any:
                place = index(p * self.vector) + v
                value = self.program.value(stage, at(p, v), over, {})
                return store(acc, combine(stage.how, acc[place], value), [place])

            return each(add)

        def finished(p: int, v: Any) -> Any:
            where = at(p, v)
            kept = acc[index(p * self.vector) + v]

            def home(asked: Sequence[Any]) -> Any | None:
                return kept if all(self.program.same(a, b) for a, b in zip(asked, where, strict=True)) else None

            parts = [
                store(s.buffer, kept if s is stage else self.program.value(s, where, [], {stage.buffer: home}), where)
                for s in self.outputs
            ]
            return sequence(*parts)

        clear = each(lambda p, v: store(acc, stage.identity, [index(p * self.vector) + v]))
        results = each(finished)
        if ragged:
            last = [block * index(places) + index(p) < index(self.columns) for p in range(places)]
            results = [tirx.IfThenElse(c, r, None) for c, r in zip(last, results, strict=True)]
        return sequence(clear, self._over(term, 0, []), results)

    def _over(self, term: Any, axis: int, over: list[Any]) -> Any:
        """The loops over the outer reduction axes, and what is written out of the inner ones."""
        reduced = self.stage.reduced
        if axis < self.inner:
            return self.grid.loop("k", reduced[axis], lambda k: self._over(term, axis + 1, [*over, k]))
        inner = reduced[self.inner :]
        count = 1
        for extent in inner:
            count *= extent
        return sequence(*[term([*over, *(unravel(index(i), inner) if inner else [])]) for i in range(count)])

    def _indices(self, outer: Any, column: Any, lane: Any) -> list[Any]:
        """The indices of a result: vectors stand along the innermost axis, or are it."""
        shape = self.stage.shape
        places = [i for i, e in enumerate(shape) if e > 1]
        at: list[Any] = [index(0)] * len(shape)
        if not places:
            return at
        last = places.pop()
        if shape[last] == self.vector and places and self.columns == shape[places[-1]]:
            at[last] = lane
            at[places.pop()] = column
        else:
            at[last] = column * index(self.vector) + lane
        for place, value in zip(places, unravel(outer, [shape[i] for i in places]) if places else [], strict=True):
            at[place] = value
        return at
