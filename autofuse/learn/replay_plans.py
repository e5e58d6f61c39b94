"""Networks as data, to plan them again anywhere: a graph, TVM's partition and a plan in one compressed JSON file.

Takes networks, records and a predictor, gives plans; nothing is imported from a model, compiled or timed. A change of
records, predictor, cost model or search that changes a plan shows when the files are compared (`scripts/replay.py`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofuse.errors import PlanError
from autofuse.graph.model import Graph, Group
from autofuse.learn.plans import NetworkPlans
from autofuse.records.groups import group_from_text, group_to_text
from autofuse.search.problem import SearchResult, Thresholds
from autofuse.target import Hardware

FORMAT, VERSION = "autofuse-replay", 1


@dataclass(frozen=True)
class Replayable:
    """A network as it is in a file. hardware: digest of what its plan is for. plan: its kernels, as of `kernels_of`."""

    name: str
    hardware: str
    graph: Graph
    greedy: tuple[tuple[int, ...], ...]
    plan: tuple[str, ...]
    seconds: float

    def network(self, hardware: Hardware, thresholds: Thresholds | None = None) -> NetworkPlans:
        """Its legal groups, to plan with; `thresholds` limit their number, and the search."""
        from autofuse.schedule.registry import families

        return NetworkPlans(
            self.name, self.graph, hardware, families(hardware.kind), self.greedy, thresholds=thresholds
        )


def kernels_of(plan: SearchResult) -> tuple[str, ...]:
    """A line for each kernel of a plan, in order: operators, results, family and configuration."""
    lines = []
    for c in plan.choices:
        members, outputs = (" ".join(map(str, numbers)) for numbers in (c.group.members, c.group.outputs))
        lines.append(f"{members} -> {outputs}: {c.family} {c.config} [{c.group.label}]")
    return tuple(lines)


def differences(committed: Sequence[str], found: Sequence[str]) -> list[str]:
    """What is in one plan and not in the other, a line each, marked - and +."""
    old, new = set(committed), set(found)
    return [f"- {line}" for line in committed if line not in new] + [f"+ {line}" for line in found if line not in old]


def renumbered(network: NetworkPlans) -> tuple[Graph, tuple[tuple[int, ...], ...]]:
    """A network's graph as a file gives it back, and its partition: tensors have other numbers and no names."""
    whole = Group.of(network.graph, range(len(network.graph.operators)), network.graph.outputs)
    return group_from_text(group_to_text(whole)).graph, network.greedy


def save(network: Replayable, path: Path) -> None:
    """Write a network's file: the same content gives the same bytes."""
    whole = Group.of(network.graph, range(len(network.graph.operators)), network.graph.outputs)
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": network.name,
        "hardware": network.hardware,
        "graph": json.loads(group_to_text(whole)),
        "greedy": [list(members) for members in network.greedy],
        "plan": list(network.plan),
        "seconds": network.seconds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content, sort_keys=True).encode(), mtime=0))


def read(path: Path) -> Replayable:
    """A file that `save` wrote. PlanError for another one."""
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
        if content["format"] != FORMAT or content["version"] != VERSION:
            raise ValueError(f"it is of version {content['version']!r}, this program reads {VERSION}")
        return Replayable(
            content["name"],
            content["hardware"],
            group_from_text(json.dumps(content["graph"])).graph,
            tuple(tuple(members) for members in content["greedy"]),
            tuple(content["plan"]),
            float(content["seconds"]),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path} is no network to replay ({error}): write it with scripts/replay.py") from None
