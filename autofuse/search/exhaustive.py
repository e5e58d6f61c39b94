"""`exhaustive`: tries every plan of a small graph.

It is the oracle that dp is tested against, and shares no search code with it.
"""

from __future__ import annotations

from autofuse.errors import PlanError
from autofuse.search.baselines import result_of
from autofuse.search.check import fault
from autofuse.search.cover import Counters
from autofuse.search.order import peak_memory, run_order
from autofuse.search.problem import Choice, SearchProblem, SearchResult, SearchStrategy


class ExhaustiveStrategy(SearchStrategy):
    """Every set of choices that is a plan, recomputed producers and several outputs included; the cheapest wins.

    Only what already costs more than the best plan so far is not followed. PlanError beyond `limit` operators.
    """

    name = "exhaustive"

    def __init__(self, limit: int = 16) -> None:
        self.limit = limit

    def search(self, problem: SearchProblem) -> SearchResult:
        count = len(problem.graph.operators)
        if count > self.limit:
            raise PlanError(f"exhaustive search takes at most {self.limit} operators, the graph has {count}: use dp")
        self._best: list[Choice] | None = None
        self._best_cost = float("inf")
        self._smallest_peak = float("inf")
        self._counters = Counters(regions=1)
        self._problem = problem
        self._by_operator: list[list[Choice]] = [[] for _ in range(count)]
        may_be_private = 0
        for choice in problem.choices:
            may_be_private |= choice.recomputed
            for m in choice.group.members:
                if choice.owned >> m & 1:
                    self._by_operator[m].append(choice)
        self._private = may_be_private
        self._extend(0, 0, [], 0.0)
        if self._best is None:
            raise PlanError(
                f"no plan keeps within {problem.max_memory} bytes: the smallest peak is {self._smallest_peak} bytes"
            )
        return result_of(problem, self._best, self.name, self._counters, proved_optimal=True)

    def _extend(self, operator: int, owned: int, chosen: list[Choice], cost: float) -> None:
        """Decide who computes `operator`, all before it being decided."""
        self._counters.states += 1
        if cost >= self._best_cost:
            return
        if operator == len(self._by_operator):
            self._finish(chosen, cost)
            return
        if owned >> operator & 1:
            self._extend(operator + 1, owned, chosen, cost)
            return
        for choice in self._by_operator[operator]:
            if not choice.owned & owned:
                self._counters.transitions += 1
                chosen.append(choice)
                self._extend(operator + 1, owned | choice.owned, chosen, cost + self._problem.weight(choice))
                chosen.pop()
        if self._private >> operator & 1:
            self._extend(operator + 1, owned, chosen, cost)

    def _finish(self, chosen: list[Choice], cost: float) -> None:
        graph = self._problem.graph
        if fault(graph, [c.group for c in chosen]) is not None:
            return
        ordered = run_order(graph, chosen)
        if ordered is None:
            return
        peak = peak_memory(graph, ordered)
        self._smallest_peak = min(self._smallest_peak, peak)
        if not self._problem.max_memory or peak <= self._problem.max_memory:
            self._best, self._best_cost = ordered, cost
