"""What is known of a program's kernels and of its search when it is built, as plain data: for profiles and reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from autofuse.codegen.program import Program
from autofuse.cost.analytical import group_quantities
from autofuse.cost.model import Candidate, CostModel
from autofuse.cost.plan_term import refills
from autofuse.cost.weights import weights_are_cold
from autofuse.graph.model import Graph, Group
from autofuse.schedule.family import KernelShape
from autofuse.search.order import peak_memory
from autofuse.search.problem import Choice, SearchProblem, SearchResult
from autofuse.target import Hardware


def as_built(
    program: Program, problem: SearchProblem, result: SearchResult, costs: CostModel, hardware: Hardware
) -> SearchResult:
    """The search's result with the kernels that took the place of others, so that a plan never holds what failed."""
    graph = problem.graph
    known = {(c.group.members, c.group.outputs if c.family else (), c.family, c.config): c for c in result.choices}
    choices: list[Choice] = []
    new = 0
    for unit in program.units:
        if isinstance(unit, int) or unit.plain:
            group = Group.of(graph, [unit]) if isinstance(unit, int) else unit.assignment.group
            choice = known.get((group.members, (), "", ""))
            if choice is None:
                moved = sum(graph.tensors[t].bytes for t in (*group.inputs, *group.outputs))
                choice = Choice(group, hardware.call_overhead + moved / hardware.memory_bandwidth)
                new += 1
        else:
            made = Candidate(unit.assignment.group, unit.assignment.family, unit.assignment.config)
            group, family, config = made.group, made.family.name, made.config.text
            choice = known.get((group.members, group.outputs, family, config))
            if choice is None:
                choice = Choice(group, float(costs.costs([made])[0]), family, config, costs.sources([made])[0])
                choice = replace(choice, refill=float(refills([made], hardware, weights_are_cold(graph, hardware))[0]))
                new += 1
        choices.append(choice)
    if not new:
        return result
    cost, peak = problem.seconds(choices), peak_memory(graph, choices)
    return replace(result, choices=tuple(choices), cost=cost, proved_optimal=False, peak_memory=peak)


def describe_kernels(
    program: Program, graph: Graph, choices: Iterable[Choice], hardware: Hardware
) -> list[dict[str, Any]]:
    """One entry for each kernel that a call launches, in order.

    `name` is the function's, shared by equal kernels, and "" for an operator that is no tensor program. flops: floating
    point operations, recompute not counted; executed: those that the schedule executes, fewer under a fast algorithm;
    bytes: every input and output once; weight_bytes: the constants among them, in the form that is read; predicted_ms:
    what the choice of the same members, outputs, family and configuration takes inside the plan, without its call, None
    where there is none.
    """
    known = {(c.group.members, c.group.outputs): c for c in choices}
    entries: list[dict[str, Any]] = []
    for unit in program.units:
        if isinstance(unit, int):
            group, name, schedule, shape = Group.of(graph, [unit]), "", ("", ""), KernelShape(tasks=1)
        elif unit.func is None:
            continue
        else:
            group, name = unit.assignment.group, unit.name
            family, config = unit.assignment.family, unit.assignment.config
            schedule = ("plain", "") if unit.plain else (family.name, config.text)
            shape = KernelShape(tasks=1) if unit.plain else family.shape(group, config, hardware)
        choice = known.get((group.members, group.outputs))
        same = choice is not None and (choice.family, choice.config) == schedule
        entries.append(
            {
                "name": name,
                "label": group.label,
                "operators": [op.name for op in group.operators],
                "family": schedule[0],
                "config": schedule[1],
                "flops": group.work.flops,
                "executed": executed(group, shape),
                "bytes": sum(graph.tensors[t].bytes for t in (*group.inputs, *group.outputs)),
                "weight_bytes": weights_read(group, shape),
                "predicted_ms": choice.inside * 1e3 if choice is not None and same else None,
                "source": choice.source if choice is not None and same else "",
            }
        )
    return entries


def executed(group: Group, shape: KernelShape) -> int:
    """Scalar operations that a schedule executes for the group, recompute not counted."""
    return round(group.work.flops + 2 * group.work.fma * (shape.fma_ratio - 1.0) + shape.extra_simple)


def weights_read(group: Group, shape: KernelShape) -> int:
    """Bytes of the group's constants in the form in which they are read."""
    moved, constants = group_quantities(group)[-2:]
    return max(0, round((shape.memory_bytes or moved) - (moved - constants))) if constants else 0


def describe_search(problem: SearchProblem, result: SearchResult) -> dict[str, Any]:
    """How the search went; `pruned`: threshold → how often it cut; reason: what a strategy says of its choice."""
    return {
        "states": result.states,
        "transitions": result.transitions,
        "regions": result.regions,
        "candidates": len(problem.choices),
        "proved_optimal": result.proved_optimal,
        "reason": result.reason,
        "pruned": {**problem.pruned, **result.pruned},
    }
