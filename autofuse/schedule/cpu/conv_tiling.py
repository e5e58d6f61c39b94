"""The kernel shape of blocked convolutions: what a configuration makes of a convolution and of what stands around it.

Takes a window and a configuration, gives a `KernelShape`. What does not depend on the group is worked out once for all
groups around equal convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Graph
from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import (
    SHAPE_COLUMN,
    Configuration,
    KernelShape,
    remembered,
    shape_matrix,
    shape_of_row,
)
from autofuse.target import Hardware

# Vector operations that an operation costs whose result is broadcast: it fills one lane of a vector, beside
# multiply-adds (measured: 1x1 convolutions with an addition before them took 7 % longer than with one after them).
_BROADCAST_OPERATION = 4.0
# Tasks of unequal size count as equal up to this share of all work: tiles differ by more than the model sees.
_UNEVEN = 0.05
# Sets of configurations of one convolution that are remembered.
_MOST_KNOWN = 64

Array = NDArray[np.float64]
_L3, _MEMORY, _RECOMPUTE = (SHAPE_COLUMN[name] for name in ("l3_bytes", "memory_bytes", "recompute"))


@dataclass(frozen=True)
class Conv2dConfiguration(Configuration):
    """Register tile: `nb` channel blocks × `ht` rows × `mt` columns. A task: `cob` tiles of channels × `hb` of rows.

    ht = 0: tiles of `mt` places run on over the ends of rows, and a task has `hb` of them; the last tile of places, of
    channels and of a task's share may be smaller (1×1 only). Otherwise the tiles divide channels and rows.
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

    @property
    def places(self) -> int:
        """Places of an image if a result depends on the data at its own place alone, else 0."""
        alone = self.pointwise and self.groups == 1 and (self.oh, self.ow) == (self.height, self.width)
        return self.oh * self.ow if alone and self.ib == self.ob else 0


def extents(window: W.Window) -> Extents:
    """The extents of the window's anchor."""
    return _extents(window.group.graph, window.anchor.index)


@remembered
def _extents(graph: Graph, anchor: int) -> Extents:
    op = graph.operators[anchor]
    data, weight = (graph.tensors[t].shape for t in op.inputs[:2])
    oc, ic, kh, kw, ib, ob = weight
    n, _, oh, ow, _ = graph.tensors[op.outputs[0]].shape
    attrs = op.attrs
    height, width = data[2:4]
    return Extents(
        n, oc, oh, ow, ic, kh, kw, ib, ob, int(str(attrs.get("groups", 1))),
        W.pair(attrs, "strides", 1), W.pair(attrs, "dilation", 1), height, width,
    )  # fmt: skip


class _Rows(NamedTuple):
    """What some configurations make of a convolution, whatever stands around it: one entry a configuration.

    shapes: the matrix of kernel shapes, without what the neighbours add. data: bytes that all tasks read. pad, cob, mt:
    see the configuration. tiles: tiles of columns in a row. width: columns of a row. staged: whether any of them has
    its data computed first.
    """

    shapes: Array
    data: Array
    pad: Array
    cob: Array
    tiles: Array
    mt: Array
    width: int
    staged: bool


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
        self._known: dict[tuple[Conv2dConfiguration, ...], _Rows] = {}
        self._last: tuple[Sequence[Conv2dConfiguration], _Rows] | None = None

    def of(self, configs: Sequence[Conv2dConfiguration]) -> _Rows:
        """The configurations' tilings, worked out once: the groups around a convolution mostly have the same ones."""
        # Lists of the same objects compare in no time; a hash looks into every one of them.
        if self._last is not None and self._last[0] == configs:
            return self._last[1]
        key = tuple(configs)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self._rows(key)
        self._last = configs, found
        return found

    def _rows(self, configs: tuple[Conv2dConfiguration, ...]) -> _Rows:
        width = self._given[0].ow
        made = [_tiling(c, *self._given) for c in configs]

        def column(values: Sequence[float]) -> Array:
            return np.array(values, np.float64)

        return _Rows(
            shape_matrix([shape for shape, _ in made]),
            column([data for _, data in made]),
            column([c.pad for c in configs]),
            column([c.cob for c in configs]),
            column([math.ceil(width / c.mt) for c in configs]),
            column([c.mt for c in configs]),
            width,
            any(c.pad for c in configs),
        )


@lru_cache(maxsize=1024)
def tilings_of(e: Extents, weights: int, results: int, machine: tuple[int, int, int]) -> Tilings:
    """One for all groups around equal convolutions."""
    return Tilings(e, weights, results, machine)


def machine_of(hardware: Hardware) -> tuple[int, int, int]:
    """What a tiling's traffic depends on: bytes of L1 and L2, and multiply-adds that hide their latency."""
    return hardware.l1_bytes, hardware.l2_bytes, W.chains_needed(hardware)


def _tiling(
    c: Conv2dConfiguration, e: Extents, weights: int, results: int, machine: tuple[int, int, int]
) -> tuple[KernelShape, int]:
    """The kernel's shape but for what stands around the convolution, and the bytes of data that all tasks read."""
    if not c.ht:
        return _tiling_of_places(c, e, machine)
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
    accumulators = c.nb * c.ht * c.mt
    shape = KernelShape(
        tasks=tasks if c.parallel else 1,
        vector_fill=1.0,
        accumulators=accumulators,
        independent_chains=_chains(e, c, needed),
        loads_per_fma=(c.nb + c.ht * c.mt) / accumulators,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
        footprint=footprint,
        loops=2 if c.pad == 2 else 1,
        exposed=task_data / footprint if c.pad else 0.0,
    )
    return shape, tasks * task_data


def _tiling_of_places(c: Conv2dConfiguration, e: Extents, machine: tuple[int, int, int]) -> tuple[KernelShape, int]:
    """`_tiling` where tiles of places run on over the ends of rows."""
    l1_bytes, l2_bytes, needed = machine
    places, depth = e.places, e.ic * e.ib
    channel_tiles, place_tiles = math.ceil(e.oc / c.nb), math.ceil(places / c.mt)
    shares, parts = math.ceil(channel_tiles / c.cob), math.ceil(place_tiles / c.hb)
    tasks = e.n * shares * parts
    task_places, task_blocks = places / parts, e.oc / shares
    task_data = 4 * depth * task_places
    task_out = 4 * task_blocks * e.ob * task_places
    tile_weights = 4 * c.nb * e.ob * depth
    task_weights = 4 * task_blocks * e.ob * depth
    passes = place_tiles / parts if tile_weights + 4 * c.mt * depth > l1_bytes else 1.0
    data_passes = c.cob if task_data > l1_bytes // 2 else 1
    footprint = task_data + task_weights + task_out
    again = c.cob if footprint > l2_bytes and task_data > l2_bytes else 1
    fmas = e.n * places * e.oc * depth
    passed = task_weights * passes + task_data * data_passes + task_out
    # What would be computed if the last tasks were as large as the others: cores wait for those.
    most = shares * min(c.cob * c.nb, e.oc) * parts * min(c.hb * c.mt, places)
    shape = KernelShape(
        tasks=tasks if c.parallel else 1,
        recompute=max(1.0, most / (e.oc * places) - _UNEVEN) if c.parallel else 1.0,
        accumulators=c.nb * c.mt,
        independent_chains=_place_chains(e, c, needed),
        loads_per_fma=(c.nb + c.mt) / (c.nb * c.mt),
        l1_bytes=4 * fmas * (e.ob * c.nb + c.mt) // (c.nb * c.mt),
        l2_bytes=int(tasks * passed),
        l3_bytes=int(tasks * (task_weights + task_data * again + task_out)),
        footprint=int(footprint),
        loops=2 if c.pad == 2 else 1,
        exposed=task_data / footprint if c.pad else 0.0,
    )
    return shape, int(tasks * task_data)


def _place_chains(e: Extents, c: Conv2dConfiguration, needed: int) -> int:
    """`_chains` where the last tiles of places and of channels keep fewer accumulations in flight."""

    def tiles(extent: int, size: int) -> list[tuple[int, int]]:
        return [(extent // size, size), (1, extent % size)]

    steps = sum(
        m * k * max(blocks * count, needed)
        for m, blocks in tiles(e.oc, c.nb) for k, count in tiles(e.places, c.mt) if blocks and count
    )  # fmt: skip
    if steps <= e.oc * e.places:
        return c.nb * c.mt
    return max(1, round(needed * e.oc * e.places / steps))


def kernel_shape(window: W.Window, e: Extents, c: Conv2dConfiguration, hardware: Hardware) -> KernelShape:
    """The kernel's shape; `e.oh` may differ from the window's when another operator wants other rows."""
    tilings = tilings_of(e, window.weight.bytes, window.out.elements, machine_of(hardware))
    return shape_of_row(shape_rows([(window, neighbours_of(window), tilings.of([c]))])[0])


def shape_rows(parts: Sequence[tuple[W.Window, Neighbours, _Rows]]) -> Array:
    """The kernels' shapes of windows from their tilings, one window after another, as `shape_matrix` gives them."""
    facts = []
    for window, around, t in parts:
        size, before = window.data.elements, around.before
        repeats = t.staged or bool(window.prologue)  # whether data may be computed more than once
        fixed = (around.extra, window.memory_bytes, size, before, before or size)
        facts.append((*fixed, max(1, around.needed), max(1, t.width), repeats))
    counts = [len(t.pad) for _, _, t in parts]
    extra, memory, elements, inlined, staged, needed, width, again = np.repeat(
        np.array(facts, np.float64), counts, axis=0
    ).T

    def column(name: str) -> Array:
        return np.concatenate([getattr(t, name) for _, _, t in parts])

    shapes, pad = column("shapes"), column("pad")
    shapes[:, _L3] += extra
    shapes[:, _MEMORY] = memory
    passes = column("data") / np.maximum(1.0, 4 * elements)
    inline = passes * column("cob") * column("tiles") * column("mt") / width * _BROADCAST_OPERATION
    times = np.where(pad == 0, inline, np.where(pad == 1, passes, 1.0))
    computed = np.where(pad == 0, inlined, staged)
    shapes[:, _RECOMPUTE] += np.where(again > 0, np.maximum(times - 1.0, 0.0) * computed / needed, 0.0)
    return shapes


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
