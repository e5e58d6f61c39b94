"""The loop nests of a group normalisation in channel blocks; see `group_norm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.loops import Cut, allocate, sequence, store
from autofuse.schedule.cpu.window_nests import Source, WindowNests
from autofuse.schedule.stages import finish, index

if TYPE_CHECKING:
    from autofuse.schedule.cpu.group_norm import GroupNormConfiguration


class GroupNormNests(WindowNests):
    """Builds the kernel of one normalisation."""

    def __init__(self, func: Any, window: W.Window, config: GroupNormConfiguration, lanes: int) -> None:
        super().__init__(func, window, "gnorm", lanes)
        self.c = config
        self.n, self.blocks, self.rows, self.columns, _ = window.out.shape
        self.groups = int(str(window.anchor.attrs["groups"]))
        self.per = self.blocks // self.groups
        self.epsilon = float(str(window.anchor.attrs["epsilon"]))
        inputs = window.group.inputs
        self.bias = self.program.params[inputs.index(window.anchor.inputs[2])]

    def _source(self) -> Source:
        """The data are what the sum reads; the sums themselves are built here."""
        sums = [self.program.with_role(role) for role in ("gnorm_sum", "gnorm_squares")]
        found = {load.source for load in sums[0].loads}
        if len(found) != 1:
            raise ScheduleError("the normalisation does not read one tensor of data")
        (data,) = found
        return Source(self.nest, self.lanes, data, apart=[s.buffer for s in sums])

    def build(self) -> Any:
        """The scheduled function."""
        nest = self.nest

        def task(t: Any) -> Any:
            n = nest.alias("n", tirx.floordiv(t, index(self.groups)), self.n)
            g = nest.alias("g", tirx.floormod(t, index(self.groups)), self.groups)
            return self._group(n, g * index(self.per))

        body = nest.parallel("task", self.n * self.groups, task, self.c.parallel)
        return finish(self.program, nest.resolve(sequence(self.first, body)))

    def _group(self, n: Any, block0: Any) -> Any:
        """The three passes over one group, whose first block is `block0`."""
        nest, lanes = self.nest, self.lanes
        inverse = tirx.const(1.0 / (self.per * self.rows * self.columns * lanes), "float32")
        mean, factor = (nest.registers(stem, (1,)) for stem in ("mean", "factor"))
        zero = index(0)
        kept = None if self.data in self.program.params else nest.buffer(
            "kept", (self.per, self.rows, self.columns, lanes)
        )  # fmt: skip

        def given(c: Any, y: Any, x: Any, lane: Any) -> Any:
            return self.program.load(self.data, [n, block0 + c, y, x, lane], self.homes)

        def again(c: Any, y: Any, x: Any, lane: Any) -> Any:
            return given(c, y, x, lane) if kept is None else kept[c, y, x, lane]

        def keep(c: Any, y: Any, x: Any) -> Any:
            if kept is None:
                return None
            return nest.vector(lanes, lambda lane: store(kept, given(c, y, x, lane), [c, y, x, lane]))

        def square(c: Any, y: Any, x: Any, lane: Any) -> Any:
            off = again(c, y, x, lane) - mean[zero]
            return off * off

        total, first = self._sum(again, keep)
        squares, second = self._sum(square, lambda c, y, x: None)
        deviation = squares[zero] * inverse + tirx.const(self.epsilon, "float32")
        last = nest.loop("c", self.per, lambda c: self._results(n, block0, c, again, mean, factor))
        return sequence(
            [allocate(b) for b in (mean, factor)],
            [] if kept is None else [allocate(kept)],
            first,
            store(mean, total[zero] * inverse, [zero]),
            second,
            store(factor, tirx.const(1.0, "float32") / tirx.sqrt(deviation), [zero]),
            last,
        )

    def _sum(self, value: Callable[..., Any], before: Callable[..., Any]) -> tuple[Any, list[Any]]:
        """A register that holds the sum of `value` over the group, and the statements that compute it."""
        nest, lanes = self.nest, self.lanes
        across = Cut(self.columns, min(self.c.vectors, self.columns))
        acc, total = nest.registers("acc", (across.size * lanes,)), nest.registers("total", (1,))
        zero = tirx.const(0.0, "float32")

        def tile(c: Any, y: Any, number: Any, width: int) -> Any:
            parts: list[Any] = []
            for j in range(width):
                x = number * index(across.size) + index(j)

                def add(lane: Any, x: Any = x, place: int = j * lanes) -> Any:
                    at = index(place) + lane
                    return store(acc, acc[at] + value(c, y, x, lane), [at])

                parts += [before(c, y, x), nest.vector(lanes, add)]
            return sequence(parts)

        def row(c: Any, y: Any) -> Any:
            return nest.tiles(index(0), across.tiles, across, lambda number, width: tile(c, y, number, width))

        clear = [
            nest.vector(lanes, lambda lane, j=j: store(acc, zero, [index(j * lanes) + lane]))  # type: ignore[misc]
            for j in range(across.size)
        ]
        main = nest.loop("c", self.per, lambda c: nest.loop("y", self.rows, lambda y: row(c, y)))
        join = [
            nest.vector(lanes, lambda lane, j=j: store(acc, acc[lane] + acc[index(j * lanes) + lane], [lane]))  # type: ignore[misc]
            for j in range(1, across.size)
        ]
        values = [acc[index(i)] for i in range(lanes)]
        while len(values) > 1:
            values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
        return total, [allocate(acc), allocate(total), *clear, main, *join, store(total, values[0], [index(0)])]

    def _results(self, n: Any, block0: Any, c: Any, value: Callable[..., Any], mean: Any, factor: Any) -> Any:
        """The results of one block of channels, with what follows."""
        nest, lanes, zero = self.nest, self.lanes, index(0)
        block = nest.alias("block", block0 + c, self.blocks)
        scale, bias = nest.registers("scale", (lanes,)), nest.registers("bias", (lanes,))

        def operands(lane: Any) -> Any:
            at = [zero, block, zero, zero, lane]
            return sequence(
                store(scale, tirx.BufferLoad(self.weights, at) * factor[zero], [lane]),
                store(bias, tirx.BufferLoad(self.bias, at), [lane]),
            )

        def one(y: Any, x: Any) -> Any:
            done = nest.registers("normal", (lanes,))

            def normal(lane: Any) -> Any:
                return store(done, (value(c, y, x, lane) - mean[zero]) * scale[lane] + bias[lane], [lane])

            follow = self.follow([n, block, y, x], done, zero)
            return sequence(allocate(done), nest.vector(lanes, normal), follow)

        loops = nest.loop("y", self.rows, lambda y: nest.loop("x", self.columns, lambda x: one(y, x)))
        return sequence(allocate(scale), allocate(bias), nest.vector(lanes, operands), loops)
