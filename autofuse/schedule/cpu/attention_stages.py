"""The stages of a fused attention by what they are, and elements of them: what nests for CPUs and GPUs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from autofuse.schedule import ScheduleError
from autofuse.schedule.stages import Home, Program, Stage, ravel, unravel


def shape_of(buffer: Any) -> tuple[int, ...]:
    """The buffer's extents."""
    return tuple(int(e) for e in buffer.shape)


class AttentionStages:
    """scored, anchor: the two products; peak, exponent, total: the softmax between them, of the buffer `score`, which
    `before` makes of the first product.
    """

    program: Program

    def find(self, program: Program) -> list[Stage]:
        """Look the stages up in a function; gives those after the second product. ScheduleError for another form."""
        products = [s for s in program.stages if s.role == "matmul"]
        if len(products) != 2 or any(not isinstance(s.value, tirx.Mul) or len(s.reduces) != 1 for s in products):
            raise ScheduleError("the function is not two sums of products")
        self.program = program
        self.scored, self.anchor = products
        after = program.downstream(self.anchor)
        between = [s for s in program.downstream(self.scored) if s is not self.anchor and s not in after]
        self._softmax(between)
        return after

    def _softmax(self, between: Sequence[Stage]) -> None:
        """The stages of the softmax by what they are, and those before it."""

        def single(found: Sequence[Stage], what: str) -> Stage:
            if len(found) != 1:
                raise ScheduleError(f"expected one {what} between the products, found {len(found)}")
            return found[0]

        def reading(stage: Stage) -> list[Stage]:
            return [s for s in between if any(load.source.same_as(stage.buffer) for load in s.loads)]

        self.peak = single([s for s in between if s.how == "max"], "maximum")
        self.total = single([s for s in between if s.how == "add"], "sum")
        self.exponent = single(reading(self.peak), "reader of the maximum")
        share = single(reading(self.total), "reader of the sum")
        sides = (share.value.a, share.value.b) if isinstance(share.value, tirx.Div) else (None,)
        if not all(isinstance(side, TensorLoad) for side in sides) or not share.value.a.source.same_as(
            self.exponent.buffer
        ):
            raise ScheduleError(f"stage {share.name} does not divide by the sum")
        if not isinstance(self.peak.value, TensorLoad) or not isinstance(self.total.value, TensorLoad):
            raise ScheduleError(f"stages {self.peak.name} and {self.total.name} do not reduce stored values")
        if self.peak.shape != self.exponent.shape[:-1] or shape_of(self.peak.value.source) != self.exponent.shape:
            raise ScheduleError(f"stage {self.peak.name} does not reduce the last axis")
        self.score = self.peak.value.source
        done = {self.peak, self.total, self.exponent, share}
        before = {s.buffer: s for s in between if s not in done}
        chain: set[Any] = set()
        todo = [self.score]
        while todo:
            stage = before.get(todo.pop())
            if stage is not None and stage.buffer not in chain:
                chain.add(stage.buffer)
                todo.extend(load.source for load in stage.loads)
        self.before = [s for s in between if s.buffer in chain]
        # What lies between the softmax and the second product only moves: in rows of the same length, see `parse`.
        if any(s.how or s.loads != (s.value,) for s in between if s not in done and s.buffer not in chain):
            raise ScheduleError("something is computed from the result of the softmax")

    # -- elements ----------------------------------------------------------------------------------------------

    def place(self, shape: Sequence[int], b: Any, query: Any, key: Any) -> list[Any]:
        """Indices of a score in a stage of that shape."""
        return [*unravel(b, shape[:-2]), query, key]

    def element(self, anchor: Stage, expr: Any, b: Any, row: Any, column: Any, k: Any) -> Any:
        """One side of a product's term."""
        at = (*self.place(anchor.shape, b, row, column), k)
        values = dict(zip((*anchor.iters, *anchor.reduces), at, strict=True))
        return self.program.substitute(expr, values, {})

    def held(self, shape: Sequence[int], want: Sequence[Any], buffer: Any, where: Sequence[Any]) -> Home:
        """The home of one element of a stage, that of a batch and its last indices: `buffer` at `where`."""
        lead = len(shape) - len(want) + 1

        def read(at: Sequence[Any]) -> Any | None:
            have = [ravel(at[:lead], shape[:lead]), *at[lead:]]
            found = all(self.program.same(x, y) for x, y in zip(have, want, strict=True))
            return buffer[tuple(where)] if found else None

        return read
