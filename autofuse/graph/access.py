"""From a `Program` to index maps: which elements of each operand one element of an output reads.

The walk starts at the blocks that store the output and goes back through the intermediates, putting the indices at
which an intermediate is read in place of the variables at which it was written. What comes out, per operand, is a
list of `IndexMap`s over the output's own axes and the reduction axes met on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autofuse.graph.expression import (
    ZERO,
    Expr,
    loads_from_memory,
    number,
    rebuilt,
    simplify,
    substitute,
    variables,
)
from autofuse.graph.tir import Block, NotAProgram, Program, loads, plain_write

# More ways than this to reach one operand means a program that no table of index maps describes usefully.
MOST_MAPS = 64


@dataclass(frozen=True)
class IndexMap:
    """Reads `operand[indices]` wherever all `guards` hold, for each point of the reduction variables it mentions.

    `gathered` is True if an index depends on the contents of a tensor; such parts are replaced by 0, so that the
    variables behind them count as ones that may all lead to the same element.
    """

    indices: tuple[Expr, ...]
    guards: tuple[Expr, ...]
    gathered: bool = False

    @property
    def variables(self) -> frozenset[int]:
        """The iteration variables that the indices depend on."""
        return frozenset().union(*(variables(i) for i in self.indices)) if self.indices else frozenset()


@dataclass(frozen=True)
class OutputAccess:
    """How one output is computed: its spatial variables with extents, where they store, maps per operand.

    `axes[d]` is the variable that runs along axis d of the output (-1 for an axis of extent 1), None if the output
    is stored through computed indices. `reductions` are the extents of reduction variables.
    """

    output: int
    spatial: tuple[tuple[int, int], ...]
    axes: tuple[int, ...] | None
    write: tuple[Expr, ...]
    reductions: dict[int, int]
    maps: dict[int, tuple[IndexMap, ...]]


def _conjuncts(condition: Expr, negated: bool = False) -> list[Expr]:
    """A condition as a list of conditions that all must hold."""
    tag = condition[0]
    if tag == "not":
        return _conjuncts(condition[1], not negated)
    if tag == ("or" if negated else "and"):
        return _conjuncts(condition[1], negated) + _conjuncts(condition[2], negated)
    if tag == "likely":
        return _conjuncts(condition[1], negated)
    if not negated:
        return [condition]
    opposite = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}.get(tag)
    return [(opposite, *condition[1:])] if opposite else [("not", condition)]


def _tightened(guards: Iterable[Expr]) -> tuple[Expr, ...] | None:
    """The same conditions without those that others imply (a long concatenation has many); None if none can hold."""
    ranges: dict[Expr, list[int | None]] = {}
    others: dict[Expr, None] = {}
    for guard in guards:
        if guard[0] == "c":
            if not guard[1]:
                return None
            continue
        tag, left, right = (guard[0], guard[1], guard[2]) if len(guard) == 3 else (guard[0], guard, guard)
        if left[0] == "c":
            tag, left, right = _MIRRORED.get(tag, ""), right, left
        if tag not in _MIRRORED or right[0] != "c" or type(right[1]) is not int:
            others[guard] = None
            continue
        limits = ranges.setdefault(left, [None, None])
        low = {"ge": right[1], "gt": right[1] + 1}.get(tag)
        high = {"le": right[1], "lt": right[1] - 1}.get(tag)
        if low is not None:
            limits[0] = low if limits[0] is None else max(limits[0], low)
        if high is not None:
            limits[1] = high if limits[1] is None else min(limits[1], high)
    kept: list[Expr] = []
    for expr, (least, most) in ranges.items():
        if least is not None and most is not None and least > most:
            return None
        if least is not None:
            kept.append(("le", number(least), expr))
        if most is not None:
            kept.append(("le", expr, number(most)))
    return (*kept, *others)


_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _without_loads(index: Expr) -> Expr:
    if index[0] == "ld":
        return ZERO
    if index[0] in ("c", "v"):
        return index
    return rebuilt(index, [_without_loads(e) for e in (index[2:] if index[0] == "cast" else index[1:])])


class _Walk:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.found: dict[int, dict[IndexMap, None]] = {}
        self.seen: set[tuple[int, tuple[Expr, ...], tuple[Expr, ...]]] = set()

    def block(self, block: Block, values: dict[int, Expr], guards: tuple[Expr, ...]) -> None:
        """Adds what the block reads when its variables have these values."""
        known: dict[Expr, Expr] = {}  # a long concatenation has the same conditions again and again

        def plain(expr: Expr) -> Expr:
            found = known.get(expr)
            if found is None:
                found = known[expr] = simplify(substitute(expr, values), self.program.extents)
            return found

        for buffer, indices, conditions in dict.fromkeys(loads(block.value)):
            if buffer == block.target:
                continue
            inner = [c for condition in conditions for c in _conjuncts(condition)]
            place = tuple([plain(i) for i in indices])
            # Whether an element is needed cannot be told when the condition depends on contents: then it is.
            kept = [plain(c) for c in inner if not loads_from_memory(c)]
            everything = _tightened((*guards, *kept))
            if everything is not None:
                self.load(buffer, place, everything)

    def load(self, buffer: int, indices: tuple[Expr, ...], guards: tuple[Expr, ...]) -> None:
        key = (buffer, indices, guards)
        if key in self.seen:
            return
        self.seen.add(key)
        writers = self.program.writers.get(buffer)
        if writers is None:
            if buffer >= self.program.parameters:
                raise NotAProgram("an intermediate is read that nothing writes")
            self.operand(buffer, indices, guards)
            return
        for writer in writers:
            self.block(writer, self.inverse(writer, indices), guards)

    def inverse(self, writer: Block, indices: tuple[Expr, ...]) -> dict[int, Expr]:
        """The values of the writer's spatial variables for which it stores at `indices`."""
        if not plain_write(writer, self.program.buffers[writer.target].shape):
            raise NotAProgram("an intermediate is written through computed indices")
        return {w[1]: i for w, i in zip(writer.write, indices, strict=True) if w[0] == "v"}

    def operand(self, buffer: int, indices: tuple[Expr, ...], guards: tuple[Expr, ...]) -> None:
        gathered = any(loads_from_memory(i) for i in indices)
        if gathered:
            extents = self.program.extents
            indices = tuple(simplify(_without_loads(i), extents) if loads_from_memory(i) else i for i in indices)
        maps = self.found.setdefault(buffer, {})
        maps[IndexMap(indices, guards, gathered)] = None
        if len(maps) > MOST_MAPS:
            raise NotAProgram("one operand is read in more ways than can be followed")


def output_access(program: Program, output: int) -> OutputAccess:
    """The index maps of one output (a parameter number).

    Raises:
        NotAProgram: the output is written by several blocks, or through intermediates that cannot be followed.
    """
    writers = program.writers[output]
    if len(writers) > 1:
        raise NotAProgram("an output is written by several blocks")
    block = writers[0]
    shape = program.buffers[output].shape
    walk = _Walk(program)
    walk.block(block, {}, ())
    axes = None
    if plain_write(block, shape):
        axes = tuple(w[1] if w[0] == "v" and extent > 1 else -1 for w, extent in zip(block.write, shape, strict=True))
    return OutputAccess(
        output=output,
        spatial=tuple((a.var, a.extent) for a in block.axes if not a.reduction),
        axes=axes,
        write=tuple(simplify(w, program.extents) for w in block.write),
        reductions={a.var: a.extent for b in program.blocks for a in b.axes if a.reduction},
        maps={operand: tuple(maps) for operand, maps in walk.found.items()},
    )
