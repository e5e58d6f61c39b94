"""Convex sets of operators that are one step larger than a given one. Takes and gives sets as bit masks.

A step goes along an edge, by an operator or by a part of a run of cheap operators, or takes many neighbours of one
operator at once; whatever lies between comes along, so that the set stays convex.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from autofuse.graph.legality import CHEAP, Rule, convex_hull, edge_rule
from autofuse.graph.model import Graph, bits
from autofuse.search.problem import Thresholds

# Neighbours on one side from which on they are taken in bundles.
_WIDE = 6


def mask_of(operators: Iterable[int]) -> int:
    """The operators as a bit set."""
    mask = 0
    for op in operators:
        mask |= 1 << op
    return mask


@lru_cache(maxsize=1024)
def _doubling(length: int, before: int) -> tuple[int, ...]:
    """`length`, and the smaller lengths that make a power of two with the `before` operators there are; descending."""
    powers = [(1 << k) - before for k in range((length + before).bit_length())]
    return tuple(sorted({length, *(n for n in powers if 0 < n <= length)}, reverse=True))


class Growth:
    """The larger sets in one graph.

    growable, cheap: bit sets of the operators that may share a kernel, and those of them without a reduction or
    contraction. previous, near: for each operator, the growable ones that it reads, and those that read it as well.
    wide: operators with so many neighbours that these are taken in bundles. offered, offered_seed: for each operator
    what `steps` may add next to it, and next to it where it is the seed. grown, touched: the operators of the sets
    given to `steps` since these were last set to 0, and what was next to them.
    """

    def __init__(self, graph: Graph, thresholds: Thresholds) -> None:
        self.graph = graph
        self.limit = thresholds.max_group_size
        count = len(graph.operators)
        # An operator with more operands than a kernel takes parameters never shares one.
        growable = [op.fusable and len(set(op.inputs)) < thresholds.max_arguments for op in graph.operators]
        self.growable = sum(1 << i for i in range(count) if growable[i])
        self.cheap = sum(1 << op.index for op in graph.operators if growable[op.index] and op.mapping in CHEAP)
        self._next = [mask_of(graph.successors[i]) & self.growable for i in range(count)]
        self.previous = [mask_of(graph.predecessors[i]) & self.growable for i in range(count)]
        self.near = [before | after for before, after in zip(self.previous, self._next, strict=True)]
        self.grown = self.touched = 0
        self._never = [0] * count
        for consumer in range(count):
            for producer in bits(self.previous[consumer]):
                if self.growable >> consumer & 1 and edge_rule(graph, producer, consumer)[0] is Rule.NEVER:
                    self._never[consumer] |= 1 << producer
                    self._never[producer] |= 1 << consumer
        self._any_never = any(self._never)
        self._run_after, self._run_before = self._runs()
        # What is next to an operator, but inside a run, and what is taken in bundles.
        self.wide = mask_of(
            i for i in range(count) if max(self._next[i].bit_count(), self.previous[i].bit_count()) > _WIDE
        )
        self._after = [0 if n.bit_count() > _WIDE else n for n in self._next]
        self._after_run = [a if self._run_after[i] < 0 else 0 for i, a in enumerate(self._after)]
        self._before_run = [
            0 if self._run_before[i] >= 0 or p.bit_count() > _WIDE else p for i, p in enumerate(self.previous)
        ]
        self.offered = [before | after for before, after in zip(self._before_run, self._after_run, strict=True)]
        self.offered_seed = [before | after for before, after in zip(self._before_run, self._after, strict=True)]
        # Set → what is after and before it, the operators that it depends on, and those that depend on it.
        self._surroundings: dict[int, tuple[int, int, int, int]] = {0: (0, 0, 0, 0)}

    def _runs(self) -> tuple[list[int], list[int]]:
        """For each operator, the neighbour after and before it in a run of cheap operators, or -1.

        In a run each operator's only user is the next one, which has no other producer.
        """
        graph = self.graph
        after, before = [-1] * len(graph.operators), [-1] * len(graph.operators)
        final = set(graph.outputs)
        for op in graph.operators:
            users = graph.successors[op.index]
            if len(users) != 1 or not final.isdisjoint(op.outputs) or not self.cheap >> op.index & 1:
                continue
            (user,) = users
            if len(graph.predecessors[user]) == 1 and self.cheap >> user & 1:
                after[op.index], before[user] = user, op.index
        return after, before

    def kind(self, op: int) -> tuple[bool | int, ...]:
        """What steps depend on at one operator, beside its neighbours: equal for operators that stand alike."""
        after, before = self._run_after[op], self._run_before[op]
        return (
            bool(self.growable >> op & 1),
            bool(self.cheap >> op & 1),
            after - op if after >= 0 else 0,
            before - op if before >= 0 else 0,
            self._next[op].bit_count() > _WIDE,
            self.previous[op].bit_count() > _WIDE,
        )

    def extended(self, mask: int, addition: int) -> int:
        """The convex set with `addition` in it; 0 if that takes an operator or an edge that never fuses."""
        hull = convex_hull(self.graph, mask | addition)
        return 0 if hull & ~self.growable or self._clashes(hull, mask) else hull

    def convex_with(self, mask: int, op: int) -> bool:
        """Whether a convex set stays one, and legal by its operators and edges, when this one operator joins."""
        larger = mask | 1 << op
        if larger & ~self.growable:
            return False
        _, _, above, below = self._around(mask, 0)
        between = below & self.graph.ancestors[op] | above & self.graph.descendants[op]
        return not between & ~larger and not self._clashes(larger, mask)

    def _clashes(self, larger: int, mask: int) -> bool:
        """Whether what `larger` adds to `mask` has an edge inside that never fuses."""
        return self._any_never and any(self._never[op] & larger for op in bits(larger & ~mask))

    def _around(self, mask: int, part: int) -> tuple[int, int, int, int]:
        """The surroundings of a set, from those of a part of it."""
        known = self._surroundings.get(mask)
        if known is None:
            after, before, above, below = self._surroundings[part]
            ancestors, descendants = self.graph.ancestors, self.graph.descendants
            for op in bits(mask & ~part):
                after |= self._after_run[op]
                before |= self._before_run[op]
                above |= ancestors[op]
                below |= descendants[op]
            known = self._surroundings[mask] = (after, before, above, below)
        return known

    def steps(self, mask: int, seed: int, within: int, part: int = 0) -> Iterator[int]:
        """Convex sets that are one step larger: successors first, the largest part of a run first.

        A step may take operators of `within` only. Inside a run, all lengths are offered when it is entered (or
        where the seed lies), and none later. part: a part of the set whose steps were looked at before, if there is
        one.
        """
        limit = self.limit
        room = limit - mask.bit_count()
        if room <= 0:
            return
        after, before, above, below = self._around(mask, part if part in self._surroundings else 0)
        if seed >= 0:
            after |= self._after[seed]
        wide = mask & self.wide
        if wide:
            for op in bits(wide):
                for neighbours in (self._next[op], self.previous[op]):
                    if neighbours.bit_count() > _WIDE:
                        yield from self._bundles(mask, neighbours, within)
        ancestors, descendants = self.graph.ancestors, self.graph.descendants
        outside = ~(within | mask)
        free = within & ~mask
        any_never = self._any_never
        following = self._run_after[seed] if seed >= 0 else -1
        self.grown |= mask
        self.touched |= (after | before) & free
        for steps, near in ((self._run_after, after & free), (self._run_before, before & free)):
            for x in bits(near):
                further = steps[x]
                if further < 0 or room == 1 or not free >> further & 1:
                    # what lies on paths from the set to the addition, or back
                    larger = mask | 1 << x | below & ancestors[x] | above & descendants[x]
                    fits = not larger & outside and larger.bit_count() <= limit
                    if fits and not (any_never and self._clashes(larger, mask)):
                        yield larger
                    continue
                run = self._run_from(x, steps, free, room)
                for length in _doubling(len(run), 1 if x == following else 0):
                    last = run[length - 1]
                    between = below & (ancestors[x] | ancestors[last]) | above & (descendants[x] | descendants[last])
                    larger = mask | mask_of(run[:length]) | between
                    if not larger & outside and larger.bit_count() <= limit and not self._clashes(larger, mask):
                        yield larger

    def _bundles(self, mask: int, neighbours: int, within: int) -> Iterator[int]:
        """The set with many neighbours of an operator at once, the parts of a wide concat, say.

        All that are left, and, where the set has at most one of them yet, doubling numbers of them.
        """
        close = list(bits(neighbours & within & ~mask))
        lengths = _doubling(len(close), 0) if (neighbours & mask).bit_count() <= 1 else (len(close),)
        for length in lengths:
            larger = self.extended(mask, mask_of(close[:length])) if length else 0
            if larger and not larger & ~(within | mask) and larger.bit_count() <= self.limit:
                yield larger

    @staticmethod
    def _run_from(x: int, steps: Sequence[int], within: int, room: int) -> list[int]:
        run = [x]
        while len(run) < room and steps[run[-1]] >= 0 and within >> steps[run[-1]] & 1:
            run.append(steps[run[-1]])
        return run
