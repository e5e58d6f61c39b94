"""What a group is, whatever its configuration, as features: from groups to a table of floats, one row a group.

Operators and tensors are looked at once, however many groups of a batch hold them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Graph, Group, MappingType, Operator, Role


class Feature(NamedTuple):
    """A column: `unit` "log2 x" means log2(1 + x), "ln s" the natural logarithm of seconds."""

    name: str
    unit: str
    meaning: str


_MAPPINGS = tuple(MappingType)
KINDS = (
    "conv", "depthwise", "matmul", "pool", "softmax", "norm", "reduce", "movement", "resize", "gather", "pointwise",
)  # fmt: skip
_MOVEMENT = frozenset(
    ["layout_change", "permute_dims", "reshape", "concat", "strided_slice", "split", "expand_dims", "squeeze",
     "broadcast_to", "flatten", "tile", "repeat", "flip", "nn.pad", "pad", "stack"]
)  # fmt: skip
#: Runs of the mapping chain that have a column.
_RUNS = 5

GROUP_FEATURES = (
    *(Feature(f"mapping_{m.name.lower()}", "operators", f"members whose mapping type is {m.value}") for m in _MAPPINGS),
    *(Feature(f"kind_{k}", "operators", f"members that are {k}") for k in KINDS),
    Feature("operators", "operators", "members"),
    Feature("anchors", "operators", "Many-to-Many members"),
    Feature("blocks", "loop nests", "loop nests of the members before scheduling"),
    Feature("arguments", "tensors", "tensors read from outside and written"),
    Feature("outputs", "tensors", "tensors written"),
    Feature("fma", "log2 operations", "multiply-adds"),
    Feature("simple", "log2 operations", "additions, multiplications, casts"),
    Feature("compare", "log2 operations", "minima, maxima, comparisons, selects"),
    Feature("divide", "log2 operations", "divisions and square roots"),
    Feature("special", "log2 operations", "exponentials and friends"),
    Feature("bytes_in", "log2 bytes", "activations read from outside"),
    Feature("bytes_constant", "log2 bytes", "constants read (weights, tables)"),
    Feature("bytes_out", "log2 bytes", "tensors written"),
    Feature("bytes_internal", "log2 bytes", "tensors made inside and not written"),
    Feature("bytes_saved", "log2 bytes", "what the members as kernels of their own would write and read of those"),
    Feature("intensity", "log2 flops/byte", "floating point operations per byte read or written"),
    Feature("reduction", "log2 elements", "largest reduction extent of a member"),
    Feature("output_elements", "log2 elements", "elements of the largest output"),
    Feature("innermost", "log2 elements", "innermost extent of the largest output"),
    Feature("innermost_fill", "share", "innermost extent over its next multiple of the lanes"),
    Feature("stride_same", "share", "accesses whose innermost stride is 0"),
    Feature("stride_contiguous", "share", "accesses whose innermost stride is 1"),
    Feature("stride_apart", "share", "accesses with another constant innermost stride"),
    Feature("stride_irregular", "share", "accesses whose innermost stride is not constant"),
    Feature("reads_per_output", "log2 elements", "most input elements that one output element needs"),
    Feature("uses_per_element", "log2 elements", "most output elements that read one input element"),
    Feature("chain_runs", "runs", "runs of members in order with one mapping type"),
    *(Feature(f"chain_{i}", "code", f"mapping type (1..7) of run {i}, 0 if none") for i in range(_RUNS)),
    Feature("first_anchor", "code", "kind (1..11) of the first Many-to-Many member, 0 if none"),
    Feature("last_anchor", "code", "kind (1..11) of the last Many-to-Many member, 0 if none"),
    Feature("before_anchor", "operators", "members before the first Many-to-Many or Many-to-One member"),
    Feature("after_anchor", "operators", "members behind the last Many-to-Many or Many-to-One member"),
    Feature("recompute_edges", "log2 uses", "most uses of an element made inside, at a One-to-Many edge"),
    Feature("halo", "elements", "what a window needs, beside its own place, of a tensor made inside; axes added up"),
    Feature("reduction_place", "share", "members before the one with the largest reduction, over the others"),
    Feature("reduction_inner", "operators", "members that reduce the innermost axis of what they read, no products"),
)

#: The first columns of the features of every kind of hardware.
GROUP_COLUMN = {feature.name: column for column, feature in enumerate(GROUP_FEATURES)}

_ANCHORS = (MappingType.MANY_TO_MANY, MappingType.MANY_TO_ONE)
_FLOPS = np.array([2.0, 1, 1, 1, 1])  # of fma, simple, compare, divide, special
_LOGS = np.array([f.unit.startswith("log2") for f in GROUP_FEATURES])


def kind_of(op: Operator) -> str:
    """Which of the coarse kinds an operator is (names of the kind_* features)."""
    kind = op.kind
    if "conv" in kind:
        return "depthwise" if op.attrs.get("variant") == "depthwise" else "conv"
    if kind == "matmul" or kind.endswith(("dense", "batch_matmul")):
        return "matmul"
    for name, mark in (("pool", "pool"), ("softmax", "softmax"), ("norm", "_norm"), ("resize", "resize")):
        if mark in kind:
            return name
    if kind == "take" or "gather" in kind:
        return "gather"
    if kind in _MOVEMENT:
        return "movement"
    return "reduce" if op.reduction else "pointwise"


def _numbers(value: object) -> list[int]:
    """Whole numbers of an attribute that is a list of them, or one; else none."""
    if isinstance(value, int):
        return [value]
    return [v for v in value if isinstance(v, int)] if isinstance(value, (list, tuple)) else []


def _halo(op: Operator) -> int:
    """Elements that neighbouring windows of an operator share: (window - stride) × dilation, summed over the axes."""
    window = _numbers(op.attrs.get("kernel", op.attrs.get("window")))
    strides = _numbers(op.attrs.get("strides")) or [1] * len(window)
    dilation = _numbers(op.attrs.get("dilation")) or [1] * len(window)
    return sum(max(w - s, 0) * d for w, s, d in zip(window, strides, dilation, strict=False))


def _reduces_inner(op: Operator, graph: Graph) -> bool:
    """Whether a reduction without multiply-adds goes along the innermost axis of what it reads."""
    if not op.reduction or op.work.fma or not op.inputs:
        return False
    axes = _numbers(op.attrs.get("axes", op.attrs.get("axis")))
    tensor = graph.tensors[op.inputs[0]]
    rank = len(tensor.logical_shape or tensor.shape)
    return not tensor.layout and rank > 0 and any(axis % rank == rank - 1 for axis in axes)


@dataclass(frozen=True)
class _OperatorFacts:
    """An operator's part: row of the tables, mapping and kind as codes, reduction extent, and edges to look at.

    `wide`: (tensor, uses) of its One-to-Many accesses; `halo`: (tensor, elements) where it has a window.
    """

    row: int
    mapping: int
    kind: int
    anchor: bool
    product: bool
    reduction: int
    inner: bool
    wide: tuple[tuple[int, int], ...]
    halo: tuple[int, int] | None


def _operator_rows(op: Operator) -> tuple[list[float], list[float]]:
    """An operator's share of its group's sums and maxima.

    Sums: mapping types, kinds, blocks, five classes of work, accesses, their four strides.
    Maxima: reduction, reads, uses.
    """
    strides = [0, 0, 0, 0]
    for a in op.accesses:
        strides[a.stride if a.stride in (0, 1) else 3 if a.stride == -1 else 2] += 1
    kind, work = kind_of(op), op.work
    sums = [
        *(float(op.mapping is m) for m in _MAPPINGS),
        *(float(kind == k) for k in KINDS),
        op.blocks,
        *map(float, (work.fma, work.simple, work.compare, work.divide, work.special)),
        len(op.accesses),
        *strides,
    ]
    reads = max((a.reads_per_output for a in op.accesses), default=1)
    uses = max((a.uses_per_element for a in op.accesses), default=1)
    return sums, [math.prod(op.reduction), reads, uses]


def _facts(op: Operator, graph: Graph, row: int) -> _OperatorFacts:
    halo = _halo(op)
    return _OperatorFacts(
        row,
        1 + _MAPPINGS.index(op.mapping),
        1 + KINDS.index(kind_of(op)),
        op.mapping in _ANCHORS,
        op.mapping is MappingType.MANY_TO_MANY,
        math.prod(op.reduction) if op.reduction else 0,
        _reduces_inner(op, graph),
        tuple((a.tensor, a.uses_per_element) for a in op.accesses if a.mapping is MappingType.ONE_TO_MANY),
        (op.inputs[0], halo) if halo and op.inputs else None,
    )


def _chain_row(group: Group, facts: Sequence[_OperatorFacts]) -> list[float]:
    """The columns from chain_runs on."""
    runs: list[int] = []
    first = last = halo = inner = 0
    anchor_first = anchor_last = -1
    largest, place = 0, 0
    uses = 1
    producer, mask = group.graph.producer, group.mask
    for i, fact in enumerate(facts):
        if not runs or runs[-1] != fact.mapping:
            runs.append(fact.mapping)
        if fact.anchor:
            if anchor_first < 0:
                anchor_first = i
            anchor_last = i
            if fact.product:
                first, last = first or fact.kind, fact.kind
        if fact.reduction > largest:
            largest, place = fact.reduction, i
        inner += fact.inner
        for tensor, count in fact.wide:
            if count > uses and tensor in producer and mask >> producer[tensor] & 1:
                uses = count
        if fact.halo is not None:
            tensor, elements = fact.halo
            if elements > halo and tensor in producer and mask >> producer[tensor] & 1:
                halo = elements
    count = len(facts)
    before, after = (anchor_first, count - 1 - anchor_last) if anchor_first >= 0 else (count, 0)
    shown = (runs + [0] * _RUNS)[:_RUNS]
    return [len(runs), *shown, first, last, before, after, uses - 1, halo, place / max(1, count - 1), inner]


@dataclass(frozen=True)
class _Sizes:
    """A graph's tensors as lists: bytes, bytes if constant else 0, elements, innermost extent."""

    bytes: list[int]
    constant: list[int]
    elements: list[int]
    innermost: list[int]

    @classmethod
    def of(cls, graph: Graph) -> _Sizes:
        size = [t.bytes for t in graph.tensors]
        constant = [b if t.role is Role.CONSTANT else 0 for b, t in zip(size, graph.tensors, strict=True)]
        elements = [t.elements for t in graph.tensors]
        return cls(size, constant, elements, [t.shape[-1] if t.shape else 1 for t in graph.tensors])


def _traffic_row(group: Group, sizes: _Sizes) -> tuple[float, ...]:
    """(members, arguments, outputs, bytes in, constant, out, internal, saved, elements, innermost) of a group."""
    size, inputs, outputs, internal = sizes.bytes, group.inputs, group.outputs, group.internal
    constant = sum(map(sizes.constant.__getitem__, inputs))
    read = sum(map(size.__getitem__, inputs)) - constant
    kept = saved = 0
    for t in internal:
        kept += size[t]
        saved += size[t] * (1 + sum(group.mask >> user & 1 for user in group.graph.users.get(t, ())))
    largest = max(outputs or group.operators[-1].outputs, key=sizes.elements.__getitem__)
    written = sum(map(size.__getitem__, outputs))
    counts = (len(group.members), len(inputs) + len(outputs), len(outputs))
    return (*counts, read, constant, written, kept, saved, sizes.elements[largest], sizes.innermost[largest])


@dataclass(frozen=True)
class GroupTable:
    """`features` (n, len(GROUP_FEATURES)); `flops` and `constant` (bytes of constants read) of each group (n,)."""

    features: NDArray[np.float64]
    flops: NDArray[np.float64]
    constant: NDArray[np.float64]

    @classmethod
    def of(cls, groups: Iterable[Group], lanes: int) -> GroupTable:
        """The features of each group, for vectors of `lanes` elements."""
        known: dict[int, _OperatorFacts] = {}
        sums: list[list[float]] = []
        maxima: list[list[float]] = []
        graphs: dict[int, _Sizes] = {}
        members: list[int] = []
        starts: list[int] = []
        traffic: list[tuple[float, ...]] = []
        chains: list[list[float]] = []
        for group in groups:
            sizes = graphs.get(id(group.graph))
            if sizes is None:
                sizes = graphs[id(group.graph)] = _Sizes.of(group.graph)
            starts.append(len(members))
            facts = []
            for op in group.operators:
                fact = known.get(id(op))
                if fact is None:
                    fact = known[id(op)] = _facts(op, group.graph, len(sums))
                    total, largest = _operator_rows(op)
                    sums.append(total)
                    maxima.append(largest)
                facts.append(fact)
                members.append(fact.row)
            traffic.append(_traffic_row(group, sizes))
            chains.append(_chain_row(group, facts))
        if not starts:
            return cls(np.empty((0, len(GROUP_FEATURES))), np.empty(0), np.empty(0))
        total_of = np.add.reduceat(np.array(sums, np.float64)[members], starts, axis=0)
        largest_of = np.maximum.reduceat(np.array(maxima, np.float64)[members], starts, axis=0)
        count, arguments, outputs, read, constant, written, kept, saved, elements, innermost = np.array(
            traffic, np.float64
        ).T
        histograms = len(_MAPPINGS) + len(KINDS)
        blocks, work = total_of[:, histograms], total_of[:, histograms + 1 : histograms + 6]
        accesses, strides = total_of[:, histograms + 6], total_of[:, histograms + 7 :]
        flops = work @ _FLOPS
        features = np.column_stack(
            [
                total_of[:, :histograms],
                count,
                total_of[:, _MAPPINGS.index(MappingType.MANY_TO_MANY)],
                *(blocks, arguments, outputs),
                work,
                *(read, constant, written, kept, saved),
                flops / np.maximum(1, read + constant + written),
                largest_of[:, 0],
                *(elements, innermost, innermost / np.maximum(1, np.ceil(innermost / lanes) * lanes)),
                strides / np.maximum(1, accesses)[:, None],
                largest_of[:, 1:],
                np.array(chains, np.float64),
            ]
        )
        features[:, _LOGS] = np.log2(1 + features[:, _LOGS])
        return cls(features, flops, constant)
