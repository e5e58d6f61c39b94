"""Why two operators are, or are not, in one kernel: the rule, the refusal or the costs on both sides.

Takes a search problem and a plan's choices; gives one `EdgeReport` for two operators, which need not be neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from autofuse.errors import PlanError
from autofuse.graph.legality import check_group, convex_hull, edge_rule
from autofuse.graph.model import Graph, Group, Operator, Role, bits
from autofuse.graph.reasons import Refusal

if TYPE_CHECKING:
    from autofuse.cost.model import CostModel
    from autofuse.schedule.family import ScheduleFamily
    from autofuse.search.problem import Choice, SearchProblem
    from autofuse.target import Hardware


#: Operators of a path that are all named in a sentence.
_LONG_PATH = 10


def shortest_path(graph: Graph, first: int, last: int) -> list[int]:
    """Operators of a shortest path along the edges from `first` to `last`, both included; empty if there is none."""
    before = {first: first}
    todo = [first]
    for at in todo:
        if at == last:
            break
        for successor in graph.successors[at]:
            if successor not in before:
                before[successor] = at
                todo.append(successor)
    if last not in before:
        return []
    path = [last]
    while path[-1] != first:
        path.append(before[path[-1]])
    return path[::-1]


@dataclass(frozen=True)
class EdgeReport:
    """What is known of two operators. Costs in seconds; None where there is no such kernel.

    relation: "adjacent" (the second reads a result of the first: `tensor`), "path" (it depends on it through others,
    `between`: those of a shortest path), "siblings" (no path, but both read `tensor`) or "unrelated". rule: that of the
    edge, "not adjacent" where there is none. size: operators of the two and all that lies between.
    together: whether the plan has both in one kernel. refusal: why the two alone (with what lies between them) are no
    legal group. cost_together: of the cheapest kernel known that is exactly that set; cost_apart: of its operators as
    kernels of their own; cost_planned: of the plan's kernels that hold the two.
    """

    producer: str
    consumer: str
    tensor: str | None
    mapping: str
    relation: str
    between: tuple[str, ...]
    size: int
    rule: str
    reason: str
    together: bool
    refusal: str | None
    family: str | None
    cost_together: float | None
    cost_apart: float | None
    cost_planned: float

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def sentences(self) -> str:
        """The report for a person."""
        lines = [f"{self.producer} → {self.consumer} ({self.mapping})"]
        lines.append(f"  rule: {self.rule}: {self.reason}")
        those = "the two" if self.size == 2 else f"these {self.size} operators"
        if self.refusal:
            lines.append(f"  one kernel for {those}: no, {self.refusal}")
        elif self.cost_together is not None and self.cost_apart is not None:
            gain = self.cost_apart / self.cost_together if self.cost_together else 1.0
            lines.append(
                f"  one kernel for {those} ({self.family}): {self.cost_together * 1e6:.2f} µs, apart"
                f" {self.cost_apart * 1e6:.2f} µs ({gain:.2f}×)"
            )
        else:
            lines.append(f"  one kernel for {those}: legal ({self.family}), but pruned before it was costed")
        verdict = "in one kernel" if self.together else "in different kernels"
        lines.append(f"  the plan has them {verdict} ({self.cost_planned * 1e6:.2f} µs with their neighbours)")
        return "\n".join(lines)


class Explainer:
    """Explains edges of one problem under one plan."""

    def __init__(
        self,
        problem: SearchProblem,
        choices: Sequence[Choice],
        costs: CostModel,
        hardware: Hardware,
        families: Sequence[ScheduleFamily],
    ) -> None:
        self.problem = problem
        self.choices = choices
        self.costs = costs
        self.hardware = hardware
        self.families = families
        self._by_mask: dict[int, Choice] = {}
        for choice in problem.choices:
            if not choice.recomputed and (
                choice.group.mask not in self._by_mask or choice.inside < self._by_mask[choice.group.mask].inside
            ):
                self._by_mask[choice.group.mask] = choice

    @property
    def graph(self) -> Graph:
        """The graph that is explained."""
        return self.problem.graph

    def operator(self, name: str) -> int:
        """Index of the operator with this name (or number). PlanError naming what is close if there is none."""
        names = [op.name for op in self.graph.operators]
        if name in names:
            return names.index(name)
        if name.isdigit() and int(name) < len(names):
            return int(name)
        import difflib

        close = difflib.get_close_matches(name, names, 3)
        hint = f"; close: {', '.join(close)}" if close else "; `autofuse explain MODEL` lists them"
        raise PlanError(f"{self.graph.name} has no operator {name!r}{hint}")

    def edges(self) -> Iterator[tuple[int, int]]:
        """All (producer, consumer) pairs in program order."""
        for consumer in range(len(self.graph.operators)):
            for producer in self.graph.predecessors[consumer]:
                yield producer, consumer

    def explain(self, producer: int, consumer: int) -> EdgeReport:
        """What is known of two operators, the earlier one in program order first."""
        graph = self.graph
        first, second = graph.operators[producer], graph.operators[consumer]
        mask = convex_hull(graph, 1 << producer | 1 << consumer)
        path = shortest_path(graph, producer, consumer)
        if len(path) == 2:
            relation = "adjacent"
            judged, reason = edge_rule(graph, producer, consumer)
            rule = judged.value
            shared = next((t for t in second.inputs if t in first.outputs), None)
        else:
            rule = "not adjacent"
            relation, reason, shared = self._apart(path, mask, first, second)
        mapping = next((a.mapping.value for a in second.accesses if a.tensor == shared), second.mapping.value)
        group = Group.of(graph, bits(mask))
        thresholds = self.problem.thresholds
        verdict = check_group(
            group,
            hardware=self.hardware,
            families=self.families,
            max_arguments=thresholds.max_arguments,
            max_group_size=thresholds.max_group_size,
        )
        known = self._by_mask.get(mask)
        singles = [self.problem.choices[self.problem.singles[m]] for m in bits(mask) if m in self.problem.singles]
        both = 1 << producer | 1 << consumer
        holders = [c for c in self.choices if c.group.mask & both]
        return EdgeReport(
            producer=first.name,
            consumer=second.name,
            tensor=None if shared is None else graph.tensors[shared].name,
            mapping=f"{first.mapping.value} → {mapping}",
            relation=relation,
            between=tuple(graph.operators[i].name for i in path[1:-1]),
            size=mask.bit_count(),
            rule=rule,
            reason=reason,
            together=any(c.group.mask & both == both for c in holders),
            refusal=str(verdict) if isinstance(verdict, Refusal) else None,
            family=None if isinstance(verdict, Refusal) else verdict.name,
            cost_together=self.problem.weight(known) if known else self._cost(group, verdict),
            cost_apart=self.problem.seconds(singles) if len(singles) == mask.bit_count() else None,
            cost_planned=self.problem.seconds(holders),
        )

    def _apart(self, path: Sequence[int], mask: int, first: Operator, second: Operator) -> tuple[str, str, int | None]:
        """Relation of two operators that are no neighbours, a sentence on it, and the tensor that both read."""
        graph = self.graph
        if path:
            names = [graph.operators[i].name for i in path]
            if len(names) > _LONG_PATH:
                names[4:-3] = [f"… {len(names) - 7} more …"]
            others = mask.bit_count() - len(path)
            beside = f"; {others} more operators lie on other paths" if others else ""
            return "path", f"{second.name} depends on {first.name} through {' → '.join(names)}{beside}", None
        constants = {t.index for t in graph.tensors if t.role is Role.CONSTANT}
        shared = next((t for t in second.inputs if t in first.inputs and t not in constants), None)
        if shared is not None:
            return "siblings", f"neither depends on the other; both read {graph.tensors[shared].name}", shared
        return "unrelated", "neither depends on the other, and they share no input", None

    def _cost(self, group: Group, verdict: ScheduleFamily | Refusal) -> float | None:
        """Cost of a legal group that enumeration left out."""
        if isinstance(verdict, Refusal):
            return None
        from autofuse.cost.model import Candidate
        from autofuse.cost.plan_term import refills
        from autofuse.cost.weights import weights_are_cold

        candidates = [Candidate(group, verdict, c) for c in verdict.configs(group, self.hardware)]
        added = refills(candidates, self.hardware, weights_are_cold(group.graph, self.hardware))
        return float((self.costs.costs(candidates) + added).min()) + self.problem.call_cost
