"""In which order candidates are measured: takes items and a cost model, gives the items, most useful first.

A run may be cut short at any moment, so what it has then should be worth most: what plans use now, then what could
save most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofuse.cost.model import Candidate, CostModel
from autofuse.records.identity import identity_of
from autofuse.records.record import Identity


@dataclass(frozen=True)
class CollectItem:
    """A candidate to measure: its workload key, the canonical text behind the key, and a model that contains it.

    `planned`: a present plan (greedy's, the best known) uses this group; `used`: with this family and configuration.
    """

    candidate: Candidate
    key: str
    text: str
    model: str
    planned: bool = False
    used: bool = False


def most_useful(
    items: Sequence[CollectItem], costs: CostModel, most: int, known: Callable[[Sequence[Identity]], Sequence[bool]]
) -> list[CollectItem]:
    """Of `items`, in the order of `in_order`, those of no more than `most` different candidates, and what plans use.

    What is `known` (asked with identities without hardware) comes before the first of the others: run again, when the
    order is another because more is known, no more than that is measured in all.
    """
    ordered = in_order(items, costs)
    identities = [identity_of(item.candidate, item.key, "") for item in ordered]
    different = list(dict.fromkeys(identities))
    recorded = {i for i, there in zip(different, known(different), strict=True) if there}
    new = [i for i in different if i not in recorded][: max(0, most - len(recorded))]
    used = {identity for item, identity in zip(ordered, identities, strict=True) if item.used}
    chosen = recorded.union(new, used)
    return [item for item, identity in zip(ordered, identities, strict=True) if identity in chosen]


def in_order(items: Sequence[CollectItem], costs: CostModel) -> list[CollectItem]:
    """What plans use first, then other schedules of their groups, then the others; each by expected value.

    The value of a planned group is its predicted time: where most time goes, knowing it exactly is worth most. That of
    another is the time that it is predicted to save over its operators alone. A group's later configurations are worth
    1/2, 1/3 ... of that: its first ones are the families' best guesses, and other groups come before them. Ties stay in
    the order given.
    """
    predicted = costs.costs([item.candidate for item in items])
    alone: dict[tuple[int, int], float] = {}
    for item, cost in zip(items, predicted, strict=True):
        group = item.candidate.group
        if len(group.members) == 1:
            operator = (id(group.graph), group.members[0])
            alone[operator] = min(alone.get(operator, math.inf), float(cost))
    seen: dict[tuple[str, bool, bool], int] = {}
    ranked: list[tuple[bool, bool, float, int, CollectItem]] = []
    for position, (item, cost) in enumerate(zip(items, predicted, strict=True)):
        group = item.candidate.group
        kind = (item.key, item.planned, item.used)
        rank = seen[kind] = seen.get(kind, 0) + 1
        value = float(cost) if math.isfinite(cost) else 0.0
        if not item.planned:
            apart = sum(alone.get((id(group.graph), member), 0.0) for member in group.members)
            value = max(apart - value, 0.0) if math.isfinite(apart) and math.isfinite(cost) else 0.0
        ranked.append((not item.used, not item.planned, -value / rank, position, item))
    return [entry[4] for entry in sorted(ranked, key=lambda entry: entry[:4])]
