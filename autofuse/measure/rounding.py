"""Which groups' results turn on the last bit: takes a group, gives the share of its results that may be another number.

A sum in another order is another float in its last bits; where it is then rounded to a whole number, or compared, that
is now and then one whole step. Such results are right, but they are not those of numpy.
"""

from __future__ import annotations

from autofuse.graph.model import Group, Operator

#: Share of the results of a group that rounds what it computes. An element is in doubt where its value lies within its
#: error of a step: with errors of 2e-6 of the largest value and steps of a 255th of it, one in a thousand. A schedule
#: that is wrong at an edge or in a remainder is wrong in more.
LOOSE = 2e-3

_STEPS = frozenset({
    "quantize", "round", "floor", "ceil", "trunc", "sign", "equal", "not_equal", "greater", "greater_equal", "less",
    "less_equal", "floor_divide", "mod", "floor_mod",
})  # fmt: skip
_MOVES = frozenset({
    "layout_change", "reshape", "expand_dims", "squeeze", "permute_dims", "broadcast_to", "strided_slice", "concat",
    "take",
})  # fmt: skip


def loose_share(group: Group) -> float:
    """0 for a group whose results are continuous in what it computes or that rounds nothing but its operands."""
    computed: set[int] = set()
    for op in group.operators:
        if not computed.isdisjoint(op.inputs) and _rounds(op, group):
            return LOOSE
        if op.kind not in _MOVES or not computed.isdisjoint(op.inputs):
            computed.update(op.outputs)
    return 0.0


def _rounds(op: Operator, group: Group) -> bool:
    tensors = group.graph.tensors
    if op.kind != "astype":
        return op.kind in _STEPS
    return tensors[op.inputs[0]].dtype.startswith("float") and "int" in tensors[op.outputs[0]].dtype
