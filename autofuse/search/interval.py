"""`interval`: groups are intervals of one topological order, as an ablation.

The recurrence is dp[i][j] = min(cost of i..j as one kernel, min over k of dp[i][k] + dp[k+1][j]). Costs add up, so
only the intervals that start the graph matter, and dp[0][j] = min over i of dp[0][i-1] + cost of i..j gives the same.
"""

from __future__ import annotations

from autofuse.search.baselines import in_order, result_of, singles
from autofuse.search.cover import Counters
from autofuse.search.problem import SearchProblem, SearchResult, SearchStrategy


def interval_cover(problem: SearchProblem) -> tuple[list[int], int]:
    """Positions of the choices of the cheapest cut into neighbours, and how many intervals were tried."""
    count = len(problem.graph.operators)
    ending: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    singles(problem)  # says which operator is missing, if one is
    for i, choice in enumerate(problem.choices):
        members = choice.group.members
        if members[-1] - members[0] == len(members) - 1 and not choice.recomputed:
            ending[members[-1]].append((members[0], i))
    best = [0.0] + [float("inf")] * count
    taken = [-1] * count
    for j in range(count):
        for first, i in ending[j]:
            value = best[first] + problem.weight(problem.choices[i])
            if value < best[j + 1]:
                best[j + 1], taken[j] = value, i
    chosen: list[int] = []
    j = count - 1
    while j >= 0:
        chosen.append(taken[j])
        j = problem.choices[taken[j]].group.members[0] - 1
    return chosen, sum(map(len, ending))


class IntervalStrategy(SearchStrategy):
    """Cheapest cut of the program's own order into choices of neighbouring operators; nothing is recomputed."""

    name = "interval"

    def search(self, problem: SearchProblem) -> SearchResult:
        chosen, tried = interval_cover(problem)
        counters = Counters(states=len(problem.graph.operators), transitions=tried, regions=1)
        return result_of(problem, in_order(problem, chosen), self.name, counters)
