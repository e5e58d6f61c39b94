"""What a GPU kernel asks of memory: takes TVM's lowered device function, gives the bytes of all its threads.

Counted in the code, not measured: loops by their extents, threads by their number, what stands under a comparison of an
index with a constant by the share of the index's range for which it holds. A load that stands twice in one straight
piece of code counts once, since the compiler keeps what it loaded. Values that are selected are taken to be loaded.
What caches and merged accesses of neighbouring lanes save is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir.expr import TensorLoad

from autofuse.codegen.resources import CodeError


@dataclass(frozen=True)
class Traffic:
    """Bytes that all lanes load from memory and store to it; `lds` what they move to and from LDS."""

    loads: int = 0
    stores: int = 0
    lds: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.loads + other.loads, self.stores + other.stores, self.lds + other.lds)


def traffic(kernel: Any, workgroups: Sequence[int], threads: Sequence[int]) -> Traffic:
    """The traffic of a device function that is launched with so many workgroups of so many threads (three axes each).

    CodeError for a loop of unknown length.
    """
    counter = _Counter({f"{what}.{axis}": count
                        for what, counts in (("blockIdx", workgroups), ("threadIdx", threads))
                        for axis, count in zip("xyz", counts, strict=True)})  # fmt: skip
    counter.statement(kernel.body, Fraction(prod(workgroups) * prod(threads)), set())
    return Traffic(int(counter.loads), int(counter.stores), int(counter.lds))


class _Counter:
    """Adds up while it walks through a function: `times` how often a statement runs, `seen` the loads before it."""

    def __init__(self, threads: Mapping[str, int]) -> None:
        self.loads = self.stores = self.lds = Fraction(0)
        self._threads = threads
        self._analyzer = sym.Analyzer()

    def statement(self, node: Any, times: Fraction, seen: set[str]) -> None:
        if isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                self.statement(part, times, seen)
        elif isinstance(node, tirx.For):
            extent = _number(node.extent)
            self._analyzer.bind(node.loop_var, tvm.ir.Range(0, extent))
            self.statement(node.body, times * extent, set(seen))
        elif isinstance(node, tirx.IfThenElse):
            self._expression(node.condition, times, seen)
            share = self._share(node.condition)
            self.statement(node.then_case, times * share, set(seen))
            if node.else_case is not None:
                self.statement(node.else_case, times * (1 - share if share < 1 else 1), set(seen))
        elif isinstance(node, tirx.AttrStmt):
            if node.attr_key == "thread_extent":
                extent = self._threads[str(node.node.thread_tag)]
                self._analyzer.bind(node.node.var, tvm.ir.Range(0, extent))
            self.statement(node.body, times, seen)
        elif isinstance(node, tirx.BufferStore):
            self._expression(node.value, times, seen)
            for at in node.indices:
                self._expression(at, times, seen)
            self._add(node.buffer, times * _bytes(node.value), stored=True)
        elif isinstance(node, tirx.While):
            raise CodeError("a loop without an end that is known")
        else:  # allocations, bindings, calls
            value = getattr(node, "value", None)
            if value is not None:
                self._expression(value, times, seen)
            if isinstance(node, tirx.Bind) and not isinstance(node.value, tirx.Ramp):
                self._analyzer.bind(node.var, node.value)
            body = getattr(node, "body", None)
            if isinstance(body, tirx.Stmt):
                self.statement(body, times, seen)

    def _expression(self, expr: Any, times: Fraction, seen: set[str]) -> None:
        found: list[Any] = []
        tvm_ffi.structural_walk(expr, (TensorLoad, found.append))
        for load in found:
            if load.source.scope() == "local":
                continue
            # LDS changes between barriers: what is read there again is read again.
            text = "" if load.source.scope().startswith("shared") else str(load)
            if not text or text not in seen:
                seen.add(text)
                self._add(load.source, times * _bytes(load))

    def _share(self, condition: Any) -> Fraction:
        """The share of an index's range for which a comparison with a constant holds; 1 for other conditions."""
        if isinstance(condition, tirx.And):
            return self._share(condition.a) * self._share(condition.b)
        if isinstance(condition, tirx.LT | tirx.LE | tirx.EQ) and isinstance(condition.b, tirx.IntImm):
            bound = self._analyzer.const_int_bound(condition.a)
            low, high, limit = int(bound.min_value), int(bound.max_value), int(condition.b)
            step = max(1, int(self._analyzer.modular_set(condition.a).coeff))
            count = (high - low) // step + 1
            if 0 < count < 1 << 32:
                below = -(-(limit + isinstance(condition, tirx.LE) - low) // step)
                holds = 1 if isinstance(condition, tirx.EQ) else below
                return Fraction(min(max(holds, 0), count), count)
        return Fraction(1)

    def _add(self, buffer: Any, size: Fraction, stored: bool = False) -> None:
        scope = str(buffer.scope())
        if scope.startswith("shared"):
            self.lds += size
        elif scope in ("", "global"):
            if stored:
                self.stores += size
            else:
                self.loads += size


def _bytes(value: Any) -> int:
    """Size of a value, which may be a vector."""
    kind = tvm.DataType(str(getattr(value.ty, "dtype", value.ty)))
    size: int = (kind.bits * kind.lanes + 7) // 8
    return size


def _number(extent: Any) -> int:
    """A loop's extent: a constant, or one beside which something stands that is 0 for every workgroup there is."""
    if isinstance(extent, tirx.IntImm | int):
        return int(extent)
    if isinstance(extent, tirx.Add):
        return _number(extent.a) + _number(extent.b)
    if isinstance(extent, tirx.Cast):
        return _number(extent.value)
    if isinstance(extent, tirx.RShift):
        return 0  # see Grid.rolled
    raise CodeError(f"a loop has the extent {extent}, which is no constant")
