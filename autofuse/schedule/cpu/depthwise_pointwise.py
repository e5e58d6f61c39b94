"""Schedule family of a depthwise convolution and the pointwise (1×1) one behind it, in one kernel.

A task takes rows of results: it makes the depthwise results of these rows in all channels, with what follows them, into
a buffer, and multiplies that buffer with the weights of its output channels. What is between the two never leaves the
core. Where there are too few rows for all cores, tasks share the output channels and each makes the depthwise results.
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


class DepthwisePointwiseFamily(PairFamily):
    """See the module's description."""

    name: ClassVar[str] = "depthwise_pointwise"
    version: ClassVar[int] = 1
    order: ClassVar[tuple[str, str]] = ("depthwise", "pointwise")

    def configs(self, group: Group, hardware: Hardware) -> Sequence[PairConfiguration]:
        """Rows that fill the cores evenly and stay in L2, and the register tiles that suit them."""
        pair = self.pair(group, hardware)
        return _configurations(pair.depthwise, pair.outputs, int(bool(pair.first.prologue)), hardware)

    def tilings(self, pair: P.Pair, configs: Sequence[Configuration], hardware: Hardware) -> Sequence[P.Tiling]:
        """Both phases' work and traffic added up; a buffer instead of the depthwise results."""
        return _tilings(pair.depthwise, pair.outputs, tuple(configs), hardware)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.depthwise_pointwise_nests import DepthwisePointwiseNests

        pair = self.pair(group, hardware)
        what = f"depthwise_pointwise {config.text}"
        return blocks.guarded(what, lambda: DepthwisePointwiseNests(func, pair, config, what).build())


@lru_cache(maxsize=1024)
def _tilings(
    layer: P.Depthwise, outputs: int, configs: tuple[Configuration, ...], hardware: Hardware
) -> tuple[P.Tiling, ...]:
    """One for all groups around equal pairs."""
    chosen = cast("tuple[PairConfiguration, ...]", configs)
    return tuple(_tiling(layer, outputs, c, hardware) for c in chosen)


def _tiling(layer: P.Depthwise, outputs: int, c: PairConfiguration, hardware: Hardware) -> P.Tiling:
    lanes, inputs = layer.lanes, layer.blocks
    parts, shares = ceil(layer.oh / c.hb), P.shares(outputs, c.nb, c.cob)
    tasks = layer.n * parts * shares
    places = c.hb * layer.ow
    vector = 4 * lanes
    data = vector * inputs * layer.rows(c.hb) * min(layer.columns, layer.width)
    buffer = vector * inputs * places
    out = vector * min(c.cob * c.nb, outputs) * places
    tile_weights = vector * c.nb * inputs * lanes
    weights = c.cob * tile_weights + vector * inputs * layer.taps
    place_tiles = ceil(places / c.mt)
    l1_half = hardware.l1_bytes // 2
    l1 = (layer.taps + 2) * buffer + (2 * data if c.pad else 0)
    l1 += 4 * c.cob * inputs * lanes * (place_tiles * c.nb * lanes + places)
    # The buffer passes once a tile of channels, unless L1 holds it; a tile's weights once a tile of places, likewise.
    l2 = data + buffer + out + buffer * (c.cob if buffer > l1_half else 1)
    l2 += c.cob * tile_weights * (1 if tile_weights <= l1_half else place_tiles)
    footprint = buffer + weights + out + vector * layer.rows(c.hb) * layer.width
    spilled = buffer * (1 + c.cob) if footprint > hardware.l2_bytes and buffer > hardware.l2_bytes // 2 else 0
    again = parts * c.hb / layer.oh
    depthwise, pointwise = inputs * layer.taps * again * shares, inputs * lanes * outputs * again
    shape = KernelShape(
        tasks=tasks if c.parallel else 1,
        accumulators=max(c.nb * c.mt, c.ct),
        independent_chains=P.chains(places, c.mt, c.nb, hardware),
        loads_per_fma=P.loads(depthwise, c.ct, pointwise, (c.nb, c.mt), hardware),
        l1_bytes=tasks * l1,
        l2_bytes=tasks * l2,
        l3_bytes=tasks * (data + weights + out + spilled),
        footprint=footprint,
        exposed=data / (data + weights + out) if c.pad else 0.0,
    )
    return P.Tiling(shape, parts * shares * layer.rows(c.hb) / layer.height, again * shares, again)


@lru_cache(maxsize=1024)
def _configurations(layer: P.Depthwise, outputs: int, pad: int, hardware: Hardware) -> tuple[PairConfiguration, ...]:
    """The configurations of a pair, best guess first."""
    cores = hardware.cores
    needed = max(1, -(-cores // layer.n))
    buffer = 4 * layer.lanes * layer.blocks * layer.ow  # of a row
    results = 4 * layer.lanes * outputs * layer.ow
    # As many rows as stay in L2 while results pass through it; where the weights are few, rows whose buffer is read
    # from L1.
    most = [max(1, part // (buffer + results)) for part in (hardware.l2_bytes, hardware.l2_bytes // 2)]
    few = max(1, hardware.l1_bytes // buffer)
    weights = 4 * layer.lanes**2 * layer.blocks * outputs
    limits = [few, *most] if weights <= hardware.l2_bytes // 4 else [*most, few]
    sizes = {(P.rows_near(layer.oh, limit, needed), 1): None for limit in limits}
    sizes[P.rows_near(layer.oh, most[0], 1), needed] = None
    found: dict[PairConfiguration, None] = {}
    column_tile = P.column_tile(layer, hardware)
    for rank in range(2):
        for hb, shares in sizes:
            tiles = P.register_tiles(outputs, hb * layer.ow, hardware)
            if rank >= len(tiles):
                continue
            nb, mt = tiles[rank]
            cob = ceil(ceil(outputs / nb) / shares)
            tasks = layer.n * -(-layer.oh // hb) * P.shares(outputs, nb, cob)
            config = PairConfiguration(nb, mt, column_tile, hb, cob, pad, int(tasks > 1 and cores > 1))
            found[config] = None
    return tuple(found)[:_OFFERED]
