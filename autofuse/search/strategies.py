"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable

from autofuse.errors import PlanError
from autofuse.search.auto import AutoStrategy
from autofuse.search.baselines import GreedyStrategy, NoneStrategy
from autofuse.search.dp import DPStrategy
from autofuse.search.exhaustive import ExhaustiveStrategy
from autofuse.search.hybrid import HybridStrategy
from autofuse.search.interval import IntervalStrategy
from autofuse.search.problem import SearchStrategy
from autofuse.target import Hardware

_SIMPLE: dict[str, Callable[[], SearchStrategy]] = {
    "dp": DPStrategy,
    "greedy": GreedyStrategy,
    "hybrid": HybridStrategy,
    "none": NoneStrategy,
    "interval": IntervalStrategy,
    "exhaustive": ExhaustiveStrategy,
}
NAMES = ("dp", "greedy", "hybrid", "none", "auto", "interval", "exhaustive")


def strategy(name: str, *, hardware: Hardware | None = None, compile_allowance: float | None = None) -> SearchStrategy:
    """The strategy called `name`. `hardware` and `compile_allowance` (percent) are what `auto` decides by.

    PlanError for an unknown name.
    """
    if name == "auto":
        return AutoStrategy(hardware or Hardware(), compile_allowance)
    if name not in _SIMPLE:
        raise PlanError(f"unknown strategy {name!r}: choose one of {', '.join(NAMES)}")
    return _SIMPLE[name]()
