"""What each threshold does by itself: takes networks to replay and tuned thresholds, gives plan cost and search effort.

Every threshold is looked at off (its pruning as weak as the study allows), at its default, as tuned, and tight (its
pruning as strong as the study allows), the others at their defaults. One that changes neither plans nor searches at any
of these is not worth having.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autofuse.errors import PlanError
from autofuse.search.problem import Thresholds
from autofuse.search.replay import ReplayNetwork
from autofuse.search.tuning import Outcome, evaluate, space_of

#: Thresholds whose pruning is off at the least value of their space; that of the others is at the largest.
_OFF_AT_LEAST = ("uncertainty_margin", "gpu_occupancy")


@dataclass(frozen=True)
class Effect:
    """A threshold's values and what searches under them gave, None where they left no plan."""

    name: str
    off: tuple[float, Outcome | None]
    default: tuple[float, Outcome | None]
    tuned: tuple[float, Outcome | None]
    tight: tuple[float, Outcome | None]

    @property
    def values(self) -> dict[str, tuple[float, Outcome | None]]:
        """By setting."""
        return {"off": self.off, "default": self.default, "tuned": self.tuned, "tight": self.tight}

    @property
    def matters(self) -> bool:
        """Whether any of its values changes a plan's cost or a search's effort."""
        found = [outcome for _, outcome in self.values.values() if outcome is not None]
        return any((o.costs, o.efforts) != (found[0].costs, found[0].efforts) for o in found) or len(found) < 4

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; plan costs relative to those of the default."""
        usual = self.default[1]
        settings = {}
        for setting, (value, outcome) in self.values.items():
            ratio = outcome.ratio(usual.costs) if outcome is not None and usual is not None else None
            seconds = None if outcome is None else outcome.seconds
            settings[setting] = {"value": value, "plan_cost": ratio, "search_seconds": seconds}
        return {"name": self.name, "matters": self.matters, **settings}


def effects(
    networks: Sequence[ReplayNetwork],
    tuned: Thresholds,
    strategy: str,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Effect]:
    """The effect of each threshold that the strategy's search depends on."""
    usual = Thresholds()
    known: dict[Thresholds, Outcome | None] = {}

    def outcome(thresholds: Thresholds) -> Outcome | None:
        if thresholds not in known:
            try:
                known[thresholds] = evaluate(networks, thresholds, strategy)
            except PlanError:
                known[thresholds] = None
        return known[thresholds]

    found = []
    for name, (kind, low, high, _) in space_of(strategy, networks[0].hardware.kind).items():
        progress(name)
        off, tight = (low, high) if name in _OFF_AT_LEAST else (high, low)
        number = int if kind == "int" else float
        values = [number(off), getattr(usual, name), getattr(tuned, name), number(tight)]
        found.append(Effect(name, *((value, outcome(replace(usual, **{name: value}))) for value in values)))
    return found
