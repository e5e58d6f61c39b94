"""Plans of a network under one cost model after another, and what they are worth on measured kernels.

Takes a model's name, hardware and a record store; gives plans that are restricted to kernels with a record, so that
each plan's latency is known, and the plan that measured latencies choose. Nothing is compiled and no clock is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.model import Candidate, CostModel
from autofuse.cost.plan_term import refills
from autofuse.learn.dataset import repeated
from autofuse.records.identity import KeyOf, default_key, identity_of
from autofuse.records.record import Identity, Record
from autofuse.records.store import RecordStore
from autofuse.search.costing import UNBUILDABLE_SECONDS
from autofuse.search.problem import Choice, SearchProblem, SearchResult, Thresholds
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.graph.model import Graph, Group
    from autofuse.schedule.family import ScheduleFamily
    from autofuse.search.judge import LegalGroup

Array = NDArray[np.float64]
#: Its groups move nothing and are no kernels: there is nothing to measure.
_VIEW = "view"


class NetworkPlans:
    """One network's legal groups, found once; plans of it under any cost model."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        hardware: Hardware,
        families: Sequence[ScheduleFamily],
        greedy: Sequence[Sequence[int]] = (),
        thresholds: Thresholds | None = None,
        source: Any = None,
    ) -> None:
        from autofuse.cost.weights import weights_are_cold
        from autofuse.search.candidates import GroupEnumerator

        self.name = name
        #: What the graph was made from, to compile it.
        self.source = name if source is None else source
        self.graph = graph
        self.hardware = hardware
        self.cold = weights_are_cold(graph, hardware)
        self.families = {f.name: f for f in families}
        self._limits = thresholds or Thresholds()
        self.greedy = tuple(tuple(sorted(members)) for members in greedy)
        enumerator = GroupEnumerator(graph, hardware=hardware, families=families, thresholds=self._limits)
        self._found: list[LegalGroup] = enumerator.run(self.greedy)

    @classmethod
    def of_model(cls, model: Any, hardware: Hardware, **arguments: Any) -> NetworkPlans:
        """Of what `autofuse.compile` takes, as it is planned for this hardware (whatever this machine is)."""
        from autofuse.codegen.fuse_ops import fuse_ops_partition
        from autofuse.compiler import analyse_for
        from autofuse.schedule.registry import families

        analysed = analyse_for(model, hardware)
        partition = fuse_ops_partition(analysed.lowered.module, analysed.built)
        graph = analysed.graph
        return cls(graph.name, graph, hardware, families(hardware.kind), partition, source=model, **arguments)

    def problem(self, costs: CostModel) -> SearchProblem:
        """What a search is given when kernels cost what `costs` says."""
        from autofuse.search.costing import choices_of

        choices, pruned = choices_of(
            self.graph,
            self._found,
            costs,
            hardware=self.hardware,
            thresholds=self._limits,
            greedy=self.greedy,
        )
        return SearchProblem(
            self.graph,
            choices,
            self._limits,
            call_cost=self.hardware.call_overhead,
            greedy=self.greedy,
            pruned=pruned,
        )

    def plan(self, costs: CostModel, strategy: str = "dp") -> SearchResult:
        """The plan that a strategy finds under `costs`."""
        from autofuse.search.strategies import strategy as make_strategy

        return make_strategy(strategy, hardware=self.hardware).search(self.problem(costs))

    def cheapest(self, costs: CostModel) -> SearchResult:
        """The cheapest plan under `costs`, near ties not settled.

        Where a kernel that was not measured costs a second, a hundredth of that hides all differences of the others.
        """
        from autofuse.search.dp import DPStrategy

        return DPStrategy(tie=0.0).search(self.problem(costs))

    def predicted(self, plan: SearchResult, costs: CostModel) -> float:
        """Seconds that a plan takes under `costs`: its own sum has the margin in it that keeps a search from doubt."""
        if not self._limits.uncertainty_margin:
            return plan.cost
        known = [c for c in plan.choices if c.family in self.families]
        found = costs.costs([self._candidate(c, self.families[c.family]) for c in known])
        # A kernel of which none is known to work has the price that keeps it out of plans.
        seconds = np.where(np.isfinite(found), found, [c.cost for c in known]).sum()
        others = sum(c.cost for c in plan.choices if c.family not in self.families)
        added = sum(c.refill + self.hardware.call_overhead for c in plan.choices)
        return float(seconds) + others + added

    def candidates(self) -> list[Candidate]:
        """What a search of the network compares: each configuration of each kind of group, once."""
        from autofuse.schedule.family import beside

        families = list(self.families.values())
        found: dict[object, list[Candidate]] = {}
        for legal in self._found:
            if legal.signature in found or legal.family.name == _VIEW:
                continue
            group = legal.shown
            found[legal.signature] = [
                Candidate(group, family, config)
                for family in (legal.family, *beside(families, legal.family, group, self.hardware))
                for config in family.configs(group, self.hardware)
            ]
        return [candidate for some in found.values() for candidate in some]

    def candidate(self, choice: Choice) -> Candidate | None:
        """A choice's kernel; None for views and operators that no family schedules."""
        family = self.families.get(choice.family)
        if family is None or family.name == _VIEW:
            return None
        return self._candidate(choice, family)

    @staticmethod
    def _candidate(choice: Choice, family: ScheduleFamily) -> Candidate:
        return Candidate(choice.group, family, family.configuration.parse(choice.config))


class MeasuredKernels:
    """What a store knows of kernels on one hardware: their newest latency, and one measured before it."""

    def __init__(self, store: RecordStore, hardware: str, key_of: KeyOf | None = None) -> None:
        self._hardware = hardware
        self._key_of = key_of or default_key()
        self._keys: dict[tuple[int, Group], tuple[Group, str]] = {}
        self._known: dict[Identity, tuple[Record, Record | None]] = {
            last.identity: (last, before) for last, before in repeated(store.records(hardware))
        }

    def __len__(self) -> int:
        return len(self._known)

    def seconds(self, candidates: Sequence[Candidate], cold: bool) -> Array:
        """(n, 2): the newest normalised latency and one measured before; NaN: none, infinite: the newest failed."""
        found = np.full((len(candidates), 2), np.nan)
        for i, candidate in enumerate(candidates):
            pair = self._known.get(identity_of(candidate, self._key(candidate.group), self._hardware))
            if pair is None:
                continue
            for column, record in enumerate(pair):
                if record is not None:
                    value = (record.cold_normalised if cold else record.normalised) if record.ok else np.inf
                    found[i, column] = np.nan if value is None else value
        return found

    def _key(self, group: Group) -> str:
        entry = self._keys.get((id(group.graph), group))
        if entry is None:
            entry = self._keys[(id(group.graph), group)] = (group, self._key_of(group))
        return entry[1]


class OnlyMeasured(CostModel):
    """`base` where a kernel was measured (None: the measured latency itself), infinity elsewhere.

    Operators alone cost a second instead, which no plan pays that can do without: every operator needs a choice. Views,
    which are no kernels, cost what the analytical model says.
    """

    name: ClassVar[str] = "measured"

    def __init__(self, kernels: MeasuredKernels, hardware: Hardware, cold: bool, base: CostModel | None = None) -> None:
        self._kernels = kernels
        self._views = AnalyticalCostModel(hardware, cold)
        self._cold = cold
        self._base = base

    def costs(self, candidates: Sequence[Candidate]) -> Array:
        """Seconds of each candidate; see CostModel."""
        measured = self._kernels.seconds(candidates, self._cold)[:, 0]
        alone = [len(c.group.members) == 1 for c in candidates]
        costs = np.where(np.isnan(measured), np.where(alone, UNBUILDABLE_SECONDS, np.inf), measured)
        views = [i for i, c in enumerate(candidates) if c.family.name == _VIEW]
        if views:
            costs[views] = self._views.costs([candidates[i] for i in views])
        known = [i for i in map(int, np.flatnonzero(~np.isnan(measured))) if candidates[i].family.name != _VIEW]
        if self._base is not None and known:
            costs[known] = self._base.costs([candidates[i] for i in known])
        return costs


@dataclass(frozen=True)
class PlanWorth:
    """What a plan takes on measured kernels, seconds: when they were last measured, and when measured before.

    `unmeasured`: its kernels without a record, of which no plan among measured kernels has fewer; they count what the
    analytical model says, in both sums. `once`: those measured once, whose only latency stands in both sums.
    """

    kernels: int
    newest: float
    before: float
    unmeasured: int
    once: int


def worth(plan: SearchResult, network: NetworkPlans, kernels: MeasuredKernels) -> PlanWorth:
    """The worth of a plan, what it adds to its kernels included (`cost/plan_term.py`)."""
    chosen = [c for c in map(network.candidate, plan.choices) if c is not None]
    seconds = kernels.seconds(chosen, network.cold)
    known = np.isfinite(seconds[:, 0])
    twice = known & np.isfinite(seconds[:, 1])
    rest = [c for c, there in zip(chosen, known, strict=True) if not there]
    beside = float((refills(chosen, network.hardware, network.cold) + network.hardware.call_overhead).sum())
    beside += float(AnalyticalCostModel(network.hardware, network.cold).costs(rest).sum()) if rest else 0.0
    newest = float(seconds[known, 0].sum()) + beside
    before = float(seconds[twice, 1].sum() + seconds[known & ~twice, 0].sum()) + beside
    return PlanWorth(len(chosen), newest, before, int((~known).sum()), int((known & ~twice).sum()))


@dataclass(frozen=True)
class Regret:
    """How much slower than the plan chosen by measured latencies a plan is, as a share: by another measurement.

    `same`: by the measurement that chose the best plan, which flatters that plan.
    """

    regret: float
    same: float
    worth: PlanWorth


def regrets(network: NetworkPlans, kernels: MeasuredKernels, models: Mapping[str, CostModel]) -> dict[str, Regret]:
    """Of the plans that each of the cost models chooses among measured kernels."""

    def planned(base: CostModel | None) -> PlanWorth:
        costs = OnlyMeasured(kernels, network.hardware, network.cold, base)
        return worth(network.cheapest(costs), network, kernels)

    best = planned(None)
    found = {}
    for name, model in models.items():
        one = planned(model)
        found[name] = Regret(one.before / best.before - 1, one.newest / best.newest - 1, one)
    return found
