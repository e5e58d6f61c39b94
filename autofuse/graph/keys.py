"""Workload keys: the platform-independent name of what a group computes; and the digest of a whole graph.

`canonical_text` writes a group as numbered statements on logical tensors. It does not depend on names, on operator
numbers or on the order of independent operators, and says everything that determines what is computed: forms (kind,
attributes, shapes, dtypes), wiring, and which results are written. Values of constants and layouts do not matter, so
a layout change is no statement at all: its result is its operand.

How the numbering is made canonical: operands are ordered, so once the order of the group's last operators (those that
nothing inside reads) is fixed, a depth-first walk numbers everything. Their order is by hash of everything above and
below them (Weisfeiler-Leman refinement of the ordered graph) unless what is above tells them apart already, then by
the text that each adds; what still ties is tried, within a budget. Equal texts always mean equal groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from autofuse.graph.model import Graph, Group, Operator, Tensor

LAYOUT_CHANGE = "layout_change"
KEY_LENGTH = 32
# Complete numberings to compare when last operators tie. Ties that matter need unusual symmetry; this covers
# every arrangement of four equal siblings.
_BUDGET = 24
_ORDER = "keys.order"  # where a group keeps the order of its values, for `canonical_layouts`


def workload_key(group: Group) -> str:
    """The key of the canonical text."""
    return text_key(canonical_text(group))


def text_key(text: str) -> str:
    """The first 32 hex digits of the SHA-256 of a canonical text."""
    return _sha(text)[:KEY_LENGTH]


def canonical_text(group: Group) -> str:
    """See the module. One line a statement, `%n` a value computed inside, `$n` a tensor from outside."""
    canonical = _Canonical(_logical(group))
    text = canonical.text()
    if len(canonical.ends) <= 1:  # nearly every group; layouts have no say in the numbering then
        group.__dict__[_ORDER] = canonical.order
    return text


def canonical_layouts(group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Layouts of what a group reads and of what it writes, each in the order of the canonical text.

    Where the text allows several numberings (equal operators side by side), the one whose layouts come first counts, so
    that the order of equal operators does not matter here either. Together with the text, the layouts tell everything
    about how the group's borders are stored.
    """
    order = group.__dict__.get(_ORDER)
    if order is None:
        canonical = _Canonical(_logical(group, layouts=True))
        canonical.text()
        order = canonical.order
    tensors, outside, stored = group.graph.tensors, set(group.inputs), _stored(group)
    reads = tuple(tensors[v].layout for v in order if v in outside)
    return reads, tuple(layout for v in order for layout in stored.get(v, ()))


def graph_digest(graph: Graph) -> str:
    """32 hex digits that identify a graph with its numbering, independent of names, layouts and constants' values.

    Plans refer to operators by number, so unlike the workload key it changes when operators are renumbered.
    """
    digest = hashlib.sha256()
    for t in graph.inputs:
        digest.update(f"in {t} {_type(graph.tensors[t])}\n".encode())
    for op in graph.operators:
        digest.update(f"{op.outputs} {op.inputs} {_identity(op)}\n".encode())
    digest.update(f"out {graph.outputs}\n".encode())
    return digest.hexdigest()[:KEY_LENGTH]


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=1 << 16)
def _short(text: str) -> str:
    """Digest of a text that occurs in many groups."""
    return _sha(text)[:24]


def _type(tensor: Tensor) -> str:
    return _type_text(tensor.dtype, tensor.logical_shape or tensor.shape)


@lru_cache(maxsize=1 << 14)
def _type_text(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}{list(shape)}"


def _identity(op: Operator) -> str:
    return LAYOUT_CHANGE if op.kind == LAYOUT_CHANGE else op.form


@dataclass(frozen=True)
class _Node:
    """A statement: what it computes, its operands (values), how many results it has."""

    form: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class _Logical:
    """A group without layout changes. Values are tensor numbers; `written[v]`: how often a value is an output.

    `layouts[v]`: the layout in which it is read from outside ("" if it is not), and those in which it is written. Empty
    where layouts are not asked for.
    """

    nodes: tuple[_Node, ...]
    types: dict[int, str]
    written: dict[int, int]
    layouts: dict[int, tuple[str, tuple[str, ...]]]


def _logical(group: Group, layouts: bool = False) -> _Logical:
    graph = group.graph
    same: dict[int, int] = {}
    nodes = []
    values: dict[int, None] = {}
    for op in group.operators:
        inputs = tuple(same.get(t, t) for t in op.inputs)
        values.update(dict.fromkeys(inputs))
        if op.kind == LAYOUT_CHANGE and len(inputs) == 1 and len(op.outputs) == 1:
            same[op.outputs[0]] = inputs[0]
            continue
        values.update(dict.fromkeys(op.outputs))
        nodes.append(_Node(op.form, inputs, op.outputs))
    written: dict[int, int] = {}
    for t in group.outputs:
        value = same.get(t, t)
        written[value] = written.get(value, 0) + 1
        values[value] = None
    kept: dict[int, tuple[str, tuple[str, ...]]] = {}
    if layouts:
        outside, stored = set(group.inputs), _stored(group)
        kept = {v: (graph.tensors[v].layout if v in outside else "", stored.get(v, ())) for v in values}
    return _Logical(tuple(nodes), {v: _type(graph.tensors[v]) for v in values}, written, kept)


def _stored(group: Group) -> dict[int, tuple[str, ...]]:
    """Value → the layouts in which the group writes it, sorted."""
    same: dict[int, int] = {}
    for op in group.operators:
        if op.kind == LAYOUT_CHANGE and len(op.inputs) == 1 and len(op.outputs) == 1:
            same[op.outputs[0]] = same.get(op.inputs[0], op.inputs[0])
    found: dict[int, tuple[str, ...]] = {}
    for t in group.outputs:
        value = same.get(t, t)
        found[value] = tuple(sorted((*found.get(value, ()), group.graph.tensors[t].layout)))
    return found


class _Canonical:
    def __init__(self, logical: _Logical) -> None:
        self.logical = logical
        self.maker = {v: n for n, node in enumerate(logical.nodes) for v in node.outputs}
        self.field = {v: i for node in logical.nodes for i, v in enumerate(node.outputs)}
        self.readers: dict[int, list[tuple[int, int]]] = {}
        for n, node in enumerate(logical.nodes):
            for position, v in enumerate(node.inputs):
                self.readers.setdefault(v, []).append((n, position))
        # Ends: statements that nothing inside reads, and outside tensors that are only passed on.
        self.ends: list[tuple[str, int]] = [
            ("node", n)
            for n, node in enumerate(logical.nodes)
            if not any(v in self.readers for v in node.outputs)
        ]  # fmt: skip
        self.ends += [("value", v) for v in logical.types if v not in self.maker and v not in self.readers]
        self.budget = _BUDGET
        self.order: tuple[int, ...] = ()  # the values as the text numbers them
        # What tells apart ends that the text does not: where the budget ends, the same ones have been tried.
        self.finer = self.colours(layouts=True) if logical.layouts and len(self.ends) > 1 else {}

    def text(self) -> str:
        chosen = self.numbering()
        self.order = tuple(chosen.names)
        return self.finish(chosen)

    def numbering(self) -> _Numbering:
        if len(self.ends) <= 1:
            return self.extend(_Numbering(), self.ends[0]) if self.ends else _Numbering()
        # Cheap and nearly always enough: what each end needs, written by itself. Ties need a look at the rest.
        alone = {end: self.finish(self.extend(_Numbering(), end)) for end in self.ends}
        colours = alone if len(set(alone.values())) == len(alone) else self.colours()
        return self.best(_Numbering(), list(self.ends), colours)

    def rank(self, numbering: _Numbering) -> tuple[list[str], list[tuple[str, tuple[str, ...]]]]:
        """What the smallest of several numberings has least of: first its text, then its layouts."""
        return numbering.lines, [self.logical.layouts.get(v, ("", ())) for v in numbering.names]

    def best(self, done: _Numbering, left: list[tuple[str, int]], colours: dict[tuple[str, int], str]) -> _Numbering:
        """The smallest complete numbering that starts with `done`, choosing among the ends left."""
        while left:
            lowest = min(colours[end] for end in left)
            tied = [end for end in left if colours[end] == lowest]
            choices = [(self.extend(done, end), end) for end in tied]
            if len(choices) > 1:
                choices = self.different(done, choices)
            if len(choices) > 1 and self.budget > 1:
                found: list[_Numbering] = []
                for choice, end in choices:
                    if found and self.budget <= 1:
                        break
                    found.append(self.best(choice, [e for e in left if e != end], colours))
                return min(found, key=self.rank)
            done, end = choices[0]
            left = [e for e in left if e != end]
        self.budget -= 1
        return done

    def different(
        self, done: _Numbering, choices: list[tuple[_Numbering, tuple[str, int]]]
    ) -> list[tuple[_Numbering, tuple[str, int]]]:
        """Of equal colours, those that go on with the least text; one stands for all that share nothing with the rest.

        Two ends that add the same text, and nothing that any other end reads, can change places.
        """
        least = min(choice.lines for choice, _ in choices)
        kept, alone = [], False
        for choice, end in sorted(choices, key=lambda c: (*self.rank(c[0]), self.finer.get(c[1], ""))):
            if choice.lines != least:
                continue
            if self.apart(done, choice):
                if alone:
                    continue
                alone = True
            kept.append((choice, end))
        return kept

    def apart(self, done: _Numbering, choice: _Numbering) -> bool:
        """Whether nothing left to number reads what `choice` numbers beyond `done`."""
        return all(
            self.logical.nodes[n].outputs[0] in choice.names
            for v in choice.names
            if v not in done.names
            for n, _ in self.readers.get(v, ())
        )

    def colours(self, layouts: bool = False) -> dict[tuple[str, int], str]:
        """A hash for each end of all that is above and below it, through as many rounds as tell ends apart."""
        stored = {v: f" {self.logical.layouts[v]}" if layouts else "" for v in self.logical.types}
        written = self.logical.written
        values = {v: _short(f"{t} {written.get(v, 0)}{stored[v]}") for v, t in self.logical.types.items()}
        nodes = [_short(node.form) for node in self.logical.nodes]
        rounds = 2 * len(nodes) + 2
        distinct = 0
        for _ in range(rounds):
            nodes = [
                _short(f"{nodes[n]}({','.join(values[v] for v in node.inputs)})"
                       f"({','.join(values[v] for v in node.outputs)})")
                for n, node in enumerate(self.logical.nodes)
            ]  # fmt: skip
            values = {v: _short(f"{values[v]}<{self.made_by(v, nodes)}>{self.read_by(v, nodes)}") for v in values}
            found = len(set(nodes)) + len(set(values.values()))
            if found == distinct:
                break
            distinct = found
        return {end: nodes[end[1]] if end[0] == "node" else values[end[1]] for end in self.ends}

    def made_by(self, value: int, nodes: Sequence[str]) -> str:
        n = self.maker.get(value)
        return "" if n is None else f"{nodes[n]}.{self.field[value]}"

    def read_by(self, value: int, nodes: Sequence[str]) -> str:
        return " ".join(sorted(f"{nodes[n]}.{position}" for n, position in self.readers.get(value, ())))

    def extend(self, done: _Numbering, end: tuple[str, int]) -> _Numbering:
        """Numbers what `end` needs, after what is numbered already."""
        numbering = done.copy()
        if end[0] == "value":
            self.outside(numbering, end[1])
            return numbering
        stack: list[tuple[int, bool]] = [(end[1], False)]
        while stack:
            n, ready = stack.pop()
            node = self.logical.nodes[n]
            if node.outputs[0] in numbering.names:
                continue
            if ready:
                self.statement(numbering, node)
                continue
            stack.append((n, True))
            makers = [self.maker[v] for v in node.inputs if v in self.maker and v not in numbering.names]
            stack.extend((m, False) for m in reversed(makers))
        return numbering

    def statement(self, numbering: _Numbering, node: _Node) -> None:
        for v in node.inputs:
            if v not in self.maker:
                self.outside(numbering, v)
        inputs = ",".join(numbering.names[v] for v in node.inputs)
        for v in node.outputs:
            numbering.names[v] = f"%{numbering.computed}"
            numbering.computed += 1
        results = ",".join(f"{numbering.names[v]}{self.mark(v)}" for v in node.outputs)
        numbering.lines.append(f"{results} = {node.form} ({inputs})")

    def outside(self, numbering: _Numbering, value: int) -> None:
        if value not in numbering.names:
            numbering.names[value] = f"${numbering.given}"
            numbering.given += 1
            numbering.lines.append(f"{numbering.names[value]}{self.mark(value)} : {self.logical.types[value]}")

    def mark(self, value: int) -> str:
        """Outputs are marked, once for each time that they are written."""
        return "!" * self.logical.written.get(value, 0)

    def finish(self, numbering: _Numbering) -> str:
        return "\n".join(numbering.lines)


class _Numbering:
    """Names given so far and the lines they stand in."""

    def __init__(self, names: dict[int, str] | None = None, lines: Iterable[str] = ()) -> None:
        self.names = names or {}
        self.lines = list(lines)
        self.computed = 0
        self.given = 0

    def copy(self) -> _Numbering:
        other = _Numbering(dict(self.names), self.lines)
        other.computed = self.computed
        other.given = self.given
        return other
