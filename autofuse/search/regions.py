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


# Operators of a region, in its order → position of a choice → the choice in the region's numbering.
Numbered = dict[tuple[int, ...], dict[int, LocalChoice]]


def cut(
    graph: Graph,
    choices: Sequence[Choice],
    *,
    whole: bool = False,
    among: Sequence[int] | None = None,
    numbered: Numbered | None = None,
) -> list[Region]:
    """The regions in an order in which they can run; with `whole`, one region with everything.

    among: positions of the choices to take, by default all. numbered: what earlier cuts of the same choices found, to
    which this one adds.
    """
    known: Numbered = {} if numbered is None else numbered
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
    return [
        _region(graph, tuple(part), choices, inside[r], repeated, known.setdefault(tuple(part), {}))
        for r, part in enumerate(parts)
    ]


def _region(
    graph: Graph,
    part: tuple[int, ...],
    choices: Sequence[Choice],
    taken: Sequence[int],
    repeated: int,
    known: dict[int, LocalChoice],
) -> Region:
    local = {op: i for i, op in enumerate(part)}
    final = set(graph.outputs)
    everything = sum(1 << op for op in part)

    def renumber(mask: int) -> int:
        out = 0
        for op in positions(mask & everything):
            out |= 1 << local[op]
        return out

    def localise(index: int, choice: Choice) -> LocalChoice:
        extra, members, reads = choice.recomputed, choice.group.members, choice.reads
        if extra:
            members = tuple([m for m in members if not extra >> m & 1])
        places = [local[m] for m in members]
        places.sort()
        owned = 0
        for place in places:
            owned |= 1 << place
        writes = owned if choice.writes == choice.owned else renumber(choice.writes)
        return LocalChoice(
            index, owned, tuple(places), renumber(extra) if extra else 0, renumber(reads) if reads else 0, writes
        )

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
    for i in taken:
        if i not in known:
            known[i] = localise(i, choices[i])
    rows = [known[i] for i in taken]
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

    for choice in choices:
        members = choice.group.members
        if len(members) > 1:
            first = find(members[0])
            for m in members[1:]:
                if parent[m] != first:
                    parent[find(m)] = first
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
