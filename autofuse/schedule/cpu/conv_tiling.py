"""The kernel shape of blocked convolutions: what a configuration makes of a convolution and of what stands around it.

Takes a window and a configuration, gives a `KernelShape`. What does not depend on the group is worked out once for all
groups around equal convolutions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import Configuration, KernelShape, remembered
from autofuse.target import Hardware

# Vector operations that an operation costs whose result is broadcast: it fills one lane of a vector, beside
# multiply-adds (measured: 1x1 convolutions with an addition before them took 7 % longer than with one after them).
_BROADCAST_OPERATION = 4.0


@dataclass(frozen=True)
class Conv2dConfiguration(Configuration):
    """Register tile: `nb` channel blocks × `ht` rows × `mt` columns. A task: `cob` tiles of channels × `hb` of rows.

    pad: 0 data read as it is (or padding inlined), 1 computed by each task, 2 computed before by a loop of its own.
    chunk: input channel chunks, outside the spatial loops of a task. parallel: 0 runs on the calling thread.
    """

    nb: int
    ht: int
    mt: int
    cob: int
    hb: int
    pad: int
    chunk: int
    parallel: int


@dataclass(frozen=True)
class Extents:
    """Extents of a blocked convolution: `oc` output channel blocks, `ic` input channel blocks of one group."""

    n: int
    oc: int  # channel blocks
    oh: int
    ow: int
    ic: int  # input channel blocks of one group
    kh: int
    kw: int
    ib: int
    ob: int
    groups: int
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    height: int
    width: int

    @property
    def pointwise(self) -> bool:
        """Whether the kernel is 1×1."""
        return self.kh * self.kw == 1


@remembered
def extents(window: W.Window) -> Extents:
    """The extents of the window's anchor."""
    oc, ic, kh, kw, ib, ob = window.weight.shape
    n, _, oh, ow, _ = window.out.shape
    attrs = window.anchor.attrs
    height, width = window.data.shape[2:4]
    return Extents(
        n, oc, oh, ow, ic, kh, kw, ib, ob, int(str(attrs.get("groups", 1))),
        W.pair(attrs, "strides", 1), W.pair(attrs, "dilation", 1), height, width,
    )  # fmt: skip


class _Tiling(NamedTuple):
    """What a configuration makes of a convolution, whatever stands around it. Bytes, for the whole kernel."""

    e: Extents
    tasks: int
    column_tiles: int
    task_data: int
    l1: int
    l2: int
    l3: int
    footprint: int
    chains: int  # accumulations in flight
    shapes: dict[tuple[int, int, float], KernelShape]  # those that were made of it


class Neighbours(NamedTuple):
    """What stands around a convolution: bytes of other operands and results, scalar operations."""

    extra: int
    needed: int  # of the whole group
    before: int  # of what feeds the data


def neighbours_of(window: W.Window) -> Neighbours:
    """What stands around the window's anchor."""
    return Neighbours(
        max(0, window.memory_bytes - window.data.bytes - window.weight.bytes - window.out.bytes),
        window.group.work.flops,
        sum(op.work.flops for op in window.prologue),
    )


class Tilings:
    """The tilings of one convolution. weights: their bytes; results: elements; machine: see `machine_of`."""

    def __init__(self, e: Extents, weights: int, results: int, machine: tuple[int, int, int]) -> None:
        self._given = (e, weights, results, machine)
        self._known: dict[Conv2dConfiguration, _Tiling] = {}

    def of(self, c: Conv2dConfiguration) -> _Tiling:
        """A configuration's tiling, worked out once."""
        found = self._known.get(c)
        if found is None:
            found = self._known[c] = _tiling(c, *self._given)
        return found


@lru_cache(maxsize=1024)
def tilings_of(e: Extents, weights: int, results: int, machine: tuple[int, int, int]) -> Tilings:
    """One for all groups around equal convolutions."""
    return Tilings(e, weights, results, machine)


def machine_of(hardware: Hardware) -> tuple[int, int, int]:
    """What a tiling's traffic depends on: bytes of L1 and L2, and multiply-adds that hide their latency."""
    return hardware.l1_bytes, hardware.l2_bytes, W.chains_needed(hardware)


def _tiling(c: Conv2dConfiguration, e: Extents, weights: int, results: int, machine: tuple[int, int, int]) -> _Tiling:
    l1_bytes, l2_bytes, needed = machine
    channel_tiles, row_tiles = e.oc // c.nb, e.oh // c.ht
    tasks = e.n * (channel_tiles // c.cob) * (row_tiles // c.hb)
    rows = c.hb * c.ht
    in_rows = (rows - 1) * e.strides[0] + (e.kh - 1) * e.dilation[0] + 1
    in_cols = (e.ow - 1) * e.strides[1] + (e.kw - 1) * e.dilation[1] + 1
    data_row = 4 * e.ic * e.ib * in_cols
    task_data = in_rows * data_row
    tile_weights = weights // channel_tiles
    task_weights = tile_weights * c.cob
    task_out = 4 * c.cob * c.nb * rows * e.ow * e.ob
    column_tiles = math.ceil(e.ow / c.mt)
    steps = tasks * c.cob * c.hb * e.ic * e.kh * e.kw * e.ib
    l1 = 4 * steps * (column_tiles * c.nb * e.ob + c.ht * e.ow)
    if c.chunk > 1:  # the tile of partial sums is read and written once per chunk
        l1 += 8 * c.chunk * results
    # Between L1 and L2: the weights of a channel tile pass once per row of tiles unless they stay in L1; data once per
    # channel tile unless a task's rows stay in L1.
    share = tile_weights // c.chunk
    weight_passes = c.hb * (1 if share <= l1_bytes // 2 else column_tiles)
    if share <= l1_bytes // 2:
        weight_passes = 1
    data_passes = c.cob if task_data > l1_bytes // 2 else 1
    l2 = tasks * (c.cob * tile_weights * weight_passes + task_data * data_passes + task_out)
    footprint = task_data + task_weights + task_out
    over = footprint > l2_bytes
    l3 = tasks * (task_weights + (task_data * (c.cob if over and task_data > l2_bytes else 1)) + task_out)
    return _Tiling(e, tasks, column_tiles, task_data, l1, l2, l3, footprint, _chains(e, c, needed), {})


def kernel_shape(window: W.Window, e: Extents, c: Conv2dConfiguration, hardware: Hardware) -> KernelShape:
    """The kernel's shape; `e.oh` may differ from the window's when another operator wants other rows."""
    tilings = tilings_of(e, window.weight.bytes, window.out.elements, machine_of(hardware))
    return shape_of(window, neighbours_of(window), tilings.of(c), c)


def shape_of(window: W.Window, neighbours: Neighbours, t: _Tiling, c: Conv2dConfiguration) -> KernelShape:
    """The kernel's shape from its tiling."""
    e = t.e
    tasks, column_tiles, task_data = t.tasks, t.column_tiles, t.task_data
    extra, needed, before = neighbours
    recompute = 1.0
    if c.pad or window.prologue:
        again = tasks * task_data / max(1, 4 * window.data.elements)
        before = before or (window.data.elements if c.pad else 0)
        if c.pad:
            times = again if c.pad == 1 else 1.0
        else:
            times = again * c.cob * column_tiles * c.mt / max(1, e.ow) * _BROADCAST_OPERATION
        recompute += max(0.0, times - 1.0) * before / max(1, needed)
    # Many groups around a convolution differ in their scalar operations alone.
    key = (extra, window.memory_bytes, recompute)
    found = t.shapes.get(key)
    if found is None:
        chains = c.nb * c.ht * c.mt
        found = t.shapes[key] = KernelShape(
            tasks=tasks if c.parallel else 1,
            vector_fill=1.0,
            accumulators=chains,
            independent_chains=t.chains,
            recompute=recompute,
            loads_per_fma=(c.nb + c.ht * c.mt) / chains,
            l1_bytes=t.l1,
            l2_bytes=t.l2,
            l3_bytes=t.l3 + extra,
            memory_bytes=window.memory_bytes,
            footprint=t.footprint,
            loops=2 if c.pad == 2 else 1,
            exposed=task_data / t.footprint if c.pad else 0.0,
        )
    return found


def _chains(e: Extents, c: Conv2dConfiguration, needed: int) -> int:
    """Accumulations in flight, averaged over the tiles of a row: a remainder of columns keeps fewer.

    needed: how many hide the multiply-add's latency.
    """
    full, rest = divmod(e.ow, c.mt)
    column = c.nb * c.ht
    steps = full * max(c.mt * column, needed) + (max(rest * column, needed) if rest else 0)
    if steps <= e.ow * column:
        return column * c.mt
    return max(1, round(needed * e.ow * column / steps))
