"""The groups that a search may choose from. Takes a graph, hardware and schedule families; gives legal groups.

Not all convex sets are looked at, there are too many; these are:
- around every operator, sets that grow along edges by an operator at a time (with whatever lies between, to stay
  convex), at most `groups_per_operator` of them. A set with reductions or contractions is grown from the first of
  these, any other from its first operator, so that hardly a set is met twice;
- runs of cheap operators, one after another, are taken as wholes and at doubling lengths, so that a chain of n
  operators gives n log(n) groups;
- many neighbours of one operator are taken all at once, and in doubling numbers;
- operators that share an input, two, four, eight ... at a time;
- the sets of a given partition;
- each of these with cheap producers computed again inside.
A set that no family takes may still grow a little: what two operators may not do, three sometimes may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from autofuse.cost.model import CostModel
from autofuse.graph.collector import paused_collector
from autofuse.graph.legality import check_structure, recomputable
from autofuse.graph.model import Graph, Group, Role, bits
from autofuse.schedule.family import ScheduleFamily
from autofuse.search.costing import KeyFunction, choices_of
from autofuse.search.growth import Growth, mask_of
from autofuse.search.judge import GroupJudge
from autofuse.search.judge import LegalGroup as LegalGroup
from autofuse.search.problem import SearchProblem, Thresholds
from autofuse.search.repeats import Repeats
from autofuse.target import Hardware

# Growing steps through sets that no family takes, and operators that these may add together.
_MISSES = 2
_MISSED_OPERATORS = 6
# Sets looked at around an operator on average, in the whole graph besides, and at least where others took more: dense
# graphs have more convex sets than can be looked at.
_USUAL_BUDGET = 48
_POOL = 4096
_LEAST_BUDGET = 24
# Sets looked at in a whole graph, those of repeated parts counted once: budgets shrink when the operators that are left
# would take more. What follows, costing and the search, takes longer than in proportion: of more operators than
# _MANY_OPERATORS fewer sets are looked at in all.
_WHOLE_BUDGET = 40_000
_MANY_OPERATORS = 800
# The same for groups with recomputed producers.
_USUAL_RECOMPUTED = 8
_RECOMPUTED_POOL = 512
# Sets grown from siblings, which only some families take.
_SIBLING_BUDGET = 16
# Cheap producers of one group that are tried for recomputation.
_RECOMPUTE_TRIED = 4


class GroupEnumerator:
    """Finds the legal groups of one graph; `pruned` counts what thresholds cut."""

    def __init__(
        self, graph: Graph, *, hardware: Hardware, families: Sequence[ScheduleFamily], thresholds: Thresholds
    ) -> None:
        self.graph = graph
        self.thresholds = thresholds
        self._judge = GroupJudge(graph, hardware=hardware, families=families, thresholds=thresholds)
        self._growth = Growth(graph, thresholds)
        self._repeats = Repeats(graph, self._growth, self._judge)
        self._pool = _POOL
        self._spent = 0

    @property
    def pruned(self) -> dict[str, int]:
        """Threshold → how often it cut."""
        return self._judge.pruned

    def run(self, partition: Sequence[Sequence[int]] = ()) -> list[LegalGroup]:
        """All groups, by members then outputs; `partition`: sets that become groups too, or their largest parts do."""
        for op in self.graph.operators:
            if op.fusable:
                self._judge.natural(1 << op.index)
        for members in partition:
            self._take_partition_set(mask_of(members))
        growable = list(bits(self._growth.growable))
        for number, seed in enumerate(growable):
            usual = self._usual(len(growable) - number)
            # Where budgets are short, only some operators have sets as large as they go.
            self._grow(seed, usual, far=number % (_USUAL_BUDGET // usual) == 0)
        self._siblings()
        self._recompute()
        return sorted(self._judge.found.values(), key=lambda f: (f.group.members, f.group.outputs))

    # Growth along edges

    def _usual(self, left: int) -> int:
        """Sets to look at around one of the `left` operators that are left, on average."""
        whole = _WHOLE_BUDGET * min(1.0, _MANY_OPERATORS / max(1, self._growth.growable.bit_count()))
        return int(min(_USUAL_BUDGET, max(1.0, (whole - self._spent) / left)))

    def _grow(self, seed: int, usual: int, far: bool) -> None:
        """Sets around an operator: once straight on as far as it goes, then breadth first."""
        growth, judge = self._growth, self._judge
        if growth.cheap >> seed & 1:
            within = growth.cheap >> seed << seed
        else:
            # first of the set's reductions and contractions; cheap operators on all sides
            within = growth.cheap | (growth.growable >> seed << seed)
        least = min(_LEAST_BUDGET, usual)
        whole = budget = min(self.thresholds.groups_per_operator, max(least, self._pool))
        known = self._repeats.find(seed, within, whole)
        if known is not None:
            judge.repeat(known.sets, seed - known.seed)
            if known.cut:
                judge.cut("groups_per_operator")
            self._pool += usual - known.used
            return
        growth.grown = growth.touched = 0
        straight = self._straight(1 << seed, seed, within, whole // 2, far)
        budget -= len(straight)
        visited = {1 << seed}
        cut = False
        queue = deque([(1 << seed, 0, 0, 1)])
        while queue and budget > 0:
            mask, part, misses, legal_size = queue.popleft()
            for extended in growth.steps(mask, seed, within, part):
                if extended in visited:
                    continue
                if budget <= 0:
                    judge.cut("groups_per_operator")
                    cut = True
                    break
                budget -= 1
                visited.add(extended)
                size = extended.bit_count()
                if judge.natural(extended):
                    queue.append((extended, mask, 0, size))
                elif misses < _MISSES and size - legal_size <= _MISSED_OPERATORS and extended not in judge.hopeless:
                    queue.append((extended, mask, misses + 1, legal_size))
        self._pool += usual - (whole - budget)
        self._spent += whole - budget
        self._repeats.keep(
            seed, within, {*visited, *straight}, budget=whole, straight=len(straight), used=whole - budget, cut=cut
        )

    def _straight(self, mask: int, seed: int, within: int, most: int, far: bool) -> list[int]:
        """Grow by the first extension that leads on, until none does; gives the sets looked at, a set each time.

        At most `most` sets, those that lead on left out where it goes `far`. Breadth first search may run out of its
        budget before it meets the large sets.
        """
        looked: list[int] = []
        misses = part = 0
        legal_size = 1
        while misses <= _MISSES and mask.bit_count() - legal_size <= _MISSED_OPERATORS:
            first = 0
            for extended in self._growth.steps(mask, seed, within, part):
                looked.append(extended)
                legal = self._judge.natural(extended)
                if not first and extended not in self._judge.hopeless:
                    first = extended
                if legal:
                    first, misses, legal_size = extended, 0, extended.bit_count()
                    if len(looked) >= most and not far:
                        return looked
                    break
                if len(looked) >= most:
                    return looked
            else:
                misses += 1
            if not first:
                break
            part, mask = mask, first
        return looked

    # Siblings, partitions, recomputation

    def _siblings(self) -> None:
        """Operators that read the same tensor, in windows of doubling size."""
        graph = self.graph
        for tensor, users in graph.users.items():
            if graph.tensors[tensor].role is Role.CONSTANT or len(users) < 2:
                continue
            near = [u for u in users if self._growth.growable >> u & 1]
            size = 2
            while size <= len(near):
                for first in range(0, len(near) - size + 1, max(1, size // 2)):
                    self._sibling_window(near[first : first + size])
                size *= 2
            if 2 < len(near) <= self.thresholds.max_group_size:
                self._sibling_window(near)

    def _sibling_window(self, window: Sequence[int]) -> None:
        growth, judge = self._growth, self._judge
        mask = growth.extended(0, mask_of(window))
        if not mask or mask in judge.seen or mask.bit_count() > self.thresholds.max_group_size:
            return
        if not judge.natural(mask):
            return
        budget = _SIBLING_BUDGET
        queue = deque([mask])
        while queue:
            for extended in growth.steps(queue.popleft(), -1, growth.cheap):
                if budget <= 0:
                    return
                if extended not in judge.seen:
                    budget -= 1
                    if judge.natural(extended):
                        queue.append(extended)

    def _take_partition_set(self, mask: int) -> None:
        """The set itself when it is legal, else parts of it grown as far as they are legal."""
        group = Group.of(self.graph, bits(mask))
        limits = self.thresholds
        structure = check_structure(group, max_arguments=limits.max_arguments, max_group_size=limits.max_group_size)
        if structure is None and self._judge.natural(mask):
            return
        left = mask & self._growth.growable
        while left:
            heavy = left & ~self._growth.cheap
            seed = next(bits(heavy or left))
            taken = best = 1 << seed
            misses = 0
            while misses <= _MISSES:
                extended = next(self._growth.steps(taken, -1, left), 0)
                if not extended:
                    break
                taken = extended
                if self._judge.natural(taken):
                    best, misses = taken, 0
                else:
                    misses += 1
            left &= ~best

    def _recompute(self) -> None:
        """Every group again with cheap producers inside that others use too; they are not written."""
        left = _RECOMPUTED_POOL + _USUAL_RECOMPUTED * len(self.graph.operators)
        level = sorted((f.group for f in self._judge.found.values()), key=lambda g: (len(g.members), g.members))
        cheap, users = self._growth.cheap, self.graph.user_masks
        repeatable = mask_of(op.index for op in self.graph.operators if recomputable(op)) & cheap
        # What has one user is used outside of no group with a member that reads it.
        repeatable = mask_of(op for op in bits(repeatable) if users[op] & (users[op] - 1))
        producers = [before & cheap for before in self._growth.previous]
        for _ in range(self.thresholds.recompute_members):
            wider: list[Group] = []
            for group in level:
                if len(wider) >= left:
                    self._judge.cut("recompute_members")
                    break
                wider.extend(self._with_producers(group, repeatable, producers))
            left -= len(wider)
            level = wider

    def _with_producers(self, group: Group, repeatable: int, before: Sequence[int]) -> Iterator[Group]:
        """The group with one producer more. `before`: for each operator, the cheap ones that it reads."""
        judge, growth, mask = self._judge, self._growth, group.mask
        producers = 0
        for m in group.members:
            producers |= before[m]
        producers &= ~mask
        if not producers & repeatable:
            return
        users, producer = self.graph.user_masks, self.graph.producer
        tried = 0
        for p in bits(producers):
            if tried >= _RECOMPUTE_TRIED:
                judge.cut("recompute_members")
                return
            if not repeatable >> p & 1 or not users[p] & ~mask:
                continue
            if not growth.convex_with(mask, p):
                continue
            tried += 1
            larger = mask | 1 << p
            if (larger, group.outputs) in judge.found:
                continue
            written = [producer[t] for t in group.outputs]
            wider = judge.judge(larger, sorted((*group.members, p)), group.outputs, written, whole=False)
            if wider is not None:
                yield wider.group


def legal_groups(
    graph: Graph,
    *,
    hardware: Hardware,
    families: Sequence[ScheduleFamily],
    thresholds: Thresholds | None = None,
    partition: Sequence[Sequence[int]] = (),
) -> list[LegalGroup]:
    """The legal groups that a search over `graph` considers, every schedulable operator alone among them."""
    enumerator = GroupEnumerator(graph, hardware=hardware, families=families, thresholds=thresholds or Thresholds())
    return enumerator.run(partition)


@paused_collector()
def search_problem(
    graph: Graph,
    cost_model: CostModel,
    *,
    hardware: Hardware,
    families: Sequence[ScheduleFamily],
    thresholds: Thresholds | None = None,
    greedy: Sequence[Sequence[int]] = (),
    max_memory: int = 0,
    call_cost: float | None = None,
    key: KeyFunction | None = None,
) -> SearchProblem:
    """Enumerate the groups of a graph and cost them in one batch.

    greedy: TVM's partition as sets of operators. max_memory in bytes, 0 for no limit. call_cost: seconds of one more
    kernel in a plan, by default the hardware's. key: gives the choices their workload keys; see `choices_of`.
    """
    limits = thresholds or Thresholds()
    enumerator = GroupEnumerator(graph, hardware=hardware, families=families, thresholds=limits)
    found = enumerator.run(greedy)
    choices, pruned = choices_of(graph, found, cost_model, hardware=hardware, thresholds=limits, greedy=greedy, key=key)
    return SearchProblem(
        graph,
        choices,
        limits,
        call_cost=hardware.call_overhead if call_cost is None else call_cost,
        max_memory=max_memory,
        greedy=tuple(tuple(sorted(members)) for members in greedy),
        pruned={**enumerator.pruned, **pruned},
    )
