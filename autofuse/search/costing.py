"""Best configuration and cost of every group. Takes legal groups and a cost model, gives the choices of a search.

All configurations of all groups go to the cost model in one batch; groups that are alike go once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate, CostModel
from autofuse.cost.plan_term import refills
from autofuse.cost.weights import weights_are_cold
from autofuse.graph.model import Graph, Group
from autofuse.schedule.family import ScheduleFamily, beside
from autofuse.schedule.registry import families
from autofuse.search.gpu_limits import limits, within
from autofuse.search.problem import Choice, Thresholds
from autofuse.target import Hardware

KeyFunction = Callable[[Group], str]

#: Seconds for an operator alone all of whose configurations are known to fail: so dear that a group is preferred.
UNBUILDABLE_SECONDS = 1.0


class _Legal(Protocol):
    @property
    def group(self) -> Group: ...
    @property
    def family(self) -> ScheduleFamily: ...
    @property
    def signature(self) -> Hashable: ...
    @property
    def shown(self) -> Group: ...
    @property
    def whole(self) -> bool: ...


def choices_of(
    graph: Graph,
    found: Sequence[_Legal],
    cost_model: CostModel,
    *,
    hardware: Hardware,
    thresholds: Thresholds,
    greedy: Sequence[Sequence[int]] = (),
    key: KeyFunction | None = None,
) -> tuple[tuple[Choice, ...], dict[str, int]]:
    """A choice for each group, and how many groups a threshold dropped.

    key: gives the choices' workload keys. Without it they have none: few of them are ever asked for.

    Operators that no family schedules (calls that are no tensor programs) get a choice without family, at the cost of
    their traffic: every plan has them, so that this never decides anything. A single operator stays even if the cost
    model knows that all its configurations fail: another family takes it, and where those fail too it has none and runs
    as TVM made it.
    """
    limited: Counter[str] = Counter()
    cold = weights_are_cold(graph, hardware)
    best = _best_of_each(found, cost_model, hardware, key, thresholds, limited, cold)
    choices = []
    for legal in found:
        choices.append(Choice.made(legal.group, *best[legal.signature], legal.whole))
    alone = {c.group.members[0]: c.inside for c in choices if len(c.group.members) == 1 and not c.recomputed}
    for op in graph.operators:
        if op.index not in alone:
            group = Group.of(graph, [op.index])
            moved = sum(graph.tensors[t].bytes for t in (*op.inputs, *op.outputs))
            alone[op.index] = hardware.call_overhead + moved / hardware.memory_bandwidth
            choices.append(Choice(group, alone[op.index]))
    pinned = {tuple(sorted(members)) for members in greedy}
    kept = []
    dropped = {"prefilter_ratio": 0, "unbuildable": 0}
    for choice in choices:
        members = choice.group.members
        if not np.isfinite(choice.cost):
            dropped["unbuildable"] += 1
            if len(members) == 1:
                kept.append(replace(choice, cost=UNBUILDABLE_SECONDS))
        elif (
            len(members) > 1
            and (choice.recomputed or members not in pinned)
            and choice.inside > thresholds.prefilter_ratio * sum(alone[m] for m in members)
        ):
            dropped["prefilter_ratio"] += 1
        else:
            kept.append(choice)
    kept.sort(key=lambda c: (c.group.members, c.group.outputs))
    return tuple(kept), {name: count for name, count in {**dropped, **limited}.items() if count}


def _best_of_each(
    found: Sequence[_Legal],
    cost_model: CostModel,
    hardware: Hardware,
    key: KeyFunction | None,
    thresholds: Thresholds,
    limited: Counter[str],
    cold: bool,
) -> dict[Hashable, tuple[float, str, str, str, str, float]]:
    """Signature → cost, family, configuration, source of the cost, workload key, refill.

    Families beside the one that took a group compete with it: the cheapest configuration decides. Configurations that
    the cost model's prefilter finds dearer than `prefilter_ratio` times the group's best are not asked for; costs have
    `uncertainty_margin` of their expected errors added. limited: counts what is left out of GPUs, by threshold.
    """
    limit = limits(thresholds, hardware)
    first: dict[Hashable, _Legal] = {}
    for legal in found:
        first.setdefault(legal.signature, legal)
    candidates: list[Candidate] = []
    spans: dict[Hashable, tuple[int, int]] = {}
    for signature, legal in first.items():
        start = len(candidates)
        group = legal.shown
        for family in (legal.family, *beside(families(hardware.kind), legal.family, group, hardware)):
            configs = family.configs(group, hardware)
            if limit:
                configs = within(group, family, configs, hardware, thresholds, limited)
            candidates.extend([Candidate(group, family, c) for c in configs])
        spans[signature] = (start, len(candidates))
    costs = _costs(cost_model, candidates, list(spans.values()), thresholds)
    failing = [signature for signature, (start, end) in spans.items() if not np.isfinite(costs[start:end]).any()]
    for signature in failing:
        group = first[signature].shown
        if len(group.members) > 1:
            continue
        known = {c.family.name for c in candidates[slice(*spans[signature])]}
        others = [f for f in families(hardware.kind) if f.name not in known and f.match(group, hardware) is None]
        more = [Candidate(group, f, c) for f in others for c in f.configs(group, hardware)]
        if more:
            spans[signature] = (len(candidates), len(candidates) + len(more))
            candidates.extend(more)
            costs = np.concatenate([costs, _costs(cost_model, more, [(0, len(more))], thresholds)])
    rivals = [_rivals(candidates, costs, start, end) for start, end in spans.values()]
    asked = [i for some in rivals for i in some]
    refill = dict(zip(asked, refills([candidates[i] for i in asked], hardware, cold).tolist(), strict=True))
    picks = [min(some, key=lambda i: (costs[i] + refill[i], i)) for some in rivals]
    sources = cost_model.sources([candidates[i] for i in picks])
    result = {}
    for signature, i, source in zip(spans, picks, sources, strict=True):
        name = key(first[signature].shown) if key is not None else ""
        chosen = candidates[i]
        works = bool(np.isfinite(costs[i]))
        by, config = (chosen.family.name, chosen.config.text) if works else ("", "")
        result[signature] = (float(costs[i]), by, config, source, name, refill[i])
    return result


def _rivals(candidates: Sequence[Candidate], costs: NDArray[np.float64], start: int, end: int) -> list[int]:
    """The cheapest of a group's configurations, and the cheapest of those that use one core where it uses all, or all.

    Operands that come from L3 again make the difference between the two (`cost/plan_term.py`), and only between them.
    """
    best = start + int(np.argmin(costs[start:end]))
    serial = _serial(candidates[best])
    others = [i for i in range(start, end) if _serial(candidates[i]) != serial]
    return [best, min(others, key=lambda i: (costs[i], i))] if others else [best]


def _serial(candidate: Candidate) -> bool:
    return getattr(candidate.config, "parallel", 1) == 0


def _costs(
    cost_model: CostModel, candidates: list[Candidate], spans: Sequence[tuple[int, int]], thresholds: Thresholds
) -> NDArray[np.float64]:
    """What each candidate costs a search, infinite where the prefilter leaves it out; spans: candidates of a group."""
    kept = np.ones(len(candidates), bool)
    looks = cost_model.prefilter(candidates)
    if looks is not None:
        for start, end in spans:
            some = looks[start:end]
            known = some[some > 0]
            # What is recorded is known, whatever the cheaper model thinks of it.
            kept[start:end] = some <= max(1.0, thresholds.prefilter_ratio) * known.min(initial=np.inf)
    asked = candidates if kept.all() else [c for c, keep in zip(candidates, kept, strict=True) if keep]
    costs = np.full(len(candidates), np.inf)
    costs[kept] = cost_model.costs(asked)
    margin = thresholds.uncertainty_margin
    errors = cost_model.uncertainty(asked) if margin else None
    if errors is not None:
        costs[kept] *= np.exp(margin * errors)
    return costs
