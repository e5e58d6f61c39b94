"""A cheap text-free name of a group's structure: equal for the repeated blocks of a network.

Takes groups of one graph, gives hashable values. What a schedule family, a cost model or the workload key can see of a
group is in it, physical layouts included, so that whatever was found out about one group holds for its equals.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from autofuse.graph.model import Graph, Group, Operator, Tensor


class Signatures:
    """Signatures of one graph's groups. Operators that differ only in place, names and constants' values are alike.

    classes: for each operator a number, equal for operators that are alike.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        ids: dict[Hashable, int] = {}
        kinds = [_tensor(t) for t in graph.tensors]
        self._kind = [ids.setdefault(k, len(ids)) for k in kinds]
        self.classes = [ids.setdefault(self._operator(op), len(ids)) for op in graph.operators]
        self._slots = [(*op.inputs, *op.outputs) for op in graph.operators]
        self._places = self._relative(ids)

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

    def _relative(self, ids: dict[Hashable, int]) -> list[int]:
        """Each operator's class and where its operands come from, relative to its own place, as one number.

        A result comes from its operator, any other tensor from the operand that reads it first.
        """
        first: dict[int, tuple[int, int]] = {}
        places = []
        for i, op in enumerate(self._graph.operators):
            sources = []
            for slot, t in enumerate(op.inputs):
                maker, place = first.setdefault(t, (i, slot))
                sources.append((i - maker, place))
            for slot, t in enumerate(op.outputs):
                first[t] = (i, -1 - slot)
            row = (self.classes[i], tuple(sources))
            places.append(ids.setdefault(row, len(ids)))
        return places

    def place(self, mask: int, members: Sequence[int], written: Sequence[int]) -> Hashable:
        """A quicker name, from the members, also as a bit set, and those that are written in the order of the outputs.

        Groups with the same one have the same signature; groups that are alike, but stand otherwise among the other
        operators of the program, have another.
        """
        first, places = members[0], self._places
        return (mask >> first, tuple([places[m] for m in members]), tuple([m - first for m in written]))

    def of(self, group: Group) -> Hashable:
        """The members' classes, their wiring in the order of the program, and what is written."""
        members = group.members
        numbers: dict[int, int] = {}
        number = numbers.setdefault
        classes = tuple([self.classes[m] for m in members])
        wiring = tuple([number(t, len(numbers)) for m in members for t in self._slots[m]])
        return (classes, wiring, tuple([numbers[t] for t in group.outputs]))


def _tensor(t: Tensor) -> Hashable:
    return (t.shape, t.dtype, t.role, t.layout, t.logical_shape)
