"""What a search strategy is given and what it returns."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from autofuse.graph.model import Graph, Group, Role


@dataclass(frozen=True)
class Choice:
    """A legal group with its best configuration under the cost model.

    cost: seconds of the kernel by itself. refill: what a plan adds to them, the call aside (`cost/plan_term.py`).
    """

    group: Group
    cost: float
    family: str = ""
    config: str = ""
    source: str = "analytical"
    key: str = ""  # workload key, where it is known already
    refill: float = 0.0

    @classmethod
    def made(
        cls, group: Group, cost: float, family: str, config: str, source: str, key: str, refill: float, whole: bool
    ) -> Choice:
        """Quicker where thousands are made. whole: the group is known to recompute nothing."""
        choice: Choice = object.__new__(cls)
        known = choice.__dict__
        known.update(group=group, cost=cost, family=family, config=config, source=source, key=key, refill=refill)
        if whole:
            known.update(recomputed=0, owned=group.mask)
        return choice

    @property
    def inside(self) -> float:
        """Seconds of the kernel inside a plan, without its call."""
        return self.cost + self.refill

    @cached_property
    def writes(self) -> int:
        """Bit set of the members whose result the group writes to memory."""
        producer = self.group.graph.producer
        mask = 0
        for t in self.group.outputs:
            mask |= 1 << producer[t]
        return mask

    @cached_property
    def recomputed(self) -> int:
        """Bit set of the members that the group computes for itself alone, so that other groups may compute them too.

        These are the members that it does not write although something outside uses them, and those that only serve
        such members.
        """
        users, inside, written = self.group.graph.user_masks, self.group.mask, self.writes
        mask = 0
        for m in reversed(self.group.members):
            if written >> m & 1:
                continue
            after = users[m]
            # used outside, or only by members that are themselves recomputed
            if after & ~inside or (after and not after & ~mask):
                mask |= 1 << m
        return mask

    @cached_property
    def owned(self) -> int:
        """Bit set of the members that no other group of a plan may own: the members that are not recomputed."""
        return self.group.mask & ~self.recomputed

    @cached_property
    def reads(self) -> int:
        """Bit set of the operators outside whose results the group reads from memory."""
        producer = self.group.graph.producer
        mask = 0
        for tensor in self.group.inputs:
            if tensor in producer:
                mask |= 1 << producer[tensor]
        return mask

    @cached_property
    def traffic(self) -> int:
        """Bytes that the kernel has to read and write: every input and every output once."""
        tensors = self.group.graph.tensors
        return sum(tensors[t].bytes for t in (*self.group.inputs, *self.group.outputs))

    @cached_property
    def written_bytes(self) -> int:
        """Bytes of the tensors that the group writes."""
        tensors = self.group.graph.tensors
        return sum(tensors[t].bytes for t in self.group.outputs if tensors[t].role is Role.VALUE)


@dataclass(frozen=True)
class Thresholds:
    """Numbers that prune enumeration and search. A large value switches a pruning off; `autofuse tune` tunes them."""

    max_group_size: int = 64  # operators in one group
    groups_per_operator: int = 256  # sets looked at around one operator while groups are enumerated
    groups_per_state: int = 64  # groups tried from one state, cheapest per operator first
    # A partial plan is dropped when its cost + lower bound exceeds this times the best known. The bound holds, so that
    # 1 loses nothing, and what is over 1 acts as 1.
    abort_factor: float = 2.0
    # A group dearer than this times the sum of its members alone is dropped, and a configuration that the analytical
    # model has for dearer than this times the group's best before another model is asked.
    prefilter_ratio: float = 4.0
    states_per_region: int = 20_000  # states of one region before the search turns greedy in it
    recompute_members: int = 2  # cheap producers that one group may recompute
    frontier_values: int = 3  # values left unmaterialised in a state
    hybrid_share: float = 0.9  # share of what choices promise over greedy that `hybrid` gives to dp
    max_arguments: int = 48  # kernel parameters
    # A cost is taken to be dearer by so many of its expected errors: what is not known is not taken for the best.
    uncertainty_margin: float = 0.0
    # On GPUs, configurations are left out that take more registers of a lane or bytes of LDS of a workgroup, or leave a
    # smaller share of a compute unit's waves (`gpu_limits.py`). Estimated, before anything is compiled.
    gpu_registers: int = 256
    gpu_lds: int = 65_536
    gpu_occupancy: float = 0.0


@dataclass(frozen=True)
class SearchProblem:
    """The choices over a graph; every operator has at least its own single choice. `max_memory` in bytes (0: none)."""

    graph: Graph
    choices: tuple[Choice, ...]
    thresholds: Thresholds = field(default_factory=Thresholds)
    call_cost: float = 0.0  # seconds added for every kernel of a plan
    max_memory: int = 0
    greedy: tuple[tuple[int, ...], ...] = ()  # TVM's FuseOps partition, as sets of operators
    pruned: Mapping[str, int] = field(default_factory=dict)  # what enumeration and costing left out, by threshold

    @cached_property
    def singles(self) -> dict[int, int]:
        """Operator → position in `choices` of its cheapest choice alone."""
        best: dict[int, int] = {}
        for i, choice in enumerate(self.choices):
            if len(choice.group.members) == 1 and not choice.recomputed:
                (op,) = choice.group.members
                if op not in best or choice.inside < self.choices[best[op]].inside:
                    best[op] = i
        return best

    def weight(self, choice: Choice) -> float:
        """Seconds that a choice adds to a plan: its kernel's inside it, and a call."""
        return choice.inside + self.call_cost

    def seconds(self, choices: Iterable[Choice]) -> float:
        """Seconds of a plan of these choices."""
        return sum(map(self.weight, choices))


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
    peak_memory: int = 0  # bytes of written tensors alive at once: intermediates, and outputs until the end


class SearchStrategy(abc.ABC):
    """A way to choose a plan. Deterministic; raises PlanError when no plan keeps within `max_memory`."""

    name: ClassVar[str]

    @abc.abstractmethod
    def search(self, problem: SearchProblem) -> SearchResult:
        """A partition of the graph's operators (recomputed producers may stand in several groups), acyclic, convex."""
