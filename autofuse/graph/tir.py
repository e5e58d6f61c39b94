"""Reads a legalised `tvm.tirx.PrimFunc` into a `Program`: buffers, and blocks that each store one element expression.

`read_program` takes the PrimFunc and gives plain data; functions that are no such list of blocks (tuple reductions,
scatter, sort) are refused with `NotAProgram`, whose text says why in words that a person can be shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm

from autofuse.graph.expression import Expr, number


class NotAProgram(Exception):
    """The function is not a list of blocks that each store one element expression; the message says why."""


@dataclass(frozen=True)
class Buffer:
    """A parameter or an intermediate of the function. `shape` in elements."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Axis:
    """An iteration variable of a block: its number in expressions, its extent, whether it is reduced over."""

    var: int
    extent: int
    reduction: bool


@dataclass(frozen=True)
class Block:
    """`buffer target[write] = value` for every point of `axes`. A reduction's value reads its own target."""

    name: str
    axes: tuple[Axis, ...]
    target: int
    write: tuple[Expr, ...]
    value: Expr
    init: Expr | None

    @property
    def iterations(self) -> int:
        """How often the block runs."""
        n = 1
        for axis in self.axes:
            n *= axis.extent
        return n

    @property
    def reduction(self) -> tuple[int, ...]:
        """Extents of the axes that it reduces over."""
        return tuple(a.extent for a in self.axes if a.reduction)


@dataclass(frozen=True)
class Program:
    """A PrimFunc: the first `parameters` buffers are its parameters, in order, the rest its intermediates."""

    buffers: tuple[Buffer, ...]
    parameters: int
    blocks: tuple[Block, ...]

    @cached_property
    def writers(self) -> dict[int, tuple[Block, ...]]:
        """Buffer → the blocks that store into it."""
        found: dict[int, list[Block]] = {}
        for block in self.blocks:
            found.setdefault(block.target, []).append(block)
        return {b: tuple(blocks) for b, blocks in found.items()}

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The parameters that are written."""
        return tuple(p for p in range(self.parameters) if p in self.writers)

    @cached_property
    def extents(self) -> dict[int, int]:
        """Iteration variable → extent, for all blocks."""
        return {a.var: a.extent for block in self.blocks for a in block.axes}


_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "FloorDiv": "floordiv", "FloorMod": "floormod", "Min": "min",
    "Max": "max", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge", "EQ": "eq", "NE": "ne", "And": "and", "Or": "or",
}  # fmt: skip
# The order of these names is that of operands in the plain form.
_SELECT = ("condition", "true_value", "false_value")


def _dtype(node: Any) -> str:
    ty = getattr(node, "ty", None)
    dtype = getattr(ty, "dtype", None)
    return str(getattr(dtype, "dtype", dtype)) if dtype is not None else ""


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint", "bool"))


class _Reader:
    """Numbers buffers and variables as it meets them, so that the outcome does not depend on names."""

    def __init__(self, func: Any) -> None:
        self.buffers: list[Buffer] = []
        # By address: TVM's own equality of variables builds an expression each time.
        self.numbers: dict[int, int] = {}
        self.values: dict[int, Expr] = {}
        self.blocks: list[Block] = []
        self.variables = 0
        # Slices of TVM's arrays, which come in one piece: taking them item by item costs three times as much.
        for param in func.params[:]:
            if not hasattr(param, "shape"):
                raise NotAProgram("a parameter of the function is a scalar")
            self.buffer(param)
        self.parameters = len(self.buffers)
        self.statement(func.body)

    def buffer(self, buffer: Any) -> int:
        address = buffer.__chandle__()
        if address not in self.numbers:
            shape = []
            for extent in buffer.shape[:]:
                if not isinstance(extent, tvm.tirx.IntImm):
                    raise NotAProgram("a shape is symbolic")
                shape.append(int(extent.value))
            self.numbers[address] = len(self.buffers)
            self.buffers.append(Buffer(tuple(shape), str(buffer.dtype)))
        return self.numbers[address]

    def statement(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq[:]:
                self.statement(part)
        elif kind in ("For", "AttrStmt"):
            self.statement(node.body)
        elif kind == "SBlockRealize":
            block = node.block
            if len(block.iter_vars) == 0 and type(block.body).__name__ != "BufferStore":
                self.statement(block.body)
            else:
                self.block(node)
        else:
            raise NotAProgram("its statements are not blocks of element stores")

    def block(self, realize: Any) -> None:
        block = realize.block
        predicate = self.expression(realize.predicate)
        if predicate[0] != "c" or not predicate[1]:
            raise NotAProgram("a block runs under a condition")
        if len(block.match_buffers):
            raise NotAProgram("a block works on parts of buffers")
        store = block.body
        if type(store).__name__ != "BufferStore":
            raise NotAProgram(
                "a reduction to several results at once" if block.init is not None else "a block of several statements"
            )
        axes = []
        for item in block.iter_vars[:]:
            extent = item.dom.extent
            first = item.dom.min
            if not isinstance(extent, tvm.tirx.IntImm) or not isinstance(first, tvm.tirx.IntImm) or int(first.value):
                raise NotAProgram("an iteration domain is symbolic or does not start at 0")
            kind = int(item.iter_type)
            if kind not in (0, 2):
                raise NotAProgram("a block iterates in a fixed order (a scan)")
            self.values[item.var.__chandle__()] = ("v", self.variables)
            axes.append(Axis(self.variables, int(extent.value), kind == 2))
            self.variables += 1
        init = None
        if block.init is not None:
            if type(block.init).__name__ != "BufferStore":
                raise NotAProgram("a reduction to several results at once")
            init = self.expression(block.init.value)
        self.blocks.append(
            Block(
                name=str(block.name_hint),
                axes=tuple(axes),
                target=self.buffer(store.buffer),
                write=tuple([self.expression(i) for i in store.indices[:]]),
                value=self.expression(store.value),
                init=init,
            )
        )

    def expression(self, node: Any) -> Expr:
        kind = type(node).__name__
        operation = _BINARY.get(kind)
        if operation is not None:
            return (operation, self.expression(node.a), self.expression(node.b))
        if kind == "Var":
            known = self.values.get(node.__chandle__())
            if known is None:
                raise NotAProgram("an expression uses a variable from outside its block")
            return known
        if kind == "IntImm":
            dtype = _dtype(node)
            return ("c", bool(node.value) if dtype == "bool" else int(node.value), dtype)
        if kind == "FloatImm":
            return ("c", float(node.value), _dtype(node))
        if kind == "TensorLoad":
            return ("ld", self.buffer(node.source), tuple([self.expression(i) for i in node.indices[:]]))
        if kind == "Cast":
            return ("cast", _dtype(node), self.expression(node.value))
        if kind in ("Div", "Mod"):
            integer = _is_integer(_dtype(node.a))
            name = ("truncdiv" if integer else "div") if kind == "Div" else ("truncmod" if integer else "fmod")
            return (name, self.expression(node.a), self.expression(node.b))
        if kind == "Not":
            return ("not", self.expression(node.a))
        if kind == "Select":
            return ("select", *(self.expression(getattr(node, name)) for name in _SELECT))
        if kind == "Let":
            self.values[node.var.__chandle__()] = self.expression(node.value)
            return self.expression(node.body)
        if kind == "Call":
            return self.call(node)
        raise NotAProgram(f"an expression of the form {kind}")

    def call(self, node: Any) -> Expr:
        name = str(getattr(node.op, "name", "")).split(".")[-1]
        arguments = node.args[:]
        if name == "call_pure_extern" or not name:
            raise NotAProgram("a call of an outside function")
        if name in ("call_llvm_pure_intrin", "call_llvm_intrin", "tvm_call_packed", "call_extern"):
            raise NotAProgram("a call of an outside function")
        return (name, *(self.expression(a) for a in arguments))


def read_program(func: Any) -> Program:
    """Reads one PrimFunc.

    Raises:
        NotAProgram: see the class.
    """
    if not isinstance(func, tvm.tirx.PrimFunc):
        raise NotAProgram("it is no tensor program")
    reader = _Reader(func)
    program = Program(tuple(reader.buffers), reader.parameters, tuple(reader.blocks))
    if not program.outputs:
        raise NotAProgram("the function writes none of its parameters")
    return program


def plain_write(block: Block, shape: tuple[int, ...]) -> bool:
    """Whether the block stores at its own spatial variables, each axis of the buffer by another one."""
    spatial = {a.var: a.extent for a in block.axes if not a.reduction}
    seen: set[int] = set()
    for index, extent in zip(block.write, shape, strict=True):
        if index == number(0) or (index[0] == "c" and index[1] == 0):
            if extent != 1:
                return False
        elif index[0] == "v" and index[1] in spatial and index[1] not in seen:
            if spatial[index[1]] != extent:
                return False
            seen.add(index[1])
        else:
            return False
    return all(var in seen or extent == 1 for var, extent in spatial.items())


def loads(expr: Expr, guard: tuple[Expr, ...] = ()) -> Iterator[tuple[int, tuple[Expr, ...], tuple[Expr, ...]]]:
    """Every load in a value: (buffer, indices, conditions under which it is needed), those in indices included."""
    tag = expr[0]
    if tag in ("c", "v"):
        return
    if tag == "ld":
        yield expr[1], expr[2], guard
        for index in expr[2]:
            yield from loads(index, guard)
    elif tag in ("if_then_else", "select"):
        condition = expr[1]
        yield from loads(condition, guard)
        yield from loads(expr[2], (*guard, condition))
        yield from loads(expr[3], (*guard, ("not", condition)))
    else:
        for part in expr[2:] if tag == "cast" else expr[1:]:
            yield from loads(part, guard)
