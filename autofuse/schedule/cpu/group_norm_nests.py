"""The loop nests of a group normalisation in channel blocks; see `group_norm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.group_norm import share_of
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
        self.blocks, self.rows, self.columns = window.out.shape[1:4]
        self.share = share_of(window)
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
        nest, share = self.nest, self.share
        each = share.tasks // share.images

        def task(t: Any) -> Any:
            n = nest.alias("n", tirx.floordiv(t, index(each)), share.images)
            g = nest.alias("g", tirx.floormod(t, index(each)), each)
            return self._task(n, g * index(share.blocks))

        body = nest.parallel("task", share.tasks, task, self.c.parallel)
        return finish(self.program, nest.resolve(sequence(self.first, body)))

    def _task(self, n: Any, block0: Any) -> Any:
        """The three passes over one group, whose first block is `block0`."""
        nest, lanes, blocks = self.nest, self.lanes, self.share.blocks
        inverse = tirx.const(1.0 / (blocks * self.rows * self.columns * lanes), "float32")
        mean, factor = (nest.registers(stem, (1,)) for stem in ("mean", "factor"))
        zero = index(0)
        kept, again, keep = self._data(n, block0)

        def square(c: Any, y: Any, x: Any, lane: Any) -> Any:
            off = again(c, y, x, lane) - mean[zero]
            return off * off

        total, first = self._sum(again, keep)
        squares, second = self._sum(square, lambda c, y, x: None)

        def results(c: Any) -> Any:
            return self._results(n, block0, c, again, lambda lane: mean[zero], lambda lane: factor[zero])

        last = nest.loop("c", blocks, results)
        return sequence(
            [allocate(b) for b in (mean, factor)],
            kept,
            first,
            store(mean, total[zero] * inverse, [zero]),
            second,
            store(factor, self._factor(squares[zero] * inverse), [zero]),
            last,
        )

    def _factor(self, variance: Any) -> Any:
        """What distances from the mean are multiplied with."""
        return tirx.const(1.0, "float32") / tirx.sqrt(variance + tirx.const(self.epsilon, "float32"))

    def _data(self, n: Any, block0: Any) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
        """A task's data: the statement that makes room for them, (c, y, x, lane) → an element once they are there,
        (c, y, x) → what the first pass does with a vector. Room and work where they are computed, None where not."""
        nest, lanes = self.nest, self.lanes
        kept = None if self.data in self.program.params else nest.buffer(
            "kept", (self.share.blocks, self.rows, self.columns, lanes)
        )  # fmt: skip

        def given(c: Any, y: Any, x: Any, lane: Any) -> Any:
            return self.program.load(self.data, [n, block0 + c, y, x, lane], self.homes)

        def again(c: Any, y: Any, x: Any, lane: Any) -> Any:
            return given(c, y, x, lane) if kept is None else kept[c, y, x, lane]

        def keep(c: Any, y: Any, x: Any) -> Any:
            if kept is None:
                return None
            return nest.vector(lanes, lambda lane: store(kept, given(c, y, x, lane), [c, y, x, lane]))

        return None if kept is None else allocate(kept), again, keep

    def _sum(self, value: Callable[..., Any], before: Callable[..., Any]) -> tuple[Any, list[Any]]:
        """A register that holds the sum of `value` over the task's blocks, and the statements that compute it."""
        nest, lanes = self.nest, self.lanes
        acc, total = self._accumulators(), nest.registers("total", (1,))
        added = self._added(acc, lambda rows: nest.loop("c", self.share.blocks, rows), value, before)
        values = [acc[index(i)] for i in range(lanes)]
        while len(values) > 1:
            values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
        return total, [allocate(acc), allocate(total), *added, store(total, values[0], [index(0)])]

    def _accumulators(self) -> Any:
        """Registers of partial sums, a vector for each column of a tile."""
        return self.nest.registers("acc", (min(self.c.vectors, self.columns) * self.lanes,))

    def _added(
        self, acc: Any, over: Callable[[Callable[[Any], Any]], Any], value: Callable[..., Any],
        before: Callable[..., Any],
    ) -> list[Any]:  # fmt: skip
        """Statements after which the first vector of `acc` has the sums of `value`, lane by lane.

        over: what is done with the rows of one block → what is done with those of all.
        """
        nest, lanes = self.nest, self.lanes
        across = Cut(self.columns, min(self.c.vectors, self.columns))
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
        main = over(lambda c: nest.loop("y", self.rows, lambda y: row(c, y)))
        join = [
            nest.vector(lanes, lambda lane, j=j: store(acc, acc[lane] + acc[index(j * lanes) + lane], [lane]))  # type: ignore[misc]
            for j in range(1, across.size)
        ]
        return [*clear, main, *join]

    def _results(
        self, n: Any, block0: Any, c: Any, value: Callable[..., Any], mean: Callable[[Any], Any],
        factor: Callable[[Any], Any],
    ) -> Any:  # fmt: skip
        """The results of one block of channels, with what follows. mean, factor: of a lane's channel."""
        nest, lanes, zero = self.nest, self.lanes, index(0)
        block = nest.alias("block", block0 + c, self.blocks)
        scale, bias = nest.registers("scale", (lanes,)), nest.registers("bias", (lanes,))

        def operands(lane: Any) -> Any:
            at = [zero, block, zero, zero, lane]
            return sequence(
                store(scale, tirx.BufferLoad(self.weights, at) * factor(lane), [lane]),
                store(bias, tirx.BufferLoad(self.bias, at), [lane]),
            )

        def one(y: Any, x: Any) -> Any:
            done = nest.registers("normal", (lanes,))

            def normal(lane: Any) -> Any:
                return store(done, (value(c, y, x, lane) - mean(lane)) * scale[lane] + bias[lane], [lane])

            follow = self.follow([n, block, y, x], done, zero)
            return sequence(allocate(done), nest.vector(lanes, normal), follow)

        loops = nest.loop("y", self.rows, lambda y: nest.loop("x", self.columns, lambda x: one(y, x)))
        return sequence(allocate(scale), allocate(bias), nest.vector(lanes, operands), loops)


class LaneNormNests(GroupNormNests):
    """Of groups that do not fill blocks: vectors hold channels of several groups, whose sums are added up by group."""

    def _task(self, n: Any, block0: Any) -> Any:
        """The three passes over blocks that hold whole groups, from `block0` on."""
        nest, lanes, share = self.nest, self.lanes, self.share
        inverse = tirx.const(1.0 / (share.channels * self.rows * self.columns), "float32")
        width = share.blocks * lanes
        sums, means, factors = (nest.buffer(stem, (width,)) for stem in ("sums", "means", "factors"))
        kept, again, keep = self._data(n, block0)

        def vector_of(source: Any, c: Any) -> tuple[Any, list[Any]]:
            """A block's numbers in a register, and the statements that bring them there."""
            held = nest.registers("held", (lanes,))
            bring = nest.vector(lanes, lambda lane: store(held, source[c * index(lanes) + lane], [lane]))
            return held, [allocate(held), bring]

        def first(c: Any) -> Any:
            return self._channel_sums(c, sums, again, keep)

        def second(c: Any) -> Any:
            mean, bring = vector_of(means, c)

            def square(c: Any, y: Any, x: Any, lane: Any) -> Any:
                off = again(c, y, x, lane) - mean[lane]
                return off * off

            return sequence(bring, self._channel_sums(c, sums, square, lambda c, y, x: None))

        def results(c: Any) -> Any:
            (mean, bring), (factor, also) = vector_of(means, c), vector_of(factors, c)
            return sequence(
                bring, also, self._results(n, block0, c, again, lambda lane: mean[lane], lambda lane: factor[lane])
            )

        return sequence(
            [allocate(b) for b in (sums, means, factors)],
            kept,
            nest.loop("c", share.blocks, first),
            self._by_group(sums, means, lambda total: total * inverse),
            nest.loop("c", share.blocks, second),
            self._by_group(sums, factors, lambda total: self._factor(total * inverse)),
            nest.loop("c", share.blocks, results),
        )

    def _channel_sums(self, c: Any, sums: Any, value: Callable[..., Any], before: Callable[..., Any]) -> Any:
        """The sums of `value` over the places of each channel of a block, stored in `sums`."""
        acc = self._accumulators()
        added = self._added(acc, lambda rows: rows(c), value, before)
        kept = self.nest.vector(
            self.lanes, lambda lane: store(sums, acc[lane], [c * index(self.lanes) + lane])
        )  # fmt: skip
        return sequence(allocate(acc), added, kept)

    def _by_group(self, sums: Any, target: Any, made: Callable[[Any], Any]) -> Any:
        """What is `made` of the sum over each group's channels, in `target` for each of them.

        Lanes past the last channel have what the last group has, as by the operator's definition.
        """
        nest, channels, zero = self.nest, self.share.channels, index(0)
        last = self.share.groups * channels
        beyond = self.share.blocks * self.lanes - last

        def group(g: Any) -> Any:
            total, start = nest.registers("total", (1,)), g * index(channels)
            return sequence(
                allocate(total),
                store(total, tirx.const(0.0, "float32"), [zero]),
                nest.loop("i", channels, lambda i: store(total, total[zero] + sums[start + i], [zero])),
                store(total, made(total[zero]), [zero]),
                nest.loop("i", channels, lambda i: store(target, total[zero], [start + i])),
            )

        groups = nest.loop("g", self.share.groups, group)
        if not beyond:
            return groups
        fill = nest.loop("i", beyond, lambda i: store(target, target[index(last - 1)], [index(last) + i]))
        return sequence(groups, fill)
