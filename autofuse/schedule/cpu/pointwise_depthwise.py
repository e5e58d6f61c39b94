"""Schedule family of a pointwise (1×1) convolution and the depthwise one behind it, in one kernel.

A task takes some channels of some rows. For a few channel blocks at a time it makes the pointwise results row by row,
with what follows them, into a ring of as many rows as the depthwise kernel reaches over, and a row of depthwise results
as soon as its rows are there: what is between the two stays in L1. Only rows at the borders of tasks are made twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, cast

from autofuse.graph.model import Group
from autofuse.schedule.cpu import window_pair as P
from autofuse.schedule.cpu.pair_family import PairConfiguration, PairFamily
from autofuse.schedule.family import Configuration, KernelShape
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_OFFERED = 6


class PointwiseDepthwiseFamily(PairFamily):
    """See the module's description."""

    name: ClassVar[str] = "pointwise_depthwise"
    version: ClassVar[int] = 1
    order: ClassVar[tuple[str, str]] = ("pointwise", "depthwise")

    def configs(self, group: Group, hardware: Hardware) -> Sequence[PairConfiguration]:
        """Parts of the rows, channels only where there are too few rows; the register tiles that suit a row."""
        pair = self.pair(group, hardware)
        return _configurations(pair.depthwise, pair.inputs, int(bool(pair.first.prologue)), hardware)

    def tilings(self, pair: P.Pair, configs: Sequence[Configuration], hardware: Hardware) -> Sequence[P.Tiling]:
        """Both phases' work and traffic added up; a ring of rows instead of the pointwise results."""
        return _tilings(pair.depthwise, pair.inputs, tuple(configs), hardware)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.pointwise_depthwise_nests import PointwiseDepthwiseNests

        pair = self.pair(group, hardware)
        what = f"pointwise_depthwise {config.text}"
        return blocks.guarded(what, lambda: PointwiseDepthwiseNests(func, pair, config, what).build())


@lru_cache(maxsize=1024)
def _tilings(
    layer: P.Depthwise, inputs: int, configs: tuple[Configuration, ...], hardware: Hardware
) -> tuple[P.Tiling, ...]:
    """One for all groups around equal pairs."""
    chosen = cast("tuple[PairConfiguration, ...]", configs)
    return tuple(_tiling(layer, inputs, c, hardware) for c in chosen)


def _tiling(layer: P.Depthwise, inputs: int, c: PairConfiguration, hardware: Hardware) -> P.Tiling:
    lanes, blocks = layer.lanes, layer.blocks
    parts, shares = ceil(layer.oh / c.hb), P.shares(blocks, c.nb, c.cob)
    tasks = layer.n * parts * shares
    vector = 4 * lanes
    width = min(layer.width, layer.columns)
    rows = min(layer.rows(c.hb), layer.height)
    data = vector * inputs * rows * layer.width
    ring = vector * c.nb * layer.reach * layer.columns
    made = vector * c.nb * c.cob * rows * width
    out = vector * c.nb * c.cob * c.hb * layer.ow
    tile_weights = vector * c.nb * inputs * lanes
    weights = c.cob * (tile_weights + vector * c.nb * layer.taps)
    column_tiles = ceil(width / c.mt)
    l1_half = hardware.l1_bytes // 2
    staged = 2 * data if c.pad else 0
    l1 = layer.taps * out + made + out + staged
    l1 += 4 * c.cob * inputs * lanes * rows * (column_tiles * c.nb * lanes + width)
    # Data pass once a tile of channels, unless all of them stay in L1; weights once a row, unless they do.
    l2 = data * (c.cob if data > l1_half else 1) + out + staged
    l2 += c.cob * tile_weights * (1 if tile_weights <= l1_half else rows * column_tiles)
    l2 += 2 * made if ring > hardware.l1_bytes else 0
    over = data > hardware.l2_bytes
    first, second = parts * rows / layer.height, parts * c.hb / layer.oh
    places = (layer.height * layer.width * first, layer.oh * layer.ow * second)
    pointwise, depthwise = places[0] * inputs * lanes, places[1] * layer.taps
    shape = KernelShape(
        tasks=tasks if c.parallel else 1,
        accumulators=max(c.nb * c.mt, c.ct),
        independent_chains=P.chains(width, c.mt, c.nb, hardware),
        loads_per_fma=P.loads(depthwise, c.ct, pointwise, (c.nb, c.mt), hardware),
        l1_bytes=tasks * l1,
        l2_bytes=tasks * l2,
        l3_bytes=tasks * (data * (c.cob if over else 1) + weights + out),
        footprint=data + tile_weights + ring + out // c.cob,
        # Judged: pairs took longer inside networks than alone, as if results were not stored beside the products.
        exposed=(out + (data if c.pad else 0)) / (data + weights + out),
    )
    return P.Tiling(shape, first * shares, first, second)


@lru_cache(maxsize=1024)
def _configurations(layer: P.Depthwise, inputs: int, pad: int, hardware: Hardware) -> tuple[PairConfiguration, ...]:
    """The configurations of a pair, best guess first."""
    cores = hardware.cores
    data_row = 4 * layer.lanes * inputs * layer.width
    fits = max(1, (hardware.l2_bytes // 2 // data_row - layer.reach) // layer.strides[0] + 1)
    needed = max(1, -(-cores // layer.n))
    # (parts of rows, shares of channels). Channels alone make no row twice, but each task reads all data: inside
    # MobileNet-V2 that took up to 1.2 times what the pair takes apart, though it was no slower alone.
    rows = [(parts, 1) for parts in (needed, 2 * needed, 4 * needed, 8 * needed)]
    rows = [r for r in rows if P.even(layer.oh, r[0]) <= fits or r[0] >= layer.oh] or rows[-1:]
    ways = rows[:3] if layer.oh >= needed else [(1, needed), (1, 2 * needed)]
    found: dict[PairConfiguration, None] = {}
    width = min(layer.width, layer.columns)
    tiles = P.register_tiles(layer.blocks, max(1, width), hardware)
    column_tile = P.column_tile(layer, hardware)
    for nb, mt in tiles[:2]:
        for parts, shares in ways:
            hb = P.even(layer.oh, parts)
            cob = ceil(ceil(layer.blocks / nb) / shares)
            tasks = layer.n * -(-layer.oh // hb) * P.shares(layer.blocks, nb, cob)
            config = PairConfiguration(nb, mt, column_tile, hb, cob, pad, int(tasks > 1 and cores > 1))
            found[config] = None
    return tuple(found)[:_OFFERED]
