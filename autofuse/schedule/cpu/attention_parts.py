"""Groups around two matrix products with a softmax between them: what stands before, between and after.

`parse` splits a plain group, or says why it is no attention that one kernel can compute. Plain data, no TVM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from autofuse.graph.model import Graph, Group, MappingType, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu import product
from autofuse.schedule.cpu.product import Product
from autofuse.schedule.cpu.rowspace import moves_nothing
from autofuse.schedule.family import remembered

# Arithmetic operators before an operand, or in what is read beside the scores, that are computed where they are read.
_MOST_BEFORE = 4
_TILES = frozenset({MappingType.MANY_TO_MANY, MappingType.MANY_TO_ONE})
_MOVES = frozenset({MappingType.ONE_TO_ONE, MappingType.REORGANIZE, MappingType.SHUFFLE})


@dataclass(frozen=True)
class Attention:
    """softmax(f(Q · Kᵀ)) · V for `batch` pairs of [queries, depth] and [keys, depth], with V [keys, width].

    scores: the first product, with what follows it up to the softmax; values: the second one.
    """

    group: Group
    scores: Product
    values: Product

    @property
    def batch(self) -> int:
        """Independent attentions: batch times heads."""
        return self.scores.batch

    @property
    def queries(self) -> int:
        """Rows of the scores."""
        return self.scores.rows

    @property
    def keys(self) -> int:
        """Columns of the scores: what the softmax runs over."""
        return self.scores.columns

    @property
    def depth(self) -> int:
        """Length of a query and of a key."""
        return self.scores.depth

    @property
    def width(self) -> int:
        """Length of a value."""
        return self.values.columns

    @cached_property
    def mask_elements(self) -> int:
        """Elements read beside the scores that differ from query to query and from key to key: moved one by one."""
        graph, first = self.group.graph, self.scores
        own = {t for op in (first.anchor, *first.after, *first.side) for t in op.outputs}
        total = 0
        for t in {t for op in (*first.after, *first.side) for t in op.inputs} - own:
            shape = graph.tensors[t].shape
            if len(shape) > 1 and shape[-2:] == (self.queries, self.keys) and min(shape[-2:]) > 1:
                heads = prod(shape[:-2])
                total += (heads if turned(heads, self.batch) else self.batch) * self.queries * self.keys
        return total


def turned(heads: int, batch: int) -> bool:
    """Whether a mask of `heads` for `batch` attentions is turned before: only if several of them share it."""
    return 2 * heads <= batch


def _ancestors(group: Group, tensors: Iterable[int]) -> set[int]:
    made = {op.outputs[0]: op for op in group.operators}
    found: set[int] = set()
    todo = list(tensors)
    while todo:
        op = made.get(todo.pop())
        if op is not None and op.index not in found:
            found.add(op.index)
            todo.extend(op.inputs)
    return found


def _descendants(group: Group, op: Operator) -> set[int]:
    reached = set(op.outputs)
    found: set[int] = set()
    for other in group.operators:
        if other is not op and reached.intersection(other.inputs):
            reached.update(other.outputs)
            found.add(other.index)
    return found


@remembered
def parse(group: Group, lanes: int) -> Attention | Refusal:
    """The group's attention, or why it is none."""
    graph = group.graph
    products = [op for op in group.operators if op.kind == "matmul"]
    if len(products) != 2:
        where = tuple(op.index for op in products)
        return Refusal("anchor", f"needs exactly two matrix products, has {len(products)}", where)
    first, second = products
    if any(op.attrs.get("variant") != "batched" for op in products):
        return Refusal("anchor", f"{first.name} and {second.name} are not both of two activations", group.members)
    behind, after = _descendants(group, first), _descendants(group, second)
    rest = _ancestors(group, second.inputs[1:])
    if second.index not in behind or rest & (behind | {first.index}) or len(second.inputs) != 2:
        detail = f"{first.name} does not feed the left-hand side of {second.name} alone"
        return Refusal("anchor", detail, (first.index, second.index))
    between = _ancestors(group, second.inputs[:1]) & behind
    stray = behind - between - after - {second.index}
    if stray:
        op = graph.operators[min(stray)]
        return Refusal("between", f"{op.name} ({op.kind}) reads scores beside the attention", (op.index,))
    beside = {t for m in after for t in graph.operators[m].inputs}
    if beside & {t for m in between | {first.index} for t in graph.operators[m].outputs}:
        return Refusal("between", f"scores are read again after {second.name}", (second.index,))

    ahead = _ancestors(group, second.inputs[:1])
    tail = after | {second.index} | rest | (_ancestors(group, beside) - behind - ahead - {first.index})
    if set(group.members) - ahead - tail:
        return Refusal("unrelated", "an operator feeds neither product nor what follows them", group.members)
    cut = _cut(group)  # before the dearer looks: it refuses most
    if cut is not None:
        return cut
    scores = product.parse(Group.of(graph, ahead, second.inputs[:1]), lanes)
    if isinstance(scores, Refusal):
        return scores
    values = product.parse(Group.of(graph, tail, [t for t in group.outputs if graph.producer[t] in tail]), lanes)
    if isinstance(values, Refusal):
        return values
    refusal = _check(group, scores, values)
    return refusal if refusal is not None else Attention(group, scores, values)


def _check(group: Group, scores: Product, values: Product) -> Refusal | None:
    """What one kernel for both products needs beyond what each needs alone."""
    graph = group.graph
    inner = {t for op in (*scores.left, *scores.right, *scores.side, scores.anchor, *scores.after) for t in op.outputs}
    inner |= {t for op in (*values.left, *values.right, *values.side) for t in op.outputs}
    written = inner.intersection(group.outputs)
    if written:
        name = graph.tensors[min(written)].name
        return Refusal("outputs", f"{name} is written to memory: the scores and operands stay in the kernel", ())
    if values.along_rows or values.left:
        return Refusal("after", f"what follows {values.anchor.name} reduces along its rows", (values.anchor.index,))
    if (scores.batch, scores.rows, scores.columns) != (values.batch, values.rows, values.depth):
        return Refusal("shape", f"{values.anchor.name} does not read the scores row by row", (values.anchor.index,))
    softmax = [op for op in scores.after if op.reduction or op.mapping is MappingType.MANY_TO_ONE]
    if len(softmax) != 1 or softmax[0].kind != "nn.softmax":
        return Refusal("anchor", "needs exactly one softmax between the products", group.members)
    seen = set(scores.anchor.outputs)
    normalised: set[int] = set()
    for op in scores.after:
        out = graph.tensors[op.outputs[0]].shape
        if out[-2:] != (scores.rows, scores.columns) or graph.tensors[op.outputs[0]].elements != _elements(scores):
            return Refusal("between", f"{op.name} ({op.kind}) changes the shape of the scores", (op.index,))
        for access in op.accesses:
            if access.tensor in seen and op is not softmax[0]:
                still = access.mapping in (MappingType.ONE_TO_ONE, MappingType.REORGANIZE)
                if not still and not moves_nothing(op, graph.tensors[access.tensor].shape, out):
                    return Refusal("between", f"{op.name} ({op.kind}) moves the scores", (op.index,))
        if normalised.intersection(op.inputs) and op.work.flops:
            return Refusal("between", f"{op.name} ({op.kind}) works on the result of the softmax", (op.index,))
        seen.update(op.outputs)
        if op is softmax[0] or normalised.intersection(op.inputs):
            normalised.update(op.outputs)
    for side in (scores.left, scores.right, scores.side, values.right, values.side):
        working = [op for op in side if op.work.flops]
        dear = next((op for op in working if op.work.special or op.work.divide), None)
        if dear is not None:
            return Refusal("prologue", f"{dear.name} ({dear.kind}) is too dear to be repeated", (dear.index,))
        for op in working:
            before = [graph.operators[p] for p in graph.predecessors[op.index] if not group.mask >> p & 1]
            tile = next((p for p in before if p.mapping in _TILES), None)
            if tile is not None:
                return Refusal("prologue", f"{op.name} ({op.kind}) is free on the tiles of {tile.name}", (op.index,))
        if len(working) > _MOST_BEFORE:
            return Refusal("prologue", "too much arithmetic before an operand of the products", (working[0].index,))
    return None


def _cut(group: Group) -> Refusal | None:
    """Whether the group ends inside a run of operators that only move: heads are split here or before, not half.

    Groups that differ in nothing else would crowd out others in the search.
    """
    graph = group.graph

    def runs_on(first: int, second: int) -> bool:
        ends = graph.operators[first], graph.operators[second]
        moves = all(op.mapping in _MOVES and not op.work.flops for op in ends)
        return moves and len(graph.successors[first]) == 1 and len(graph.predecessors[second]) == 1

    for op in group.operators:
        edges = [(p, op.index) for p in graph.predecessors[op.index]]
        edges += [(op.index, s) for s in graph.successors[op.index]]
        for first, second in edges:
            if not (group.mask >> first & 1 and group.mask >> second & 1) and runs_on(first, second):
                names = f"{graph.operators[first].name} and {graph.operators[second].name}"
                return Refusal("run", f"{names} only move: both are in the kernel, or none", (first, second))
    return None


def _elements(scores: Product) -> int:
    return scores.batch * scores.rows * scores.columns


def computed(graph: Graph, operators: Iterable[Operator]) -> bool:
    """Whether one of the operators computes, rather than moves, its elements."""
    return any(op.work.flops for op in operators)
