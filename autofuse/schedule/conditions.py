"""Conditions taken out of the loops that do not change them.

Takes a scheduled function; gives one that computes the same. A concatenation of many operands is a chain of conditions
for each element, padding one or two. Where they compare an axis with constants, the loops below the one that drives
the axis are written once for each range between the constants, under a binary tree of branches; many operands are
looked up instead (operands.py). Any other condition gives two copies of the loops that do not change it. Indices are
simplified by the ranges of their axes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize

from autofuse.schedule.operands import Operands, many_operands, selects

# Copies of a nest that are made at most.
_MOST = 64
# Vectors below a loop for each of its steps from which on it may look up which operand of a concatenation is due.
_WORTH_LOOKING_UP = 4


@dataclass(frozen=True)
class _Axis:
    """A block's axis `var` in [0, extent) that conditions compare with `cuts`; the loop at `depth` is the last to
    change its value."""

    var: Any
    value: Any
    extent: int
    cuts: tuple[int, ...]
    depth: int


def hoist_conditions(func: Any) -> Any:
    """`func` with the conditions of its elementwise blocks taken out of their loops, where that saves evaluations."""
    chains: dict[Any, list[Any]] = {}

    def visit(loop: Any) -> None:
        chain = [loop]
        while isinstance(chain[-1].body, tirx.For):
            chain.append(chain[-1].body)
        leaf = chain[-1].body
        if isinstance(leaf, SBlockRealize) and isinstance(leaf.block.body, tirx.BufferStore):
            known = chains.get(leaf)
            if known is None or len(known) < len(chain):
                chains[leaf] = chain

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    replaced: dict[Any, Any] = {}
    for leaf, chain in chains.items():
        if leaf.block.init is not None:
            continue
        value = _simplified(leaf, leaf.block.body.value, {})
        if _conditional(value) or not tvm_ffi.structural_equal(value, leaf.block.body.value):
            many = many_operands(func.params, leaf, value, partial(_driven, leaf, chain))
            operands, value = many or (None, value)
            copies = _Copies(leaf, chain, value, _axes(leaf, chain, value), operands)
            replaced[chain[0].loop_var] = copies.statement()
    if not replaced:
        return func
    body = tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: replaced.get(loop.loop_var, loop)))
    return tirx.PrimFunc(func.params, body, func.ret_type, attrs=func.attrs)


def _simplified(leaf: Any, value: Any, ranges: dict[Any, tuple[int, int]]) -> Any:
    """The value of a block, simplified by the ranges of its axes: those of `ranges` are narrower than declared."""
    analyzer = sym.Analyzer()
    for item in leaf.block.iter_vars:
        if isinstance(item.dom.extent, tirx.IntImm):
            low, high = ranges.get(item.var, (0, int(item.dom.extent)))
            analyzer.bind(item.var, tvm.ir.Range(tirx.const(low, "int64"), tirx.const(high, "int64")))

    def load(node: Any) -> Any:
        return tirx.BufferLoad(node.source, [analyzer.simplify(i) for i in node.indices])

    return tvm_ffi.structural_map(analyzer.simplify(value), (TensorLoad, load))


def _selections(value: Any) -> list[Any]:
    """The selections in a value, inner ones first."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if selects(call):
            found.append(call)

    tvm_ffi.structural_walk(value, (Call, visit))
    return found


def _conditional(value: Any) -> bool:
    return bool(_selections(value))


def _depth(leaf: Any, chain: Sequence[Any], variables: set[Any]) -> int:
    """The last loop that changes the block axes in `variables`, -1 if none does."""
    used: set[Any] = set()
    for item, value in zip(leaf.block.iter_vars, leaf.iter_values, strict=True):
        if item.var in variables:
            used |= _variables(value)
    return max((d for d, loop in enumerate(chain) if loop.loop_var in used), default=-1)


def _driven(leaf: Any, chain: Sequence[Any], axis: Any) -> tuple[Any, int] | None:
    """A block axis in terms of the loops, and the depth of the last loop that changes it; None where that is no loop
    or the loops below run too seldom for what stands at it to be cheap."""
    depth = _depth(leaf, chain, {axis})
    if depth < 0 or chain[depth].kind == tirx.ForKind.VECTORIZED or _repeated(chain, depth) < _WORTH_LOOKING_UP:
        return None
    values = [v for item, v in zip(leaf.block.iter_vars, leaf.iter_values, strict=True) if item.var.same_as(axis)]
    return values[0], depth


def _repeated(chain: Sequence[Any], depth: int) -> int:
    """How often what stands below the loop at `depth` runs for each step of it, vectors aside."""
    return prod(int(loop.extent) for loop in chain[depth + 1 :] if loop.kind != tirx.ForKind.VECTORIZED)


def _repeats(chain: Sequence[Any], depth: int) -> bool:
    """Whether loops below `depth`, vectors aside, run more than once."""
    return _repeated(chain, depth) > 1


def _axes(leaf: Any, chain: Sequence[Any], value: Any) -> list[_Axis]:
    """The axes whose conditions are worth taking out, outermost first."""
    block: SBlock = leaf.block
    cuts = _cuts(value)
    found: list[_Axis] = []
    copies = 1
    for item, driver in zip(block.iter_vars, leaf.iter_values, strict=True):
        if item.var not in cuts or not isinstance(item.dom.extent, tirx.IntImm):
            continue
        extent = int(item.dom.extent)
        inside = tuple(sorted(c for c in cuts[item.var] if 0 < c < extent))
        depth = _depth(leaf, chain, {item.var})
        if not inside or depth < 0 or chain[depth].kind == tirx.ForKind.VECTORIZED:
            continue
        # Below the loop there must be enough to repeat: one vector is selected as quickly as it is branched around.
        if len(inside) <= 2 and not _repeats(chain, depth):
            continue
        if copies * (len(inside) + 1) > _MOST:
            continue
        copies *= len(inside) + 1
        found.append(_Axis(item.var, driver, extent, inside, depth))
    return sorted(found, key=lambda axis: axis.depth)


def _variables(expr: Any) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(expr, (tirx.Var, found.add))
    return found


def _cuts(value: Any) -> dict[Any, set[int]]:
    """Variable → the constants at which a condition that compares it with them changes."""
    found: dict[Any, set[int]] = {}
    # (a constant on the left, on the right) → what is added to it
    steps = {tirx.LT: (1, 0), tirx.LE: (0, 1), tirx.GT: (0, 1), tirx.GE: (1, 0)}

    def compare(node: Any) -> None:
        left, right = node.a, node.b
        at_left, at_right = steps[type(node)]
        if isinstance(left, tirx.Var) and isinstance(right, tirx.IntImm):
            found.setdefault(left, set()).add(int(right) + at_right)
        elif isinstance(right, tirx.Var) and isinstance(left, tirx.IntImm):
            found.setdefault(right, set()).add(int(left) + at_left)

    for call in _selections(value):
        tvm_ffi.structural_walk(call.args[0], (tuple(steps), compare))
    return found


class _Copies:
    """Writes the copies of one nest."""

    def __init__(
        self, leaf: Any, chain: Sequence[Any], value: Any, axes: Sequence[_Axis], operands: Operands | None = None
    ) -> None:
        self.leaf, self.chain, self.value, self.axes, self.operands = leaf, list(chain), value, list(axes), operands
        self.values = {i.var: v for i, v in zip(leaf.block.iter_vars, leaf.iter_values, strict=True)}
        self.room = _MOST // max(1, prod(len(axis.cuts) + 1 for axis in axes))

    def statement(self) -> Any:
        """The whole nest."""
        nest = self._loops(0, self.value, {})
        return nest if self.operands is None else tirx.SeqStmt([*self.operands.defined(), nest])

    def _loops(self, level: int, value: Any, ranges: dict[Any, tuple[int, int]]) -> Any:
        """The loops from `level` on, around the block that stores `value`; `ranges` of axes are known."""
        if level == len(self.chain):
            return self._block(value)
        loop = self.chain[level]
        found: list[Any] = []
        if self.operands is not None and self.operands.depth == level:
            value, found = self.operands.opened(value)
        body = self._split([a for a in self.axes if a.depth == level], level, value, ranges)
        if found:
            body = tirx.SeqStmt([*found, body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)

    def _split(self, axes: Sequence[_Axis], level: int, value: Any, ranges: dict[Any, tuple[int, int]]) -> Any:
        """What stands below the loop at `level`, apart for each range of the first of `axes`."""
        if not axes:
            return self._branch(level, value, ranges)
        axis = axes[0]

        def tree(low: int, high: int, cuts: Sequence[int]) -> Any:
            if not cuts:
                known = {**ranges, axis.var: (low, high)}
                inner = self._split(axes[1:], level, _simplified(self.leaf, value, known), known)
                return self._renamed(inner, level + 1)
            middle = len(cuts) // 2
            cut = cuts[middle]
            condition = axis.value < tirx.const(cut, "int64")
            return tirx.IfThenElse(condition, tree(low, cut, cuts[:middle]), tree(cut, high, cuts[middle + 1 :]))

        return tree(0, axis.extent, axis.cuts)

    def _branch(self, level: int, value: Any, ranges: dict[Any, tuple[int, int]]) -> Any:
        """What stands below the loop at `level`, apart for each outcome of the first condition that it settles."""
        condition = self._settled(level, value) if self.room > 1 else None
        if condition is None:
            return self._loops(level + 1, value, ranges)
        self.room //= 2

        def given(outcome: bool) -> Any:
            def pick(call: Any) -> Any:
                if selects(call) and tvm_ffi.structural_equal(call.args[0], condition):
                    return call.args[1 if outcome else 2]
                return call

            return self._renamed(self._branch(level, tvm_ffi.structural_map(value, (Call, pick)), ranges), level + 1)

        shown = tvm_ffi.structural_map(condition, (tirx.Var, lambda var: self.values.get(var, var)))
        return tirx.IfThenElse(shown, given(True), given(False))

    def _settled(self, level: int, value: Any) -> Any | None:
        """A condition in the value that the loop at `level` is the last to change, if copies of the rest pay."""
        if not _repeats(self.chain, level) or self.chain[level].kind == tirx.ForKind.VECTORIZED:
            return None
        for call in _selections(value):
            loads: list[Any] = []
            tvm_ffi.structural_walk(call.args[0], (TensorLoad, loads.append))
            if not loads and _depth(self.leaf, self.chain, _variables(call.args[0])) == level:
                return call.args[0]
        return None

    def _block(self, value: Any) -> Any:
        block, leaf = self.leaf.block, self.leaf
        body = tirx.BufferStore(block.body.buffer, value, list(block.body.indices))
        made = SBlock(
            list(block.iter_vars), list(block.reads), list(block.writes), block.name_hint, body,
            annotations=block.annotations,
        )  # fmt: skip
        return SBlockRealize(list(leaf.iter_values), leaf.predicate, made)

    def _renamed(self, statement: Any, level: int) -> Any:
        """A copy with loop and block variables of its own."""
        fresh: dict[Any, Any] = {}
        for var in [loop.loop_var for loop in self.chain[level:]] + [i.var for i in self.leaf.block.iter_vars]:
            fresh[var] = tirx.Var(var.name, var.ty)
        return tvm_ffi.structural_map(statement, (tirx.Var, lambda var: fresh.get(var, var)))
