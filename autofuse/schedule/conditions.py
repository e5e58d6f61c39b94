"""Conditions on an axis, taken out of the loops that do not change them.

Takes a scheduled function; gives one that computes the same. A concatenation of many operands is a chain of conditions
for each element, padding one or two. Where they compare an axis with constants, the loops below the one that drives
the axis are written once for each range between the constants, under a binary tree of branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call
from tvm.s_tir.stmt import SBlock, SBlockRealize

# Copies of a nest that are made at most.
_MOST = 64


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
        axes = _axes(leaf, chain)
        if axes:
            replaced[chain[0].loop_var] = _Copies(leaf, chain, axes).statement()
    if not replaced:
        return func
    body = tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: replaced.get(loop.loop_var, loop)))
    return tirx.PrimFunc(func.params, body, func.ret_type, attrs=func.attrs)


def _axes(leaf: Any, chain: Sequence[Any]) -> list[_Axis]:
    """The axes whose conditions are worth taking out, outermost first."""
    block: SBlock = leaf.block
    if block.init is not None:
        return []
    cuts = _cuts(block.body.value)
    found: list[_Axis] = []
    copies = 1
    for item, value in zip(block.iter_vars, leaf.iter_values, strict=True):
        if item.var not in cuts or not isinstance(item.dom.extent, tirx.IntImm):
            continue
        extent = int(item.dom.extent)
        inside = tuple(sorted(c for c in cuts[item.var] if 0 < c < extent))
        used = _variables(value)
        depth = max((d for d, loop in enumerate(chain) if loop.loop_var in used), default=-1)
        if not inside or depth < 0 or chain[depth].kind == tirx.ForKind.VECTORIZED:
            continue
        below = [int(loop.extent) for loop in chain[depth + 1 :] if loop.kind != tirx.ForKind.VECTORIZED]
        # Below the loop there must be enough to repeat: one vector is selected as quickly as it is branched around.
        if len(inside) <= 2 and all(extent == 1 for extent in below):
            continue
        if copies * (len(inside) + 1) > _MOST:
            continue
        copies *= len(inside) + 1
        found.append(_Axis(item.var, value, extent, inside, depth))
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

    def visit(call: Any) -> None:
        if str(getattr(call.op, "name", "")).endswith(".if_then_else"):
            tvm_ffi.structural_walk(call.args[0], (tuple(steps), compare))

    tvm_ffi.structural_walk(value, (Call, visit))
    return found


class _Copies:
    """Writes the copies of one nest."""

    def __init__(self, leaf: Any, chain: Sequence[Any], axes: Sequence[_Axis]) -> None:
        self.leaf, self.chain, self.axes = leaf, list(chain), list(axes)

    def statement(self) -> Any:
        """The whole nest."""
        return self._loops(0, self.leaf.block.body.value, {})

    def _loops(self, level: int, value: Any, ranges: dict[Any, tuple[int, int]]) -> Any:
        """The loops from `level` on, around the block that stores `value`; `ranges` of axes are known."""
        if level == len(self.chain):
            return self._block(value)
        loop = self.chain[level]
        body = self._split([a for a in self.axes if a.depth == level], level, value, ranges)
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=loop.annotations)

    def _split(self, axes: Sequence[_Axis], level: int, value: Any, ranges: dict[Any, tuple[int, int]]) -> Any:
        """What stands below the loop at `level`, apart for each range of the first of `axes`."""
        if not axes:
            return self._loops(level + 1, value, ranges)
        axis = axes[0]

        def tree(low: int, high: int, cuts: Sequence[int]) -> Any:
            if not cuts:
                known = {**ranges, axis.var: (low, high)}
                inner = self._split(axes[1:], level, self._simplified(value, known), known)
                return self._renamed(inner, level + 1)
            middle = len(cuts) // 2
            cut = cuts[middle]
            condition = axis.value < tirx.const(cut, "int64")
            return tirx.IfThenElse(condition, tree(low, cut, cuts[:middle]), tree(cut, high, cuts[middle + 1 :]))

        return tree(0, axis.extent, axis.cuts)

    def _simplified(self, value: Any, ranges: dict[Any, tuple[int, int]]) -> Any:
        analyzer = sym.Analyzer()
        for item in self.leaf.block.iter_vars:
            low, high = ranges.get(item.var, (0, int(item.dom.extent)))
            analyzer.bind(item.var, tvm.ir.Range(tirx.const(low, "int64"), tirx.const(high, "int64")))
        return analyzer.simplify(value)

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
