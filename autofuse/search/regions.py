"""Cuts a graph into regions that are searched apart. Takes a graph and its choices, gives regions in an order to run.

A region is a set of operators that no choice leaves: every choice has all its members in one region. Regions whose
results feed each other both ways are one region, so that whatever is chosen inside them, they can run one after the
other. Inside a region operators are renumbered, so that repeated blocks look the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from autofuse.graph.model import Graph, positions
from autofuse.schedule.family import remembered
from autofuse.search.order import depth_first
from autofuse.search.problem import Choice


class LocalChoice(NamedTuple):
    """A choice in a region's own numbering; `position` is its place in the list that the regions were cut for."""

    position: int
    owned: int
    operators: tuple[int, ...]  # the owned ones, ascending
    extra: int  # recomputed members
    reads: int  # operators of this region whose results it reads
    writes: int


_order = itemgetter(1, 3, 5, 0)  # owned, extra, writes, position


@dataclass(frozen=True)
class Region:
    """Operators (in the order that the search takes them) and the choices inside, all masks in local numbers.

    must_write: operators whose result is used in another region or is an output of the graph.
    needs: for each operator, the operators that have to be decided before its result can be forgotten: those that
    read it, and, where these may be recomputed, those that read theirs.
    """

    operators: tuple[int, ...]
    choices: tuple[LocalChoice, ...]
    must_write: int
    needs: tuple[int, ...]

    def structure(self, weights: Sequence[float]) -> tuple[object, ...]:
        """What decides the search's outcome: equal for repeated blocks."""
        rows = tuple((c.owned, c.extra, c.reads, c.writes, weights[c.position]) for c in self.choices)
        return (len(self.operators), self.must_write, self.needs, rows)


class _Placed(NamedTuple):
    """A choice in the numbering of the whole graph's depth first order; fields as those of LocalChoice."""

    owned: int
    operators: tuple[int, ...]
    extra: int
    reads: int
    writes: int


@remembered
def _places(graph: Graph) -> list[int]:
    """Operator → its place in the depth first order."""
    places = [0] * len(graph.operators)
    for place, op in enumerate(depth_first(graph)):
        places[op] = place
    return places


@remembered
def _placed(choice: Choice) -> _Placed:
    group = choice.group
    graph = group.graph
    places, producer = _places(graph), graph.producer

    def renumber(mask: int) -> int:
        out = 0
        for op in positions(mask):
            out |= 1 << places[op]
        return out

    extra, members = choice.recomputed, group.members
    if extra:
        members = tuple([m for m in members if not extra >> m & 1])
    operators = [places[m] for m in members]
    operators.sort()
    owned = reads = writes = 0
    for place in operators:
        owned |= 1 << place
    for t in group.inputs:
        if t in producer:
            reads |= 1 << places[producer[t]]
    for t in group.outputs:
        writes |= 1 << places[producer[t]]
    return _Placed(owned, tuple(operators), renumber(extra) if extra else 0, reads, writes)


def cut(
    graph: Graph,
    choices: Sequence[Choice],
    *,
    whole: bool = False,
    among: Sequence[int] | None = None,
) -> list[Region]:
    """The regions in an order in which they can run; with `whole`, one region with everything.

    among: positions of the choices to take, by default all.
    """
    taken = range(len(choices)) if among is None else among
    position = {op: i for i, op in enumerate(depth_first(graph))}
    if whole:
        parts = [sorted(position, key=position.__getitem__)]
    else:
        parts = _components(graph, [choices[i] for i in taken], position)
    where = {op: r for r, part in enumerate(parts) for op in part}
    inside: list[list[int]] = [[] for _ in parts]
    repeated = 0
    for i in taken:
        inside[where[choices[i].group.members[0]]].append(i)
        repeated |= choices[i].recomputed
    return [_region(graph, tuple(part), choices, inside[r], repeated, whole) for r, part in enumerate(parts)]


def _region(
    graph: Graph, part: tuple[int, ...], choices: Sequence[Choice], taken: Sequence[int], repeated: int, whole: bool
) -> Region:
    if len(taken) == 1 and not whole and not choices[taken[0]].recomputed:
        count = len(part)  # decided: nothing is asked of what it reads and writes
        return Region(part, (LocalChoice(taken[0], (1 << count) - 1, tuple(range(count)), 0, 0, 0),), 0, (0,) * count)
    local = {op: i for i, op in enumerate(part)}
    final = set(graph.outputs)
    must_write = 0
    needs = [0] * len(part)
    for op in reversed(part):
        for s in graph.successors[op]:
            if s not in local:
                must_write |= 1 << local[op]
                continue
            needs[local[op]] |= 1 << local[s]
            if repeated >> s & 1:
                needs[local[op]] |= needs[local[s]]
        if not final.isdisjoint(graph.operators[op].outputs):
            must_write |= 1 << local[op]
    places = [_places(graph)[op] for op in part]
    first, everything = places[0], (1 << len(part)) - 1
    rows = []
    if places[-1] - first == len(part) - 1:
        for i in taken:
            owned, operators, extra, reads, writes = _placed(choices[i])
            if first:
                operators = tuple([place - first for place in operators])
            reads = reads >> first & everything
            rows.append(LocalChoice(i, owned >> first, operators, extra >> first, reads, writes >> first))
    else:
        number = {place: i for i, place in enumerate(places)}
        held = sum(1 << place for place in places)

        def renumber(mask: int) -> int:
            out = 0
            for place in positions(mask & held):
                out |= 1 << number[place]
            return out

        for i in taken:
            owned, operators, extra, reads, writes = _placed(choices[i])
            operators = tuple([number[place] for place in operators])
            rows.append(LocalChoice(i, renumber(owned), operators, renumber(extra), renumber(reads), renumber(writes)))
    rows.sort(key=_order)
    return Region(part, tuple(rows), must_write, tuple(needs))


def _components(graph: Graph, choices: Sequence[Choice], position: dict[int, int]) -> list[list[int]]:
    """Operators joined by choices, joined further until the parts are acyclic; parts and operators in run order."""
    parent = list(range(len(graph.operators)))

    def find(op: int) -> int:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    held = [1 << op for op in parent]  # for each root, the operators joined to it
    for choice in choices:
        group = choice.group
        first = find(group.members[0])
        missing = group.mask & ~held[first]
        if missing:
            for m in positions(missing):
                root = find(m)
                if root != first:
                    parent[root] = first
                    held[first] |= held[root]
    joined: dict[int, list[int]] = {}
    for op in sorted(position, key=position.__getitem__):
        joined.setdefault(find(op), []).append(op)
    before = {root: {find(p) for op in ops for p in graph.predecessors[op]} - {root} for root, ops in joined.items()}
    rank = {root: max(position[op] for op in ops) for root, ops in joined.items()}
    parts = []
    for strong in _strong_components(before, rank):
        parts.append(sorted((op for root in strong for op in joined[root]), key=position.__getitem__))
    return parts


def _strong_components(before: dict[int, set[int]], rank: dict[int, int]) -> list[list[int]]:
    """Tarjan's algorithm, without recursion, along edges to predecessors: components come out in run order."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: list[int] = []
    is_open: set[int] = set()
    result: list[list[int]] = []
    for root in sorted(before, key=rank.__getitem__):
        if root in index:
            continue
        work = [(root, iter(sorted(before[root], key=rank.__getitem__)))]
        index[root] = low[root] = len(index)
        open_.append(root)
        is_open.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    open_.append(other)
                    is_open.add(other)
                    work.append((other, iter(sorted(before[other], key=rank.__getitem__))))
                    break
                if other in is_open:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    strong = []
                    while True:
                        top = open_.pop()
                        is_open.discard(top)
                        strong.append(top)
                        if top == node:
                            break
                    result.append(strong)
    return result
