"""Schedule family of a blocked convolution and the pooling that follows it, in one kernel.

A task computes the convolution's rows that its pooling rows need into a small buffer, then pools them: the
convolution's result never reaches memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu import conv_tiling as tiling
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.conv2d import register_tiles
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_POOLS = ("nn.max_pool2d", "nn.avg_pool2d")
_POOL_COLUMNS = 4


@dataclass(frozen=True)
class ConvPoolConfiguration(Configuration):
    """Register tile of the convolution: `nb` channel blocks × `mt` columns. A task: `cob` of them × `hb` pooled rows.

    pad: 0 data read as it is, 1 computed by each task, 2 computed before by a loop of its own.
    """

    nb: int
    mt: int
    cob: int
    hb: int
    pad: int
    parallel: int


@dataclass(frozen=True)
class Pair:
    """The two halves of a group."""

    conv: W.Window
    pool: W.Window

    @property
    def taps(self) -> tuple[int, ...]:
        key = "window" if "window" in self.pool.anchor.attrs else "pool_size"
        return W.pair(self.pool.anchor.attrs, key, 1)

    def rows(self, pooled: int) -> int:
        """Rows of the convolution that `pooled` rows of the pooling read."""
        return (pooled - 1) * W.pair(self.pool.anchor.attrs, "strides", 1)[0] + self.taps[0]


@remembered
def split(group: Group) -> Pair | Refusal:
    """The group's convolution and its pooling, or why it has not one of each."""
    pools = [op for op in group.operators if op.kind in _POOLS]
    if len(pools) != 1:
        return Refusal("anchor", f"needs exactly one pooling operator, has {len(pools)}")
    pool = pools[0]
    before = [m for m in group.members if group.graph.ancestors[pool.index] >> m & 1]
    if not before:
        return Refusal("anchor", "no convolution stands before the pooling", (pool.index,))
    first = W.parse(Group.of(group.graph, before, pool.inputs[:1]), ("nn.conv2d",), ("blocked",))
    if isinstance(first, Refusal):
        return first
    second = W.parse(Group.of(group.graph, set(group.members) - set(before), group.outputs), _POOLS)
    if isinstance(second, Refusal):
        return second
    made = {t for m in before for t in group.graph.operators[m].outputs}
    if made.intersection(group.outputs):
        return Refusal("output", "the convolution's rows stay in a buffer, they are not written out", tuple(before))
    if [m for m in second.group.members if made.intersection(group.graph.operators[m].inputs)] != [pool.index]:
        return Refusal("output", "the convolution's rows are read by more than the pooling", tuple(before))
    if len(second.out.shape) != 5:
        return Refusal("padding", f"{pool.name} is not in channel blocks", (pool.index,))
    pair = Pair(first, second)
    strides = W.pair(pool.attrs, "strides", 1)
    padding = W.pair(pool.attrs, "padding", 0)
    padding = padding if len(padding) == 4 else padding * 2
    for axis in range(2):
        if strides[axis] > pair.taps[axis]:
            return Refusal("stride", f"{pool.name} leaves out rows or columns between its windows", (pool.index,))
        reach = (second.out.shape[2 + axis] - 1) * strides[axis] + pair.taps[axis]
        if reach > second.data.shape[2 + axis] + padding[axis] + padding[2 + axis]:
            return Refusal("padding", f"{pool.name} reads beyond its padded data (ceil mode)", (pool.index,))
    if any(d != 1 for d in W.pair(pool.attrs, "dilation", 1)):
        return Refusal("dilation", f"{pool.name} is dilated", (pool.index,))
    return pair


class ConvPoolFamily(ScheduleFamily):
    """Convolution, elementwise operators, pooling, elementwise operators."""

    name: ClassVar[str] = "conv2d_pool"
    version: ClassVar[int] = 2
    configuration: ClassVar[type[Configuration]] = ConvPoolConfiguration
    most_anchors: ClassVar[int] = 1

    def anchors(self, op: Operator) -> bool:
        """Pooling operators."""
        return op.kind in _POOLS

    def admits(self, op: Operator) -> bool:
        """Both, and what may surround them."""
        return op.kind in ("nn.conv2d", *_POOLS) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One blocked convolution, then one pooling, elementwise operators around both."""
        found = split(group)
        if isinstance(found, Refusal):
            return found
        if found.conv.out.shape[-1] != hardware.lanes:
            return Refusal("layout", f"the result is not in blocks of {hardware.lanes} channels")
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[ConvPoolConfiguration]:
        """The convolution's register tiles of one row; rows in parallel or channels in parallel."""
        pair = self._pair(group)
        e = tiling.extents(pair.conv)
        staged = pair.conv.padded or bool(pair.conv.prologue)
        tiles = [(nb, mt) for nb, ht, mt in register_tiles(e, hardware) if ht == 1][:3]
        wide = _three_blocks(e, hardware)
        if wide and wide not in tiles:
            tiles = [wide, *tiles[:2]]
        rows = pair.pool.out.shape[2]
        wanted = max(1.0, 4.0 * hardware.cores / e.n)
        found: dict[ConvPoolConfiguration, None] = {}
        for by_rows in (True, False) if pair.conv.weight.bytes <= 600 << 10 else (False, True):
            for nb, mt in tiles:
                channel_tiles = e.oc // nb
                if by_rows:
                    some = W.divisor_near(rows, max(1.0, rows / wanted))
                    # Windows that overlap make every task compute rows of its neighbour: fewer tasks, not more.
                    other = 1 if pair.rows(2) == 2 * pair.rows(1) else W.divisor_near(rows, 2.0 * some)
                    choices = {(channel_tiles, some), (channel_tiles, other)}
                    pad = 1
                else:
                    choices = {(W.divisor_near(channel_tiles, max(1.0, channel_tiles / wanted)), rows)}
                    pad = 2
                for cob, hb in sorted(choices, reverse=True):
                    tasks = e.n * (channel_tiles // cob) * (rows // hb)
                    config = ConvPoolConfiguration(nb, mt, cob, hb, pad if staged else 0, int(tasks > 1))
                    found[config] = None
        return list(found)[:12]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """The convolution's shape, with the rows that tasks share computed twice and a buffer instead of its result."""
        assert isinstance(config, ConvPoolConfiguration)
        pair = self._pair(group)
        e = tiling.extents(pair.conv)
        pooled = pair.pool.out.shape[2]
        tasks = e.n * (e.oc // config.nb // config.cob) * (pooled // config.hb)
        rows = pair.rows(config.hb)
        same = tiling.Conv2dConfiguration(config.nb, 1, config.mt, config.cob, rows, config.pad, 1, config.parallel)
        alone = tiling.kernel_shape(pair.conv, replace(e, oh=rows * (pooled // config.hb)), same, hardware)
        buffer = 4 * config.nb * rows * e.ow * e.ob
        moved = tasks * config.cob * buffer * 2
        in_l1 = buffer <= hardware.l1_bytes // 2
        memory = sum(group.graph.tensors[t].bytes for t in (*group.inputs, *group.outputs))
        share = pair.conv.group.work.flops / max(1, group.work.flops)
        again = rows * (pooled // config.hb) / e.oh
        return replace(
            alone,
            tasks=tasks if config.parallel else 1,
            recompute=max(1.0, 1.0 + (alone.recompute * again - 1.0) * share),
            l1_bytes=alone.l1_bytes + moved * max(1, math.prod(pair.taps) // 2),
            l2_bytes=alone.l2_bytes + (0 if in_l1 else moved),
            l3_bytes=max(memory, alone.l3_bytes - pair.conv.out.bytes),
            memory_bytes=memory,
            footprint=alone.footprint + buffer,
            loops=alone.loops + 1,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """Tile the pooling by tasks, put the convolution's rows under a task's channel tile."""
        from autofuse.schedule import blocks as B

        return B.guarded(f"conv2d_pool {config.text}", lambda: _apply(func, config))

    def _pair(self, group: Group) -> Pair:
        return matched(split(group))


def _three_blocks(e: tiling.Extents, hardware: Hardware) -> tuple[int, int] | None:
    """The largest tile of three blocks (nb, mt) on data that are not blocked, None where channels are no such tiles.

    On such data `register_tiles` keeps to half of the registers, since LLVM spills larger tiles. It does not spill
    these, and three blocks that meet each broadcast took 0.82 of the time of one.
    """
    if e.ib != 1 or e.oc // e.groups % 3:
        return None
    registers = hardware.vector_registers
    left = registers - 3 - (1 if hardware.fused else 2)  # weights, and a broadcast or a product
    return 3, min(e.ow, min(registers - registers // 4, left) // 3)


def _apply(func: PrimFunc, c: ConvPoolConfiguration) -> PrimFunc:
    from autofuse.schedule import ScheduleError
    from autofuse.schedule import blocks as B

    sch = B.open_schedule(func)
    anchor, pool = B.only(sch, "conv"), B.only(sch, "pool")
    before = B.upstream(sch, pool)
    after = B.downstream(sch, pool)
    chain = [b for b in B.downstream(sch, anchor) if B.contains(sch, before, b)]
    if not B.contains(sch, before, anchor):
        raise ScheduleError(f"conv2d_pool {c.text}: the pooling does not follow the convolution")
    padding = [b for b in chain if B.role(sch, b) == "pad"]
    chain = [b for b in chain if B.role(sch, b) != "pad"]
    B.inline_all(sch, padding)
    data = sch.get(anchor).reads[0].source
    rest = [b for b in B.blocks(sch) if not B.contains(sch, (anchor, pool, *chain, *after), b)]
    stage = next((b for b in rest if B.written(sch, b).same_as(data)), None) if c.pad else None
    B.inline_all(sch, [b for b in rest if stage is None or not B.same(sch, b, stage)])
    if chain:
        sch.set_scope(anchor, 0, "local")
    else:
        chain = [sch.cache_write(anchor, 0, "local")]
    rows = chain.pop()  # what the pooling reads
    inner = B.inline_chain(sch, chain)
    for block in inner:
        sch.set_scope(block, 0, "local")
    if B.is_output(sch, pool):
        copy = sch.cache_write(pool, 0, "local", consumer_blocks=after) if after else sch.cache_write(pool, 0, "local")
        after.append(copy)
    else:
        sch.set_scope(pool, 0, "local")
    changes = [b for b in after if B.role(sch, b) == "layout_change"]
    after = B.inline_chain(sch, after, [b for change in changes for b in sch.get_producers(change)])
    for block in after:
        if not B.is_output(sch, block):
            sch.set_scope(block, 0, "local")

    n, co, h, x, lane, kh, kw = sch.get_loops(pool)
    if B.extent(sch, co) % (c.nb * c.cob) or B.extent(sch, h) % c.hb:
        raise ScheduleError(f"conv2d_pool {c.text}: the tiles do not divide the result")
    co_task, co_tile, co_in = sch.split(co, [None, c.cob, c.nb])
    h_task, h_in = sch.split(h, [None, c.hb])
    uneven = bool(padding) or B.extent(sch, x) % _POOL_COLUMNS != 0
    x_tile, x_in = sch.split(x, [None, _POOL_COLUMNS])
    sch.reorder(n, co_task, h_task, co_tile, h_in, co_in, x_tile, kh, kw, x_in, lane)
    if uneven:
        sch.annotate(x_tile, "pragma_loop_partition_hint", 1)
    task = sch.fuse(n, co_task, h_task)
    if c.parallel:
        sch.parallel(task)
    W.place_epilogue(W.OpenWindow(sch, pool, None, after), x_tile)

    sch.compute_at(rows, co_tile, preserve_unit_loops=True)
    one, channel, y, column, vector = sch.get_loops(rows)[-5:]
    ragged = B.extent(sch, column) % c.mt != 0
    column_tile, column = sch.split(column, [None, c.mt])
    sch.reorder(one, y, column_tile, channel, column, vector)
    if padding:
        sch.annotate(y, "pragma_loop_partition_hint", 1)
    if ragged:
        sch.annotate(column_tile, "pragma_loop_partition_hint", 1)
    for block in reversed(inner):
        sch.compute_at(block, column_tile, preserve_unit_loops=True)
    sch.compute_at(anchor, column_tile, preserve_unit_loops=True)
    for block in (rows, *inner):
        own = sch.get_loops(block)
        tile = (channel, column) if B.same(sch, block, rows) else own[-5:-1]
        sch.vectorize(own[-1])
        for loop in tile:
            sch.unroll(loop)
    channel, y, column, vector, ic_o, ry, rx, ic_i = sch.get_loops(anchor)[-8:]
    sch.reorder(ic_o, ry, rx, ic_i, y, column, channel, vector)
    sch.fuse(rx, ic_i)
    for loop in (y, column, channel):
        sch.unroll(loop)
    sch.vectorize(vector)
    W.place_stage(W.OpenWindow(sch, anchor, stage, []), task if c.pad == 1 else None, bool(c.parallel))
    sch.vectorize(lane)
    for loop in (x_in, kh, kw):
        sch.unroll(loop)
    sch.decompose_reduction(anchor, ic_o)
    sch.decompose_reduction(pool, kh)
    return B.close_schedule(sch, func)
