"""The kernel of a tiled product: takes the fused function, gives one nest over tiles of the result.

Both operands are expressions: what they read may be padded, rearranged or computed. They are brought to LDS as
[depth, rows] and [depth, columns], so that a thread reads its micro-tile's operands in vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import sequence, store
from autofuse.schedule.gpu.gemm_axes import LONG, WIDE, Axes, Side, axes_of, side_of
from autofuse.schedule.gpu.grid import Grid
from autofuse.schedule.gpu.shape import ceil_div
from autofuse.schedule.stages import Program, Stage, finish, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.gpu.gemm import GpuGemmConfig

# Elements of both operands that a thread reads before it multiplies.
_READ_AHEAD = 32


def build(func: Any, config: GpuGemmConfig, behind: int = 0) -> Any:
    """See the module's description. `behind`: reductions (1: a depthwise convolution) that the left operand is made of
    where it is brought. ScheduleError where the function is no such product with elementwise stages behind.
    """
    program = lift(func)
    reductions = [s for s in program.stages if s.how]
    if len(reductions) != behind + 1:
        raise ScheduleError(f"the function has {len(reductions)} reductions, not {behind + 1}")
    return Kernel(program, axes_of(reductions[-1]), config, reductions[0] if behind else None).build()


class Kernel:
    """State while the statements of one kernel are made. `first`: the reduction that the left operand is made of."""

    def __init__(self, program: Program, axes: Axes, config: GpuGemmConfig, first: Stage | None = None) -> None:
        self.program, self.axes, self.config, self.first = program, axes, config, first
        self.grid = Grid(program)
        stage = axes.stage
        self.depth = stage.reads
        # What the left operand is made of where it is brought stays as it stands.
        left = axes.left if first is not None else program.substitute(axes.left, {}, {})
        self.sides: tuple[Side, Side] = (
            side_of(axes, left, axes.rows, config.rows),
            side_of(axes, program.substitute(axes.right, {}, {}), axes.columns, config.columns),
        )
        # Columns that lie together in the result are stored as vectors.
        last = max((p for p, e in enumerate(stage.shape) if e > 1), default=-1)
        inner = stage.shape[last] if last in axes.columns else 1
        self.wide = next(w for w in (WIDE, 2, 1) if inner % w == 0 and config.micro_columns % w == 0)
        # Neighbours in a wave take neighbouring columns, or rows where the columns that lie together are one vector.
        self.rows_first = last in axes.rows or (last in axes.columns and inner <= WIDE and bool(axes.rows))

    # -- the nest ----------------------------------------------------------------------------------------------

    def build(self) -> Any:
        """The scheduled function."""
        config, axes, grid = self.config, self.axes, self.grid
        self.tiles = tuple(ceil_div(side.total, side.size) for side in self.sides)
        workgroups = axes.extent(axes.batches) * self.tiles[0] * self.tiles[1]
        return finish(self.program, grid.resolve(grid.kernel(workgroups, config.threads, self._workgroup)))

    def _workgroup(self, block: Any, thread: Any) -> Any:
        grid, config, axes = self.grid, self.config, self.axes
        rows, columns = self.tiles
        self.block, self.thread = block, thread
        tile = (tirx.floormod(block, index(rows)), tirx.floormod(tirx.floordiv(block, index(rows)), index(columns)))
        self.tile = tuple(
            grid.alias("tile", t, n) for t, n in zip(tile, self.tiles, strict=True)
        )  # fmt: skip
        batch = grid.alias("batch", tirx.floordiv(block, index(rows * columns)), axes.extent(axes.batches))
        self.batch = dict(zip(axes.batches, unravel(batch, [axes.stage.shape[p] for p in axes.batches]), strict=True))
        down, across = config.rows // config.micro_rows, config.columns // config.micro_columns
        if self.rows_first:
            own = (tirx.floormod(thread, index(down)), tirx.floordiv(thread, index(down)))
        else:
            own = (tirx.floordiv(thread, index(across)), tirx.floormod(thread, index(across)))
        self.own = (grid.alias("down", own[0], down), grid.alias("across", own[1], across))
        self.spread = (down, across)
        dtype = str(axes.stage.buffer.dtype)
        self.shared = tuple(grid.lds("tile", (config.buffers, config.depth, side.pitch), dtype) for side in self.sides)
        self.acc = grid.private("acc", (config.micro_rows, config.micro_columns), dtype)
        if self.first is not None:
            self.part = grid.private("part", (self.sides[0].vector,), str(self.first.buffer.dtype))
        self.micro = tuple(grid.private("micro", (n,), dtype) for n in (config.micro_rows, config.micro_columns))
        clear = grid.unroll(
            config.micro_rows,
            lambda i: grid.unroll(config.micro_columns, lambda j: store(self.acc, axes.stage.identity, [i, j])),
        )
        return sequence(clear, self._depth(), self._results())

    def _depth(self) -> Any:
        """The loop over pieces of the depth."""
        grid, config = self.grid, self.config
        pieces = ceil_div(self.depth, config.depth)
        if config.buffers == 1 or pieces == 1:

            def one(k: Any) -> Any:
                bring = [self._bring(n, k, self._to_lds(n, index(0))) for n in (0, 1)]
                before = grid.barrier() if pieces > 1 else None
                return sequence(before, bring, grid.barrier(), self._multiply(index(0)))

            return one(index(0)) if pieces == 1 else grid.rolled("k", pieces, self.block, one)
        waiting = tuple(grid.private("waiting", (self._slots(n) * side.vector,)) for n, side in enumerate(self.sides))

        def keep(n: int) -> Callable[..., Any]:
            return lambda slot, lane, row, depth, value: store(
                waiting[n], value, [slot * index(self.sides[n].vector) + lane]
            )

        def put(buffer: Any) -> list[Any]:
            """What waits in registers, to LDS."""

            def kept(n: int) -> Callable[..., Any]:
                to = self._to_lds(n, buffer)
                side = self.sides[n]
                return lambda slot, lane, row, depth, _: to(
                    slot, lane, row, depth, waiting[n][slot * index(side.vector) + lane]
                )

            return [self._bring(n, None, kept(n)) for n in (0, 1)]

        def step(k: Any) -> Any:
            now = tirx.floormod(k, index(2))
            more = k < index(pieces - 1)
            fetch = tirx.IfThenElse(more, sequence([self._bring(n, k + index(1), keep(n)) for n in (0, 1)]), None)
            place = tirx.IfThenElse(more, sequence(put(index(1) - now)), None)
            return sequence(fetch, self._multiply(now), place, grid.barrier())

        first = [self._bring(n, index(0), self._to_lds(n, index(0))) for n in (0, 1)]
        return sequence(first, grid.barrier(), grid.rolled("k", pieces, self.block, step))

    # -- operands ----------------------------------------------------------------------------------------------

    def _slots(self, n: int) -> int:
        """Vectors of an operand's tile that a thread brings."""
        side = self.sides[n]
        return ceil_div(side.size * self.config.depth // side.vector, self.config.threads)

    def _to_lds(self, n: int, buffer: Any) -> Callable[..., Any]:
        return lambda slot, lane, row, depth, value: store(self.shared[n], value, [buffer, depth, row])

    def _bring(self, n: int, piece: Any, put: Callable[..., Any]) -> Any:
        """put(slot, lane, row, depth, value) for each element of an operand's tile that is this thread's.

        row and depth count within the tile. Without a `piece` there are no values, only places.
        """
        side, config, grid = self.sides[n], self.config, self.grid
        count = side.size * config.depth // side.vector

        def one(slot: Any) -> Any:
            linear = slot * index(config.threads) + self.thread
            reach = self._slots(n) * config.threads
            number = grid.alias("number", linear, reach)
            place = self._place(side, number, reach)

            def element(lane: Any) -> Any:
                row, depth = place
                if side.along_depth:
                    depth = depth * index(side.vector) + lane
                else:
                    row = row * index(side.vector) + lane
                value = None if piece is None else self._value(n, row, depth, piece, lane)
                return put(slot, lane, row, depth, value)

            def whole() -> Any:
                made = self._made(place, piece) if n == 0 and self.first is not None and piece is not None else None
                return sequence(made, grid.vector(side.vector, element))

            return grid.guarded(linear, count, reach, whole)

        return grid.unroll(self._slots(n), one)

    def _place(self, side: Side, number: Any, reach: int) -> tuple[Any, Any]:
        """Row (or vector of rows) and depth (or vector of it) of the tile's vector with that number.

        Numbers run along what lies together in memory, then along the other axis.
        """
        grid, depth = self.grid, self.config.depth
        if side.along_depth:
            rows, depths = side.size, depth // side.vector
            return self._pair(number, reach, depths if side.run > LONG else rows, side.run > LONG)
        rows = side.size // side.vector
        together = side.run // side.vector
        if side.run < side.size and rows % together == 0 and together > 1:
            # A block of a packed matrix: its vectors, then the depth, then the next block.
            inner = tirx.floormod(number, index(together))
            deep = tirx.floormod(tirx.floordiv(number, index(together)), index(depth))
            outer = tirx.floordiv(number, index(together * depth))
            row = grid.alias("row", outer * index(together) + inner, ceil_div(reach, depth))
            return row, grid.alias("deep", deep, depth)
        depth_first = 1 < side.run <= side.vector
        return self._pair(number, reach, depth if depth_first else rows, depth_first)

    def _pair(self, number: Any, reach: int, fast: int, depth_first: bool) -> tuple[Any, Any]:
        """(row, depth) of a number below `reach` that runs along one of them, of extent `fast`, first."""
        low = self.grid.alias("low", tirx.floormod(number, index(fast)), fast)
        high = self.grid.alias("high", tirx.floordiv(number, index(fast)), ceil_div(reach, fast))
        return (high, low) if depth_first else (low, high)

    def _made(self, place: tuple[Any, Any], piece: Any) -> Any:
        """A vector of the reduction that the left operand is made of, into `part`: its steps are written out."""
        first, side, grid, program = self.first, self.sides[0], self.grid, self.program
        assert first is not None
        row, depth = place

        def each(body: Callable[[Any, list[Any], Any], Any]) -> Any:
            def one(lane: Any) -> Any:
                at = (row, depth * index(side.vector) + lane) if side.along_depth else (
                    row * index(side.vector) + lane, depth
                )  # fmt: skip
                asked: list[list[Any]] = []
                self._value(0, *at, piece, lane, asked)
                if not asked or any(not program.same(a, b) for other in asked[1:]
                                    for a, b in zip(asked[0], other, strict=True)):  # fmt: skip
                    raise ScheduleError(f"the product does not read one element of {first.name}")
                return body(lane, asked[0], self._inside(0, *at, piece))

            return grid.vector(side.vector, one)

        def step(over: list[Any]) -> Any:
            def add(lane: Any, at: list[Any], inside: list[Any]) -> Any:
                term = program.value(first, at, over, {})
                if inside:
                    term = tirx.if_then_else(tirx.all(*inside), term, tirx.const(0, str(first.buffer.dtype)))
                return store(self.part, self.part[lane] + term, [lane])

            return each(add)

        clear = grid.vector(side.vector, lambda lane: store(self.part, first.identity, [lane]))
        return sequence(clear, [step(unravel(index(i), first.reduced)) for i in range(first.reads)])

    def _inside(self, n: int, row: Any, depth: Any, piece: Any) -> list[Any]:
        """What holds of an element of an operand's tile that is no padding of the tile; nothing if all are."""
        side, config = self.sides[n], self.config
        whole, deep = self.tile[n] * index(side.size) + row, piece * index(config.depth) + depth
        inside = []
        if side.total % side.size:
            inside.append(whole < index(side.total))
        if self.depth % config.depth:
            inside.append(deep < index(self.depth))
        return inside

    def _value(self, n: int, row: Any, depth: Any, piece: Any, lane: Any, asked: list[list[Any]] | None = None) -> Any:
        """An element of an operand, 0 past the ends of rows (columns) and depth.

        `asked` is told what element it reads of the reduction that the left operand is made of.
        """
        axes, config, side = self.axes, self.config, self.sides[n]
        stage = axes.stage
        whole = self.tile[n] * index(side.size) + row
        deep = piece * index(config.depth) + depth
        at = {**self.batch, **(self._row_axes(whole) if n == 0 else self._axes_at(axes.columns, whole))}
        values = {stage.iters[p]: at.get(p, index(0)) for p in range(len(stage.shape))}
        values.update(zip(stage.reduces, unravel(deep, stage.reduced), strict=True))
        homes: dict[Any, Any] = {}
        if n == 0 and self.first is not None:

            def part(at: Sequence[Any]) -> Any:
                if asked is not None:
                    asked.append(list(at))
                return self.part[lane]

            homes = {self.first.buffer: part}
        value = self.program.substitute(axes.left if n == 0 else axes.right, values, homes)
        inside = self._inside(n, row, depth, piece)
        if not inside:
            return value
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, str(stage.buffer.dtype)))

    def _axes_at(self, places: Sequence[int], linear: Any) -> dict[int, Any]:
        """The product's axes at some places, by a linear index over them."""
        if not places:
            return {}
        return dict(zip(places, unravel(linear, [self.axes.stage.shape[p] for p in places]), strict=True))

    def _row_axes(self, row: Any) -> dict[int, Any]:
        """Those that a row of the left operand stands for."""
        return self._axes_at(self.axes.rows, row)

    # -- arithmetic --------------------------------------------------------------------------------------------

    def _member(self, n: int, i: Any, width: int) -> Any:
        """The row (column) within the tile of a thread's i-th: vectors of `width`, the threads' in turn."""
        outer, inner = tirx.floordiv(i, index(width)), tirx.floormod(i, index(width))
        return (outer * index(self.spread[n]) + self.own[n]) * index(width) + inner

    def _widths(self) -> tuple[int, int]:
        """Elements of a thread's rows and columns that stand together."""
        rows = next(w for w in (WIDE, 2, 1) if self.config.micro_rows % w == 0)
        return rows, self.wide if self.wide > 1 else next(w for w in (WIDE, 2, 1) if self.config.micro_columns % w == 0)

    def _multiply(self, buffer: Any) -> Any:
        """The micro-tile's products for one piece of the depth."""
        grid, config = self.grid, self.config
        widths = self._widths()

        def step(k: Any) -> Any:
            loads = []
            for n, count in enumerate((config.micro_rows, config.micro_columns)):
                width = widths[n]

                def load(v: Any, n: int = n, width: int = width) -> Any:
                    start = v * index(width)
                    member = (v * index(self.spread[n]) + self.own[n]) * index(width)
                    return grid.vector(
                        width,
                        lambda lane: store(self.micro[n], self.shared[n][buffer, k, member + lane], [start + lane]),
                    )

                loads.append(grid.unroll(count // width, load))

            def multiply(i: Any) -> Any:
                def one(j: Any) -> Any:
                    total = self.acc[i, j] + self.micro[0][i] * self.micro[1][j]
                    return store(self.acc, total, [i, j])

                return grid.unroll(config.micro_columns, one)

            return sequence(loads, grid.unroll(config.micro_rows, multiply))

        # A few steps are written out: LLVM brings forward what all of them read, which has to fit registers.
        most = max(1, _READ_AHEAD // (config.micro_rows + config.micro_columns))
        steps = max(d for d in range(1, config.depth + 1) if config.depth % d == 0 and d <= most)

        def several(outer: Any) -> Any:
            return grid.unroll(steps, lambda k: step(outer * index(steps) + k))

        if steps == config.depth:
            return several(index(0))
        return grid.rolled("deep", config.depth // steps, self.block, several)

    # -- results -----------------------------------------------------------------------------------------------

    def _results(self) -> Any:
        """The results of the micro-tile: the product where it is one, and what follows it."""
        grid, config, axes = self.grid, self.config, self.axes
        stage = axes.stage
        outputs = [s for s in self.program.stages if s.output]
        if any(s.shape != stage.shape for s in outputs):
            raise ScheduleError("a result does not have the product's shape")
        row_width, width = self._widths()[0], self.wide

        def row(i: Any) -> Any:
            whole = self.tile[0] * index(config.rows) + self._member(0, i, row_width)

            def column(v: Any) -> Any:
                first = self._member(1, v * index(width), self._widths()[1])
                start = self.tile[1] * index(config.columns) + first
                body = grid.vector(width, lambda lane: self._element(outputs, whole, start, lane, i, v * width))
                return grid.guarded(start, self.sides[1].total, self.tiles[1] * config.columns, lambda: body)

            body = grid.unroll(config.micro_columns // width, column)
            return grid.guarded(whole, self.sides[0].total, self.tiles[0] * config.rows, lambda: body)

        return grid.unroll(config.micro_rows, row)

    def _element(self, outputs: Sequence[Stage], row: Any, start: Any, lane: Any, i: Any, j: Any) -> Any:
        """The results at one place of the product."""
        axes, program = self.axes, self.program
        stage = axes.stage
        at: list[Any] = [index(0)] * len(stage.shape)
        for place, value in self.batch.items():
            at[place] = value
        for places, linear in ((axes.rows, row), (axes.columns, start + lane)):
            for place, value in zip(places, unravel(linear, [stage.shape[p] for p in places]) if places else [],
                                    strict=True):  # fmt: skip
                at[place] = value

        def product(where: Sequence[Any]) -> Any | None:
            same = all(program.same(a, b) for a, b in zip(where, at, strict=True))
            return self.acc[i, j + lane] if same else None

        homes = {stage.buffer: product}
        parts = []
        for output in outputs:
            value = product(at) if output is stage else program.value(output, at, [], homes)
            parts.append(store(output.buffer, value, at))
        return sequence(*parts)
