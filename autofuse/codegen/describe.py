"""What is known of a program's kernels and of its search when it is built, as plain data: for profiles and reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autofuse.codegen.program import Program
from autofuse.cost.analytical import group_quantities
from autofuse.graph.model import Graph, Group
from autofuse.schedule.family import KernelShape
from autofuse.search.problem import Choice, SearchProblem, SearchResult
from autofuse.target import Hardware


def describe_kernels(
    program: Program, graph: Graph, choices: Iterable[Choice], hardware: Hardware
) -> list[dict[str, Any]]:
    """One entry for each kernel that a call launches, in order.

    `name` is the function's, shared by equal kernels, and "" for an operator that is no tensor program. flops: floating
    point operations, recompute not counted; executed: those that the schedule executes, fewer under a fast algorithm;
    bytes: every input and output once; weight_bytes: the constants among them, in the form that is read; predicted_ms:
    the cost of the choice of the same members, outputs, family and configuration, None where a fallback made the
    kernel.
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
                "predicted_ms": choice.cost * 1e3 if choice is not None and same else None,
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
