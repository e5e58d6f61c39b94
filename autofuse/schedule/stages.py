"""A fused, unscheduled PrimFunc as a list of stages, each one element expression; the values of its buffers anywhere.

Takes what FuseTIR made; gives `Stage`s in running order. `Program.value` is the expression of a stage's element at any
index: what its operands hold is read where it was kept ("home"), else computed in place. Families that write their own
loop nests start from here. A function that is not such a list raises ScheduleError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call
from tvm.ir.expr import Expr, TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize

from autofuse.schedule import ScheduleError

Indices = Sequence[Any]
# Where a buffer's elements were kept: gives the expression that reads one, or None if it is not there.
Home = Callable[[Indices], "Any | None"]

_COMBINERS = {tirx.Add: "add", tirx.Mul: "mul", tirx.Max: "max", tirx.Min: "min"}
_ARITHMETIC = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max, tirx.Select, tirx.Cast, Call, tirx.LT, tirx.LE, tirx.GT,
    tirx.GE, tirx.EQ, tirx.NE,
)  # fmt: skip
# Arithmetic nodes that a repeated value may have and still be inlined into each of its readers.
CHEAP = 4
# Functions of functions in one expression: each is lowered to arithmetic that reads its argument many times.
_DEEPEST = 3
_DEAR = 100


def index(value: int) -> Any:
    """An integer constant of the loops' type."""
    return tirx.const(value, "int64")


def ravel(at: Sequence[Any], shape: Sequence[int]) -> Any:
    """The linear index of indices in row-major order."""
    total = index(0)
    for i, extent in zip(at, shape, strict=True):
        total = total * index(extent) + i
    return total


def unravel(linear: Any, shape: Sequence[int]) -> list[Any]:
    """The indices of a linear index in row-major order."""
    found: list[Any] = []
    rest = linear
    left = prod(shape)
    for extent in reversed(shape):
        left //= extent
        if extent == 1:
            found.append(index(0))
        elif left == 1:
            found.append(rest)
            rest = index(0)
        else:
            found.append(tirx.floormod(rest, index(extent)))
            rest = tirx.floordiv(rest, index(extent))
    return found[::-1]


def combine(how: str, left: Any, right: Any) -> Any:
    """left ∘ right for a reduction's combiner."""
    if how == "add":
        return left + right
    if how == "mul":
        return left * right
    return tirx.max(left, right) if how == "max" else tirx.min(left, right)


@dataclass(frozen=True, eq=False)
class Stage:
    """`buffer[iters] = value`, or `buffer[iters] = ∘ value over reduces` from `identity` where `how` names ∘."""

    name: str
    role: str
    buffer: Any
    iters: tuple[Any, ...]
    shape: tuple[int, ...]
    reduces: tuple[Any, ...]
    reduced: tuple[int, ...]
    value: Any
    how: str
    identity: Any
    output: bool

    @property
    def elements(self) -> int:
        """Number of elements that it writes."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def reads(self) -> int:
        """Elements that one result reduces over; 1 without a reduction."""
        n = 1
        for extent in self.reduced:
            n *= extent
        return n

    @cached_property
    def loads(self) -> tuple[Any, ...]:
        """The loads in its value, in no particular order, repeated ones repeated."""
        found: list[Any] = []
        tvm_ffi.structural_walk(self.value, (TensorLoad, found.append))
        return tuple(found)

    @cached_property
    def nesting(self) -> int:
        """How deep calls of functions stand inside each other in its own value."""
        return _nesting(self.value)

    @cached_property
    def cost(self) -> int:
        """Arithmetic nodes of its own value; a function call or a division counts as many."""
        # Arithmetic on indices is nearly free: it is counted with the rest, then taken off again.
        inside = sum(_count(i, 1) for load in self.loads for i in load.indices)
        return max(_count(self.value, _DEAR) - inside, 0)


def _divides(expr: Any) -> bool:
    """Whether an index expression holds a division or a remainder."""
    found = False

    def visit(_: Any) -> None:
        nonlocal found
        found = True

    tvm_ffi.structural_walk(expr, ((tirx.FloorDiv, tirx.FloorMod), visit))
    return found


def _nesting(node: Any) -> int:
    """How deep calls of functions stand inside each other: 2 for exp(1 + exp(x))."""
    names = ("a", "b", "value", "condition", "true_value", "false_value", "body")
    below = [getattr(node, name) for name in names if hasattr(node, name)]
    call = isinstance(node, Call)
    if call:
        below.extend(node.args)
    deepest = max((_nesting(part) for part in below if isinstance(part, Expr)), default=0)
    return deepest + int(call and not str(getattr(node.op, "name", "")).endswith("if_then_else"))


def _count(expr: Any, dear: int) -> int:
    """Arithmetic nodes of an expression; a function call or a division of floats counts as `dear`."""
    total = 0

    def visit(node: Any) -> None:
        nonlocal total
        name = str(getattr(getattr(node, "op", None), "name", ""))
        heavy = isinstance(node, tirx.Div) or (isinstance(node, Call) and not name.endswith("if_then_else"))
        total += dear if heavy and not _integer(node) else 1

    tvm_ffi.structural_walk(expr, (_ARITHMETIC, visit))
    return total


def _integer(node: Any) -> bool:
    return str(getattr(node.ty, "dtype", node.ty)).startswith(("int", "uint", "bool"))


@dataclass(frozen=True, eq=False)
class Program:
    """The stages of a function and its parameters. `analyzer` knows the range of every loop variable made so far."""

    func: Any
    params: tuple[Any, ...]
    stages: tuple[Stage, ...]
    analyzer: Any = field(default_factory=sym.Analyzer)

    @cached_property
    def by_buffer(self) -> dict[Any, Stage]:
        """The stage that writes a buffer; operands are absent."""
        return {s.buffer: s for s in self.stages}

    @cached_property
    def readers(self) -> dict[Any, tuple[Stage, ...]]:
        """Buffer → the stages that load from it, one entry a load."""
        found: dict[Any, list[Stage]] = {}
        for stage in self.stages:
            for load in stage.loads:
                found.setdefault(load.source, []).append(stage)
        return {b: tuple(s) for b, s in found.items()}

    def with_role(self, role: str) -> Stage:
        """The only stage of that role. ScheduleError if there is none or more than one."""
        found = [s for s in self.stages if s.role == role]
        if len(found) != 1:
            raise ScheduleError(f"expected one stage of role {role}, found {len(found)}")
        return found[0]

    def downstream(self, stage: Stage) -> list[Stage]:
        """The stages that depend on `stage`, itself excluded, in running order."""
        made = {stage.buffer}
        found = []
        for other in self.stages:
            if other is not stage and any(load.source in made for load in other.loads):
                made.add(other.buffer)
                found.append(other)
        return found

    def kept(self, stages: Sequence[Stage]) -> list[Stage]:
        """Those of `stages` whose values have to be kept: results, reductions, what is dear and read repeatedly, and
        what would nest functions too deep.

        The rest is computed where it is read.
        """
        kept = []
        weight: dict[Any, int] = {}
        depth: dict[Any, int] = {}
        for stage in stages:
            total = stage.cost + sum(weight.get(load.source, 0) for load in stage.loads)
            deep = stage.nesting + max((depth.get(load.source, 0) for load in stage.loads), default=0)
            readers = self.readers.get(stage.buffer, ())
            too_deep = deep > 0 and any(deep + reader.nesting > _DEEPEST for reader in readers)
            repeated = len(readers) > 1 or any(r.elements * r.reads > stage.elements for r in readers)
            if stage.output or stage.how or too_deep or (repeated and total > CHEAP):
                kept.append(stage)
            else:
                weight[stage.buffer], depth[stage.buffer] = total, deep
        return kept

    def simplify(self, expr: Any) -> Any:
        """An index expression, simplified by the ranges of the loop variables."""
        return self.analyzer.simplify(expr)

    def same(self, left: Any, right: Any) -> bool:
        """Whether two index expressions are provably equal."""
        return bool(self.analyzer.can_prove_equal(left, right))

    def bound(self, var: Any, extent: int) -> Any:
        """Tell the analyzer that 0 <= var < extent; gives the variable."""
        self.analyzer.bind(var, tvm.ir.Range(index(0), index(extent)))
        return var

    def value(self, stage: Stage, at: Indices, over: Indices, homes: Mapping[Any, Home]) -> Any:
        """The stage's expression with its axes at `at` and its reduction axes at `over`; a reduction gives one term."""
        return self.substitute(stage.value, dict(zip((*stage.iters, *stage.reduces), (*at, *over), strict=True)), homes)

    def substitute(self, expr: Any, values: Mapping[Any, Any], homes: Mapping[Any, Home]) -> Any:
        """`expr` with variables replaced, and every load resolved through `homes`."""

        def variable(var: Any) -> Any:
            found = values.get(var)
            if found is None:
                return var
            want, have = str(var.ty), str(found.ty)
            return found if want == have else found.astype(want)

        def load(node: Any) -> Any:
            return self.load(node.source, list(node.indices), homes)

        return tvm_ffi.structural_map(expr, [(tirx.Var, variable), (TensorLoad, load)])

    def address(self, buffer: Any, at: Indices) -> list[Any]:
        """Indices of an element of a parameter, simplified.

        An index that was split over several axes gives the same element by its offset along the last one, which is
        seen to be contiguous where the parts are not.
        """
        plain = [self.simplify(i) for i in at]
        if len(plain) > 1 and any(_divides(i) for i in plain) and any(buffer.same_as(p) for p in self.params):
            offset = self.simplify(ravel(at, [int(e) for e in buffer.shape]))
            if not _divides(offset):
                return [index(0)] * (len(plain) - 1) + [offset]
        return plain

    def load(self, buffer: Any, at: Indices, homes: Mapping[Any, Home]) -> Any:
        """An element of a buffer: from its home, from memory if it is an operand, else computed here."""
        home = homes.get(buffer)
        if home is not None:
            # Parts of an index that were split off are put together again most easily before they are simplified.
            found = home(at)
            if found is None:
                found = home([self.simplify(i) for i in at])
            if found is not None:
                return found
        stage = self.by_buffer.get(buffer)
        if stage is None:
            return tirx.BufferLoad(buffer, self.address(buffer, at))
        if stage.how:
            raise ScheduleError(f"stage {stage.name} reduces: it cannot be computed where it is read")
        return self.value(stage, at, [], homes)


def lift(func: Any) -> Program:
    """The stages of a function that FuseTIR made. ScheduleError if it is not a list of element expressions."""
    params = tuple(func.params)
    if any(not hasattr(p, "shape") for p in params):
        raise ScheduleError("a parameter of the function is a scalar")
    stages: list[Stage] = []
    _statement(func.body, params, stages)
    for position, stage in enumerate(stages):
        if any(stage.buffer.same_as(other.buffer) for other in stages[:position]):
            raise ScheduleError(f"block {stage.name} writes a buffer that another block writes too")
        if any(load.source.same_as(stage.buffer) for load in stage.loads):
            raise ScheduleError(f"block {stage.name} reads what it writes")
    # What a stage writes is no operand yet: an index that is only an offset along its last axis is not one that the
    # stage could be computed at.
    operands = tuple(p for p in params if not any(p.same_as(stage.buffer) for stage in stages))
    program = Program(func, operands, ())
    return replace(program, params=params, stages=tuple(_plain(program, stage) for stage in stages))


def _plain(program: Program, stage: Stage) -> Stage:
    """The stage with its indices simplified while its own axes are still variables, which is when it is easiest."""
    for var, extent in zip((*stage.iters, *stage.reduces), (*stage.shape, *stage.reduced), strict=True):
        program.bound(var, extent)
    return replace(stage, value=program.substitute(stage.value, {}, {}))


def _statement(node: Any, params: tuple[Any, ...], stages: list[Stage]) -> None:
    if isinstance(node, tirx.SeqStmt):
        for part in node.seq:
            _statement(part, params, stages)
    elif isinstance(node, tirx.For | tirx.AttrStmt):
        _statement(node.body, params, stages)
    elif isinstance(node, SBlockRealize):
        block = node.block
        if len(block.iter_vars) == 0 and not isinstance(block.body, tirx.BufferStore):
            _statement(block.body, params, stages)
        else:
            stages.append(_stage(node, params))
    else:
        raise ScheduleError(f"a statement of the form {type(node).__name__} is no stage")


def _extent(item: Any) -> int:
    if not isinstance(item.dom.extent, tirx.IntImm) or not isinstance(item.dom.min, tirx.IntImm) or int(item.dom.min):
        raise ScheduleError(f"axis {item.var} has no constant range from 0")
    return int(item.dom.extent)


def _stage(realize: Any, params: tuple[Any, ...]) -> Stage:
    block: SBlock = realize.block
    name = str(block.name_hint)
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        raise ScheduleError(f"block {name} is not one store")
    predicate = realize.predicate
    if not isinstance(predicate, tirx.IntImm) or not int(predicate):
        raise ScheduleError(f"block {name} runs under a condition")
    kinds = {int(iv.iter_type) for iv in block.iter_vars}
    if kinds - {int(tirx.IterVar.DataPar), int(tirx.IterVar.CommReduce)}:
        raise ScheduleError(f"block {name} iterates in a fixed order")
    spatial = [iv for iv in block.iter_vars if int(iv.iter_type) == int(tirx.IterVar.DataPar)]
    reduces = [iv for iv in block.iter_vars if int(iv.iter_type) == int(tirx.IterVar.CommReduce)]
    shape = tuple(int(e) for e in store.buffer.shape)
    iters, extents = _written_by(store, spatial, name)
    if extents != shape:
        raise ScheduleError(f"block {name} does not write its whole buffer")
    how, identity, value = "", None, store.value
    if reduces:
        how, identity, value = _reduction(block, store, name)
    annotations = block.annotations
    role = str(annotations["autofuse.role"]) if annotations and "autofuse.role" in annotations else ""
    return Stage(
        name, role, store.buffer, iters, shape, tuple(iv.var for iv in reduces), tuple(_extent(iv) for iv in reduces),
        value, how, identity, any(p.same_as(store.buffer) for p in params),
    )  # fmt: skip


def _written_by(store: Any, spatial: Sequence[Any], name: str) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The spatial variables in the order of the buffer's axes; a fresh one for an axis written at 0."""
    known = {iv.var: _extent(iv) for iv in spatial}
    iters: list[Any] = []
    extents: list[int] = []
    for position, at in enumerate(store.indices):
        if isinstance(at, tirx.IntImm) and int(at) == 0:
            iters.append(tirx.Var(f"zero{position}", "int64"))
            extents.append(1)
        elif isinstance(at, tirx.Var) and at in known:
            iters.append(at)
            extents.append(known.pop(at))
        else:
            raise ScheduleError(f"block {name} writes at computed indices")
    if any(extent != 1 for extent in known.values()):
        raise ScheduleError(f"block {name} writes an element several times")
    return tuple(iters), tuple(extents)


def _reduction(block: Any, store: Any, name: str) -> tuple[str, Any, Any]:
    how = next((text for kind, text in _COMBINERS.items() if isinstance(store.value, kind)), None)
    if how is None or not isinstance(block.init, tirx.BufferStore):
        raise ScheduleError(f"block {name} reduces in a way that is not known")
    left, right = store.value.a, store.value.b

    def own(side: Any) -> bool:
        return isinstance(side, TensorLoad) and bool(side.source.same_as(store.buffer))

    if own(left):
        return how, block.init.value, right
    if own(right):
        return how, block.init.value, left
    raise ScheduleError(f"block {name} reduces in a way that is not known")


def finish(program: Program, body: Any, params: Sequence[Any] | None = None) -> Any:
    """A function with `params` (by default the program's) and `body` as its loops, marked as scheduled."""
    func = program.func
    root = SBlockRealize([], tirx.const(True, "bool"), SBlock([], [], [], "root", body))
    return tirx.PrimFunc(func.params if params is None else list(params), root, attrs=func.attrs).with_attr(
        "tirx.is_scheduled", True
    )
