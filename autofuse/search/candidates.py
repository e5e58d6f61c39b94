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
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autofuse.cost.model import CostModel
from autofuse.graph.legality import CHEAP, Rule, check_structure, convex_hull, edge_rule, match_family, recomputable
from autofuse.graph.model import Graph, Group, Role, bits
from autofuse.schedule.family import ScheduleFamily
from autofuse.search.costing import KeyFunction, choices_of
from autofuse.search.problem import SearchProblem, Thresholds
from autofuse.search.signature import Signatures
from autofuse.target import Hardware

# Growing steps through sets that no family takes, and operators that these may add together.
_MISSES = 2
_MISSED_OPERATORS = 6
# Neighbours on one side from which on they are taken in bundles.
_WIDE = 6
# Sets looked at around an operator on average, in the whole graph besides, and at least where others took more: dense
# graphs have more convex sets than can be looked at.
_USUAL_BUDGET = 48
_POOL = 4096
_LEAST_BUDGET = 24
# The same for groups with recomputed producers.
_USUAL_RECOMPUTED = 8
_RECOMPUTED_POOL = 512
# Inputs over the limit that growing a little does not take back.
_HOPELESS_ARGUMENTS = 8
# Sets grown from siblings, which only some families take.
_SIBLING_BUDGET = 16
# Cheap producers of one group that are tried for recomputation.
_RECOMPUTE_TRIED = 4


def _doubling(length: int, before: int) -> list[int]:
    """`length`, and the smaller lengths that make a power of two with the `before` operators there are; descending."""
    powers = [(1 << k) - before for k in range((length + before).bit_length())]
    return sorted({length, *(n for n in powers if 0 < n <= length)}, reverse=True)


@dataclass(frozen=True)
class LegalGroup:
    """A group, the family that schedules it, and a value that is equal for groups that are alike."""

    group: Group
    family: ScheduleFamily
    signature: Hashable


class GroupEnumerator:
    """Finds the legal groups of one graph; `pruned` counts what thresholds cut."""

    def __init__(
        self, graph: Graph, *, hardware: Hardware, families: Sequence[ScheduleFamily], thresholds: Thresholds
    ) -> None:
        self.graph = graph
        self.hardware = hardware
        self.families = families
        self.thresholds = thresholds
        self.pruned: dict[str, int] = {}
        self.found: dict[tuple[int, tuple[int, ...]], LegalGroup] = {}
        self._signatures = Signatures(graph)
        self._verdicts: dict[Hashable, ScheduleFamily | None] = {}
        self._seen: dict[int, bool] = {}
        count = len(graph.operators)
        # An operator with more operands than a kernel takes parameters never shares one.
        growable = [op.fusable and len(set(op.inputs)) < thresholds.max_arguments for op in graph.operators]
        self._growable = sum(1 << i for i in range(count) if growable[i])
        self._cheap = sum(1 << op.index for op in graph.operators if growable[op.index] and op.mapping in CHEAP)
        self._next = [self._mask(graph.successors[i]) & self._growable for i in range(count)]
        self._previous = [self._mask(graph.predecessors[i]) & self._growable for i in range(count)]
        # Operators of groups have one result; an output of the graph has a user outside every group.
        final = set(graph.outputs)
        self._result = [op.outputs[0] if op.outputs else -1 for op in graph.operators]
        self._users = [
            self._mask(graph.successors[i]) | (1 << count if not final.isdisjoint(graph.operators[i].outputs) else 0)
            for i in range(count)
        ]
        self._never = [0] * count
        for consumer in range(count):
            for producer in bits(self._previous[consumer]):
                if self._growable >> consumer & 1 and edge_rule(graph, producer, consumer)[0] is Rule.NEVER:
                    self._never[consumer] |= 1 << producer
                    self._never[producer] |= 1 << consumer
        self._any_never = any(self._never)
        self._run_after, self._run_before = self._runs()
        self._hopeless: set[int] = set()
        self._pool = _POOL

    @staticmethod
    def _mask(operators: Iterable[int]) -> int:
        mask = 0
        for op in operators:
            mask |= 1 << op
        return mask

    def _runs(self) -> tuple[list[int], list[int]]:
        """For each operator, the neighbour after and before it in a run of cheap operators, or -1.

        In a run each operator's only user is the next one, which has no other producer.
        """
        graph = self.graph
        after, before = [-1] * len(graph.operators), [-1] * len(graph.operators)
        final = set(graph.outputs)
        for op in graph.operators:
            users = graph.successors[op.index]
            if len(users) != 1 or not final.isdisjoint(op.outputs) or not self._cheap >> op.index & 1:
                continue
            (user,) = users
            if len(graph.predecessors[user]) == 1 and self._cheap >> user & 1:
                after[op.index], before[user] = user, op.index
        return after, before

    def run(self, partition: Sequence[Sequence[int]] = ()) -> list[LegalGroup]:
        """All groups, by members then outputs; `partition`: sets that become groups too, or their largest parts do."""
        for op in self.graph.operators:
            if op.fusable:
                self._examine(1 << op.index)
        for members in partition:
            self._take_partition_set(self._mask(members))
        for op in self.graph.operators:
            if self._growable >> op.index & 1:
                self._grow(op.index)
        self._siblings()
        self._recompute()
        return sorted(self.found.values(), key=lambda f: (f.group.members, f.group.outputs))

    def _cut(self, name: str) -> None:
        self.pruned[name] = self.pruned.get(name, 0) + 1

    # Legality of one set, remembered

    def _examine(self, mask: int) -> bool:
        """Whether a convex, connected set of operators is legal with its natural outputs."""
        known = self._seen.get(mask)
        if known is None:
            known = self._judge(self._group(mask))
            self._seen[mask] = known
        return known

    def _group(self, mask: int) -> Group:
        """`Group.of` the operators of `mask`, from what is known of each."""
        members = tuple(bits(mask))
        if len(members) == 1:
            return Group.of(self.graph, members)
        inner = ~mask
        return Group(self.graph, members, tuple(sorted([self._result[m] for m in members if self._users[m] & inner])))

    def _judge(self, group: Group) -> bool:
        if len(group.members) > 1:
            if len(group.members) > self.thresholds.max_group_size:
                self._cut("max_group_size")
                return False
            most = len(group.outputs) + sum([len(op.inputs) for op in group.operators])
            limit = self.thresholds.max_arguments
            if most > limit and len(group.inputs) + len(group.outputs) > limit:
                self._cut("max_arguments")
                if len(group.inputs) > self.thresholds.max_arguments + _HOPELESS_ARGUMENTS:
                    self._hopeless.add(group.mask)
                return False
        signature = self._signatures.of(group)
        if signature in self._verdicts:
            family = self._verdicts[signature]
        else:
            matched = match_family(group, self.hardware, self.families)
            family = matched if isinstance(matched, ScheduleFamily) else None
            self._verdicts[signature] = family
        if family is None:
            return False
        self.found[group.mask, group.outputs] = LegalGroup(group, family, signature)
        return True

    # Growth along edges

    def _extended(self, mask: int, addition: int) -> int:
        """The convex set with `addition` in it; 0 if that takes an operator or an edge that never fuses."""
        hull = convex_hull(self.graph, mask | addition)
        return 0 if hull & ~self._growable or self._clashes(hull, mask) else hull

    def _clashes(self, larger: int, mask: int) -> bool:
        """Whether what `larger` adds to `mask` has an edge inside that never fuses."""
        return self._any_never and any(self._never[op] & larger for op in bits(larger & ~mask))

    def _extensions(self, mask: int, seed: int, within: int) -> Iterator[int]:
        """Convex sets that are one step larger: successors first, the largest part of a run first.

        A step may take operators of `within` only. Inside a run, all lengths are offered when it is entered (or
        where the seed lies), and none later.
        """
        limit = self.thresholds.max_group_size
        room = limit - mask.bit_count()
        if room <= 0:
            return
        ancestors, descendants = self.graph.ancestors, self.graph.descendants
        after = before = above = below = 0
        wide = []
        for op in bits(mask):
            if self._next[op].bit_count() > _WIDE:
                wide.append(self._next[op])
            elif self._run_after[op] < 0 or op == seed:
                after |= self._next[op]
            if self._previous[op].bit_count() > _WIDE:
                wide.append(self._previous[op])
            elif self._run_before[op] < 0:
                before |= self._previous[op]
            above |= ancestors[op]
            below |= descendants[op]
        allowed = within | mask
        for neighbours in wide:
            yield from self._bundles(mask, neighbours, within)
        for steps, near in ((self._run_after, after), (self._run_before, before)):
            for x in bits(near & within & ~mask):
                run = self._run_from(x, steps, within & ~mask, room)
                from_seed = seed >= 0 and self._run_after[seed] == x
                for length in _doubling(len(run), 1 if from_seed else 0):
                    addition = 0
                    for op in run[:length]:
                        addition |= 1 << op
                    last = run[length - 1]
                    # what lies on paths from the set to the addition, or back
                    between = below & (ancestors[x] | ancestors[last]) | above & (descendants[x] | descendants[last])
                    larger = mask | addition | between
                    if not larger & ~allowed and larger.bit_count() <= limit and not self._clashes(larger, mask):
                        yield larger

    def _bundles(self, mask: int, neighbours: int, within: int) -> Iterator[int]:
        """The set with many neighbours of an operator at once, the parts of a wide concat, say.

        All that are left, and, where the set has at most one of them yet, doubling numbers of them.
        """
        close = list(bits(neighbours & within & ~mask))
        lengths = _doubling(len(close), 0) if (neighbours & mask).bit_count() <= 1 else [len(close)]
        for length in lengths:
            larger = self._extended(mask, self._mask(close[:length])) if length else 0
            if larger and not larger & ~(within | mask) and larger.bit_count() <= self.thresholds.max_group_size:
                yield larger

    @staticmethod
    def _run_from(x: int, steps: Sequence[int], within: int, room: int) -> list[int]:
        run = [x]
        while len(run) < room and steps[run[-1]] >= 0 and within >> steps[run[-1]] & 1:
            run.append(steps[run[-1]])
        return run

    def _grow(self, seed: int) -> None:
        """Sets around an operator: once straight on as far as it goes, then breadth first."""
        if self._cheap >> seed & 1:
            within = self._cheap
            within = within >> seed << seed
        else:
            # first of the set's reductions and contractions; cheap operators on all sides
            within = self._cheap | (self._growable >> seed << seed)
        whole = budget = min(self.thresholds.groups_per_operator, max(_LEAST_BUDGET, self._pool))
        budget -= self._straight(1 << seed, seed, within, whole // 2)
        visited = {1 << seed}
        queue = deque([(1 << seed, 0, 1)])
        while queue and budget > 0:
            mask, misses, legal_size = queue.popleft()
            for extended in self._extensions(mask, seed, within):
                if extended in visited:
                    continue
                if budget <= 0:
                    self._cut("groups_per_operator")
                    break
                budget -= 1
                visited.add(extended)
                size = extended.bit_count()
                if self._examine(extended):
                    queue.append((extended, 0, size))
                elif misses < _MISSES and size - legal_size <= _MISSED_OPERATORS and extended not in self._hopeless:
                    queue.append((extended, misses + 1, legal_size))
        self._pool += _USUAL_BUDGET - (whole - budget)

    def _straight(self, mask: int, seed: int, within: int, most: int) -> int:
        """Grow by the first extension that leads on, until none does; gives the number of sets looked at.

        Breadth first search may run out of its budget before it meets the large sets.
        """
        looked = misses = 0
        legal_size = 1
        while misses <= _MISSES and mask.bit_count() - legal_size <= _MISSED_OPERATORS:
            first = 0
            for extended in self._extensions(mask, seed, within):
                looked += 1
                legal = self._examine(extended)
                if not first and extended not in self._hopeless:
                    first = extended
                if legal:
                    first, misses, legal_size = extended, 0, extended.bit_count()
                    break
                if looked >= most:
                    return looked
            else:
                misses += 1
            if not first:
                break
            mask = first
        return looked

    # Siblings, partitions, recomputation

    def _siblings(self) -> None:
        """Operators that read the same tensor, in windows of doubling size."""
        graph = self.graph
        for tensor, users in graph.users.items():
            if graph.tensors[tensor].role is Role.CONSTANT or len(users) < 2:
                continue
            near = [u for u in users if self._growable >> u & 1]
            size = 2
            while size <= len(near):
                for first in range(0, len(near) - size + 1, max(1, size // 2)):
                    self._sibling_window(near[first : first + size])
                size *= 2
            if 2 < len(near) <= self.thresholds.max_group_size:
                self._sibling_window(near)

    def _sibling_window(self, window: Sequence[int]) -> None:
        mask = self._extended(0, self._mask(window))
        if not mask or mask in self._seen or mask.bit_count() > self.thresholds.max_group_size:
            return
        if not self._examine(mask):
            return
        budget = _SIBLING_BUDGET
        queue = deque([mask])
        while queue:
            for extended in self._extensions(queue.popleft(), -1, self._cheap):
                if budget <= 0:
                    return
                if extended not in self._seen:
                    budget -= 1
                    if self._examine(extended):
                        queue.append(extended)

    def _take_partition_set(self, mask: int) -> None:
        """The set itself when it is legal, else parts of it grown as far as they are legal."""
        group = Group.of(self.graph, bits(mask))
        limits = self.thresholds
        structure = check_structure(group, max_arguments=limits.max_arguments, max_group_size=limits.max_group_size)
        if structure is None and self._examine(mask):
            return
        left = mask & self._growable
        while left:
            heavy = left & ~self._cheap
            seed = next(bits(heavy or left))
            taken = best = 1 << seed
            misses = 0
            while misses <= _MISSES:
                extended = next(self._extensions(taken, -1, left), 0)
                if not extended:
                    break
                taken = extended
                if self._examine(taken):
                    best, misses = taken, 0
                else:
                    misses += 1
            left &= ~best

    def _recompute(self) -> None:
        """Every group again with cheap producers inside that others use too; they are not written."""
        left = _RECOMPUTED_POOL + _USUAL_RECOMPUTED * len(self.graph.operators)
        level = sorted((f.group for f in self.found.values()), key=lambda g: (len(g.members), g.members))
        for _ in range(self.thresholds.recompute_members):
            wider: list[Group] = []
            for group in level:
                if len(wider) >= left:
                    self._cut("recompute_members")
                    break
                wider.extend(self._with_producers(group))
            left -= len(wider)
            level = wider

    def _with_producers(self, group: Group) -> Iterator[Group]:
        graph = self.graph
        producers = 0
        for m in group.members:
            producers |= self._previous[m]
        tried = 0
        for p in bits(producers & self._cheap & ~group.mask):
            if tried >= _RECOMPUTE_TRIED:
                self._cut("recompute_members")
                return
            outside = self._mask(graph.successors[p]) & ~group.mask
            final = any(t in graph.outputs for t in graph.operators[p].outputs)
            if not (outside or final) or not recomputable(graph.operators[p]):
                continue
            if self._extended(group.mask, 1 << p) != group.mask | 1 << p:
                continue
            tried += 1
            wider = Group(graph, tuple(sorted((*group.members, p))), group.outputs)
            if (wider.mask, wider.outputs) not in self.found and self._judge(wider):
                yield wider


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
