"""`hybrid`: dp on the hottest operators of the critical path, the greedy partition elsewhere."""

from __future__ import annotations

from dataclasses import replace

from autofuse.search.baselines import greedy_cover, singles
from autofuse.search.dp import DPStrategy
from autofuse.search.problem import SearchProblem, SearchResult, SearchStrategy


def critical_path(problem: SearchProblem) -> list[int]:
    """Operators of the longest path through the graph, each with the cost of its kernel alone, in order."""
    alone = singles(problem)
    graph = problem.graph
    length = [0.0] * len(graph.operators)
    before = [-1] * len(graph.operators)
    for op in graph.operators:
        i = op.index
        for p in graph.predecessors[i]:
            if length[p] > length[i]:
                length[i], before[i] = length[p], p
        length[i] += problem.weight(problem.choices[alone[i]])
    path = []
    at = max(range(len(length)), key=lambda i: (length[i], -i), default=-1)
    while at >= 0:
        path.append(at)
        at = before[at]
    return path[::-1]


def hot_operators(problem: SearchProblem) -> set[int]:
    """The dearest operators of the critical path that make up `hybrid_share` of its cost."""
    alone = singles(problem)
    path = critical_path(problem)
    cost = {i: problem.weight(problem.choices[alone[i]]) for i in path}
    goal = problem.thresholds.hybrid_share * sum(cost.values())
    hot: set[int] = set()
    reached = 0.0
    for i in sorted(path, key=lambda i: (-cost[i], i)):
        if reached >= goal:
            break
        hot.add(i)
        reached += cost[i]
    return hot


class HybridStrategy(SearchStrategy):
    """dp over the greedy groups that hold hot operators or touch one that does; the other greedy groups stay whole."""

    name = "hybrid"

    def search(self, problem: SearchProblem) -> SearchResult:
        graph = problem.graph
        greedy = greedy_cover(problem) if problem.greedy else singles(problem)
        hot = hot_operators(problem)
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
            f"dp over the {free.bit_count()} operators around the {len(hot)} hottest of the critical path, greedy over "
            f"the other {len(graph.operators) - free.bit_count()}"
        )
        # The best of a part of the choices proves nothing about all of them.
        return replace(DPStrategy().search_among(problem, allowed, self.name), proved_optimal=False, reason=reason)
