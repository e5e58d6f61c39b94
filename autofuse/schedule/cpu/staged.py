"""Schedule family of kernels in steps: reductions to vectors, products with them, what reads them under a broadcast.

A squeeze-and-excitation block is the example: a mean over rows and columns, two 1×1 convolutions of the one position
that is left, and a product with every position. Each step is a loop nest into a buffer of the kernel's own; a step that
the last nest needs in slices is computed by its tasks, slice by slice, so that it costs no parallel region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Graph, Group, MappingType, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu.rowspace import reduced_axes, reduced_operand
from autofuse.schedule.cpu.window import pair
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_ELEMENTWISE = (MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY)
_MOVING = (MappingType.REORGANIZE, MappingType.SHUFFLE)
# Multiply-adds that the steps may have for each element of the group's largest tensor.
_WORK_PER_ELEMENT = 8
# The largest tensor over what a step may leave behind, at least.
_SMALL = 4
# Scalar operations of a step from which on it is handed to the thread pool.
_LARGE = 16_384
_LARGE_CONTRACTION = 16 * _LARGE
# Kinds of reductions that are steps.
_REDUCTIONS = ("mean", "sum", "max")
# Accumulators of a step: enough to hide the latency of a multiply-add.
_ACCUMULATORS = 8


@dataclass(frozen=True)
class StagedConfiguration(Configuration):
    """parallel: 0 runs on the calling thread, 1 hands large steps to the thread pool, 2 small contractions too.

    inside: 1 computes slices of a step in the last nest's tasks where that needs no work twice.
    """

    parallel: int
    inside: int


class StagedFamily(ScheduleFamily):
    """Reductions and contractions whose results are small next to the largest tensor, and elementwise work on them."""

    name: ClassVar[str] = "staged"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = StagedConfiguration
    most_results: ClassVar[int] = 1

    def anchors(self, op: Operator) -> bool:
        """What may be a step."""
        return _is_step(op)

    def admits(self, op: Operator) -> bool:
        """Steps that may fit as far as their kind and the extents of their result tell, and what is no step."""
        if not _is_step(op):
            return True
        variant, extents = op.attrs.get("variant", ""), op.spatial
        if op.kind == "nn.conv2d":
            return variant == "blocked" and (not extents or extents[2:4] == (1, 1))
        if op.kind == "matmul":
            return variant == "packed" and prod(extents[:-1]) == 1
        return op.kind in _REDUCTIONS and op.mapping is MappingType.MANY_TO_ONE

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Steps are 1×1 convolutions of one position, products of one row, and reductions that keep the lanes.

        At least one step is read by another or under a broadcast (what has a single step belongs to other families).
        What lies between steps has at most a quarter of the elements of the largest tensor (weights included), and the
        steps have at most eight multiply-adds for each of that tensor's elements: they never dominate the kernel so
        much that they would deserve a schedule of their own. One result, written by the last operator.
        """
        graph = group.graph
        steps = [op for op in group.operators if _is_step(op)]
        if not steps or len(group.operators) == 1:
            return Refusal("anchor", "no operator reduces or contracts before another step", group.members)
        if len(group.outputs) != 1 or group.outputs[0] not in group.operators[-1].outputs:
            return Refusal("results", "several steps in one kernel give one result, the last one's", group.members)
        for op in steps:
            refusal = _fits(op, graph, hardware)
            if refusal is not None:
                return refusal
        largest = _largest(group)
        if sum(op.work.fma for op in steps) > _WORK_PER_ELEMENT * largest:
            detail = "the contractions are large next to the rest: they deserve kernels of their own"
            return Refusal("work", detail, tuple(op.index for op in steps))
        refusal = _wiring(group, {op.index for op in steps}, largest)
        if refusal is not None:
            return refusal
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[StagedConfiguration]:
        """Parallel where there is work for it; slices inside the tasks where there are any."""
        inside = (1, 0) if _sliced(group) else (0,)
        operations = group.work.flops + 7 * group.work.special + _largest(group)
        order: tuple[int, ...] = (1, 2, 0) if operations > _LARGE else (0, 1)
        if hardware.cores == 1 or operations < _LARGE // 8:
            order = (0,)
        elif operations > 64 * _LARGE:
            order = (1, 2)
        found = []
        for parallel in order:
            for i in inside:
                # Only contractions of middling size tell 1 from 2.
                sliced = _sliced(group) if i else ()
                left = [op.work.fma for op in group.operators if op.work.fma and op.index not in sliced]
                if parallel != 2 or any(_LARGE <= fma < _LARGE_CONTRACTION for fma in left):
                    found.append(StagedConfiguration(parallel, i))
        return found

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Every operand once; steps that run on one thread count as often as threads wait for them."""
        assert isinstance(config, StagedConfiguration)
        graph = group.graph
        memory = sum(graph.tensors[t].bytes for t in (*group.inputs, *group.outputs))
        final = graph.tensors[group.outputs[0]]
        sliced = _sliced(group) if config.inside else ()
        steps = [op for op in group.operators if _is_step(op)]
        last_is_step = not _elementwise_end(group)
        nests: list[tuple[int, int, bool]] = []  # tasks, bytes read, parallel
        serial_bytes = serial_work = repeated = again = 0
        for op in steps:
            out = graph.tensors[op.outputs[0]]
            read = sum(graph.tensors[t].bytes for t in op.inputs)
            if op.work.fma:  # a contraction reads its weights again for every row
                repeated += op.work.fma * 4
            elif any(len(graph.users[t]) > 1 and graph.users[t][-1] in group.members for t in op.inputs):
                again += read  # what a mean reduces, the last nest reads once more
            if op.index in sliced:
                continue
            tasks = max(1, out.elements // (hardware.lanes * (1 if len(out.shape) == 5 else 2)))
            pooled = _in_parallel(out.elements * prod(op.reduction), bool(op.work.fma), config) and tasks > 1
            nests.append((tasks, read, pooled))
            if not pooled:
                serial_bytes += read
                serial_work += op.work.flops
        if not last_is_step:
            lead = _task_axes(group, bool(sliced), hardware.lanes)
            nests.append((prod(final.shape[:lead]), final.bytes, config.parallel > 0 and final.elements >= _LARGE))
        pooled_nests = [n for n in nests if n[2] and n[0] > 1]
        widest = max(pooled_nests, key=lambda n: n[1], default=(1, 0, False))
        tasks = widest[0]
        waiting = min(tasks, hardware.cores) - 1
        total = max(1, group.work.flops)
        return KernelShape(
            tasks=tasks,
            accumulators=_ACCUMULATORS,
            independent_chains=_ACCUMULATORS,
            recompute=1.0 + waiting * serial_work / total,
            loads_per_fma=2.0 if group.work.fma else 0.0,
            l1_bytes=memory + again + repeated + waiting * serial_bytes,
            l2_bytes=memory + again + waiting * serial_bytes,
            l3_bytes=memory + again + waiting * serial_bytes,
            memory_bytes=memory,
            footprint=max(memory // max(1, tasks), max(graph.tensors[op.outputs[0]].bytes for op in steps)),
            loops=max(1, len(pooled_nests)) if tasks > 1 else max(1, len(nests)),
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.staged_nests import build

        return blocks.guarded(f"staged {config.text}", lambda: build(func, config, hardware.lanes))


def _is_step(op: Operator) -> bool:
    return bool(op.reduction) or op.mapping in (MappingType.MANY_TO_MANY, MappingType.MANY_TO_ONE)


def _in_parallel(operations: int, contraction: bool, config: StagedConfiguration) -> bool:
    """Whether a step of so many scalar operations is handed to the thread pool."""
    least = _LARGE_CONTRACTION if contraction and config.parallel == 1 else _LARGE
    return config.parallel > 0 and operations >= least


def _largest(group: Group) -> int:
    """Elements of the largest tensor that the group reads or writes."""
    return max(group.graph.tensors[t].elements for t in (*group.inputs, *group.outputs))


def _fits(op: Operator, graph: Graph, hardware: Hardware) -> Refusal | None:
    """Whether the operator is one of the steps that have a nest here."""
    out = graph.tensors[op.outputs[0]]
    if any(graph.tensors[t].dtype != "float32" for t in (*op.inputs, *op.outputs)):
        return Refusal("dtype", f"{op.name} is not float32", (op.index,))
    variant = op.attrs.get("variant", "")
    if op.kind == "nn.conv2d" and variant == "blocked":
        weight = graph.tensors[op.inputs[1]].shape
        single = len(out.shape) == 5 and out.shape[2:] == (1, 1, hardware.lanes) and weight[2:4] == (1, 1)
        data = graph.tensors[op.inputs[0]].shape
        plain = len(data) == 5 and data[2:4] == (1, 1) and int(str(op.attrs.get("groups", 1))) == 1
        if single and plain and not any(pair(op.attrs, "padding", 0)):
            if out.shape[0] > 1 and graph.tensors[op.inputs[1]].bytes > hardware.l2_bytes // 2:
                return Refusal("weights", f"{op.name} would read its weights again for every sample", (op.index,))
            return None
        return Refusal("extent", f"{op.name} is no 1×1 convolution of a single position", (op.index,))
    if op.kind == "matmul" and variant == "packed":
        if prod(out.shape[:-1]) == 1:
            return None
        return Refusal("extent", f"{op.name} multiplies more than one row", (op.index,))
    if op.mapping is MappingType.MANY_TO_ONE and op.kind in _REDUCTIONS:
        source, axes = reduced_operand(op), reduced_axes(op, graph)
        if source is not None and axes is not None:
            shape = graph.tensors[source].shape
            if len(shape) == 5 and shape[-1] == hardware.lanes and axes == (2, 3) and out.shape[-1] == shape[-1]:
                return None
        return Refusal("axes", f"{op.name} ({op.kind}) does not reduce over rows and columns alone", (op.index,))
    return Refusal("anchor", f"{op.name} ({op.kind}) is no step of a staged kernel", (op.index,))


def _wiring(group: Group, steps: set[int], largest: int) -> Refusal | None:
    """Whether what lies between the steps is small, and what comes after them elementwise."""
    graph = group.graph
    after: set[int] = set()  # tensors that depend on a step
    linked = False
    final = group.outputs[0]
    for op in group.operators:
        out = graph.tensors[op.outputs[0]]
        reads = [a for a in op.accesses if a.tensor in after]
        if op.index in steps:
            linked = linked or bool(reads)
            after.update(op.outputs)
        else:
            moving = op.mapping in _MOVING
            if op.mapping not in (*_ELEMENTWISE, *_MOVING):
                return Refusal("mapping", f"{op.name} ({op.kind}) is no elementwise operator", (op.index,))
            if not reads:
                return Refusal("prologue", f"{op.name} ({op.kind}) comes before every step", (op.index,))
            spread = any(a.mapping is MappingType.ONE_TO_MANY for a in reads)
            linked = linked or spread
            if moving and out.elements * _SMALL > largest:
                return Refusal("moves", f"{op.name} ({op.kind}) moves a large tensor", (op.index,))
            if spread and any(
                len(graph.tensors[a.tensor].shape) != len(out.shape)
                for a in reads if a.mapping is MappingType.ONE_TO_MANY and graph.tensors[a.tensor].elements > 1
            ):  # fmt: skip
                return Refusal("broadcast", f"{op.name} ({op.kind}) broadcasts to more axes", (op.index,))
            after.update(op.outputs)
        users = [u for u in graph.users.get(out.index, ()) if group.mask >> u & 1]
        feeds_step = any(u in steps for u in users)
        if out.index != final and out.elements * _SMALL > largest and (feeds_step or len(users) > 1):
            return Refusal("size", f"the result of {op.name} ({op.kind}) is too large to keep", (op.index,))
    if not linked:
        return Refusal("steps", "a single step and what follows it need no staged kernel", group.members)
    return None


def _elementwise_end(group: Group) -> bool:
    """Whether the last nest is elementwise: its result is larger than any step's."""
    graph = group.graph
    out = graph.tensors[group.outputs[0]].elements
    return all(graph.tensors[op.outputs[0]].elements < out for op in group.operators if _is_step(op))


def slice_axes(step: Sequence[int], final: Sequence[int]) -> int:
    """Leading axes that a step's slices share with the last nest: what follows is 1, the lanes aside; 0 if none do."""
    if len(step) != len(final) or tuple(step) == tuple(final) or step[-1] != final[-1]:
        return 0
    for axes in range(1, len(final)):
        if tuple(step[:axes]) == tuple(final[:axes]) and all(e == 1 for e in step[axes:-1]):
            return axes if prod(final[:axes]) > 1 else 0
    return 0


def _sliced(group: Group) -> tuple[int, ...]:
    """The steps that the tasks of the last nest can compute slice by slice."""
    if not _elementwise_end(group):
        return ()
    graph = group.graph
    final = graph.tensors[group.outputs[0]].shape
    steps = {op.index for op in group.operators if _is_step(op)}
    needed: set[int] = set()  # operators whose whole result some step reads
    found = []
    for op in reversed(group.operators):
        users = [u for u in graph.users.get(op.outputs[0], ()) if group.mask >> u & 1]
        out = graph.tensors[op.outputs[0]].shape
        if any(u in steps or u in needed for u in users) or (op.outputs[0] != group.outputs[0] and out != final
                                                             and not slice_axes(out, final)):  # fmt: skip
            needed.add(op.index)
        elif op.index in steps and op.work.fma:
            found.append(op.index)
    return tuple(sorted(found))


def _task_axes(group: Group, inside: bool, lanes: int) -> int:
    """Leading axes of the result that the tasks of the last nest run over."""
    graph = group.graph
    final = graph.tensors[group.outputs[0]].shape
    if inside:
        for op in group.operators:
            axes = slice_axes(graph.tensors[op.outputs[0]].shape, final)
            if axes:
                return axes
    return outer_axes(final, lanes)


def outer_axes(shape: Sequence[int], lanes: int) -> int:
    """Leading axes that leave a task some hundred vectors, fewer where there are no more axes."""
    axes = max(0, len(shape) - 1)
    while axes > 1 and prod(shape[axes:]) < 64 * lanes:
        axes -= 1
    return axes
