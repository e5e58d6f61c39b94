"""The loop nests of a resize; see `resize`.

The result's expression is taken apart: what reads one row of the data is interpolation along the columns, what is left
combines such rows. In the first, whatever depends on the column alone goes to tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import NARROW, Nest, allocate, sequence, store
from autofuse.schedule.stages import finish, index, lift, unravel

if TYPE_CHECKING:
    from autofuse.schedule.cpu.resize import ResizeConfiguration

_BINARY = (tirx.Add, tirx.Sub, tirx.Mul)
# Vectors of results that one of the data makes.
_MOST_TIMES = 8
_SIMPLE = (tirx.Var, tirx.IntImm, tirx.FloatImm)


class ResizeNests:
    """Builds the kernel of one resize."""

    def __init__(self, func: Any, config: ResizeConfiguration, lanes: int) -> None:
        self.program = lift(func)
        self.nest = Nest(self.program)
        self.config, self.lanes = config, lanes
        if len(self.program.stages) != 1:
            raise ScheduleError("a resize is one stage")
        self.stage = self.program.stages[0]
        self.n, self.c, self.height, self.width, *self.tail = self.stage.shape
        self.y, self.x = self.stage.iters[2:4]
        # Rows that make a row of results: their indices, for the variable y.
        self.rows: list[Any] = []
        # Interpolation along the columns, the same for all rows: its loads are of row `row`.
        self.row = tirx.Var("row", "int64")
        self.across: Any = None
        self.slots: list[Any] = []  # what stands for interpolated rows in `down`
        self.down = self._down(self.stage.value)
        # Nothing is computed: rows of results are copies of each other.
        self.copies = isinstance(self.across, TensorLoad) and isinstance(self.down, tirx.Var) and not self.tail
        self.times = self._repeats() if self.copies else 0
        # Expressions of the column → the table that holds them.
        self.tables: list[tuple[Any, Any]] = []
        if not self.times:
            self.across = self._tabled(self.across)

    def build(self) -> Any:
        """The scheduled function."""
        nest = self.nest

        def task(t: Any) -> Any:
            n, c = unravel(t, (self.n, self.c))
            return self._plane(nest.alias("n", n, self.n), nest.alias("c", c, self.c))

        return finish(self.program, nest.resolve(nest.parallel("task", self.n * self.c, task, self.config.parallel)))

    def _down(self, expr: Any) -> Any:
        """`expr` with what reads a single row replaced by a variable for it."""
        loads = _loads(expr)
        if not loads:
            return expr
        rows = [load.indices[2] for load in loads]
        if all(tvm_ffi.structural_equal(rows[0], row) for row in rows[1:]):
            across = tvm_ffi.structural_map(expr, [(TensorLoad, self._in_row)])
            if self.y not in _variables(across):
                if self.across is not None and not tvm_ffi.structural_equal(self.across, across):
                    raise ScheduleError("the rows of the data are interpolated in different ways")
                self.across = across
                self.rows.append(rows[0])
                self.slots.append(tirx.Var(f"slot{len(self.slots)}", "float32"))
                return self.slots[-1]
        if not isinstance(expr, _BINARY):
            raise ScheduleError(f"a resize's rows are combined by {type(expr).__name__}")
        return type(expr)(self._down(expr.a), self._down(expr.b))

    def _in_row(self, load: Any) -> Any:
        at = list(load.indices)
        return tirx.BufferLoad(load.source, [*at[:2], self.row, *at[3:]])

    def _tabled(self, expr: Any) -> Any:
        """`expr` with what depends on the column alone read from tables."""
        if isinstance(expr, TensorLoad):
            at = list(expr.indices)
            return tirx.BufferLoad(expr.source, [*at[:3], self._table(at[3], "int32").astype("int64"), *at[4:]])
        if not _loads(expr):
            return self._table(expr, "float32")
        if not isinstance(expr, _BINARY):
            raise ScheduleError(f"a resize's columns are combined by {type(expr).__name__}")
        return type(expr)(self._tabled(expr.a), self._tabled(expr.b))

    def _table(self, expr: Any, dtype: str) -> Any:
        if isinstance(expr, _SIMPLE):
            return expr
        if _variables(expr) - {self.x}:
            raise ScheduleError("a resize's columns depend on more than the column")
        for known, table in self.tables:
            if tvm_ffi.structural_equal(known, expr):
                return table[self.x]
        table = self.nest.buffer("table", (self.width,), dtype)
        self.tables.append((expr, table))
        return table[self.x]

    def _repeats(self) -> int:
        """How often each column of the data stands in the result, one after another; 0 if that is not so."""
        columns = int(self.across.source.shape[3])
        times = self.width // columns
        if not 2 <= times <= _MOST_TIMES or self.width % columns or columns < NARROW:
            return 0
        for x in range(self.width):
            column = self.program.simplify(self._at(self.across.indices[3], {self.x: index(x)}))
            if not isinstance(column, tirx.IntImm) or int(column) != x // times:
                return 0
        return times

    def _repeated(self, n: Any, c: Any, y: Any, row: Any) -> Any:
        """A row of results whose columns repeat those of the data: lanes of vectors, each several times."""
        times, data = self.times, self.across.source
        columns = int(data.shape[3])
        lanes = min(self.lanes, 1 << columns.bit_length() - 1)
        full = columns // lanes

        def spread(start: Any) -> Any:
            held = tirx.BufferLoad(data, [n, c, row, tirx.Ramp(start, index(1), lanes)])
            parts = []
            for part in range(times):
                places = [tirx.const((part * lanes + lane) // times, "int32") for lane in range(lanes)]
                at = tirx.Ramp(start * index(times) + index(part * lanes), index(1), lanes)
                parts.append(store(self.stage.buffer, tirx.Shuffle([held], places), [n, c, y, at]))
            return sequence(*parts)

        # What is left of a row is done by a vector that ends with it.
        rest = spread(index(columns - lanes)) if columns % lanes else None
        return sequence(self.nest.loop("v", full, lambda v: spread(v * index(lanes))), rest)

    def _copies(self, n: Any, c: Any) -> Any:
        """A plane whose rows are made from the data once and then copied."""
        nest, out = self.nest, self.stage.buffer
        done = nest.registers("done", (1,), "int64")

        def line(y: Any) -> Any:
            row = self._at(self.rows[0], {self.y: y})

            def gather(x: Any) -> Any:
                at = dict(zip(self.stage.iters, (n, c, y, x), strict=True))
                return store(out, self._at(self.across, {**at, self.row: row}), [n, c, y, x])

            def copy(x: Any) -> Any:
                return store(out, out[n, c, y - index(1), x], [n, c, y, x])

            made = self._repeated(n, c, y, row) if self.times else self._over(lambda x, lane: gather(x))
            return sequence(
                tirx.IfThenElse(done[index(0)] > row, self._over(lambda x, lane: copy(x)), made),
                store(done, row + index(1), [index(0)]),
            )

        return sequence(
            allocate(done), self._fill(), store(done, index(0), [index(0)]), nest.loop("y", self.height, line)
        )

    def _plane(self, n: Any, c: Any) -> Any:
        if self.copies:
            return self._copies(n, c)
        nest, zero = self.nest, index(0)
        count = len(self.rows)
        ring = nest.buffer("ring", (count, self.width, *self.tail))
        done = nest.registers("done", (1,), "int64")

        def line(y: Any) -> Any:
            rows = [self._at(row, {self.y: y}) for row in self.rows]
            start = tirx.max(done[zero], rows[0])
            k = tirx.Var("k", "int64")
            row = start + k

            def across(x: Any, lane: list[Any]) -> Any:
                at = dict(zip(self.stage.iters, (n, c, y, x, *lane), strict=True))
                return store(ring, self._at(self.across, {**at, self.row: row}), [_slot(row, count), x, *lane])

            def down(x: Any, lane: list[Any]) -> Any:
                held = {
                    slot: tirx.BufferLoad(ring, [_slot(row, count), x, *lane])
                    for slot, row in zip(self.slots, rows, strict=True)
                }
                value = self._at(self.down, {**held, self.y: y})
                return store(self.stage.buffer, value, [n, c, y, x, *lane])

            fresh = rows[-1] + index(1) - start
            return sequence(
                tirx.For(k, zero, fresh, tirx.ForKind.SERIAL, self._over(across)),
                store(done, rows[-1] + index(1), [zero]),
                self._over(down),
            )

        return sequence(
            [allocate(ring), allocate(done)],
            self._fill(),
            store(done, zero, [zero]),
            nest.loop("y", self.height, line),
        )

    def _fill(self) -> list[Any]:
        """The tables and what fills them."""

        def fill(expr: Any, table: Any) -> Any:
            def entry(x: Any) -> Any:
                return store(table, self._at(expr, {self.x: x}).astype(str(table.dtype)), [x])

            return self.nest.lanes_over(self.width, self.lanes, entry, again=True)

        return [part for expr, table in self.tables for part in (allocate(table), fill(expr, table))]

    def _over(self, body: Callable[[Any, list[Any]], Any]) -> Any:
        """body(column, [lane]) over a row."""
        nest = self.nest
        if self.tail:
            return nest.loop("x", self.width, lambda x: nest.vector(self.lanes, lambda lane: body(x, [lane])))
        return nest.lanes_over(self.width, self.lanes, lambda x: body(x, []), again=True)

    def _at(self, expr: Any, values: dict[Any, Any]) -> Any:
        return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: values.get(var, var)))


def _slot(row: Any, count: int) -> Any:
    return tirx.truncmod(row, index(count)) if count > 1 else index(0)


def _loads(expr: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (TensorLoad, found.append))
    return found


def _variables(expr: Any) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(expr, (tirx.Var, found.add))
    return found
