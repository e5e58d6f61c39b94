"""Rows that vectors do not divide: takes a scheduled function, gives one that computes the same without conditions.

A loop over vectors whose last one would reach past the end runs under a condition on every element, and code generation
makes scalar code of it. Where a nest only stores, elements may as well be stored twice: the last vector is moved back
until it ends with the row. Not between two buffers of the function's own: TVM may give both the same memory, and what
is computed again would be computed of its result.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlockRealize


def overlap_remainders(func: Any) -> Any:
    """`func` with the last vectors of its elementwise nests moved back into the row, where there is a whole one."""
    leaves: dict[Any, list[Any]] = {}

    def visit(loop: Any) -> None:
        chain = [loop]
        while isinstance(chain[-1].body, tirx.For):
            chain.append(chain[-1].body)
        leaf = chain[-1].body
        if isinstance(leaf, SBlockRealize) and len(leaves.get(leaf, ())) < len(chain):
            leaves[leaf] = chain

    tvm_ffi.structural_walk(func.body, (tirx.For, visit))
    moved = {leaf: made for leaf, chain in leaves.items() if (made := _moved(func, leaf, chain)) is not None}
    if not moved:
        return func
    body = tvm_ffi.structural_map(func.body, (SBlockRealize, lambda leaf: moved.get(leaf, leaf)))
    return tirx.PrimFunc(func.params, body, func.ret_type, attrs=func.attrs)


def _moved(func: Any, leaf: Any, chain: list[Any]) -> Any | None:
    """The block without its condition, the elements of its last vector moved back; None if it is of another form."""
    condition, block = leaf.predicate, leaf.block
    if not isinstance(condition, tirx.LT) or not isinstance(condition.b, tirx.IntImm):
        return None
    if block.init is not None or not isinstance(block.body, tirx.BufferStore):
        return None
    if _own(func, block.body.buffer) and any(_own(func, source) for source in _sources(block.body.value)):
        return None
    extent = int(condition.b)
    for depth, loop in enumerate(chain[:-1]):
        step = _step(condition.a, loop.loop_var)
        if step is None or step > extent or not _fills(condition.a, loop.loop_var, step, chain[depth + 1 :]):
            continue
        start = tirx.Var("start", "int64")
        values = [_started(value, loop.loop_var, step, start) for value in leaf.iter_values]
        if any(loop.loop_var in _variables(value) for value in values):
            return None
        first = tirx.Min(loop.loop_var * tirx.const(step, "int64"), tirx.const(extent - step, "int64"))
        return SBlockRealize([_put(value, start, first) for value in values], tirx.const(True, "bool"), block)
    return None


def _own(func: Any, buffer: Any) -> bool:
    """Whether a buffer is no parameter."""
    return not any(buffer.same_as(param) for param in func.params)


def _sources(expr: Any) -> list[Any]:
    """The buffers that an expression loads from."""
    loads: list[Any] = []
    tvm_ffi.structural_walk(expr, (TensorLoad, loads.append))
    return [load.source for load in loads]


def _put(expr: Any, var: Any, value: Any) -> Any:
    """`expr` with `var` replaced by `value`."""
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda other: value if other.same_as(var) else other))


def _step(expr: Any, var: Any) -> int | None:
    """s of the only product `var * s` in an expression."""
    found: set[int] = set()

    def visit(node: Any) -> None:
        if node.a.same_as(var) and isinstance(node.b, tirx.IntImm):
            found.add(int(node.b))

    tvm_ffi.structural_walk(expr, (tirx.Mul, visit))
    return found.pop() if len(found) == 1 else None


def _started(expr: Any, var: Any, step: int, start: Any) -> Any:
    """`expr` with `var * step` replaced by `start`."""

    def product(node: Any) -> Any:
        same = node.a.same_as(var) and isinstance(node.b, tirx.IntImm) and int(node.b) == step
        return start if same else node

    return tvm_ffi.structural_map(expr, (tirx.Mul, product))


def _variables(expr: Any) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(expr, (tirx.Var, found.add))
    return found


def _fills(expr: Any, var: Any, step: int, inside: list[Any]) -> bool:
    """Whether an expression is `var * step` and something that runs through [0, step) with the loops `inside`."""
    analyzer = sym.Analyzer()
    rest = analyzer.simplify(expr - var * tirx.const(step, "int64"))
    used = _variables(rest)
    size = 1
    for loop in inside:
        if loop.loop_var in used and isinstance(loop.extent, tirx.IntImm):
            used.discard(loop.loop_var)
            size *= int(loop.extent)
            analyzer.bind(loop.loop_var, tvm.ir.Range(tirx.const(0, "int64"), loop.extent))
    bound = analyzer.const_int_bound(rest)
    return not used and size == step and int(bound.min_value) == 0 and int(bound.max_value) == step - 1
