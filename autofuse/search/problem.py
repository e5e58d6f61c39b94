"""What a search strategy is given and what it returns."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from autofuse.graph.model import Graph, Group


@dataclass(frozen=True)
class Choice:
    """A legal group with its best configuration under the cost model. `cost` in seconds."""

    group: Group
    cost: float
    family: str = ""
    config: str = ""
    source: str = "analytical"
    key: str = ""  # workload key


@dataclass(frozen=True)
class Thresholds:
    """Numbers that prune enumeration and search. A large value switches a pruning off; `autofuse tune` tunes them."""

    max_group_size: int = 24  # operators in one group
    groups_per_operator: int = 256  # groups enumerated around one operator
    groups_per_state: int = 64  # groups tried from one state, cheapest per operator first
    abort_factor: float = 2.0  # a partial plan is dropped when cost + lower bound exceeds this times the best known
    prefilter_ratio: float = 4.0  # a group dearer than this times the sum of its members alone is dropped
    states_per_region: int = 50_000  # states of one region before the search turns greedy in it
    recompute_members: int = 2  # cheap producers that one group may recompute
    frontier_values: int = 3  # values left unmaterialised in a state
    hybrid_share: float = 0.2  # share of the critical path's cost that `hybrid` gives to dp
    max_arguments: int = 48  # kernel parameters


@dataclass(frozen=True)
class SearchProblem:
    """The choices over a graph; every operator has at least its own single choice. `max_memory` in bytes (0: none)."""

    graph: Graph
    choices: tuple[Choice, ...]
    thresholds: Thresholds = field(default_factory=Thresholds)
    call_cost: float = 0.0  # seconds added for every kernel of a plan
    max_memory: int = 0
    greedy: tuple[tuple[int, ...], ...] = ()  # TVM's FuseOps partition, as sets of operators


@dataclass(frozen=True)
class SearchResult:
    """A plan's choices in an order in which they can run, its cost, and how the search went."""

    choices: tuple[Choice, ...]
    cost: float
    strategy: str
    proved_optimal: bool
    states: int = 0
    transitions: int = 0
    regions: int = 0
    pruned: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""  # why `auto` took the strategy that it took
    peak_memory: int = 0  # bytes of intermediate tensors alive at once


class SearchStrategy(abc.ABC):
    """A way to choose a plan. Deterministic; raises PlanError when no plan keeps within `max_memory`."""

    name: ClassVar[str]

    @abc.abstractmethod
    def search(self, problem: SearchProblem) -> SearchResult:
        """A partition of the graph's operators (recomputed producers may stand in several groups), acyclic, convex."""
