"""Whether groups make up a plan. Takes a graph and groups; gives the first thing wrong with them, or None."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.graph.legality import convex_hull
from autofuse.graph.model import Graph, Group, bits


def fault(graph: Graph, groups: Sequence[Group]) -> str | None:
    """What keeps `groups` from being a plan of `graph`, as a sentence; None if they are one.

    A plan: every operator stands in a group, every group is convex, every value that a group or the caller needs is
    written exactly once, an operator stands in several groups only where all but at most one of them compute it for
    themselves alone, and the groups can run one after another.
    """
    writer: dict[int, int] = {}
    covered = 0
    for i, group in enumerate(groups):
        if not group.members:
            return f"group {i} is empty"
        if group.members[-1] >= len(graph.operators) or group.members[0] < 0:
            return f"group {i} has an operator that the graph does not have"
        covered |= group.mask
        for t in group.outputs:
            if graph.producer.get(t) not in group.members:
                return f"group {i} writes tensor {t}, which none of its members makes"
            if t in writer:
                return f"{graph.tensors[t].name} is written by groups {writer[t]} and {i}"
            writer[t] = i
        if convex_hull(graph, group.mask) != group.mask:
            return f"group {i} ({group.label}) is not convex"
    missing = ((1 << len(graph.operators)) - 1) & ~covered
    if missing:
        return f"operator {graph.operators[next(bits(missing))].name} stands in no group"
    for t in graph.outputs:
        if t in graph.producer and t not in writer:
            return f"output {graph.tensors[t].name} is never written"
    for i, group in enumerate(groups):
        for t in group.inputs:
            if t in graph.producer and t not in writer:
                return f"group {i} reads {graph.tensors[t].name}, which no group writes"
    return _fault_of_sharing(graph, groups) or _fault_of_order(graph, groups, writer)


def _fault_of_sharing(graph: Graph, groups: Sequence[Group]) -> str | None:
    """An operator in several groups must be private to all but one; in each it must lead to something written."""
    owners: dict[int, int] = {}
    final = set(graph.outputs)
    for i, group in enumerate(groups):
        private: set[int] = set()
        useful: set[int] = set()
        for op in reversed(group.operators):
            after = graph.successors[op.index]
            if any(t in group.outputs for t in op.outputs):
                useful.add(op.index)
                continue
            if any(s in useful for s in after):
                useful.add(op.index)
            elif after or not final.isdisjoint(op.outputs):
                return f"group {i} ({group.label}) computes {op.name} in vain"
            used_outside = any(s not in group.members for s in after) or not final.isdisjoint(op.outputs)
            if used_outside or (after and all(s in private for s in after)):
                private.add(op.index)
        for m in group.members:
            if m not in private:
                if m in owners:
                    return f"{graph.operators[m].name} stands in groups {owners[m]} and {i}"
                owners[m] = i
    return None


def _fault_of_order(graph: Graph, groups: Sequence[Group], writer: dict[int, int]) -> str | None:
    waits = [{writer[t] for t in g.inputs if t in writer} for g in groups]
    followers: list[list[int]] = [[] for _ in groups]
    for i, before in enumerate(waits):
        for j in before:
            followers[j].append(i)
    open_ = [len(before) for before in waits]
    ready = [i for i, n in enumerate(open_) if not n]
    done = 0
    while ready:
        i = ready.pop()
        done += 1
        for j in followers[i]:
            open_[j] -= 1
            if not open_[j]:
                ready.append(j)
    if done == len(groups):
        return None
    stuck = next(i for i, n in enumerate(open_) if n)
    return f"group {stuck} ({groups[stuck].label}) and another one wait for each other"


def runs_in_order(graph: Graph, groups: Sequence[Group]) -> bool:
    """Whether each group finds what it reads written by the groups before it."""
    written: set[int] = set()
    for group in groups:
        if any(t in graph.producer and t not in written for t in group.inputs):
            return False
        written.update(group.outputs)
    return True
