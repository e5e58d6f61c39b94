"""The exact search of one region. Takes its choices and their weights, gives the cheapest cover of its operators.

A state is the set of operators decided so far (a downset, apart from recomputed producers), those among them whose
results exist nowhere in memory though they may still be needed, and the choices that were taken but wait for others.
From a state only the groups of one operator are tried: the first that the last waiting choice still needs, or
else the first undecided one. Every acyclic cover is so reached along exactly one path, and the orders of independent
branches are not multiplied. An undecided operator may also be left to be recomputed by all who use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from autofuse.graph.model import bits
from autofuse.search.prices import priced, prices
from autofuse.search.problem import Thresholds
from autofuse.search.regions import Region

SLACK = 1 + 1e-12  # sums of the same numbers in another order differ by rounding
_QUICK_BEAM = 8  # states a level in the first look for a bound
_TRANSITIONS_PER_STATE = 8  # transitions that count as one more state against the cap
_CAPPED_BEAM = 24  # states a level once a region ran over its cap
_LARGE = 500  # operators of a region above which cap and beam shrink, so that its levels together take no longer
_LEAST_BEAM = 4


@dataclass
class Counters:
    """What the searches of a run did; `exact` turns False when something was cut that might have been better."""

    states: int = 0
    transitions: int = 0
    regions: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    exact: bool = True

    def cut(self, name: str, count: int = 1) -> None:
        """Count choices or states that a threshold cut."""
        self.pruned[name] = self.pruned.get(name, 0) + count


# A state on the way: value so far, lower bound of the rest, a fair guess of the whole, tensors alive
# (only tracked under a memory limit), the state before, and what was done to come here (a choice, or -1 for an
# operator left to be recomputed). Its key: operators decided, those of them that are in no memory, waiting choices.
_Key = tuple[int, int, tuple[int, ...]]


class _Node(NamedTuple):
    value: float
    rest: float
    guess: float
    live: int
    before: tuple[Any, int] | None  # (node, action)


def _best_states(states: dict[_Key, _Node], count: int) -> dict[_Key, _Node]:
    """The most promising states, half of them such as single operators can always complete.

    The others, where choices wait or results are in no memory, look better than they are: some lead nowhere.
    """
    ordered = sorted(states.items(), key=lambda kv: (kv[1].guess, kv[0]))
    safe = [kv for kv in ordered if not kv[0][1] and not kv[0][2]][: count // 2]
    return dict([*safe, *ordered[: count - len(safe)]])


def skippable(region: Region) -> int:
    """The operators that may be left to recomputation, as a bit set."""
    extra = 0
    for c in region.choices:
        extra |= c.extra
    return extra & ~region.must_write


class RegionSearch:
    """One region under one set of weights. sizes: bytes of each operator's results; cap: instead of the threshold's."""

    def __init__(
        self,
        region: Region,
        weights: Sequence[float],
        sizes: Sequence[int],
        thresholds: Thresholds,
        counters: Counters,
        *,
        max_memory: int = 0,
        minimise_peak: bool = False,
        cap: int | None = None,
    ) -> None:
        room = min(1.0, _LARGE / len(region.operators))
        self.cap = int((thresholds.states_per_region if cap is None else cap) * room)
        self.capped_beam = max(_LEAST_BEAM, int(_CAPPED_BEAM * room))
        self.region = region
        self.choices = region.choices
        self.thresholds = thresholds
        self.counters = counters
        self.max_memory = max_memory
        self.minimise_peak = minimise_peak
        self.full = (1 << len(region.operators)) - 1
        self.weights = [0.0 if minimise_peak else weights[c.position] for c in region.choices]
        self.sizes = [sizes[op] for op in region.operators]
        self.track_memory = bool(max_memory) or minimise_peak
        self.exact = True
        self._loose_of: dict[int, int] = {}
        self.work = 0  # states, and transitions that weigh as much
        self.may_skip = skippable(region)
        # A bound of what is left: the prices of what is undecided. Choices pay for what they recompute too.
        share = self.share = prices(len(region.operators), region.choices, self.weights, self.may_skip).of
        self.share_of = [sum([share[v] for v in priced(c, self.may_skip)]) for c in region.choices]
        # Not a bound: recomputing an operator does not make it free.
        self.fair_of = [sum([share[v] for v in c.operators]) for c in region.choices]
        self._sort_choices()

    def _sort_choices(self) -> None:
        """For each operator the choices that begin with it, those that lose least against the bound first."""
        worth = [(w - s, -len(c.operators)) for c, w, s in zip(self.choices, self.weights, self.share_of, strict=True)]
        self.sorted = sorted(range(len(self.choices)), key=lambda j: (worth[j], j))
        self.beginning: list[list[int]] = [[] for _ in self.region.operators]
        for j in self.sorted:
            if self.choices[j].operators:
                self.beginning[self.choices[j].operators[0]].append(j)

    @cached_property
    def groups(self) -> list[list[int]]:
        """For each operator the choices that own it, cheapest per operator first.

        Only needed where a choice waits: when everything before an operator is decided, only groups that begin with
        it are left.
        """
        groups: list[list[int]] = [[] for _ in self.region.operators]
        for j in self.sorted:
            for v in self.choices[j].operators:
                groups[v].append(j)
        return groups

    def look(self, bound: float) -> list[int] | None:
        """A cover that weighs less than `bound`, if a quick search finds one: positions in run order."""
        quick = self._search(bound, beam=_QUICK_BEAM, quick=True)
        return quick[0] if quick is not None and quick[1] < bound else None

    def run(self, known: Sequence[Sequence[int]]) -> tuple[list[int], bool] | None:
        """Positions in the region's choices, in run order, and whether that is proved best; None if nothing fits."""
        if len(self.choices) == 1:
            return [0], True
        best: list[int] | None = None
        best_value = float("inf")
        for cover in known:
            value = sum(self.weights[j] for j in cover)
            if value < best_value:
                best, best_value = self._in_order(cover), value
        if len(self.region.operators) > _QUICK_BEAM:
            quick = self._search(best_value, beam=_QUICK_BEAM, quick=True)
            if quick is not None and quick[1] < best_value:
                best, best_value = quick
        found = self._search(best_value, beam=0, quick=False)
        if found is not None and found[1] <= best_value:
            best, best_value = found
        return None if best is None else (best, self.exact)

    def _search(self, bound: float, *, beam: int, quick: bool) -> tuple[list[int], float] | None:
        """Level by level in the number of operators taken; with `beam`, only so many states a level go on."""
        limit = bound * min(1.0, self.thresholds.abort_factor) * SLACK if bound < float("inf") else bound
        count = len(self.region.operators)
        levels: list[dict[_Key, _Node]] = [{} for _ in range(count + 1)]
        levels[0][0, 0, ()] = _Node(0.0, sum(self.share), sum(self.share), 0, None)
        seen = 0
        for level in range(count):
            states = levels[level]
            self.work += 0 if quick else len(states)
            if not beam and self.work > self.cap:
                beam = self.capped_beam
            if beam and len(states) > beam:
                kept = _best_states(states, beam)
                if not quick:
                    self.counters.cut("states_per_region", len(states) - len(kept))
                    self.exact = False
                states = kept
            seen += len(states)
            for key, node in states.items():
                self._expand(key, node, levels, limit, quick)
            levels[level] = {}  # nodes live on through what follows from them
        if not quick:
            self.counters.states += seen
        end = levels[count].get((self.full, 0, ()))
        if end is None:
            return None
        taken: list[int] = []
        at: _Node = end
        while at.before is not None:
            at, action = at.before
            if action >= 0:  # -1: an operator was left to be recomputed
                taken.append(action)
        return self._in_order(taken[::-1]), end.value

    def _expand(self, key: _Key, node: _Node, levels: list[dict[_Key, _Node]], limit: float, quick: bool) -> None:
        decided, lost, waiting = key
        taken = decided
        held = 0
        for j in waiting:
            held |= self.choices[j].owned
        taken |= held
        open_ = (self.choices[waiting[-1]].reads if waiting else self.full) & ~decided
        target = (open_ & -open_).bit_length() - 1
        if not waiting and self.may_skip >> target & 1:
            self._skip(key, node, target, levels, limit, quick)
        forbidden = lost | held
        tried = 0
        most = self.thresholds.groups_per_state
        for j in self.groups[target] if waiting else self.beginning[target]:
            choice = self.choices[j]
            if choice.owned & taken or choice.reads & forbidden:
                continue
            if tried >= most and choice.owned & (choice.owned - 1):  # an operator alone always stays possible
                if not quick:
                    self.counters.cut("groups_per_state")
                    self.exact = False
                continue
            tried += 1
            value = node.value + self.weights[j]
            rest = node.rest - self.share_of[j]
            if value + rest > limit:
                if not quick:
                    self._abort()
                continue
            self._take(key, node, j, value, rest, levels, limit, quick)
        if not quick:
            self.counters.transitions += tried
            self.work += tried // _TRANSITIONS_PER_STATE

    def _abort(self) -> None:
        self.counters.cut("abort_factor")
        if self.thresholds.abort_factor < 1.0:
            self.exact = False

    def _skip(
        self, key: _Key, node: _Node, target: int, levels: list[dict[_Key, _Node]], limit: float, quick: bool
    ) -> None:
        """Leave `target` to be recomputed by whoever uses it."""
        decided, lost, _ = key
        decided |= 1 << target
        lost = self._still_needed(lost | 1 << target, decided)
        if lost.bit_count() > self.thresholds.frontier_values:
            if not quick:
                self.counters.cut("frontier_values")
                self.exact = False
            return
        live = self._still_live(node.live, decided) if self.track_memory else 0
        self._put((decided, lost, ()), _Node(node.value, node.rest, node.guess, live, (node, -1)), levels, limit)

    def _take(
        self,
        key: _Key,
        node: _Node,
        j: int,
        value: float,
        rest: float,
        levels: list[dict[_Key, _Node]],
        limit: float,
        quick: bool,
    ) -> None:
        """Take choice j; it, and those that waited for it, become decided as soon as what they read is."""
        decided, lost, waiting = key
        guess = node.guess + self.weights[j] - self.fair_of[j]
        live = node.live
        if not waiting and not self.track_memory:  # the common case, kept short
            choice = self.choices[j]
            if not choice.reads & ~decided:
                decided |= choice.owned
                lost |= self._loose(j)
                if lost:
                    lost = self._still_needed(lost, decided)
                    if self._too_many(lost, quick):
                        return
                self._put((decided, lost, ()), _Node(value, rest, guess, 0, (node, j)), levels, limit)
            else:
                self._put((decided, lost, (j,)), _Node(value, rest, guess, 0, (node, j)), levels, limit)
            return
        stack = [*waiting, j]
        while stack:
            choice = self.choices[stack[-1]]
            if choice.reads & ~decided:
                break
            if choice.reads & lost:
                return
            done = stack.pop()
            if self.track_memory:
                live |= choice.writes
                peak = sum(self.sizes[v] for v in bits(live))
                if self.max_memory and peak > self.max_memory:
                    if not quick:
                        self.counters.cut("max_memory")
                    return
                if self.minimise_peak:
                    value = max(value, peak)
            decided |= choice.owned
            lost = self._still_needed(lost | self._loose(done), decided)
            live = self._still_live(live, decided) if self.track_memory else 0
        if self._too_many(lost, quick):
            return
        self._put((decided, lost, tuple(stack)), _Node(value, rest, guess, live, (node, j)), levels, limit)

    def _too_many(self, lost: int, quick: bool) -> bool:
        if lost.bit_count() <= self.thresholds.frontier_values:
            return False
        if not quick:
            self.counters.cut("frontier_values")
            self.exact = False
        return True

    def _put(self, key: _Key, node: _Node, levels: list[dict[_Key, _Node]], limit: float) -> None:
        if node.value > limit:
            return
        taken = key[0]
        for j in key[2]:
            taken |= self.choices[j].owned
        states = levels[taken.bit_count()]
        other = states.get(key)
        if other is None or node.value < other.value:
            states[key] = node

    def _still_needed(self, lost: int, decided: int) -> int:
        """Of the results that are not in memory, those that something undecided may want."""
        left = 0
        needs = self.region.needs
        while lost:
            low = lost & -lost
            if needs[low.bit_length() - 1] & ~decided:
                left |= low
            lost ^= low
        return left

    def _loose(self, j: int) -> int:
        """The results of choice j's operators that are not in memory and that an operator outside may want."""
        loose = self._loose_of.get(j)
        if loose is None:
            choice = self.choices[j]
            loose = self._loose_of[j] = self._still_needed(choice.owned & ~choice.writes, choice.owned)
        return loose

    def _still_live(self, live: int, decided: int) -> int:
        return self._still_needed(live, decided) | (live & self.region.must_write)

    def _in_order(self, taken: Sequence[int]) -> list[int]:
        """The choices in the order in which the search runs them."""
        owner: dict[int, int] = {}
        for j in taken:
            for v in bits(self.choices[j].owned):
                owner[v] = j
        order: list[int] = []
        done: set[int] = set()
        decided = 0
        for v in range(len(self.region.operators)):
            if v not in owner or owner[v] in done:
                continue
            stack = [owner[v]]
            while stack:
                choice = self.choices[stack[-1]]
                open_ = choice.reads & ~decided
                if open_:
                    if len(stack) > len(taken):
                        raise AssertionError("a cover with a cycle")
                    stack.append(owner[(open_ & -open_).bit_length() - 1])
                    continue
                j = stack.pop()
                if j not in done:
                    done.add(j)
                    order.append(j)
                    decided |= choice.owned
        return order
