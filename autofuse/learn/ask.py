"""Which kernels are worth measuring before a plan is settled: takes a search problem, adds records to a store.

How sure each cost is decides: the search is done several times over with costs drawn from what they may be. Groups that
stand in some of these plans and not in others are in doubt, most of all those with much time at stake.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autofuse.cost.model import Candidate, CostModel
from autofuse.errors import RecordError, TargetError
from autofuse.search.problem import Choice, SearchProblem, SearchStrategy
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.compiler import Analysed
    from autofuse.measure import CollectItem
    from autofuse.schedule.family import ScheduleFamily

#: Plans that are drawn, and the share of the time that drawing them may take.
DRAWS, DRAWING_SHARE = 8, 0.25
#: Expected error (ln) of a cost that comes from a record, and of one whose model cannot tell.
RECORDED_ERROR, UNKNOWN_ERROR = 0.02, 0.3
#: Configurations of one group that are measured.
CONFIGURATIONS = 3
_BATCH = 8
_Alike = tuple[str, str, str, float]


@dataclass(frozen=True)
class Doubt:
    """A choice in doubt. share: of the drawn plans that have it; worth: seconds at stake, over all groups like it."""

    choice: Choice
    share: float
    worth: float


def alike(choice: Choice) -> _Alike:
    """Equal for choices of groups that are alike: they have one cost, and are in doubt together."""
    return choice.group.label, choice.family, choice.config, choice.cost


def errors_of(problem: SearchProblem, costs: CostModel, family_of: Callable[[str], ScheduleFamily]) -> list[float]:
    """The expected error (ln) of each choice's cost."""
    found = [0.0 if c.family in ("", "view") else RECORDED_ERROR for c in problem.choices]
    asked = [i for i, c in enumerate(problem.choices) if found[i] and c.source != "record"]
    candidates = [candidate_of(problem.choices[i], family_of) for i in asked]
    told = costs.uncertainty(candidates)
    for position, i in enumerate(asked):
        found[i] = UNKNOWN_ERROR if told is None else float(told[position])
    return found


def candidate_of(choice: Choice, family_of: Callable[[str], ScheduleFamily]) -> Candidate:
    """A choice's kernel."""
    family = family_of(choice.family)
    return Candidate(choice.group, family, family.configuration.parse(choice.config))


def doubts(
    problem: SearchProblem,
    errors: Sequence[float],
    strategy: SearchStrategy,
    draws: int = DRAWS,
    seconds: float | None = None,
) -> list[Doubt]:
    """The choices whose uncertainty could change the plan, most at stake first; after `seconds` no more is drawn."""
    start = time.monotonic()
    errors = list(errors)
    used: Counter[_Alike] = Counter()
    drawn = 0
    for number in range(draws):
        if drawn >= 2 and seconds is not None and time.monotonic() - start > seconds:
            break
        chosen = strategy.search(_drawn(problem, errors, number)).choices
        place = {(c.group.members, c.group.outputs): c for c in problem.choices}
        used.update({alike(place[c.group.members, c.group.outputs]) for c in chosen})
        drawn += 1
    count = Counter(alike(c) for c in problem.choices)
    first: dict[_Alike, tuple[Choice, float]] = {}
    for choice, error in zip(problem.choices, errors, strict=True):
        first.setdefault(alike(choice), (choice, error))
    found = []
    for name, (choice, error) in first.items():
        share = used[name] / drawn
        if 0 < share < 1 and choice.source != "record" and error > 0:
            worth = 4 * share * (1 - share) * error * choice.cost * count[name]
            found.append(Doubt(choice, share, worth))
    return sorted(found, key=lambda d: (-d.worth, d.choice.group.members))


def _drawn(problem: SearchProblem, errors: Sequence[float], number: int) -> SearchProblem:
    """The problem with costs drawn from log-normal distributions, the same one for groups that are alike."""
    choices = []
    for choice, error in zip(problem.choices, errors, strict=True):
        seed = zlib.crc32(repr((alike(choice), number)).encode())
        factor = float(np.exp(error * np.random.default_rng(seed).standard_normal())) if error else 1.0
        choices.append(replace(choice, cost=choice.cost * factor))
    return replace(problem, choices=tuple(choices))


def items_of(
    doubtful: Sequence[Doubt], costs: CostModel, hardware: Hardware, family_of: Callable[[str], ScheduleFamily]
) -> list[CollectItem]:
    """What to measure of these choices: their configurations that may be the best ones, the likely ones first."""
    from autofuse.graph.keys import canonical_text, workload_key
    from autofuse.measure import CollectItem

    rounds: list[list[CollectItem]] = [[] for _ in range(CONFIGURATIONS)]
    for doubt in doubtful:
        candidate = candidate_of(doubt.choice, family_of)
        key, text = workload_key(candidate.group), canonical_text(candidate.group)
        family, group = candidate.family, candidate.group
        rest = [Candidate(group, family, c) for c in family.configs(group, hardware) if c != candidate.config]
        order = np.argsort(costs.costs(rest), kind="stable")[: CONFIGURATIONS - 1]
        for number, other in enumerate([candidate, *(rest[i] for i in order)]):
            rounds[number].append(CollectItem(other, key, text, group.graph.name, True))
    return [item for some in rounds for item in some]


def prepare_store(db: str | Path | None, plan: object) -> None:
    """Make the store that measurements go to, unless it is there. RecordError where there is nowhere to keep them."""
    from autofuse.records import open_store

    if db is None or str(db) == "none":
        raise RecordError("what is measured needs a place to be kept: give --db FILE with --measure")
    if plan is not None:
        raise RecordError("a given plan is built as it is: --measure and --plan do not go together")
    with open_store(db) as store:
        if store.evaluation_only:
            raise RecordError(f"{db} is kept for evaluation: measure into another store")


def measure_doubtful(
    analysed: Analysed,
    problem: SearchProblem,
    costs: CostModel,
    strategy: SearchStrategy,
    db: str | Path,
    seconds: float,
    tell: Callable[[str], None],
) -> int:
    """Spend up to `seconds` on kernels whose uncertainty could change the plan; how many records that gave.

    They are kept in the store `db`. Raises TargetError where the target is not this machine.
    """
    from autofuse.schedule.registry import family as family_of
    from autofuse.target.hardware_file import is_host

    if not is_host(analysed.target):
        raise TargetError("kernels can be measured on this machine alone: leave out --measure, or --target")
    start = time.monotonic()
    tell("looking for doubts")
    found = doubts(problem, errors_of(problem, costs, family_of), strategy, seconds=DRAWING_SHARE * seconds)
    if not found:
        return 0
    from autofuse.measure import CollectSettings, LocalRunner, PoolBuilder, collect
    from autofuse.measure.kernels import KernelSource
    from autofuse.records import RecordedHardware, open_store
    from autofuse.target import hardware_row

    items = items_of(found, costs, analysed.hardware, family_of)
    settings = CollectSettings(budget=max(0.0, seconds - (time.monotonic() - start)), batch=_BATCH)
    hardware = RecordedHardware.of(hardware_row(analysed.target))
    tell(f"measuring {len(items)} kernels")
    source = KernelSource([analysed])
    with (
        open_store(db) as store,
        PoolBuilder(2) as builder,
        LocalRunner(analysed.target.threads) as runner,
    ):
        stats = collect(items, store, runner, builder, hardware, source.request, source.reference, settings)
    return stats.done
