"""Finding and reshaping the blocks of a fused, unscheduled PrimFunc: what every CPU family starts from.

Takes a Schedule over the function that FuseTIR made (one loop nest per operator stage, all blocks children of the root)
and gives its blocks by role, their producers and consumers, and inlines elementwise chains. TIR that is not of that
form raises ScheduleError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.ir.expr import Expr, TensorLoad
from tvm.s_tir.schedule import LoopRV, SBlockRV

from autofuse.schedule import ScheduleError

ROLE = "autofuse.role"
# Functions of functions nest at most this deep in one expression: each is lowered to arithmetic that reads its argument
# many times, and TVM's simplifier writes the argument out each time.
_DEEPEST_NEST = 3
# An expression with at most this many arithmetic nodes is cheaper to repeat than to keep in a buffer.
_CHEAP_NODES = 4
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, tirx.Select, tirx.Cast, Call)


def open_schedule(func: tirx.PrimFunc) -> s_tir.Schedule:
    """A schedule over a copy of `func`; its module's only function is "main".

    The copy is deep: scheduling can change statements in place that `func` shares.
    """
    return s_tir.Schedule(s_tir.renew_defs(func).with_attr("global_symbol", "main"), error_render_level="fast")


def close_schedule(sch: s_tir.Schedule, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The scheduled function, with the symbol that `func` had and marked as scheduled."""
    done = sch.mod["main"].with_attr("tirx.is_scheduled", True)
    attrs = func.attrs
    if attrs is not None and "global_symbol" in attrs:
        return done.with_attr("global_symbol", attrs["global_symbol"])
    return done.without_attr("global_symbol")


def guarded(what: str, build: Callable[[], tirx.PrimFunc]) -> tirx.PrimFunc:
    """`build()`, with TVM's own complaints turned into one ScheduleError that starts with `what`."""
    try:
        return build()
    except ScheduleError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else type(error).__name__)
        raise ScheduleError(f"{what}: TVM refused the schedule: {told[:300]}") from error


def blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """All blocks below the root, in the order in which they run."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def role(sch: s_tir.Schedule, block: SBlockRV) -> str:
    """The block's role annotation, "" if it has none."""
    annotations = sch.get(block).annotations
    return str(annotations[ROLE]) if annotations and ROLE in annotations else ""


def with_role(sch: s_tir.Schedule, *names: str) -> list[SBlockRV]:
    """The blocks whose role is one of `names`, in the order in which they run."""
    return [block for block in blocks(sch) if role(sch, block) in names]


def only(sch: s_tir.Schedule, *names: str) -> SBlockRV:
    """The single block with one of these roles. ScheduleError if there is none or more than one."""
    found = with_role(sch, *names)
    if len(found) != 1:
        raise ScheduleError(f"expected one block of role {'/'.join(names)}, found {len(found)}")
    return found[0]


def name_of(sch: s_tir.Schedule, block: SBlockRV) -> str:
    """The block's name, unique within its function."""
    return str(sch.get(block).name_hint)


def same(sch: s_tir.Schedule, left: SBlockRV, right: SBlockRV) -> bool:
    """Whether two handles mean the same block."""
    return bool(sch.get_sref(left).same_as(sch.get_sref(right)))


def contains(sch: s_tir.Schedule, some: Iterable[SBlockRV], block: SBlockRV) -> bool:
    """Whether `block` is one of `some`."""
    return any(same(sch, block, other) for other in some)


def written(sch: s_tir.Schedule, block: SBlockRV) -> Any:
    """The one buffer that the block writes. ScheduleError if it writes several."""
    writes = sch.get(block).writes
    if len(writes) != 1:
        raise ScheduleError(f"block {name_of(sch, block)} writes {len(writes)} buffers, expected one")
    return writes[0].source


def is_output(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether what the block writes is a parameter of the function."""
    buffer = written(sch, block)
    return any(param.same_as(buffer) for param in sch.mod["main"].params)


def is_reduction(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether one of the block's iterators reduces."""
    return any(int(iv.iter_type) == int(tirx.IterVar.CommReduce) for iv in sch.get(block).iter_vars)


def extent(sch: s_tir.Schedule, loop: LoopRV) -> int:
    """A loop's constant extent. ScheduleError if it is symbolic."""
    value = sch.get(loop).extent
    if not isinstance(value, tirx.IntImm):
        raise ScheduleError(f"loop {sch.get(loop).loop_var} has no constant extent")
    return int(value)


def consumers(sch: s_tir.Schedule, block: SBlockRV) -> list[SBlockRV]:
    """Blocks that read what `block` writes."""
    return list(sch.get_consumers(block))


def downstream(sch: s_tir.Schedule, block: SBlockRV) -> list[SBlockRV]:
    """The blocks that depend on `block`, itself excluded, in the order in which they run."""
    return _closure(sch, block, sch.get_consumers)


def upstream(sch: s_tir.Schedule, block: SBlockRV) -> list[SBlockRV]:
    """The blocks that `block` depends on, itself excluded, in the order in which they run."""
    return _closure(sch, block, sch.get_producers)


def _closure(sch: s_tir.Schedule, block: SBlockRV, step: Callable[[SBlockRV], Sequence[SBlockRV]]) -> list[SBlockRV]:
    found: dict[str, SBlockRV] = {}
    queue = [block]
    while queue:
        for other in step(queue.pop()):
            name = name_of(sch, other)
            if name not in found:
                found[name] = other
                queue.append(other)
    return [other for other in blocks(sch) if name_of(sch, other) in found]


def loads(sch: s_tir.Schedule, block: SBlockRV, buffer: Any) -> int:
    """How many loads of `buffer` stand in the block's body."""
    count = 0

    def visit(load: TensorLoad) -> None:
        nonlocal count
        count += int(load.source.same_as(buffer))

    tvm_ffi.structural_walk(sch.get(block).body, (TensorLoad, visit))
    return count


def uses(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """How many loads of the block's result stand in other blocks."""
    buffer = written(sch, block)
    return sum(loads(sch, user, buffer) for user in consumers(sch, block))


def passes_rows(sch: s_tir.Schedule, block: SBlockRV, buffer: Any) -> bool:
    """Whether the block reads each element of `buffer` once at most and its last axis whole, as far as is plain to see.

    So do a concat and a pad along other axes: every iterator, give or take a constant, is one of the indices, the last
    one as it is.
    """
    domains = sch.get(block).iter_vars
    moving = [iv.var for iv in domains if int(iv.dom.extent) > 1]
    if not moving or not moving[-1].same_as(domains[-1].var) or int(buffer.shape[-1]) != int(domains[-1].dom.extent):
        return False
    whole = True

    def visit(load: TensorLoad) -> None:
        nonlocal whole
        if load.source.same_as(buffer):
            found = [_moved(index) for index in load.indices]
            whole = whole and load.indices[-1].same_as(moving[-1])
            whole = whole and all(any(f is not None and f.same_as(var) for f in found) for var in moving)

    tvm_ffi.structural_walk(sch.get(block).body, (TensorLoad, visit))
    return whole


def _moved(index: Any) -> Any:
    """The variable of an index that is one, a constant added or not; else None."""
    if isinstance(index, tirx.Add | tirx.Sub) and isinstance(index.b, tirx.IntImm):
        index = index.a
    return index if isinstance(index, tirx.Var) else None


def is_cheap(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether the block's value costs a few simple operations: no call of a function, no division."""
    cost = 0

    def visit(node: Any) -> None:
        nonlocal cost
        is_call = isinstance(node, Call) and not str(getattr(node.op, "name", "")).endswith("if_then_else")
        cost += _CHEAP_NODES + 1 if is_call or isinstance(node, tirx.Div) else 1

    body = sch.get(block).body
    value = body.value if isinstance(body, tirx.BufferStore) else body
    tvm_ffi.structural_walk(value, (_ARITHMETIC, visit))
    return cost <= _CHEAP_NODES


def nodes(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """Arithmetic operations and calls in the block's value, as it is written."""
    count = 0

    def visit(_: Any) -> None:
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(sch.get(block).body, (_ARITHMETIC, visit))
    return count


def nesting(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """How deep calls of functions stand inside each other in the block's value: 2 for exp(1 + exp(x))."""
    body = sch.get(block).body
    return _depth(body.value) if isinstance(body, tirx.BufferStore) else 0


def _depth(node: Any) -> int:
    fields = ("a", "b", "value", "condition", "true_value", "false_value")
    below = [getattr(node, name) for name in fields if hasattr(node, name)]
    call = isinstance(node, Call)
    if call:
        below.extend(node.args)
    deepest = max((_depth(part) for part in below if isinstance(part, Expr)), default=0)
    return deepest + int(call and not str(getattr(node.op, "name", "")).endswith("if_then_else"))


def too_deep(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether inlining the block into a consumer would nest calls of functions deeper than code generation takes."""
    depth = nesting(sch, block)
    return depth > 0 and any(depth + nesting(sch, user) > _DEEPEST_NEST for user in consumers(sch, block))


def inline_all(sch: s_tir.Schedule, chosen: Iterable[SBlockRV]) -> None:
    """Inline elementwise blocks into all their consumers. ScheduleError for one that reduces or is written out."""
    for block in list(chosen):
        if is_reduction(sch, block) or is_output(sch, block):
            raise ScheduleError(f"block {name_of(sch, block)} cannot be inlined into its consumers")
        sch.compute_inline(block)


def inline_chain(sch: s_tir.Schedule, chain: Iterable[SBlockRV], keep: Sequence[SBlockRV] = ()) -> list[SBlockRV]:
    """Inline what costs nothing to inline in `chain` (elementwise blocks in running order); the blocks that are left.

    A value that is read once is inlined, unless functions would nest too deep; one that is read more often only if
    recomputing it is cheap, so that chains of diamonds (mish, swish of swish) do not grow exponentially. Blocks that
    write a parameter and those of `keep` stay.
    """
    left = []
    for block in list(chain):
        if not (is_output(sch, block) or is_reduction(sch, block) or contains(sch, keep, block)):
            count = uses(sch, block)
            if (count == 1 or (count > 1 and is_cheap(sch, block))) and not too_deep(sch, block):
                sch.compute_inline(block)
                continue
        left.append(block)
    return left
