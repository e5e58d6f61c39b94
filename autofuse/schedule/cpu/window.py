"""Groups around one operator with a sliding window (convolution, depthwise convolution, pooling).

`parse` splits a plain group into what stands before the anchor, beside it and after it, or says why it is none of
ours; `open_window` gives the same for its TIR, and `place_epilogue` puts everything after the anchor under the loop
that walks over its tiles.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from autofuse.graph.model import Group, MappingType, Operator, Tensor
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import remembered
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm import s_tir, tirx
    from tvm.s_tir.schedule import LoopRV, SBlockRV


# See `shares_rows`.
_SHARE_BYTES = 8192


@dataclass(frozen=True)
class Window:
    """A group seen from its anchor. `prologue` feeds the anchor's data, `side` only feeds the epilogue."""

    group: Group
    anchor: Operator
    prologue: tuple[Operator, ...]
    side: tuple[Operator, ...]
    epilogue: tuple[Operator, ...]

    def tensor(self, index: int) -> Tensor:
        """A tensor of the graph."""
        return self.group.graph.tensors[index]

    @cached_property
    def data(self) -> Tensor:
        """The anchor's data operand."""
        return self.tensor(self.anchor.inputs[0])

    @cached_property
    def weight(self) -> Tensor:
        """The anchor's second operand."""
        return self.tensor(self.anchor.inputs[1])

    @cached_property
    def out(self) -> Tensor:
        """The anchor's result."""
        return self.tensor(self.anchor.outputs[0])

    @property
    def padded(self) -> bool:
        """Whether the anchor pads its data."""
        return any(pair(self.anchor.attrs, "padding", 0))

    @cached_property
    def memory_bytes(self) -> int:
        """Compulsory traffic: every operand and result of the group once."""
        return sum(self.tensor(t).bytes for t in (*self.group.inputs, *self.group.outputs))


def may_surround(op: Operator) -> bool:
    """Whether an operator may stand around the anchor of a window, as far as it can be said of it alone."""
    return op.kind == "layout_change" or op.elementwise


def pair(attrs: Any, key: str, default: int) -> tuple[int, ...]:
    """An attribute that is a list of ints, or one int for all axes."""
    value = attrs.get(key, default)
    return (int(value),) * 2 if isinstance(value, int) else tuple(int(v) for v in value)


@remembered
def parse(group: Group, kinds: Collection[str], variants: Collection[str] = ()) -> Window | Refusal:
    """The group's window, or why it has none: one anchor of `kinds`, everything else elementwise around it."""
    anchors = [op for op in group.operators if op.kind in kinds]
    if len(anchors) != 1:
        wanted = " or ".join(sorted(kinds))
        return Refusal("anchor", f"needs exactly one {wanted}, has {len(anchors)}", tuple(op.index for op in anchors))
    anchor = anchors[0]
    variant = anchor.attrs.get("variant", "")
    if variants and variant not in variants:
        return Refusal("variant", f"{anchor.name} is of variant {variant!r}", (anchor.index,))
    graph = group.graph
    out = graph.tensors[anchor.outputs[0]]
    if any(graph.tensors[t].dtype != "float32" for t in (*anchor.inputs, *anchor.outputs)):
        return Refusal("dtype", f"{anchor.name} is not float32", (anchor.index,))

    after = {anchor.outputs[0]}
    plain: set[int] = set()
    epilogue: list[Operator] = []
    before: list[Operator] = []
    for op in group.operators:
        if op is anchor:
            continue
        if op.kind == "layout_change" and op.inputs[0] in after:
            # From blocks to NCHW, once, at the end: the tile is stored another way.
            if len(graph.tensors[op.outputs[0]].shape) != 4 or len(out.shape) != 5:
                return Refusal("layout", f"{op.name} is not from channel blocks to NCHW", (op.index,))
            plain.add(op.outputs[0])
            epilogue.append(op)
            continue
        if plain and not plain.isdisjoint(op.inputs):
            return Refusal("layout", f"{op.name} follows a layout change", (op.index,))
        if not op.elementwise:
            return Refusal("not-elementwise", f"{op.name} ({op.kind}) is not elementwise", (op.index,))
        if after.isdisjoint(op.inputs):
            before.append(op)
            continue
        if graph.tensors[op.outputs[0]].shape != out.shape:
            return Refusal("shape", f"{op.name} changes the shape of {anchor.name}'s result", (op.index,))
        broadcast = [a for a in op.accesses if a.tensor in after and a.mapping is not MappingType.ONE_TO_ONE]
        if broadcast:
            return Refusal("broadcast", f"{op.name} broadcasts {anchor.name}'s result", (op.index,))
        after.add(op.outputs[0])
        epilogue.append(op)

    if not before:
        return Window(group, anchor, (), (), tuple(epilogue))
    written = set(group.outputs)
    for op in before:
        if op.outputs[0] in written:
            return Refusal("prologue-output", f"{op.name} before the anchor is written to memory", (op.index,))
    producer = {op.outputs[0]: op for op in before}
    prologue = _producers(anchor.inputs[:1], producer)
    if _producers(anchor.inputs[1:], producer):
        return Refusal("weights", f"the weights of {anchor.name} are computed inside the group", (anchor.index,))
    beside = _producers([t for op in epilogue for t in op.inputs], producer)
    if len(prologue | beside) != len(before):
        return Refusal("unrelated", "an operator neither feeds the anchor nor what follows it")
    side = tuple(op for op in before if op.index not in prologue)
    return Window(group, anchor, tuple(op for op in before if op.index in prologue), side, tuple(epilogue))


def _producers(tensors: Collection[int], producer: dict[int, Operator]) -> set[int]:
    """Indices of the operators among `producer` that the tensors depend on."""
    found: set[int] = set()
    queue = list(tensors)
    while queue:
        op = producer.get(queue.pop())
        if op is not None and op.index not in found:
            found.add(op.index)
            queue.extend(op.inputs)
    return found


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """The divisors of n, ascending."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)


@lru_cache(maxsize=4096)
def divisor_near(n: int, wanted: float) -> int:
    """The divisor of n closest to `wanted` by ratio, the smaller of two equally close ones."""
    return min(divisors(n), key=lambda d: (max(d / wanted, wanted / d), d))


def columns(width: int, most: int, chains_per_column: int, chains: int) -> list[int]:
    """Tile widths up to `most` for a row of `width`, best first.

    A tile that keeps fewer than `chains` accumulations in flight waits for the latency of the multiply-add, so a tile
    costs max(its accumulators, chains); the best width is the one whose tiles and remainder cost least.
    """
    hidden = max(1, chains)

    def cost(tile: int) -> float:
        full, rest = divmod(width, tile)
        total = full * max(tile * chains_per_column, hidden)
        return total + (max(rest * chains_per_column, hidden) if rest else 0)

    return sorted(range(1, min(most, width) + 1), key=lambda tile: (cost(tile), width % tile != 0, -tile))


def shares_rows(elements: int, cores: int) -> bool:
    """Whether threads may share a plane of so many elements by rows.

    Where a thread's share has less than two pages, a core's prefetcher takes lines away from the next core: at 14 × 14
    places depthwise convolutions by rows took 1.6 times as long as by planes.
    """
    return cores > 1 and 4 * elements // cores >= _SHARE_BYTES


def chains_needed(hardware: Hardware) -> int:
    """Independent multiply-adds that hide their latency: 4 cycles, two a cycle."""
    return 8 if hardware.vector_registers >= 16 else 4


@dataclass
class OpenWindow:
    """The blocks of a window group under schedule: `stage` computes the anchor's data (pad or prologue), if any."""

    sch: s_tir.Schedule
    anchor: SBlockRV
    stage: SBlockRV | None
    epilogue: list[SBlockRV]


def open_window(func: tirx.PrimFunc, role: str, *, keep_stage: bool, accumulate: str = "local") -> OpenWindow:
    """Open the schedule of a window group, inline all that can be, and give the anchor a private result.

    keep_stage: keep what computes the anchor's data as a block of its own (else it is inlined into the anchor).
    accumulate: scope of the anchor's result.
    """
    from autofuse.schedule import ScheduleError
    from autofuse.schedule import blocks as B

    sch = B.open_schedule(func)
    anchor = B.only(sch, role)
    after = B.downstream(sch, anchor)
    before = [b for b in B.blocks(sch) if not B.same(sch, b, anchor) and not B.contains(sch, after, b)]
    data = sch.get(anchor).reads[0].source
    stage = next((b for b in before if B.written(sch, b).same_as(data)), None) if keep_stage else None
    B.inline_all(sch, [b for b in before if stage is None or not B.same(sch, b, stage)])
    if stage is not None and len(B.consumers(sch, stage)) > 1:
        raise ScheduleError(f"block {B.name_of(sch, stage)} feeds more than the anchor")
    if B.is_output(sch, anchor):
        copy = (
            sch.cache_write(anchor, 0, accumulate, consumer_blocks=after)
            if after
            else sch.cache_write(anchor, 0, accumulate)
        )
        after.append(copy)
    else:
        sch.set_scope(anchor, 0, accumulate)
    # What a layout change stores is computed in vectors first.
    changes = [b for b in after if B.role(sch, b) == "layout_change"]
    epilogue = B.inline_chain(sch, after, [b for change in changes for b in sch.get_producers(change)])
    for block in epilogue:
        if not B.is_output(sch, block):
            sch.set_scope(block, 0, "local")
    return OpenWindow(sch, anchor, stage, epilogue)


def place_stage(window: OpenWindow, task: LoopRV | None, parallel: bool) -> None:
    """Put what computes the anchor's data, if that is kept, under `task`; where there is none, into loops before it."""
    sch, stage = window.sch, window.stage
    if stage is None:
        return
    if task is not None:
        sch.compute_at(stage, task, preserve_unit_loops=True)
    else:
        outer = sch.fuse(*sch.get_loops(stage)[:3])
        if parallel:
            sch.parallel(outer)
    vectorize_lanes(window, stage)


def place_epilogue(window: OpenWindow, loop: LoopRV) -> None:
    """Put the epilogue's blocks under `loop`, where the anchor's tile is complete; tiles unrolled, lanes vectorised."""
    sch = window.sch
    for block in window.epilogue:
        sch.reverse_compute_at(block, loop, preserve_unit_loops=True)
        loops = sch.get_loops(block)[-len(sch.get(block).iter_vars) :]
        if len(loops) == 5:
            sch.vectorize(loops.pop())
        for inner in loops[1:]:
            sch.unroll(inner)


def place_rows(window: OpenWindow, loop: LoopRV) -> None:
    """Put the epilogue's blocks under `loop`, where several rows of the anchor are complete; lanes vectorised."""
    for block in window.epilogue:
        window.sch.reverse_compute_at(block, loop, preserve_unit_loops=True)
        vectorize_lanes(window, block)


def vectorize_lanes(window: OpenWindow, block: SBlockRV) -> None:
    """Vectorise the innermost loop of a block that writes a blocked layout; others are left to the compiler."""
    if len(window.sch.get(block).iter_vars) == 5:
        window.sch.vectorize(window.sch.get_loops(block)[-1])


def place_columns(window: OpenWindow, loop: LoopRV, lanes: int) -> None:
    """Like place_epilogue for layouts whose innermost axis is the columns: they are split into vectors of `lanes`."""
    sch = window.sch
    for block in window.epilogue:
        sch.reverse_compute_at(block, loop, preserve_unit_loops=True)
        outer, inner = sch.split(sch.get_loops(block)[-1], [None, lanes])
        sch.unroll(outer)
        sch.vectorize(inner)
