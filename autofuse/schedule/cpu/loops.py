"""Building loop nests statement by statement: what families that write their own TIR share.

`Nest` makes loops whose variables its program's analyzer knows, vectors of any width as powers of two, and
placeholders: variables that stand for an expression while indices are simplified, so that vector accesses stay
provably contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from autofuse.schedule.stages import Program, index

Body = Callable[[Any], Any]
#: Lanes of the narrowest vector that is worth more than elements one by one.
NARROW = 4
SERIAL, PARALLEL = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
VECTORIZED, UNROLLED = tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED


@dataclass(frozen=True)
class Piece:
    """Part of a row of elements that one vector holds: where it starts, how wide it is (a power of two)."""

    start: int
    lanes: int


@dataclass(frozen=True)
class Cut:
    """An axis in tiles of `size`: `full` whole ones and, where it does not divide, one of `rest`."""

    extent: int
    size: int

    @property
    def full(self) -> int:
        """Whole tiles."""
        return self.extent // self.size

    @property
    def rest(self) -> int:
        """Extent of the ragged tile, 0 if there is none."""
        return self.extent % self.size

    @property
    def tiles(self) -> int:
        """All tiles."""
        return -(-self.extent // self.size)


def pieces(width: int, lanes: int, first: int = 0) -> list[Piece]:
    """A row of `width` elements from `first` on as vectors of `lanes`, the rest as smaller powers of two."""
    found = []
    start = 0
    step = lanes
    while start < width:
        while step > width - start:
            step //= 2
        found.append(Piece(first + start, step))
        start += step
    return found


def spans(width: int, lanes: int) -> list[Piece]:
    """A row of `width` elements as vectors of one width, at most `lanes`; the last one ends with the row and may hold
    elements of the one before."""
    lanes = min(lanes, 1 << width.bit_length() - 1)
    starts = range(0, width - lanes + 1, lanes)
    rest = [Piece(width - lanes, lanes)] if width % lanes else []
    return [*(Piece(start, lanes) for start in starts), *rest]


def sequence(*parts: Any) -> Any:
    """Statements one after another; lists are flattened, None is left out."""
    flat: list[Any] = []
    for part in parts:
        if isinstance(part, list | tuple):
            flat.extend(p for p in part if p is not None)
        elif part is not None:
            flat.append(part)
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def _loads(expr: Any) -> list[Any]:
    """The loads of an expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (TensorLoad, found.append))
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two buffers take the same number of bytes of the same kind of memory."""
    sizes = [prod(int(e) for e in buffer.shape) for buffer in (one, other)]
    return sizes[0] == sizes[1] and str(one.dtype) == str(other.dtype) and one.scope() == other.scope()


class Nest:
    """Makes the loops of one function; see the module's description."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._count = 0
        self._aliases: dict[Any, Any] = {}

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def variable(self, stem: str, extent: int) -> Any:
        """A new variable with 0 <= it < extent."""
        return self.program.bound(tirx.Var(self._name(stem), "int64"), extent)

    def alias(self, stem: str, value: Any, extent: int) -> Any:
        """A variable that stands for `value` (in [0, extent)) until `resolve`."""
        var = self.variable(stem, extent)
        self._aliases[var] = value
        return var

    def resolve(self, statement: Any) -> Any:
        """`statement` with every placeholder replaced by what it stands for."""

        def real(var: Any) -> Any:
            while var in self._aliases:
                value = self._aliases[var]
                if not isinstance(value, tirx.Var):
                    return tvm_ffi.structural_map(value, (tirx.Var, real))
                var = value
            return var

        return tvm_ffi.structural_map(statement, (tirx.Var, real))

    def loop(self, stem: str, extent: int, body: Body, kind: Any = SERIAL) -> Any:
        """for stem in extent: body(stem). A loop that runs once is only its body."""
        if extent == 1:
            return body(index(0))
        var = self.variable(stem, extent)
        return tirx.For(var, index(0), index(extent), kind, body(var))

    def parallel(self, stem: str, extent: int, body: Body, wanted: int) -> Any:
        """A loop over independent tasks, handed to the thread pool if `wanted`."""
        return self.loop(stem, extent, body, PARALLEL if wanted else SERIAL)

    def unrolled(self, extent: int, body: Callable[[int], Any]) -> Any:
        """body(0) … body(extent - 1), one after another."""
        return sequence(*[body(i) for i in range(extent)])

    def vector(self, lanes: int, body: Body) -> Any:
        """body(lane) for all lanes at once."""
        return self.loop("lane", lanes, body, VECTORIZED)

    def lanes_over(self, extent: int, lanes: int, body: Body, again: bool = False, looped: bool = False) -> Any:
        """body(i) for every i < extent, in vectors of `lanes`; what is left in smaller ones.

        again: body may be run twice for an element, since it does not read what it stores. What is left is then done
        by a whole vector that ends with the last element.
        looped: the caller repeats this in a loop, which is one statement to TVM: where it may let the results of a
        statement take the place of what they are computed of, nothing is done twice.
        """
        if again:
            lanes = min(lanes, 1 << extent.bit_length() - 1)
        full, rest = divmod(extent, lanes)
        parts = []
        if full:
            parts.append(self.loop("v", full, lambda v: self.vector(lanes, lambda lane: body(v * index(lanes) + lane))))
        if again and rest:
            last = self.in_pieces([Piece(extent - lanes, lanes)], body)
            if not (looped and self._may_share(last)):
                return sequence(*parts, last)
        return sequence(*parts, self.in_pieces(pieces(rest, lanes, full * lanes), body))

    def _may_share(self, statements: Sequence[Any]) -> bool:
        """Whether something is stored in a buffer of the kernel's own that was computed from another one like it.

        TVM gives both the same memory where the other one is not read later: what is computed again would then be
        computed of its result.
        """
        stores: list[Any] = []
        for statement in statements:
            tvm_ffi.structural_walk(statement, (tirx.BufferStore, stores.append))
        return any(
            not load.source.same_as(store.buffer) and _alike(load.source, store.buffer)
            for store in stores
            if self._own(store.buffer)
            for load in _loads(store.value)
            if self._own(load.source)
        )

    def _own(self, buffer: Any) -> bool:
        return not any(buffer.same_as(param) for param in self.program.params)

    def in_pieces(self, parts: Sequence[Piece], body: Body) -> list[Any]:
        """body(i) for the elements of each piece, a vector a piece."""

        def one(piece: Piece) -> Any:
            return self.vector(piece.lanes, lambda lane: body(index(piece.start) + lane))

        return [one(piece) for piece in parts]

    def tiles(self, first: Any, each: int, cut: Cut, body: Callable[[Any, int], Any]) -> Any:
        """body(tile, extent) for `each` tiles from `first` on; those past the last are left out.

        The ragged tile at the end is built apart, with a constant number and extent.
        """

        def one(i: Any) -> Any:
            reach = -(-cut.tiles // each) * each
            tile = self.alias("tile", first + i, reach)
            whole = body(tile, cut.size) if cut.full else None
            ragged = body(index(cut.full), cut.rest) if cut.rest else None
            if whole is None:
                return ragged if reach == 1 else tirx.IfThenElse(tile < index(1), ragged, None)
            if ragged is not None and reach > cut.tiles:
                ragged = tirx.IfThenElse(tile < index(cut.tiles), ragged, None)
            return whole if reach == cut.full else tirx.IfThenElse(tile < index(cut.full), whole, ragged)

        return self.loop("t", each, one)

    def either(self, value: Any, limit: int, extent: int, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """`then` where value < limit, else `other`; value is in [0, extent). Only what can happen is built."""
        if limit >= extent:
            return then()
        if limit <= 0:
            return other()
        return tirx.IfThenElse(value < index(limit), then(), other())

    def buffer(self, stem: str, shape: Sequence[int], dtype: str = "float32", scope: str = "global") -> Any:
        """A buffer; allocate it with `allocate` where it is to live."""
        return tirx.decl_buffer(tuple(shape), dtype, name=self._name(stem), scope=scope)

    def registers(self, stem: str, shape: Sequence[int], dtype: str = "float32") -> Any:
        """A small buffer that the compiler keeps in registers when its indices are constants."""
        return self.buffer(stem, shape, dtype, "local")


def allocate(buffer: Any) -> Any:
    """The statement that makes a buffer live until the end of the enclosing loop's body."""
    return tirx.AllocBuffer(buffer)


def store(buffer: Any, value: Any, at: Sequence[Any]) -> Any:
    """buffer[at] = value."""
    return tirx.BufferStore(buffer, value, list(at))


def divisor_at_most(n: int, limit: int) -> int:
    """The largest divisor of n that is at most `limit` (at least 1)."""
    return max(d for d in range(1, max(1, min(n, limit)) + 1) if n % d == 0)
