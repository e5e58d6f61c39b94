"""Schedule family of blocked direct convolutions with elementwise work before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu import conv_tiling as T
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.conv_tiling import Conv2dConfiguration, Extents
from autofuse.schedule.family import BatchedFamily, Configuration, remembered
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# Operations below which one thread is quicker than several.
_SERIAL = 400_000
# Weights that stream from L2 for every task, as a share of it (measured with 512 KB: 600).
_STREAMED = 75 / 64
# What a step of a tile of places counts for, beside one of a tile of rows.
_PLACES = 0.99


@remembered
def _parts(group: Group) -> tuple[W.Window, Extents]:
    window = matched(W.parse(group, ("nn.conv2d",), ("blocked",)))
    return window, T.extents(window)


@remembered
def _known(group: Group, machine: tuple[int, int, int]) -> tuple[W.Window, T.Neighbours, T.Tilings]:
    window, e = _parts(group)
    return window, T.neighbours_of(window), T.tilings_of(e, window.weight.bytes, window.out.elements, machine)


class Conv2dFamily(BatchedFamily):
    """Direct convolution on blocked layouts: accumulators in registers, epilogue applied to the tile."""

    name: ClassVar[str] = "conv2d"
    version: ClassVar[int] = 5
    configuration: ClassVar[type[Configuration]] = Conv2dConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Blocked convolutions."""
        return op.kind == "nn.conv2d" and op.attrs.get("variant") == "blocked"

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One blocked convolution; elementwise operators before it, beside it and after it."""
        found = W.parse(group, ("nn.conv2d",), ("blocked",))
        if isinstance(found, Refusal):
            return found
        if found.out.shape[-1] != hardware.lanes or len(found.out.shape) != 5:
            return Refusal("layout", f"the result is not in blocks of {hardware.lanes} channels", (found.anchor.index,))
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Conv2dConfiguration]:
        """Register tiles that fit, each with the task shapes that suit the weights' size."""
        window, e = _parts(group)
        staged = window.padded or bool(window.prologue)
        return _configurations(e, staged, window.weight.bytes, hardware)

    def shapes_of(self, asked: Sequence[tuple[Group, Sequence[Configuration]]], hardware: Hardware) -> T.Array:
        """Traffic by level from the loop order: weights once per task and channel tile, data once per channel tile."""
        machine = T.machine_of(hardware)
        parts = []
        for group, configs in asked:
            window, neighbours, tilings = _known(group, machine)
            parts.append((window, neighbours, tilings.of(cast("Sequence[Conv2dConfiguration]", configs))))
        return T.shape_rows(parts)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """Tile the convolution, put its padding at the task and its epilogue at the register tile."""
        from autofuse.schedule import blocks as B

        if config.ht:
            return B.guarded(f"conv2d {config.text}", lambda: _apply(func, config))
        from autofuse.schedule.cpu.conv_places_nests import PlacesNests

        window, e = _parts(group)
        return B.guarded(f"conv2d {config.text}", lambda: PlacesNests(func, window, e, config).build())


def register_tiles(e: Extents, hardware: Hardware) -> tuple[tuple[int, int, int], ...]:
    """Register tiles (nb, ht, mt) of rows, best first."""
    return tuple(tile for _, tile in _row_tiles(e, hardware))


@lru_cache(maxsize=1024)
def _row_tiles(e: Extents, hardware: Hardware) -> tuple[tuple[float, tuple[int, int, int]], ...]:
    """Register tiles with their cycles for a step of one accumulator, best first.

    Accumulators, nb weights and one broadcast must fit the registers.
    """
    registers = hardware.vector_registers
    most = registers - registers // 4  # more accumulators than this spilled
    if e.ib == 1:
        most = registers // 2  # the short loop over the taps of a row is unrolled by LLVM, which then needs registers
    others = 1 if hardware.fused else 2  # a broadcast, and a product that is not added yet
    chains = W.chains_needed(hardware)
    per_group = e.oc // e.groups
    scored = []
    for nb in W.divisors(per_group):
        if nb > (most if e.oh * e.ow == 1 else 6):
            break
        for ht in (1, 2, 4):
            if e.oh % ht or (ht > 1 and e.ow >= 16 and e.ow % 4 == 0):
                continue
            for mt in range(1, min(e.ow, most // (nb * ht)) + 1):
                tile = nb * ht * mt
                if tile > most or tile + nb + others > registers:
                    continue
                if ht > 1 and e.ow % mt:
                    continue  # a remainder of columns in several rows doubles the code for little
                full, rest = divmod(e.ow, mt)
                time = full * _tile_time(nb, ht, mt, chains) + (_tile_time(nb, ht, rest, chains) if rest else 0.0)
                scored.append((time / (nb * ht * e.ow), rest != 0, ht, nb, (nb, ht, mt)))
    scored.sort()
    return tuple((item[0], item[-1]) for item in scored)


@lru_cache(maxsize=1024)
def _place_tiles(e: Extents, hardware: Hardware) -> tuple[tuple[float, tuple[int, int, int]], ...]:
    """Register tiles (nb, 0, mt) of places with their cycles for a step of one accumulator, best first.

    Neither need divide. One block alone meets every broadcast with a single multiply-add.
    """
    if e.places < 2:
        return ()
    registers = hardware.vector_registers
    most = registers - registers // 4
    others = 1 if hardware.fused else 2
    chains = W.chains_needed(hardware)
    scored = []
    for nb in range(min(2, e.oc), min(e.oc, 3 if registers <= 16 else 6) + 1):
        for mt in range(1, min(e.places, most // nb) + 1):
            if nb * mt + nb + others > registers:
                continue
            time, ragged = 0.0, 0
            for count, blocks in ((e.oc // nb, nb), (1, e.oc % nb)):
                for times, places in ((e.places // mt, mt), (1, e.places % mt)):
                    if blocks and places:
                        time += count * times * _tile_time(blocks, 0, places, chains)
                        ragged += (blocks, places) != (nb, mt)
            scored.append((time / (e.oc * e.places), ragged, (nb, 0, mt)))
    scored.sort()
    return tuple((item[0], item[-1]) for item in scored)


@lru_cache(maxsize=1024)
def _configurations(e: Extents, staged: bool, weight_bytes: int, hardware: Hardware) -> tuple[Conv2dConfiguration, ...]:
    """The configurations of a convolution, whatever stands around it; staged: its data is padded or computed."""
    found: dict[Conv2dConfiguration, None] = {}
    tiles = [*_row_tiles(e, hardware)[:4], *_place_tiles(e, hardware)[:2]]
    # Of equal tiles those of places were up to 8 % faster, but not where data that are computed cost divisions.
    tiles.sort(key=lambda item: item[0] * (1.0 if item[1][1] or staged else _PLACES))
    for _, (nb, ht, mt) in tiles:
        tasks = _tasks(e, nb, ht, mt, staged, weight_bytes, hardware) if ht else _place_tasks(
            e, nb, mt, staged, weight_bytes, hardware)  # fmt: skip
        for task in tasks:
            found[task] = None
    ordered = list(found)
    # Round-robin over the tiles: the first choice of each before the second of any.
    seen: dict[tuple[int, int, int], int] = {}
    ranks = []
    for config in ordered:
        tile = (config.nb, config.ht, config.mt)
        ranks.append(seen.get(tile, 0))
        seen[tile] = seen.get(tile, 0) + 1
    order = sorted(range(len(ordered)), key=lambda i: (ranks[i], i))
    return tuple(ordered[i] for i in order)[:12]


def _tile_time(nb: int, ht: int, mt: int, chains: int) -> float:
    """Cycles of one reduction step: two multiply-adds and two and a half loads a cycle, or their latency.

    Loads cost a little even when the multiply-adds hide them, weights (a whole vector each) more than broadcasts.
    """
    places = max(1, ht) * mt
    return max(nb * places / 2.0, (nb + places) / 2.5, chains / 2.0) + 0.1 * nb + 0.05 * places


def _place_tasks(
    e: Extents, nb: int, mt: int, staged: bool, weight_bytes: int, hardware: Hardware
) -> list[Conv2dConfiguration]:
    """Task shapes for one register tile of places, best first.

    As many tasks as cores, since each reads all weights or all data of its image; more where a task's data and results
    would leave L2.
    """
    cores = hardware.cores
    channel_tiles, place_tiles = -(-e.oc // nb), -(-e.places // mt)
    made: list[Conv2dConfiguration] = []

    def add(cob: int, hb: int, pad: int, parallel: int = 1) -> None:
        tasks = e.n * -(-channel_tiles // cob) * -(-place_tiles // hb)
        made.append(Conv2dConfiguration(nb, 0, mt, cob, hb, pad if staged else 0, 1, parallel if tasks > 1 else 0))

    work = 2 * e.n * e.oc * e.ob * e.places * e.ic * e.ib
    needed = max(1, -(-cores // e.n))
    if work < _SERIAL:
        add(channel_tiles, place_tiles, 1, parallel=0)
    task_bytes = 4 * e.places * (e.ic * e.ib + e.oc * e.ob)
    waves = max(1, -(-task_bytes // (needed * hardware.l2_bytes)))
    by_places = [(channel_tiles, -(-place_tiles // min(place_tiles, needed * w)), 1) for w in (waves, 2 * waves)]
    by_channels = (-(-channel_tiles // min(channel_tiles, needed)), place_tiles, 2)
    apart = staged or channel_tiles < needed or W.shares_rows(e.oh * e.ow * e.ob, cores)
    # Weights beyond that, read by every task for a few places, took 1.2 times as long.
    streamed = weight_bytes <= _STREAMED * hardware.l2_bytes or channel_tiles < needed
    first, second = (by_places, [by_channels]) if streamed and apart else ([by_channels], by_places if streamed else [])
    for task in (*first, *second):
        add(*task)
    if _SERIAL <= work < 10 * _SERIAL:
        add(channel_tiles, place_tiles, 1, parallel=0)
    return made


def _tasks(
    e: Extents, nb: int, ht: int, mt: int, staged: bool, weight_bytes: int, hardware: Hardware
) -> list[Conv2dConfiguration]:
    """Task shapes for one register tile, best first."""
    cores = hardware.cores
    channel_tiles, row_tiles = e.oc // nb, e.oh // ht
    weight_bytes //= max(1, e.groups)
    work = 2 * e.n * e.oc * e.ob * e.oh * e.ow * e.ic * e.kh * e.kw * e.ib
    chunks = [1]
    reduction = e.ic * e.ib
    if reduction >= 512 and not e.pointwise:
        chunks = [c for c in (2, 4) if e.ic % c == 0] + [1]
    made: list[Conv2dConfiguration] = []

    def add(cob: int, hb: int, pad: int, chunk: int = 1, parallel: int = 1) -> None:
        tasks = e.n * (channel_tiles // cob) * (row_tiles // hb)
        if tasks == 1:
            parallel = 0
        made.append(Conv2dConfiguration(nb, ht, mt, cob, hb, pad if staged else 0, chunk, parallel))

    serial = work < _SERIAL
    if serial:
        add(channel_tiles, row_tiles, 1, parallel=0)
    # Rows in parallel, all output channels inside: the padding is computed where it is used, weights stream from L2.
    rows = _even(row_tiles, max(1.0, row_tiles / max(1.0, 4.0 * cores / e.n)), e.n, cores)
    by_rows = (channel_tiles, rows, 1)
    # Channels in parallel, all rows inside: weights are read once, the padding is computed before.
    tiles = _even(channel_tiles, max(1.0, channel_tiles / max(1.0, 4.0 * cores / e.n)), e.n, cores)
    by_channels = (tiles, row_tiles, 2)
    apart = staged or channel_tiles // tiles < cores or W.shares_rows(e.oh * e.ow * e.ob, cores)
    streamed = weight_bytes <= _STREAMED * hardware.l2_bytes
    first, second = (by_rows, by_channels) if streamed and apart else (by_channels, by_rows)
    for chunk in chunks:
        add(*first, chunk)
        add(*second, chunk)
    small_rows = W.divisor_near(row_tiles, max(1.0, rows / 2.0))
    add(channel_tiles, small_rows, 1)
    if channel_tiles > 1:
        half = W.divisor_near(channel_tiles, max(1.0, channel_tiles / 2.0))
        add(half, rows, 2)
    if not serial and work < 10 * _SERIAL:
        add(channel_tiles, row_tiles, 1, parallel=0)
    return made


def _even(extent: int, wanted: float, times: int, cores: int) -> int:
    """The divisor of `extent` near `wanted` that leaves no core idle at the end: `times` × extent / divisor tasks."""

    def idle(divisor: int) -> float:
        tasks = times * (extent // divisor)
        return -(-tasks // cores) * cores / tasks

    return min(W.divisors(extent), key=lambda d: (max(1.1, idle(d)), max(d / wanted, wanted / d), d))


def _apply(func: PrimFunc, c: Conv2dConfiguration) -> PrimFunc:
    from autofuse.schedule import blocks as B
    from autofuse.schedule.conditions import hoist_conditions

    w = W.open_window(func, "conv", keep_stage=c.pad > 0, accumulate="local" if c.chunk == 1 else "global")
    sch, conv = w.sch, w.anchor
    n, co, h, x, lane, ic_o, kh, kw, ic_i = sch.get_loops(conv)
    extents = {"channels": B.extent(sch, co), "rows": B.extent(sch, h)}
    if extents["channels"] % (c.nb * c.cob) or extents["rows"] % (c.ht * c.hb) or B.extent(sch, ic_o) % c.chunk:
        from autofuse.schedule import ScheduleError

        raise ScheduleError(f"conv2d {c.text}: the tiles do not divide {extents}")
    ragged = B.extent(sch, x) % c.mt != 0
    co_task, co_tile, co_in = sch.split(co, [None, c.cob, c.nb])
    h_task, h_tile, h_in = sch.split(h, [None, c.hb, c.ht])
    x_tile, x_in = sch.split(x, [None, c.mt])
    if c.chunk == 1:
        sch.reorder(n, co_task, h_task, co_tile, h_tile, x_tile, ic_o, kh, kw, ic_i, h_in, x_in, co_in, lane)
        first = ic_o
        at = x_tile
    else:
        chunk, ic_o = sch.split(ic_o, [c.chunk, None])
        sch.reorder(n, co_task, h_task, co_tile, chunk, h_tile, x_tile, ic_o, kh, kw, ic_i, h_in, x_in, co_in, lane)
        first = chunk
        at = co_tile
    if ragged:
        sch.annotate(x_tile, "pragma_loop_partition_hint", 1)
    task = sch.fuse(n, co_task, h_task)
    if c.parallel:
        sch.parallel(task)
    W.place_stage(w, task if c.pad == 1 else None, bool(c.parallel))
    if c.chunk == 1:
        W.place_epilogue(w, at)
    else:
        W.place_rows(w, at)
    sch.fuse(kw, ic_i)
    for loop in (h_in, x_in, co_in):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.decompose_reduction(conv, first)
    return hoist_conditions(B.close_schedule(sch, func))
