"""The kernel of a convolution with its pool: takes the fused function, gives the nest of `gemm_nests.py` over windows.

The four (or two) places of a window follow each other in a thread's micro-tile and are pooled there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import sequence, store
from autofuse.schedule.gpu.gemm_axes import Side, axes_of
from autofuse.schedule.gpu.gemm_nests import Kernel
from autofuse.schedule.stages import Program, Stage, combine, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.gpu.conv_pool import Pooled
    from autofuse.schedule.gpu.gemm import GpuGemmConfig


def build(func: Any, config: GpuGemmConfig, pooled: Pooled) -> Any:
    """See the module's description. ScheduleError where the function is no convolution and a pool."""
    program = lift(func)
    reductions = [s for s in program.stages if s.how]
    if len(reductions) != 2 or any(len(stage.shape) != 5 for stage in reductions):
        raise ScheduleError(f"the function has {len(reductions)} reductions, not a convolution and a pool")
    return _PooledKernel(program, reductions[0], reductions[1], config, pooled).build()


class _PooledKernel(Kernel):
    """The product's kernel with the rows of `pooled`, and results of its own."""

    def __init__(self, program: Program, product: Stage, pool: Stage, config: GpuGemmConfig, pooled: Pooled) -> None:
        super().__init__(program, axes_of(product), config)
        self.pool, self.pooled = pool, pooled
        if pool.reads != pooled.places:
            raise ScheduleError(f"stage {pool.name} pools {pool.reads} places, not {pooled.places}")
        left = self.sides[0]
        count = pool.shape[0] * pool.shape[2] * pool.shape[3] * pooled.places
        # Neighbouring rows are no neighbours in memory any more; what lies together along the depth still does.
        rows = replace(left, total=count) if left.along_depth else Side(left.size, count, False, 1, 1)
        self.sides = (rows, self.sides[1])

    def _place_of(self, row: Any) -> tuple[list[Any], Any, Any]:
        """Of a row: the indices of its result (image, row, column), and its place in the window (row, column)."""
        places = self.pooled.places
        at = unravel(tirx.floordiv(row, index(places)), [self.pool.shape[i] for i in (0, 2, 3)])
        down, across = unravel(tirx.floormod(row, index(places)), self.pooled.window)
        return at, down, across

    def _source(self, result: Sequence[Any], down: Any, across: Any) -> tuple[Any, Any]:
        """Row and column of the convolution that a place of a result's window is at; it may be outside."""
        made = []
        for axis, step in ((0, down), (1, across)):
            made.append(result[1 + axis] * index(self.pooled.strides[axis]) + step - index(self.pooled.before[axis]))
        return made[0], made[1]

    def _row_axes(self, row: Any) -> dict[int, Any]:
        at, down, across = self._place_of(row)
        y, x = self._source(at, down, across)
        found = {0: at[0], 2: y, 3: x}
        return {place: value for place, value in found.items() if place in self.axes.rows}

    def _inside(self, n: int, row: Any, depth: Any, piece: Any) -> list[Any]:
        inside = super()._inside(n, row, depth, piece)
        if n == 1:
            return inside
        whole = self.tile[0] * index(self.sides[0].size) + row
        at, down, across = self._place_of(whole)
        pooled = self.pooled
        extents = (pooled.height, pooled.width)
        for axis, value in enumerate(self._source(at, down, across)):
            if pooled.before[axis]:
                inside.append(value >= index(0))
            last = (pooled.results[axis] - 1) * pooled.strides[axis] + pooled.window[axis] - 1 - pooled.before[axis]
            if last >= extents[axis]:
                inside.append(value < index(extents[axis]))
        return inside

    def _results(self) -> Any:
        """The pooled results of the micro-tile's windows, and what follows them."""
        grid, config, places = self.grid, self.config, self.pooled.places
        outputs = [s for s in self.program.stages if s.output]
        if any(s.shape != self.pool.shape for s in outputs):
            raise ScheduleError("a result does not have the pool's shape")
        row_width, column_width = self._widths()
        if row_width % places:
            raise ScheduleError(f"windows of {places} places do not lie in one thread")
        width = self.wide
        kept = grid.private("pooled", (width,), str(self.pool.buffer.dtype))
        total = self.sides[0].total

        def window(number: Any) -> Any:
            first = number * index(places)
            row = self.tile[0] * index(config.rows) + self._member(0, first, row_width)
            reach = self.tiles[0] * config.rows
            result = grid.alias("result", tirx.floordiv(row, index(places)), reach // places)

            def column(v: Any) -> Any:
                start = self.tile[1] * index(config.columns) + self._member(1, v * index(width), column_width)
                body = self._window(outputs, kept, result, start, first, v * index(width))
                return grid.guarded(start, self.sides[1].total, self.tiles[1] * config.columns, lambda: body)

            body = grid.unroll(config.micro_columns // width, column)
            return grid.guarded(result, total // places, reach // places, lambda: body)

        return grid.unroll(config.micro_rows // places, window)

    def _window(self, outputs: Sequence[Stage], kept: Any, result: Any, start: Any, i: Any, j: Any) -> Any:
        """The results of one window and a vector of columns: pooled into `kept`, then everything that follows."""
        grid, program, pool, stage = self.grid, self.program, self.pool, self.axes.stage

        def indices(lane: Any) -> list[Any]:
            at: list[Any] = [index(0)] * len(pool.shape)
            for place, value in zip((0, 2, 3), unravel(result, [pool.shape[p] for p in (0, 2, 3)]), strict=True):
                at[place] = value
            columns = self.axes.columns
            values = unravel(start + lane, [stage.shape[p] for p in columns]) if columns else []
            for place, value in zip(columns, values, strict=True):
                at[place] = value
            return at

        def term(place: int, lane: Any) -> Any:
            at = indices(lane)
            down, across = divmod(place, self.pooled.window[1])
            y, x = self._source([at[0], at[2], at[3]], index(down), index(across))
            here = [at[0], at[1], y, x, at[4]]

            def product(where: Sequence[Any]) -> Any | None:
                same = all(program.same(a, b) for a, b in zip(where, here, strict=True))
                return self.acc[i + index(place), j + lane] if same else None

            return program.value(pool, at, unravel(index(place), pool.reduced), {stage.buffer: product})

        def pooled(lane: Any) -> Any:
            value = pool.identity
            for place in range(self.pooled.places):
                value = combine(pool.how, value, term(place, lane))
            return store(kept, value, [lane])

        def finished(lane: Any) -> Any:
            at = indices(lane)

            def home(where: Sequence[Any]) -> Any | None:
                return kept[lane] if all(program.same(a, b) for a, b in zip(where, at, strict=True)) else None

            parts = [
                store(s.buffer, kept[lane] if s is pool else program.value(s, at, [], {pool.buffer: home}), at)
                for s in outputs
            ]
            return sequence(*parts)

        return sequence(grid.vector(self.wide, pooled), grid.vector(self.wide, finished))
