"""Growth done once for parts of a program that are alike: the repeated blocks of a network.

Takes what was looked at around one operator, gives it back for an operator around which everything is the same.

What is looked at around a seed depends on a stretch of the program: operators that follow one another, from the first
to the last that a set held or might have taken. Paths between two operators of a stretch stay inside it. So where
another stretch has operators of the same classes that read each other's results and share operands in the same way,
and the same of them are used outside, the same sets are convex and legal, and in the same order. An edge that leaves
the stretch changes nothing where no set can take it: its other end is not among the operators that may be taken, or
what lies between is not, or is too much for a group. (A mask that every layer of a transformer reads is such an edge.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from autofuse.graph.model import Graph, bits
from autofuse.search.growth import Growth
from autofuse.search.judge import GroupJudge, Judged

# Stretches around operators of one class that are compared with a new one's: networks have few kinds of blocks.
_MOST_COMPARED = 8

# Of an operand: how far back its maker stands and which of its results it is, how far back its last reader and at
# which operand; -1 where there is none.
_Link = tuple[int, int, int, int]


@dataclass(frozen=True)
class Looked:
    """What was looked at around `seed`, from `first` to `last`.

    sets: what came of them. grown: the operators of those from which larger ones were looked for. budget: sets that
    might have been looked at; straight, used: how many were at first, and in all. cut: whether a set was left out.
    """

    seed: int
    first: int
    last: int
    grown: int
    sets: list[Judged]
    budget: int
    straight: int
    used: int
    cut: bool

    def fits(self, budget: int) -> bool:
        """Whether as much would be looked at with this budget."""
        least = min(budget, self.budget)
        return budget == self.budget or (self.used < least and self.straight < least // 2)


class Repeats:
    """What was looked at in one graph."""

    def __init__(self, graph: Graph, growth: Growth, judge: GroupJudge) -> None:
        self._growth = growth
        self._judge = judge
        self._users = graph.user_masks
        self._ancestors, self._descendants = graph.ancestors, graph.descendants
        self._links = _links(graph)
        ids: dict[Hashable, int] = {}
        classes = judge.signatures.classes
        self._kind = [ids.setdefault((classes[i], growth.kind(i)), len(ids)) for i in range(len(graph.operators))]
        rows = [(self._kind[i], self._links[i], _users_of(graph, i)) for i in range(len(graph.operators))]
        self._exact = [ids.setdefault(row, len(ids)) for row in rows]
        results = [op.outputs[0] for op in graph.operators if op.outputs]
        # Outputs are in the order of tensors, which elsewhere has to be the same.
        self._ordered = results == sorted(results)
        self._known: dict[int, list[Looked]] = {}

    def find(self, seed: int, within: int, budget: int) -> Looked | None:
        """What was looked at around an operator like `seed` in a stretch like its own."""
        for looked in self._known.get(self._kind[seed], ()):
            if looked.fits(budget) and self._same(looked, seed, within):
                return looked
        return None

    def keep(
        self, seed: int, within: int, sets: Iterable[int], budget: int, straight: int, used: int, cut: bool
    ) -> None:
        """Remember what was looked at around `seed` since `growth.grown` and `growth.touched` were set to 0."""
        known = self._known.setdefault(self._kind[seed], [])
        if not self._ordered or len(known) >= _MOST_COMPARED:
            return
        taken, growth = list(sets), self._growth
        stretch = 1 << seed
        for mask in taken:
            stretch |= mask
        for op in bits(growth.touched & ~stretch):
            if not self._dead(op, growth.grown, seed, within):
                stretch |= 1 << op
        for op in bits(growth.grown & growth.wide):
            stretch |= growth.near[op]
        first, last = (stretch & -stretch).bit_length() - 1, stretch.bit_length() - 1
        known.append(Looked(seed, first, last, growth.grown, self._judge.outcomes(taken), budget, straight, used, cut))

    def _dead(self, op: int, grown: int, seed: int, within: int) -> bool:
        """Whether no set that is grown from `seed` out of operators of `grown` can take a neighbour of these."""
        allowed = within | 1 << seed
        if not allowed >> op & 1:
            return True
        for other in bits(self._growth.near[op] & grown):
            first, last = (op, other) if op < other else (other, op)
            between = self._descendants[first] & self._ancestors[last]
            if not between & ~allowed and between.bit_count() + 2 <= self._growth.limit:
                return False
        return True

    def _same(self, looked: Looked, seed: int, within: int) -> bool:
        distance = seed - looked.seed
        start, end = looked.first, looked.last + 1
        if distance <= 0 or end + distance > len(self._kind):
            return False
        if self._kind[start:end] != self._kind[start + distance : end + distance]:
            return False
        stretch = (1 << end) - (1 << start)
        moved = stretch << distance
        exact = self._exact
        if exact[start:end] != exact[start + distance : end + distance]:
            for op in range(start, end):
                other = op + distance
                if exact[op] != exact[other]:
                    if not _alike(self._links[op], self._links[other], op - start):
                        return False
                    if bool(self._users[op] & ~stretch) != bool(self._users[other] & ~moved):
                        return False
        growth, grown = self._growth, looked.grown << distance
        outside = growth.offered_seed[seed]
        for op in bits(grown):
            outside |= growth.offered[op]
        for op in bits(grown & growth.wide):
            if growth.near[op] & ~moved:
                return False
        return all(self._dead(op, grown, seed, within) for op in bits(outside & ~moved))


def _users_of(graph: Graph, op: int) -> tuple[bool, tuple[int, ...]]:
    """Whether the graph gives a result of the operator, and how far on its users stand."""
    final = bool(graph.user_masks[op] >> len(graph.operators))
    return final, tuple([s - op for s in graph.successors[op]])


def _links(graph: Graph) -> list[tuple[_Link, ...]]:
    """Where each operator's operands come from."""
    made: dict[int, tuple[int, int]] = {}
    read: dict[int, tuple[int, int]] = {}
    links = []
    for i, op in enumerate(graph.operators):
        row = []
        for slot, t in enumerate(op.inputs):
            maker, place = made.get(t, (i + 1, -1))
            reader, at = read.get(t, (i + 1, -1))
            row.append((i - maker, place, i - reader, at))
            read[t] = (i, slot)
        for place, t in enumerate(op.outputs):
            made[t] = (i, place)
        links.append(tuple(row))
    return links


def _alike(links: Sequence[_Link], others: Sequence[_Link], reach: int) -> bool:
    """Whether two operators of one class have the same links, as far as these reach back no further than `reach`.

    A tensor that is made further back is told by its readers.
    """
    for (maker, place, reader, at), (maker2, place2, reader2, at2) in zip(links, others, strict=True):
        if 0 <= maker <= reach or 0 <= maker2 <= reach:
            if (maker, place) != (maker2, place2):
                return False
        elif (0 <= reader <= reach or 0 <= reader2 <= reach) and (reader, at) != (reader2, at2):
            return False
    return True
