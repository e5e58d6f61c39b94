"""What is known of a program's kernels and of its search when it is built, as plain data: for profiles and reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autofuse.codegen.program import Program
from autofuse.graph.model import Graph, Group
from autofuse.search.problem import Choice, SearchProblem, SearchResult


def describe_kernels(program: Program, graph: Graph, choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """One entry for each kernel that a call launches, in order.

    `name` is the function's, shared by equal kernels, and "" for an operator that is no tensor program. flops: floating
    point operations, recompute not counted; bytes: every input and output once; predicted_ms: the cost of the choice
    of the same members, outputs, family and configuration, None where a fallback made the kernel.
    """
    known = {(c.group.members, c.group.outputs): c for c in choices}
    entries: list[dict[str, Any]] = []
    for unit in program.units:
        if isinstance(unit, int):
            group, name, schedule = Group.of(graph, [unit]), "", ("", "")
        elif unit.func is None:
            continue
        else:
            group, name = unit.assignment.group, unit.name
            schedule = ("plain", "") if unit.plain else (unit.assignment.family.name, unit.assignment.config.text)
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
                "bytes": sum(graph.tensors[t].bytes for t in (*group.inputs, *group.outputs)),
                "predicted_ms": choice.cost * 1e3 if choice is not None and same else None,
                "source": choice.source if choice is not None and same else "",
            }
        )
    return entries


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
