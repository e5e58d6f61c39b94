"""`dp`: the cheapest plan over all the choices, exact unless a threshold cuts.

The search itself is in cover.py and region_search.py. This adds the second look that settles near ties in favour of
fewer kernels, the plans that the result may never be worse than, and the memory limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofuse.errors import PlanError
from autofuse.graph.collector import paused_collector
from autofuse.search.baselines import greedy_cover, result_of, singles
from autofuse.search.cover import Counters, Cover, CoverSearch
from autofuse.search.interval import interval_cover
from autofuse.search.order import peak_memory, run_order
from autofuse.search.problem import Choice, SearchProblem, SearchResult, SearchStrategy

# Prices of a kernel among which near ties are settled, in units of one that never breaks the allowance.
_PRICES = tuple(2 ** (i / 2) for i in range(15))


class DPStrategy(SearchStrategy):
    """Exact over the choices.

    Among plans within `tie` (a share) of the cheapest one it prefers fewer kernels, then less traffic: costs are
    estimates. It is never dearer than the greedy plan or than no fusion at all.
    """

    name = "dp"

    def __init__(self, tie: float = 0.01) -> None:
        self.tie = tie

    def search(self, problem: SearchProblem) -> SearchResult:
        return self.search_among(problem, range(len(problem.choices)))

    @paused_collector()
    def search_among(self, problem: SearchProblem, allowed: Sequence[int], name: str = "dp") -> SearchResult:
        """The same over the choices at the positions `allowed` (which must hold the greedy or the single plan)."""
        picked = [problem.choices[i] for i in allowed]
        counters = Counters()
        limit = problem.max_memory
        place = {i: j for j, i in enumerate(allowed)}
        fallbacks = [singles(problem)]
        if problem.greedy:
            fallbacks.append(greedy_cover(problem))
        known = [[place[i] for i in cover] for cover in fallbacks if all(i in place for i in cover)]
        cut_in_order = interval_cover(problem)[0]
        start = [[place[i] for i in cut_in_order]] if all(i in place for i in cut_in_order) else []
        weights = [problem.weight(c) for c in picked]
        search = CoverSearch(problem.graph, picked, problem.thresholds, counters)
        cover = search.best(weights, [*known, *start])
        if cover is None:
            raise PlanError("the groups that are allowed cover the graph in no order: allow more of them")
        cover = self._settle_ties(search, weights, cover, known)
        ordered = self._ordered(problem, picked, cover)
        if limit and peak_memory(problem.graph, ordered) > limit:
            return self._within_memory(problem, picked, weights, counters, name)
        proved = counters.exact
        # Only where a cap fired can another plan be better.
        for other in known:
            plan = run_order(problem.graph, [picked[j] for j in other])
            if plan is None or (limit and peak_memory(problem.graph, plan) > limit):
                continue
            if problem.seconds(plan) < problem.seconds(ordered):
                ordered = plan
        return result_of(problem, ordered, name, counters, proved_optimal=proved)

    def _settle_ties(
        self, search: CoverSearch, weights: Sequence[float], cover: Cover, known: Sequence[Sequence[int]]
    ) -> Cover:
        """A cover with fewer kernels, or as many and less traffic, within `tie` of the best and no dearer than `known`.

        A price for each kernel makes the search weigh kernels against time. With p = (allowance - best) / kernels of
        the best no cover over the allowance can come out: cost' + p·kernels' <= best + p·kernels. Higher prices find
        covers with fewer kernels: the highest that keeps to the allowance is found by halving.
        """
        allowance = min([cover.value * (1 + self.tie)] + [sum(weights[j] for j in other) for other in known])
        allowance = max(allowance, cover.value)
        price = max((allowance - cover.value) / max(1, len(cover.chosen)), cover.value * 1e-12)
        traffic = sum(search.choices[j].traffic for j in cover.chosen) or 1
        # The traffic of the whole plan weighs as much as half a kernel: for the best cover, at most
        # price * (kernels + 1/2) * 2/3 <= price * kernels is added.
        price *= 2 / 3
        # Where the first look ran into its cap, the others are fewer, and kept short.
        prices, cap = (_PRICES, None) if cover.exact else (_PRICES[:-1:2], search.thresholds.states_per_region // 20)
        best, low, high = cover, 0, len(prices)
        while low < high:
            middle = (low + high) // 2
            each = prices[middle] * price
            dearer = [w + each * (1 + 0.5 * c.traffic / traffic) for w, c in zip(weights, search.choices, strict=True)]
            again = search.best(dearer, [best.chosen], cap=cap)
            value = sum(weights[j] for j in again.chosen) if again is not None else math.inf
            if again is not None and value <= allowance:
                best, low = Cover(again.chosen, value, again.exact), middle + 1
            else:
                high = middle
        return best

    @staticmethod
    def _ordered(problem: SearchProblem, picked: Sequence[Choice], cover: Cover) -> list[Choice]:
        ordered = run_order(problem.graph, [picked[j] for j in cover.chosen])
        return ordered if ordered is not None else [picked[j] for j in cover.chosen]

    def _within_memory(
        self,
        problem: SearchProblem,
        picked: Sequence[Choice],
        weights: Sequence[float],
        counters: Counters,
        name: str,
    ) -> SearchResult:
        """The cheapest plan whose tensors fit, as the search orders the kernels; PlanError with the smallest peak."""
        search = CoverSearch(problem.graph, picked, problem.thresholds, counters, whole=True)
        plans: list[list[Choice]] = []
        cover = search.best(weights, max_memory=problem.max_memory)
        if cover is not None:
            plans.append([picked[j] for j in cover.chosen])
        else:
            smallest = search.best(weights, minimise_peak=True)
            if smallest is not None:
                plans.append([picked[j] for j in smallest.chosen])
        for fallback in (singles(problem), greedy_cover(problem) if problem.greedy else None):
            plan = run_order(problem.graph, [problem.choices[i] for i in fallback]) if fallback else None
            if plan is not None:
                plans.append(plan)
        fitting = [p for p in plans if peak_memory(problem.graph, p) <= problem.max_memory]
        if not fitting:
            least = min(peak_memory(problem.graph, p) for p in plans)
            raise PlanError(
                f"no plan keeps its tensors within {problem.max_memory / 1e6:.4g} MB: the smallest peak found is "
                f"{math.ceil(least / 100) / 1e4:g} MB; raise --max-memory"
            )
        # Other orders of the same kernels might fit where this one does not: nothing is proved.
        return result_of(problem, min(fitting, key=problem.seconds), name, counters)
