"""Counts the scalar operations of a `Program`, by class, and finds its main reduction and its loop nests.

Takes a `Program`, gives `Work`. Index arithmetic is not counted: only operations on values that come from a tensor
are. Equal subexpressions of one store count once, as a compiler computes them once.
"""

from __future__ import annotations

from autofuse.graph.expression import Expr
from autofuse.graph.model import Work
from autofuse.graph.tir import Block, Program, loads

_SIMPLE = Work(simple=1)
_DIVIDE = Work(divide=1)
_COMPARE = Work(compare=1)
_SPECIAL = Work(special=1)
_NONE = Work()

_COST: dict[str, Work] = {
    **dict.fromkeys(
        ("add", "sub", "mul", "cast", "abs", "fabs", "floor", "ceil", "round", "nearbyint", "trunc", "shift_left",
         "shift_right", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "copysign"), _SIMPLE),
    **dict.fromkeys(("div", "truncdiv", "truncmod", "floordiv", "floormod", "fmod", "sqrt"), _DIVIDE),
    **dict.fromkeys(
        ("min", "max", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "isnan", "isinf", "isfinite"), _COMPARE),
    "likely": _NONE, "reinterpret": _NONE,
    # A square root and a division.
    "rsqrt": Work(divide=2),
}  # fmt: skip


def _times(work: Work, count: int) -> Work:
    return Work(work.fma * count, work.simple * count, work.divide * count, work.special * count, work.compare * count)


def _larger(a: Work, b: Work) -> Work:
    return Work(max(a.fma, b.fma), max(a.simple, b.simple), max(a.divide, b.divide), max(a.special, b.special),
                max(a.compare, b.compare))  # fmt: skip


class _Counter:
    """Operations of one store, each distinct subexpression once."""

    def __init__(self) -> None:
        self.seen: dict[Expr, bool] = {}

    def count(self, expr: Expr) -> tuple[Work, bool]:
        """(operations not counted before, whether the value comes from a tensor)."""
        tag = expr[0]
        if tag in ("c", "v"):
            return _NONE, False
        if tag == "ld":
            return _NONE, True
        if expr in self.seen:
            return _NONE, self.seen[expr]
        if tag in ("select", "if_then_else"):
            condition, decides = self.count(expr[1])
            yes, from_yes = self.count(expr[2])
            no, from_no = self.count(expr[3])
            work = condition + _larger(yes, no)
            if decides:
                work = work + _COMPARE
            used = decides or from_yes or from_no
        else:
            work, used = _NONE, False
            for part in expr[2:] if tag == "cast" else expr[1:]:
                inner, from_tensor = self.count(part)
                work = work + inner
                used = used or from_tensor
            if used:
                work = work + _COST.get(tag, _SPECIAL)
        self.seen[expr] = used
        return (work if used else _NONE), used


def block_work(block: Block) -> Work:
    """Operations of one block over all its iterations. `x += a * b` of a reduction is one multiply-add."""
    counter = _Counter()
    value = block.value
    if block.reduction and value[0] == "add":
        own = ("ld", block.target, block.write)
        added = value[2] if value[1] == own else value[1] if value[2] == own else None
        if added is not None and added[0] == "mul":
            a, _ = counter.count(added[1])
            b, _ = counter.count(added[2])
            return _times(a + b + Work(fma=1), block.iterations)
    work, _ = counter.count(value)
    return _times(work, block.iterations)


def program_work(program: Program) -> Work:
    """Operations of all blocks."""
    total = _NONE
    for block in program.blocks:
        total = total + block_work(block)
    return total


def main_reduction(program: Program) -> tuple[int, ...]:
    """Extents of the reduction axes of the block that reduces with the most operations; empty if none reduces."""
    reducing = [b for b in program.blocks if b.reduction]
    if not reducing:
        return ()
    return max(reducing, key=lambda b: (block_work(b).flops, b.iterations)).reduction


def loop_nests(program: Program) -> int:
    """Blocks that do not vanish by inlining.

    A block vanishes if it reduces nothing, does not store an output, and is read by one block only or is cheap
    (neither divides nor calls a function) or is small beside the output (a mean over rows).
    """
    largest = max(_elements(program, o) for o in program.outputs)
    count = 0
    for block in program.blocks:
        if block.reduction or block.target in program.outputs:
            count += 1
            continue
        readers = sum(any(b == block.target for b, _, _ in loads(other.value)) for other in program.blocks)
        work = block_work(block)
        costly = work.divide + work.special > 0
        count += readers > 1 and costly and _elements(program, block.target) >= largest
    return count


def _elements(program: Program, buffer: int) -> int:
    n = 1
    for extent in program.buffers[buffer].shape:
        n *= extent
    return n
