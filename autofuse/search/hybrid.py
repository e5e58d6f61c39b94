"""`hybrid`: dp where the choices promise most over the greedy partition, the greedy partition elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autofuse.graph.model import bits
from autofuse.search.baselines import greedy_cover, singles
from autofuse.search.dp import DPStrategy
from autofuse.search.problem import SearchProblem, SearchResult, SearchStrategy


def promises(problem: SearchProblem, cover: Sequence[int]) -> list[tuple[float, int]]:
    """What choices would save if they took the place of their operators' parts of a cover: (seconds, position).

    The largest first, none that shares an operator with one before it, all more than nothing. Each operator's part of
    its kernel's weight in the cover is in proportion to what it weighs alone: an estimate, since a choice that splits
    kernels leaves the rest of them to others.
    """
    alone = [problem.weight(problem.choices[i]) for i in singles(problem)]
    part = [0.0] * len(alone)
    for i in cover:
        members = problem.choices[i].group.members
        weight, total = problem.weight(problem.choices[i]), sum(alone[m] for m in members)
        for m in bits(problem.choices[i].owned):
            part[m] += weight * alone[m] / total if total > 0 else 0.0
    saved = []
    taken = set(cover)
    for i, choice in enumerate(problem.choices):
        saving = sum(part[m] for m in bits(choice.owned)) - problem.weight(choice)
        if saving > 0 and i not in taken:
            saved.append((saving, i))
    saved.sort(key=lambda s: (-s[0], s[1]))
    found, seen = [], 0
    for saving, i in saved:
        if not problem.choices[i].group.mask & seen:
            seen |= problem.choices[i].group.mask
            found.append((saving, i))
    return found


def hot_operators(problem: SearchProblem, cover: Sequence[int]) -> set[int]:
    """The operators of the choices that promise most, until these make up `hybrid_share` of all that is promised."""
    promised = promises(problem, cover)
    goal = problem.thresholds.hybrid_share * sum(saving for saving, _ in promised)
    hot: set[int] = set()
    reached = 0.0
    for saving, i in promised:
        if reached >= goal:
            break
        hot.update(problem.choices[i].group.members)
        reached += saving
    return hot


class HybridStrategy(SearchStrategy):
    """dp over the greedy groups that hold hot operators or touch one that does; the other greedy groups stay whole."""

    name = "hybrid"

    def search(self, problem: SearchProblem) -> SearchResult:
        graph = problem.graph
        greedy = greedy_cover(problem) if problem.greedy else singles(problem)
        hot = hot_operators(problem, greedy)
        owner = {m: i for i in greedy for m in problem.choices[i].group.members}
        opened = {owner[m] for m in hot}
        # Without its neighbours a hot group could only be split.
        for m in hot:
            opened.update(owner[x] for x in (*graph.predecessors[m], *graph.successors[m]))
        free = 0
        for i in opened:
            free |= problem.choices[i].group.mask
        fixed = set(greedy) - opened
        allowed = [i for i, c in enumerate(problem.choices) if i in fixed or not c.group.mask & ~free]
        reason = (
            f"dp over the {free.bit_count()} operators around the {len(hot)} whose groups promise most, greedy over the"
            f" other {len(graph.operators) - free.bit_count()}"
        )
        # The best of a part of the choices proves nothing about all of them.
        return replace(DPStrategy().search_among(problem, allowed, self.name), proved_optimal=False, reason=reason)
