"""What depthwise convolution and pooling share: each channel (block) is a plane, its window's taps are unrolled.

Gives the configuration, the choices, the kernel's shape and the TIR schedule; the families only say what they match.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import Configuration, KernelShape
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_MOST_UNROLLED = 256  # multiply-adds in one unrolled tile


@dataclass(frozen=True)
class PlaneConfiguration(Configuration):
    """`mt` columns (vectors of columns when channels are not blocked) in registers, `hb` rows a task.

    pad: 0 inlined (the edges become loops of their own), 1 computed by each task, 2 computed by a loop before.
    rows: 0 plane after plane, 1 the first rows of all planes first, so that a thread finds the rows that it wrote in a
    convolution by rows in its own cache. parallel: 0 runs on the calling thread.
    """

    mt: int
    hb: int
    pad: int
    rows: int
    parallel: int


@dataclass(frozen=True)
class Plane:
    """Extents of a plane operator: `lanes` is the stored channel block, 1 for NCHW."""

    planes: int
    oh: int
    ow: int
    kh: int
    kw: int
    lanes: int
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    height: int
    width: int

    def vectors(self, hardware: Hardware) -> int:
        """Vectors in an output row."""
        return self.ow if self.lanes > 1 else math.ceil(self.ow / hardware.lanes)


def extents(window: W.Window, taps: tuple[int, int]) -> Plane:
    """The extents of the window's anchor, whose kernel has `taps` (rows, columns)."""
    shape = window.out.shape
    height, width = window.data.shape[2:4]
    attrs = window.anchor.attrs
    return Plane(
        shape[0] * shape[1], shape[2], shape[3], *taps, shape[4] if len(shape) == 5 else 1,
        W.pair(attrs, "strides", 1), W.pair(attrs, "dilation", 1), height, width,
    )  # fmt: skip


def configs(window: W.Window, p: Plane, hardware: Hardware) -> list[PlaneConfiguration]:
    """Column tiles that suit the row, padding inlined or computed by the task, whole planes or blocks of rows."""
    row = p.vectors(hardware)
    most = min(7, hardware.vector_registers // 2, max(1, _MOST_UNROLLED // (p.kh * p.kw)))
    tiles = W.columns(row, most, 1, 4)[:2]
    dear = any(op.work.special or op.work.divide for op in window.prologue)
    choices = {(True, True): [1, 2], (True, False): [0, 1], (False, True): [1, 0], (False, False): [0]}
    elements = p.planes * p.oh * p.ow * p.lanes

    def pads(mt: int) -> list[int]:
        found = choices[window.padded, dear]
        return sorted(found, reverse=True) if window.padded and not dear and _edges(p, mt, hardware) > 0.5 else found

    serial = elements * max(1, p.kh * p.kw // 4) < 16_384
    # Whole planes when there are enough of them and they fit L1, else blocks of rows.
    wanted = max(1.0, 4.0 * hardware.cores / p.planes)
    row_bytes = 4 * p.lanes * (p.width * p.strides[0] + p.ow)
    fitting = max(1.0, hardware.l1_bytes / row_bytes)
    rows = [W.divisor_near(p.oh, max(1.0, min(p.oh / wanted, fitting)))]
    for other in (W.divisor_near(p.oh, max(1.0, p.oh / wanted)), W.divisor_near(p.oh, max(1.0, p.oh / 4.0)), p.oh):
        if other not in rows:
            rows.append(other)
    found: dict[PlaneConfiguration, None] = {}
    if serial:
        for mt in tiles:
            for pad in pads(mt):
                found[PlaneConfiguration(mt, p.oh, pad, 0, 0)] = None
    share = W.divisor_near(p.oh, max(1.0, p.oh / hardware.cores))
    by_rows = [(share, 1)] if share < p.oh and _by_rows(p, hardware) else []
    for hb, order in (*by_rows, *((hb, 0) for hb in rows[:2])):
        for mt in tiles:
            for pad in pads(mt):
                tasks = p.planes * (p.oh // hb)
                found[PlaneConfiguration(mt, hb, pad, order, int(tasks > 1))] = None
    return list(found)[:12]


def _edges(p: Plane, mt: int, hardware: Hardware) -> float:
    """Share of a row's columns whose taps each ask whether they are inside, where padding is inlined.

    An edge of one tile is a loop of its own that knows; in one of more tiles every tap asks, as it does where the
    window is wider than a tile of columns and so reaches over both edges of a row.
    """
    tile = mt * (1 if p.lanes > 1 else hardware.lanes)
    padding = max(0, (p.ow - 1) * p.strides[1] + (p.kw - 1) * p.dilation[1] + 1 - p.width)
    if padding and p.lanes == 1 and p.kw > tile and p.ow > tile:
        return 1.0
    tiles = math.ceil(padding / 2 / p.strides[1] / tile)
    return min(1.0, 2 * tiles * tile / p.ow) if tiles > 1 else 0.0


def _by_rows(p: Plane, hardware: Hardware) -> bool:
    """Whether the data were probably written by rows, and the results' rows may be shared too."""
    return W.shares_rows(min(p.height * p.width, p.oh * p.ow) * p.lanes, hardware.cores)


def shape(window: W.Window, p: Plane, c: PlaneConfiguration, hardware: Hardware) -> KernelShape:
    """Every input row is read once from the outer levels, `kh` times from L1; halo rows once more per task."""
    tasks = p.planes * (p.oh // c.hb)
    in_rows = (c.hb - 1) * p.strides[0] + (p.kh - 1) * p.dilation[0] + 1
    in_cols = (p.ow - 1) * p.strides[1] + (p.kw - 1) * p.dilation[1] + 1
    task_data = 4 * p.lanes * in_rows * in_cols
    task_out = 4 * p.lanes * c.hb * p.ow
    taps = p.kh * p.kw
    vectors = p.vectors(hardware)
    fill = 1.0 if p.lanes > 1 else p.ow / (vectors * hardware.lanes)
    if p.lanes == 1 and p.strides[1] > 1:
        fill /= 2.0  # strided loads are assembled from several vectors
    if not c.pad and window.padded:
        fill /= 1.0 + _edges(p, c.mt, hardware)
    passes = 1 + (2 if c.pad else 0)
    l1 = tasks * (taps * task_out + task_out + (2 * task_data if c.pad else 0))
    spill = task_data > hardware.l1_bytes // 2
    l2 = tasks * (task_data * (passes if spill else 1) + task_out)
    # By planes, half of what was written by rows comes from another core's cache, which takes about half as long again.
    crossing = 0 if c.rows or not c.parallel or not _by_rows(p, hardware) else window.data.bytes // 4
    memory = window.memory_bytes
    extra = max(0, memory - window.data.bytes - window.out.bytes)
    again = tasks * task_data / max(1, window.data.bytes)
    before = sum(op.work.flops for op in window.prologue)
    times = again if c.pad else max(again, taps * window.out.elements / max(1, window.data.elements))
    recompute = 1.0 + max(0.0, times - 1.0) * before / max(1, window.group.work.flops)
    return KernelShape(
        tasks=tasks if c.parallel else 1,
        vector_fill=min(1.0, fill),
        accumulators=c.mt,
        independent_chains=c.mt,
        recompute=recompute,
        loads_per_fma=1.0 + 1.0 / c.mt,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=tasks * (task_data + task_out) + extra + crossing,
        memory_bytes=memory,
        footprint=task_data * (2 if c.pad else 1) + task_out,
        loops=2 if c.pad == 2 else 1,
        exposed=task_data / (task_data + task_out) if c.pad else 0.0,
    )


def apply(func: PrimFunc, role: str, c: PlaneConfiguration, hardware: Hardware) -> PrimFunc:
    """Tile the anchor by columns under one task per plane and block of rows; epilogue at the column tile."""
    from autofuse.schedule import ScheduleError
    from autofuse.schedule import blocks as B

    w = W.open_window(func, role, keep_stage=c.pad > 0)
    sch, anchor = w.sch, w.anchor
    loops = sch.get_loops(anchor)
    blocked = len(loops) == 7
    if len(loops) not in (6, 7) or B.extent(sch, loops[2]) % c.hb:
        raise ScheduleError(f"{role} {c.text}: unexpected loops {[B.extent(sch, loop) for loop in loops]}")
    n, channel, h, x = loops[:4]
    kh, kw = loops[-2:]
    h_task, h_in = sch.split(h, [None, c.hb])
    if blocked:
        lane = loops[4]
        ragged = B.extent(sch, x) % c.mt != 0
        x_tile, x_in = sch.split(x, [None, c.mt])
    else:
        width = min(hardware.lanes, B.extent(sch, x))
        ragged = B.extent(sch, x) % (c.mt * width) != 0
        x_tile, x_in, lane = sch.split(x, [None, c.mt, width])
    outer = (n, h_task, channel) if c.rows else (n, channel, h_task)
    sch.reorder(*outer, h_in, x_tile, kh, kw, x_in, lane)
    if ragged or (c.pad == 0 and w.stage is None):
        sch.annotate(x_tile, "pragma_loop_partition_hint", 1)
    task = sch.fuse(*outer)
    if c.parallel:
        sch.parallel(task)
    W.place_stage(w, task if c.pad == 1 else None, bool(c.parallel))
    if blocked:
        W.place_epilogue(w, x_tile)
    else:
        W.place_columns(w, x_tile, hardware.lanes)
    unrolled = B.extent(sch, kh) * B.extent(sch, kw) * c.mt <= _MOST_UNROLLED
    sch.vectorize(lane)
    sch.unroll(x_in)
    if unrolled:
        sch.unroll(kh)
        sch.unroll(kw)
    sch.decompose_reduction(anchor, kh)
    return B.close_schedule(sch, func)
