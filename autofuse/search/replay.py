"""Searching a network again and again under other thresholds: takes a graph and a cost model, gives search problems.

Every candidate is costed once, however often its network is searched; nothing is compiled and no clock is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.model import Graph, Group
from autofuse.schedule.family import Configuration, ScheduleFamily
from autofuse.search.candidates import search_problem
from autofuse.search.problem import SearchProblem, SearchResult, SearchStrategy, Thresholds
from autofuse.target import Hardware

#: Seconds that the parts of a search take (two-core Zen 3, Python 3.11, three zoo networks): to cost a candidate with
#: the learned model, to find a legal group, to visit a state or follow a transition. Their ratios decide what is tuned.
CANDIDATE_SECONDS = 7.5e-5
GROUP_SECONDS = 4.0e-4
STEP_SECONDS = 1.0e-5


class ReplayedCosts(CostModel):
    """Another model's costs, each computed once. For the candidates of one graph.

    `asked`: candidates that costs or expected errors were asked for so far.
    """

    name: ClassVar[str] = "replayed"

    def __init__(self, base: CostModel) -> None:
        self._base = base
        self._known: dict[tuple[Group, str, Configuration], tuple[float, str, float | None]] = {}
        self._looks: dict[tuple[Group, str, Configuration], float] | None = {}
        self.asked = 0

    def _find(self, candidates: Sequence[Candidate]) -> list[tuple[float, str, float | None]]:
        keys = [(c.group, c.family.name, c.config) for c in candidates]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        if new:
            missing = [candidates[i] for i in new]
            costs = self._base.costs(missing)
            errors = self._base.uncertainty(missing)
            told = [None] * len(new) if errors is None else list(map(float, errors))
            for i, cost, source, error in zip(new, costs, self._base.sources(missing), told, strict=True):
                self._known[keys[i]] = (float(cost), source, error)
        return [self._known[key] for key in keys]

    def prefilter(self, candidates: Sequence[Candidate]) -> NDArray[np.float64] | None:
        """The base model's, each asked for once."""
        if self._looks is None:
            return None
        keys = [(c.group, c.family.name, c.config) for c in candidates]
        new = [i for i, key in enumerate(keys) if key not in self._looks]
        if new:
            looks = self._base.prefilter([candidates[i] for i in new])
            if looks is None:
                self._looks = None
                return None
            self._looks.update(zip([keys[i] for i in new], map(float, looks), strict=True))
        return np.array([self._looks[key] for key in keys], np.float64)

    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Seconds of each candidate; see CostModel."""
        self.asked += len(candidates)
        return np.array([cost for cost, *_ in self._find(candidates)], np.float64)

    def sources(self, candidates: Sequence[Candidate]) -> list[str]:
        """What the base model said when it was asked."""
        return [source for _, source, _ in self._find(candidates)]

    def uncertainty(self, candidates: Sequence[Candidate]) -> NDArray[np.float64] | None:
        """The base model's, None where it cannot tell. A search takes as long again for it as for the costs."""
        errors = [error for *_, error in self._find(candidates)]
        if any(e is None for e in errors):
            return None
        self.asked += len(candidates)
        return np.array(errors, np.float64)


@dataclass(frozen=True)
class Replayed:
    """A search's plan, what that costs, and the search's effort in seconds: counts of what was done, times what each
    takes. `cost` is in seconds, under the costs that judge."""

    result: SearchResult
    seconds: float
    cost: float


@dataclass(frozen=True)
class ReplayNetwork:
    """A network to search: `digest` identifies its graph, `greedy` is TVM's partition.

    `judge` says what plans really take, where more is known than the search is told; by default `costs` does.
    """

    name: str
    digest: str
    graph: Graph = field(repr=False)
    costs: ReplayedCosts = field(repr=False)
    hardware: Hardware = field(repr=False)
    families: tuple[ScheduleFamily, ...] = field(repr=False)
    greedy: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    judge: ReplayedCosts | None = field(default=None, repr=False)

    def problem(self, thresholds: Thresholds) -> SearchProblem:
        """What a search is given under these thresholds. (Its choices have no workload keys: no plan is written.)"""
        return search_problem(
            self.graph,
            self.costs,
            hardware=self.hardware,
            families=self.families,
            thresholds=thresholds,
            greedy=self.greedy,
            key=lambda _: "",
        )

    def search(self, thresholds: Thresholds, strategy: SearchStrategy) -> Replayed:
        """Search once. Deterministic, the effort too. PlanError where the thresholds leave no plan."""
        before = self.costs.asked
        problem = self.problem(thresholds)
        result = strategy.search(problem)
        groups = len(problem.choices) + problem.pruned.get("prefilter_ratio", 0) + problem.pruned.get("unbuildable", 0)
        seconds = (
            CANDIDATE_SECONDS * (self.costs.asked - before)
            + GROUP_SECONDS * groups
            + STEP_SECONDS * (result.states + result.transitions)
        )
        return Replayed(result, seconds, self._judged(result, problem, thresholds))

    def _judged(self, result: SearchResult, problem: SearchProblem, thresholds: Thresholds) -> float:
        """What the plan costs; the search's own sum where that is what judges."""
        if self.judge is None and not thresholds.uncertainty_margin:
            return result.cost
        by_name = {f.name: f for f in self.families}
        kernels = [c for c in result.choices if c.family]
        candidates = [
            Candidate(c.group, by_name[c.family], by_name[c.family].configuration.parse(c.config)) for c in kernels
        ]
        asked = self.judge or self.costs
        before = asked.asked
        costs = asked.costs(candidates)
        asked.asked = before
        opaque = sum(c.cost for c in result.choices if not c.family)
        added = problem.seconds(result.choices) - sum(c.cost for c in result.choices)
        # A kernel of which none is known to work has the price that keeps it out of plans.
        known = np.where(np.isfinite(costs), costs, [c.cost for c in kernels])
        return float(known.sum()) + opaque + added
