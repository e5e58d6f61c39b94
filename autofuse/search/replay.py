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
    """Another model's costs, each computed once. For the candidates of one graph. `asked`: candidates so far."""

    name: ClassVar[str] = "replayed"

    def __init__(self, base: CostModel) -> None:
        self._base = base
        self._known: dict[tuple[Group, str, Configuration], tuple[float, str]] = {}
        self.asked = 0

    def _find(self, candidates: Sequence[Candidate]) -> list[tuple[float, str]]:
        keys = [(c.group, c.family.name, c.config) for c in candidates]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        if new:
            missing = [candidates[i] for i in new]
            costs = self._base.costs(missing)
            for i, cost, source in zip(new, costs, self._base.sources(missing), strict=True):
                self._known[keys[i]] = (float(cost), source)
        return [self._known[key] for key in keys]

    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Seconds of each candidate; see CostModel."""
        self.asked += len(candidates)
        return np.array([cost for cost, _ in self._find(candidates)], np.float64)

    def sources(self, candidates: Sequence[Candidate]) -> list[str]:
        """What the base model said when it was asked."""
        return [source for _, source in self._find(candidates)]


@dataclass(frozen=True)
class Replayed:
    """A search's plan cost and its effort in seconds: counts of what was done, times what each takes."""

    result: SearchResult
    seconds: float

    @property
    def cost(self) -> float:
        """Seconds of the plan under the cost model."""
        return self.result.cost


@dataclass(frozen=True)
class ReplayNetwork:
    """A network to search: `digest` identifies its graph, `greedy` is TVM's partition."""

    name: str
    digest: str
    graph: Graph = field(repr=False)
    costs: ReplayedCosts = field(repr=False)
    hardware: Hardware = field(repr=False)
    families: tuple[ScheduleFamily, ...] = field(repr=False)
    greedy: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

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
        return Replayed(result, seconds)
