"""Groups around one matrix product: what stands before its operands, beside its results and after them.

`parse` splits a plain group, or says why no kernel for one product can take it. Plain data, no TVM.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import prod

from autofuse.graph.model import Group, MappingType, Operator, Tensor
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu.rowspace import INJECTIVE, keeps_to_rows, rows_of
from autofuse.schedule.family import remembered


@dataclass(frozen=True)
class Product:
    """batch products of [rows, depth] · [depth, columns]. `packed`: the right-hand side is a constant in blocks.

    left, right: operators that feed one operand; side: those that only feed what follows the product; after: what
    follows it. `along_rows`: what follows reduces along the rows of the result.
    """

    group: Group
    anchor: Operator
    packed: bool
    batch: int
    rows: int
    columns: int
    depth: int
    left: tuple[Operator, ...]
    right: tuple[Operator, ...]
    side: tuple[Operator, ...]
    after: tuple[Operator, ...]
    along_rows: bool

    def tensor(self, index: int) -> Tensor:
        """A tensor of the graph."""
        return self.group.graph.tensors[index]

    @cached_property
    def memory_bytes(self) -> int:
        """Compulsory traffic: every operand and result of the group once."""
        return sum(self.tensor(t).bytes for t in (*self.group.inputs, *self.group.outputs))

    @property
    def transposed(self) -> bool:
        """Whether the right-hand side is read across its rows: its columns do not lie together in memory."""
        return any(op.mapping is MappingType.SHUFFLE for op in self.right)


@remembered
def parse(group: Group, lanes: int) -> Product | Refusal:
    """The group's product, or why it is none that one kernel can compute."""
    graph = group.graph
    anchors = [op for op in group.operators if op.kind == "matmul"]
    if len(anchors) != 1:
        where = tuple(op.index for op in anchors)
        return Refusal("anchor", f"needs exactly one matrix product, has {len(anchors)}", where)
    anchor = anchors[0]
    variant = anchor.attrs.get("variant", "")
    if variant not in ("packed", "batched"):
        return Refusal("variant", f"{anchor.name} is of variant {variant!r}", (anchor.index,))
    operands = [graph.tensors[t] for t in (*anchor.inputs, *anchor.outputs)]
    if len(anchor.inputs) != 2 and len(set(anchor.inputs)) != 1:
        return Refusal("operands", f"{anchor.name} does not have two operands", (anchor.index,))
    if any(t.dtype != "float32" for t in operands):
        return Refusal("dtype", f"{anchor.name} is not float32", (anchor.index,))
    out = operands[-1].shape
    packed = variant == "packed"
    if packed and operands[1].shape[-1] != 2 * lanes:
        return Refusal("layout", f"the weights of {anchor.name} are not in blocks of {2 * lanes}", (anchor.index,))
    batch, rows = (1, prod(out[:-1])) if packed else (prod(out[:-2]), out[-2])

    after = {anchor.outputs[0]}
    behind: list[Operator] = []
    before: dict[int, Operator] = {}
    for op in group.operators:
        if op is anchor:
            continue
        if after.intersection(op.inputs):
            after.update(op.outputs)
            behind.append(op)
        elif op.mapping not in INJECTIVE or op.reduction:
            return Refusal("prologue", f"{op.name} ({op.kind}) before the product reduces", (op.index,))
        elif op.outputs[0] in group.outputs:
            return Refusal("prologue-output", f"{op.name} before the product is written to memory", (op.index,))
        else:
            before[op.outputs[0]] = op
    refusal, along_rows = _check_after(group, anchor, behind, batch * rows, lanes)
    if refusal is not None:
        return refusal
    first = anchor.inputs[0]
    last = anchor.inputs[1] if len(anchor.inputs) > 1 else first
    left, right = _feeders([first], before), _feeders([last], before)
    side = _feeders([t for op in behind for t in op.inputs], before)
    if packed and right:
        return Refusal("weights", f"the weights of {anchor.name} are computed inside the group", (anchor.index,))
    if len(left | right | side) != len(before):
        return Refusal("unrelated", "an operator neither feeds the product nor what follows it")

    def chosen(indices: Collection[int]) -> tuple[Operator, ...]:
        return tuple(op for op in before.values() if op.index in indices)

    return Product(
        group, anchor, packed, batch, rows, out[-1], anchor.reduction[0] if anchor.reduction else 1,
        chosen(left), chosen(right), chosen(side - left - right), tuple(behind), along_rows,
    )  # fmt: skip


def _feeders(tensors: Collection[int], producer: dict[int, Operator]) -> set[int]:
    found: set[int] = set()
    todo = list(tensors)
    while todo:
        op = producer.get(todo.pop())
        if op is not None and op.index not in found:
            found.add(op.index)
            todo.extend(op.inputs)
    return found


def _check_after(
    group: Group, anchor: Operator, behind: list[Operator], rows: int, lanes: int
) -> tuple[Refusal | None, bool]:
    """Whether what follows can be applied to a tile of the result, or (True) to whole rows of it."""
    graph = group.graph
    reductions = [op for op in behind if op.reduction or op.mapping not in INJECTIVE]
    if reductions:
        for op in reductions:
            if op.mapping is not MappingType.MANY_TO_ONE:
                return Refusal("anchor", f"{op.name} ({op.kind}) is no reduction of rows", (op.index,)), True
            found = rows_of(op, graph)
            if isinstance(found, Refusal):
                return found, True
            if found.rows != rows or found.lanes != 1:
                detail = f"{op.name} ({op.kind}) does not reduce along the rows of the product"
                return Refusal("axes", detail, (op.index,)), True
        chosen = {op.index for op in reductions}
        return keeps_to_rows(group, rows, 1, chosen, anchor.outputs), True
    # `run`: how many columns of the product lie together along the last axis of a tensor.
    out = graph.tensors[anchor.outputs[0]]
    run = {out.index: out.shape[-1]}
    for op in behind:
        result = graph.tensors[op.outputs[0]]
        if result.elements != out.elements:
            return Refusal("shape", f"{op.name} ({op.kind}) changes the number of results", (op.index,)), False
        runs = []
        for access in op.accesses:
            if access.tensor in run:
                runs.append(_run(op, access.mapping, graph.tensors[access.tensor], result, run[access.tensor]))
        if not all(runs) or len(set(runs)) != 1:
            detail = f"{op.name} ({op.kind}) moves the product's results in a way that no tile can store"
            return Refusal("store", detail, (op.index,)), False
        run[result.index] = runs[0]
    for t in group.outputs:
        if run.get(t, 0) != out.shape[-1] and run.get(t, 0) % lanes:
            detail = f"{graph.tensors[t].name} holds only {run.get(t, 0)} columns of the product together"
            return Refusal("store", detail, (anchor.index,)), False
    return None, False


def _run(op: Operator, mapping: MappingType, source: Tensor, result: Tensor, run: int) -> int:
    """Columns that lie together after one more operator; 0 where it cannot be said."""
    if mapping is MappingType.ONE_TO_ONE:
        return run
    last = next((e for e in reversed(result.shape) if e > 1), 1)
    if mapping is MappingType.REORGANIZE:
        if last % run == 0:
            return run
        return last if run % last == 0 else 0
    axes = op.attrs.get("axes")
    if mapping is not MappingType.SHUFFLE or op.kind != "permute_dims" or not isinstance(axes, list | tuple):
        return 0
    real = [int(a) for a in axes if source.shape[int(a)] > 1]
    if not real or real[-1] != max(real):
        return 0
    return run if last % run == 0 else last if run % last == 0 else 0
