"""A cheap text-free name of a group's structure: equal for the repeated blocks of a network.

Takes groups of one graph, gives hashable values. What a schedule family, a cost model or the workload key can see of a
group is in it, physical layouts included, so that whatever was found out about one group holds for its equals.
"""

from __future__ import annotations

from collections.abc import Hashable

from autofuse.graph.model import Graph, Group, Operator, Tensor


class Signatures:
    """Signatures of one graph's groups. Operators that differ only in place, names and constants' values are alike."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        ids: dict[Hashable, int] = {}
        kinds = [_tensor(t) for t in graph.tensors]
        self._kind = [ids.setdefault(k, len(ids)) for k in kinds]
        self._class = [ids.setdefault(self._operator(op), len(ids)) for op in graph.operators]

    def _operator(self, op: Operator) -> Hashable:
        accesses = tuple((a.operand, a.mapping, a.reads_per_output, a.uses_per_element, a.stride) for a in op.accesses)
        attrs = tuple(sorted((k, repr(v)) for k, v in op.attrs.items()))
        tensors = tuple(self._kind[t] for t in (*op.inputs, *op.outputs))
        return (
            op.kind,
            op.form,
            attrs,
            accesses,
            op.work,
            op.spatial,
            op.reduction,
            op.blocks,
            len(op.inputs),
            tensors,
        )

    def of(self, group: Group) -> Hashable:
        """The members' classes, their wiring in the order of the program, and what is written."""
        numbers: dict[int, int] = {}
        rows: list[int] = []
        operators = self._graph.operators
        for m in group.members:
            op = operators[m]
            rows.append(self._class[m])
            for t in op.inputs:
                rows.append(numbers.setdefault(t, len(numbers)))
            for t in op.outputs:
                numbers[t] = len(numbers)
        return (tuple(rows), tuple(numbers[t] for t in group.outputs))


def _tensor(t: Tensor) -> Hashable:
    return (t.shape, t.dtype, t.role, t.layout, t.logical_shape)
