"""Plans: what a search decided, as data and as a JSON file that can be built from again.

Takes a search's result, gives a Plan; takes a file, gives a Plan or a PlanError of one line; takes a plan and a
search problem, gives the result that builds it.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from autofuse.cost.model import Candidate, CostModel
from autofuse.errors import PlanError
from autofuse.files import write_whole
from autofuse.graph.model import Graph, Group
from autofuse.search.baselines import result_of, within
from autofuse.search.check import fault
from autofuse.search.cover import Counters, CoverSearch
from autofuse.search.order import run_order
from autofuse.search.problem import Choice, SearchProblem, SearchResult

log = logging.getLogger("autofuse")

#: Version of the file's layout. Goes up when an older reader would misread it.
SCHEMA = 1
_TYPES: dict[str, Any] = {
    "tuple[int, ...]": list,
    "tuple[str, ...]": list,
    "str": str,
    "float": (int, float),
    "int": int,
}


@dataclass(frozen=True)
class PlannedGroup:
    """One kernel: operators by number and name, the tensors it writes, its schedule, and what it is thought to cost.

    seconds: predicted latency by itself; source: where that comes from ("analytical", "predicted", "record"). refill:
    seconds that the plan adds to it, the call aside; files that an earlier version wrote have none.
    """

    members: tuple[int, ...]
    names: tuple[str, ...]
    outputs: tuple[int, ...]
    family: str
    config: str
    key: str
    seconds: float
    source: str
    refill: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Groups in an order to run, for one prepared graph (`digest`) and one target.

    seconds: predicted latency of the whole, kernel calls included.
    """

    graph: str
    digest: str
    target: str
    strategy: str
    cost_model: str
    seconds: float
    groups: tuple[PlannedGroup, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON object, tuples as lists, with the schema version first."""
        groups = [{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(g).items()} for g in self.groups]
        return {"schema": SCHEMA, **{f.name: getattr(self, f.name) for f in fields(self)}, "groups": groups}

    @classmethod
    def from_json(cls, content: Any) -> Plan:
        """The inverse of `to_json`. PlanError if a field is missing or of the wrong type, or the schema is newer."""
        if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
            raise PlanError("this is no plan: it has no schema version; write one with autofuse compile")
        if content["schema"] > SCHEMA:
            raise PlanError(
                f"the plan has schema {content['schema']} and this autofuse reads up to {SCHEMA}: upgrade autofuse"
            )
        rows = content.get("groups")
        if not isinstance(rows, list):
            raise PlanError("the plan's field 'groups' is missing or no list")
        groups = tuple(PlannedGroup(**_fields(PlannedGroup, row, f"groups[{i}]")) for i, row in enumerate(rows))
        return cls(**_fields(cls, {**content, "groups": []}, "the plan") | {"groups": groups})

    def save(self, path: str | Path) -> None:
        """Write the JSON file; a reader sees the old file or the whole new one."""
        goal = Path(path)
        text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        try:
            write_whole(goal, text)
        except OSError as error:
            raise PlanError(f"cannot write the plan {goal}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a file that `save` wrote. PlanError if it is missing, no JSON, no plan or of a newer schema."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError(f"cannot read the plan {path}: {error.strerror}") from None
        except ValueError:
            raise PlanError(f"{path} is no plan: it is not JSON") from None
        try:
            return cls.from_json(content)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None

    def groups_of(self, graph: Graph) -> list[Group]:
        """The groups over `graph`, in the plan's order. PlanError unless they are a plan of it."""
        validate(self, graph)
        return [Group(graph, g.members, g.outputs) for g in self.groups]


def _fields(cls: type[Any], content: Any, where: str) -> dict[str, Any]:
    """The dataclass's fields out of a JSON object, lists made tuples. Unknown fields are left to newer readers."""
    if not isinstance(content, Mapping):
        raise PlanError(f"{where} is no JSON object")
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name not in content:
            if field.default is not MISSING:
                continue
            raise PlanError(f"{where} has no field {field.name!r}")
        value = content[field.name]
        wanted = _TYPES.get(str(field.type), list)
        item = {"tuple[int, ...]": int, "tuple[str, ...]": str}.get(str(field.type))
        wrong = not isinstance(value, wanted) or isinstance(value, bool)
        if wrong or (item and any(not isinstance(v, item) or isinstance(v, bool) for v in value)):
            raise PlanError(f"{where}: field {field.name!r} is not of type {field.type}")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return values


def plan_of(result: SearchResult, graph: Graph, *, target: str, cost_model: str, digest: str | None = None) -> Plan:
    """The plan of a search's result. `digest`: of the prepared graph, by default `graph.keys.graph_digest`."""
    groups = tuple(
        PlannedGroup(
            c.group.members,
            tuple(op.name for op in c.group.operators),
            c.group.outputs,
            c.family,
            c.config,
            c.key or _workload_key(c),
            c.cost,
            c.source,
            c.refill,
        )
        for c in result.choices
    )
    return Plan(graph.name, digest or _digest(graph), target, result.strategy, cost_model, result.cost, groups)


def _workload_key(choice: Choice) -> str:
    from autofuse.graph.keys import workload_key

    return workload_key(choice.group) if choice.family else ""


def _digest(graph: Graph) -> str:
    from autofuse.graph.keys import graph_digest

    return graph_digest(graph)


def validate(plan: Plan, graph: Graph, *, digest: str | None = None) -> None:
    """PlanError unless `plan` was made for `graph` and its groups are a partition (recompute aside), convex, acyclic.

    digest: of `graph`, by default `graph.keys.graph_digest`.
    """
    if plan.digest != (digest or _digest(graph)):
        raise PlanError(
            f"the plan was made for another graph ({plan.graph}) than this one ({graph.name}): compile without --plan "
            "or with the model and input shapes that it was made for"
        )
    for i, g in enumerate(plan.groups):
        if not g.members or list(g.members) != sorted(set(g.members)):
            raise PlanError(f"the plan is damaged: the operators of group {i} are not ascending")
        if g.members[0] < 0 or g.members[-1] >= len(graph.operators):
            raise PlanError(f"the plan is damaged: group {i} has an operator that the graph does not have")
    wrong = fault(graph, [Group(graph, g.members, g.outputs) for g in plan.groups])
    if wrong is not None:
        raise PlanError(f"the plan is damaged: {wrong}")


def adapt(plan: Plan, problem: SearchProblem, *, target: str, digest: str | None = None) -> SearchResult:
    """The result that builds `plan` on `target`.

    For the target that it was made for: its groups with its configurations. For another one: the groups that are
    legal there (are among the problem's choices), with configurations chosen again; the others are taken apart into
    the cheapest legal groups inside them; one warning says so. PlanError if the plan is for another graph, damaged, or
    needs more memory than the problem allows.
    """
    graph = problem.graph
    validate(plan, graph, digest=digest)
    strategy = plan.strategy
    if plan.target == target:
        same = [
            Choice(Group(graph, g.members, g.outputs), g.seconds, g.family, g.config, g.source, g.key, g.refill)
            for g in plan.groups
        ]
        return result_of(problem, run_order(graph, same) or same, strategy)
    choices, lost = _chosen_again(plan, problem)
    message = f"the plan was made for target {plan.target!r}, not {target!r}: configurations are chosen again"
    if lost:
        message += f", and {lost} of its {len(plan.groups)} groups are not legal here and were taken apart"
    warnings.warn(message, stacklevel=2)
    return result_of(problem, choices, strategy)


def without_failures(result: SearchResult, problem: SearchProblem, cost_model: CostModel) -> SearchResult:
    """A plan's result without the configurations that are known to fail, with a warning where there are any.

    The group's best configuration takes the place, where no configuration works the group's operators one by one.
    """
    from autofuse.schedule.registry import any_family

    asked = [i for i, c in enumerate(result.choices) if c.family not in ("", "view")]
    candidates = []
    for choice in (result.choices[i] for i in asked):
        which = any_family(choice.family)
        candidates.append(Candidate(choice.group, which, which.configuration.parse(choice.config)))
    costs = cost_model.costs(candidates)
    failing = {i for i, cost in zip(asked, costs, strict=True) if not np.isfinite(cost)}
    if not failing:
        return result
    best = {(c.group.members, c.group.outputs): c for c in problem.choices}
    kept: list[Choice] = []
    written: set[int] = set()
    for i, choice in enumerate(result.choices):
        parts = [choice]
        if i in failing:
            group = choice.group
            again = best.get((group.members, group.outputs))
            parts = [again] if again else [problem.choices[problem.singles[m]] for m in group.members]
        for part in parts:
            if not written.issuperset(part.group.outputs):
                kept.append(part)
                written.update(part.group.outputs)
    labels = ", ".join(dict.fromkeys(result.choices[i].group.label for i in sorted(failing)))
    log.warning("the plan has configurations that are known to fail (%s): others take their places", labels)
    return result_of(problem, run_order(problem.graph, kept) or kept, result.strategy)


def _chosen_again(plan: Plan, problem: SearchProblem) -> tuple[Sequence[Choice], int]:
    """The plan's groups as choices of the problem, and how many had to be taken apart."""
    graph = problem.graph
    cheapest: dict[tuple[tuple[int, ...], tuple[int, ...]], Choice] = {}
    for choice in problem.choices:
        name = (choice.group.members, choice.group.outputs)
        if name not in cheapest or choice.inside < cheapest[name].inside:
            cheapest[name] = choice
    names = [(g.members, g.outputs) for g in plan.groups]
    lost = [name for name in names if name not in cheapest]
    if not lost:
        choices = [cheapest[name] for name in names]
        return run_order(graph, choices) or choices, 0
    # What is kept may rely on results that a lost group wrote; single operators write everything.
    kept = [cheapest[name] for name in names if name in cheapest]
    free = [Choice(Group(graph, *name), 0.0).owned for name in lost]
    sets = [tuple(m for m in members if mask >> m & 1) for (members, _), mask in zip(lost, free, strict=True)]
    owned = 0
    for choice in kept:
        owned |= choice.owned
    # Operators that every user recomputed have no owner: they stand alone where a user lost its group.
    parts = [problem.choices[i] for i in within(problem, sets) if not problem.choices[i].group.mask & owned]
    allowed = list(dict.fromkeys([*kept, *parts]))
    counters = Counters()
    search = CoverSearch(graph, allowed, replace(problem.thresholds, frontier_values=len(graph.operators)), counters)
    cover = search.best([problem.weight(c) for c in allowed])
    if cover is None:
        raise PlanError("the plan's groups that are legal on this target leave no way to run the others: compile anew")
    return [allowed[j] for j in cover.chosen], len(lost)
