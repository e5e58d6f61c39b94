"""Groups without a reduction: elementwise chains, broadcasts, layout changes, slices, concat, resize, gather.

Everything that is read once, or is cheap, is inlined into what is written. A costly value that a broadcast would
repeat, or that is read several times, gets a loop nest of its own in the same kernel. Each nest runs over
[outer axes, inner axis]: the outer ones in parallel, the inner one in vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group, MappingType, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import (
    SHAPE_COLUMN,
    BatchedFamily,
    Configuration,
    KernelShape,
    remembered,
    shape_matrix,
)
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

#: Mapping types of operators that read at most one element of each operand for an element of the result.
INJECTIVE = frozenset({MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY, MappingType.REORGANIZE, MappingType.SHUFFLE})
# What a configuration decides of a kernel's shape, and what the group does.
_TASK_COLUMNS = [SHAPE_COLUMN[name] for name in ("tasks", "accumulators", "footprint")]
_BYTES = ("memory_bytes", "l1_bytes", "l2_bytes", "l3_bytes")
_GROUP_COLUMNS = [SHAPE_COLUMN[name] for name in ("vector_fill", "loops", "scattered", *_BYTES)]
# Tasks that are enough for the threads of any pool to share.
_TASKS = 64
# Operators that pass on an axis whole exactly if its extent stays: parts of operands, and several operands in a row.
_PARTIAL = frozenset({"concat", "strided_slice", "nn.pad"})
# How many times as long a scattered element takes whose lane chooses its operand (measured: 3 to 4).
_RAGGED = 3
# Scalar operations below which a second thread costs more than it brings: a parallel region takes microseconds.
_SERIAL_OPERATIONS = 16_384
# Places at which a value is written out, and arithmetic nodes of an expression with a costly value in several places.
_MOST_USES = 4
_MOST_NODES = 64


@dataclass(frozen=True)
class ElementwiseConfig(Configuration):
    """parallel: 1 to hand the outer axes to the thread pool; vectors: vector registers that one inner step fills."""

    parallel: int
    vectors: int


@remembered
def collapsible(group: Group) -> int:
    """How many trailing axes of the result run as one: all operands pass through them whole or not at all."""
    shape = group.graph.tensors[group.outputs[-1]].shape
    count = len(shape)
    for op in group.operators:
        out = group.graph.tensors[op.outputs[0]].shape
        for access in op.accesses:
            other = group.graph.tensors[access.tensor].shape
            count = min(count, _passed(op, access.mapping, other, out, shape))
    return max(count, 1)


def _passed(op: Operator, mapping: MappingType, source: Sequence[int], out: Sequence[int], shape: Sequence[int]) -> int:
    """Trailing axes that an operator passes on: those of `source` and `out` are those of the group's `shape`, or 1."""
    if op.kind == "permute_dims" and isinstance(axes := op.attrs.get("axes"), list | tuple):
        fixed = 0
        while fixed < len(axes) and int(axes[-1 - fixed]) == len(axes) - 1 - fixed:
            fixed += 1
        return min(fixed, _common(out, shape))
    if mapping in (MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY):
        if op.kind == "take" or max(len(source), len(out)) > len(shape):
            return 1
        return _spread(op.kind in _PARTIAL, tuple(source), tuple(out), tuple(shape))
    if mapping is MappingType.REORGANIZE:
        return min(_common(source, out), _common(out, shape))
    return 1


@lru_cache(maxsize=4096)
def _spread(partial: bool, source: tuple[int, ...], out: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """`_passed` of an operator that reads element by element or under a broadcast; partial: it is one of _PARTIAL."""
    common = 0
    for k in range(1, max(len(source), len(out)) + 1):
        tails = [((1,) * max(0, k - len(t)) + t)[-k:] for t in (source, out)]
        if any(t != shape[-k:] and (partial or any(e != 1 for e in t)) for t in tails):
            break
        common = k
    return common


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Trailing axes on which two shapes agree."""
    count = 0
    while count < min(len(left), len(right)) and left[-1 - count] == right[-1 - count]:
        count += 1
    return count


class ElementwiseFamily(BatchedFamily):
    """Schedules any group of injective operators whose results have one shape."""

    name: ClassVar[str] = "elementwise"
    version: ClassVar[int] = 6
    configuration: ClassVar[type[Configuration]] = ElementwiseConfig
    one_shape: ClassVar[bool] = True

    def admits(self, op: Operator) -> bool:
        """What neither reduces nor contracts."""
        return op.mapping in INJECTIVE and not op.reduction

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Injective operators only, all results of one shape."""
        for op in group.operators:
            if op.mapping not in INJECTIVE or op.reduction:
                return Refusal("reduction", f"{op.name} ({op.kind}) reduces: not an elementwise kernel", (op.index,))
        shapes = {group.graph.tensors[t].shape for t in group.outputs}
        if len(shapes) > 1:
            return Refusal(
                "shapes", f"results of different shapes {sorted(shapes)} need different loops", group.members
            )
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        """Parallel first where there is enough work, serial first where there is not."""
        work = group.work
        operations = work.flops + 7 * work.special + sum(group.graph.tensors[t].elements for t in group.outputs)
        order: tuple[int, ...] = (1, 0) if operations > _SERIAL_OPERATIONS else (0, 1)
        if hardware.cores == 1:
            order = (0,)
        elif operations > 64 * _SERIAL_OPERATIONS:
            order = (1,)
        elif operations < _SERIAL_OPERATIONS // 8:
            order = (0,)
        return [ElementwiseConfig(parallel, vectors) for parallel in order for vectors in (1, 2)]

    def shapes_of(
        self, asked: Sequence[tuple[Group, Sequence[Configuration]]], hardware: Hardware
    ) -> NDArray[np.float64]:
        """One pass over operands and results, of large operands what is read; what strides is moved by elements."""
        lanes = hardware.lanes
        fixed: list[tuple[float, ...]] = []  # of each group: see _GROUP_COLUMNS
        decided: list[tuple[int, ...]] = []  # of each configuration: see _TASK_COLUMNS
        for group, configs in asked:
            shape = group.graph.tensors[group.outputs[-1]].shape
            cut = len(shape) - collapsible(group)
            inner = prod(shape[cut:])
            outer = prod(shape[: task_axes(shape[:cut])]) if cut else 0
            traffic, kept, nests = _passes(group, lanes)
            fill = max(inner / (-(-inner // lanes) * lanes), 1 / lanes)
            fixed.append((fill, nests, scattered(group, lanes), traffic, *(traffic + kept,) * 3))
            for config in configs:
                assert isinstance(config, ElementwiseConfig)
                pieces = outer if cut else _pieces(tuple(shape), lanes * config.vectors)
                tasks = max(1, pieces) if config.parallel else 1
                decided.append((tasks, config.vectors, -(-traffic // tasks)))
        rows = np.repeat(shape_matrix([KernelShape(tasks=1, independent_chains=8)]), len(decided), axis=0)
        counts = [len(configs) for _, configs in asked]
        rows[:, _GROUP_COLUMNS] = np.repeat(np.array(fixed, np.float64), counts, axis=0)
        rows[:, _TASK_COLUMNS] = np.array(decided, np.float64)
        return rows

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.conditions import hoist_conditions
        from autofuse.schedule.remainders import overlap_remainders

        def build() -> PrimFunc:
            sch = blocks.open_schedule(func)
            kept = separate_costly(sch, scattered(group, hardware.lanes) > 0)
            collapse, across = collapsible(group), crossed(group)
            for block in kept:
                last = blocks.is_output(sch, block)
                schedule_nest(sch, block, config, collapse if last else 1, hardware.lanes, across and last)
            return hoist_conditions(overlap_remainders(blocks.close_schedule(sch, func)))

        return blocks.guarded(f"elementwise group {group.label}", build)


@remembered
def crossed(group: Group) -> bool:
    """Whether the group ends in a transposition whose operand is contiguous along the result's last axis but one."""
    end = group.operators[-1]
    axes = end.attrs.get("axes")
    return (
        end.kind == "permute_dims"
        and isinstance(axes, list | tuple)
        and len(axes) > 1
        and int(axes[-2]) == len(axes) - 1
    )  # fmt: skip


@remembered
def scattered(group: Group, lanes: int) -> int:
    """Elements that are moved one by one: those of results that are read across, several times if conditions differ.

    A concat, slice or pad at a place inside a block of channels makes every lane of a result in blocks look for its own
    operand.
    """
    tensors = group.graph.tensors
    if all(a.stride in (0, 1) for op in group.operators for a in op.accesses):
        return 0
    ragged = len(tensors[group.outputs[-1]].shape) == 5 and any(
        op.kind in _PARTIAL and len(shape) == 4 and shape[1] % lanes
        for op in group.operators
        for shape in (tensors[t].shape for t in op.inputs)
    )
    moved = sum(tensors[t].elements for t in group.outputs)
    return moved * (_RAGGED if ragged else 1)


@remembered
def _passes(group: Group, lanes: int) -> tuple[int, int, int]:
    """Bytes that the kernel reads and writes; those that pass from one of its loop nests to another; its loop nests."""
    tensors = group.graph.tensors
    traffic = sum(touched(group, t) for t in group.inputs) + sum(tensors[t].bytes for t in group.outputs)
    between = repeated(group, scattered(group, lanes) > 0)
    return traffic, sum(2 * tensors[op.outputs[0]].bytes for op in between), len(between) + len(group.outputs)


def touched(group: Group, tensor: int) -> int:
    """Bytes of an operand that are read: no more elements than the operators that read it have results."""
    whole = group.graph.tensors[tensor]
    read = sum(group.graph.tensors[op.outputs[0]].elements for op in group.operators for t in op.inputs if t == tensor)
    return whole.bytes * min(read, whole.elements) // max(1, whole.elements)


def repeated(group: Group, ragged: bool) -> list[Operator]:
    """Members whose costly value gets a loop nest of its own: see `separate_costly`."""
    graph, inside = group.graph, set(group.members)
    found = []
    for op in group.operators:
        out = graph.tensors[op.outputs[0]]
        if not (op.work.special or op.work.divide or op.work.flops > 4 * max(1, out.elements)):
            continue
        users = [graph.operators[u] for u in graph.users.get(out.index, ()) if u in inside]
        if any(_repeats(user, out.shape, graph.tensors[user.outputs[0]].shape, ragged) for user in users):
            found.append(op)
    return found


def _repeats(user: Operator, shape: Sequence[int], result: Sequence[int], ragged: bool) -> bool:
    """Whether an operator needs elements of its operand several times, or under conditions of single lanes."""
    if prod(result) <= prod(shape):
        return False
    return ragged or user.kind not in _PARTIAL or shape[-1:] != result[-1:] or result[-1] == 1


def separate_costly(sch: Any, ragged: bool) -> list[Any]:
    """Inline what may be inlined; the blocks that stay (results, and costly values read often or under a broadcast).

    ragged: conditions differ from lane to lane: nothing costly may stand under one.
    """
    from autofuse.schedule import blocks

    kept = blocks.blocks(sch)
    # Readers of a costly value become one when they are inlined in their turn: hence again and again.
    while True:
        left = [block for block in kept if blocks.is_output(sch, block) or not _inlined(sch, block, ragged)]
        if len(left) == len(kept):
            return left
        kept = left


def _inlined(sch: Any, block: Any, ragged: bool) -> bool:
    from autofuse.schedule import blocks

    count = blocks.uses(sch, block)
    if not blocks.is_cheap(sch, block):
        users = blocks.consumers(sch, block)
        if any(_spreads(sch, block, user, ragged) for user in users):
            return False
        # LLVM computes what stands twice in one expression once; diamond behind diamond, it would grow exponentially.
        if count > 1 and (len(users) > 1 or blocks.nodes(sch, block) * count > _MOST_NODES):
            return False
    if count > _MOST_USES or blocks.too_deep(sch, block):
        return False
    sch.compute_inline(block)
    return True


def _spreads(sch: Any, block: Any, user: Any, ragged: bool) -> bool:
    """Whether a reader needs an element of the block's result several times, or under conditions of single lanes."""
    from autofuse.schedule import blocks

    if _points(sch, user) <= _points(sch, block):
        return False
    return ragged or not blocks.passes_rows(sch, user, blocks.written(sch, block))


def _points(sch: Any, block: Any) -> int:
    return prod(int(iv.dom.extent) for iv in sch.get(block).iter_vars)


def schedule_nest(
    sch: Any, block: Any, config: ElementwiseConfig, collapse: int, lanes: int, across: bool = False
) -> None:
    """One nest over [outer, inner]: outer in parallel, inner in vectors of `lanes` × config.vectors.

    across: the operand is contiguous along the last axis but one, which then runs inside a few vectors of the last, so
    that each line of the cache is read while it is there.
    """
    from autofuse.schedule import blocks

    loops = list(sch.get_loops(block))
    if not loops:
        return
    cut = len(loops) - collapse
    outer, inner = loops[:cut], loops[cut:]
    apart = outer[task_axes([blocks.extent(sch, loop) for loop in outer]) :]
    outer = outer[: len(outer) - len(apart)]
    swapped = None
    if across and collapse == 1 and blocks.extent(sch, inner[0]) >= lanes and len(outer) + len(apart) > 1:
        swapped = (apart or outer).pop()
    while (outer or apart) and len(inner) == 1 and blocks.extent(sch, inner[0]) == 1:
        inner.insert(0, (apart or outer).pop())
        inner = [sch.fuse(*inner)]
    axes = tuple(blocks.extent(sch, loop) for loop in inner)
    last = sch.fuse(*inner) if len(inner) > 1 else inner[0]
    extent = prod(axes)
    first = None
    if outer:
        first = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    elif not apart:
        # A flat nest: cut it into pieces that are whole vectors.
        pieces = _pieces(axes, lanes * config.vectors)
        if pieces > 1:
            first, last = sch.split(last, [pieces, None])
            extent = blocks.extent(sch, last)
    step = lanes * config.vectors
    while step > lanes and extent % step:
        step -= lanes
    if extent < lanes:
        step = 1 << extent.bit_length() - 1  # the widest vector within the row
    if step >= min(lanes, 4) or extent == step > 1:
        if swapped is not None and extent % (2 * lanes) == 0:
            step = 2 * lanes  # a line of the cache is written whole
        main, vector = sch.split(last, [None, step])
        if extent % step:
            sch.annotate(main, "pragma_loop_partition_hint", 1)
        if swapped is not None:
            sch.reorder(main, swapped)
            if first is not None and not apart and extent % step == 0:
                first = sch.fuse(first, main)
        if step > lanes:
            rest, vector = sch.split(vector, [None, lanes])
            sch.unroll(rest)
        sch.vectorize(vector)
    if first is not None and config.parallel and blocks.extent(sch, first) > 1:
        sch.parallel(first)


def task_axes(extents: Sequence[int]) -> int:
    """Leading axes of a nest that are handed out as tasks: as few as give every thread some. The rest stay loops, so
    that indices need no division."""
    for axes in range(len(extents)):
        if prod(extents[:axes]) >= _TASKS:
            return axes
    return len(extents)


@lru_cache(maxsize=4096)
def _pieces(axes: tuple[int, ...], step: int) -> int:
    """How many equal pieces, each whole steps, a flat loop over `axes` is cut into; 1 where no such cut exists.

    Pieces that begin where rows of the axes do come first: in others TVM does not see that a vector's elements lie
    together.
    """
    extent = prod(axes)
    tails = [prod(axes[i:]) for i in range(len(axes))]
    counts = {64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, *(extent // tail for tail in tails if extent <= 64 * tail)} - {1}
    fitting = [count for count in sorted(counts, reverse=True) if extent % (count * step) == 0]
    for count in fitting:
        size = extent // count
        if all(size % tail == 0 or tail % size == 0 for tail in tails):
            return count
    return fitting[0] if fitting else 1
