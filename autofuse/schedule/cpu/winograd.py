"""Schedule family of blocked 3×3 convolutions by Winograd's minimal filtering: F(2×2, 3×3) and F(4×4, 3×3).

Tiles of (m + 2)² values become (m + 2)² products instead of 9·m² multiply-adds a channel pair: 2.25 times fewer with
m = 2, 4 times with m = 4 (Lavin and Gray, Fast algorithms for convolutional neural networks, CVPR 2016). The weights
are transformed when the model is compiled (`schedule/preparations.py`). It competes with direct convolution: the
family stands beside `conv2d`.

Error: in float32 the results differ from exact ones by at most ERROR[m] of the largest result (tested against float64
for operands without a bias towards one sign: 3e-7 and 3e-6; direct convolution: 1e-6). Sums over more than
MOST_CHANNELS input channels are left to m = 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group, Role
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu import conv_pool
from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import (
    SHAPE_COLUMN,
    Configuration,
    KernelShape,
    ScheduleFamily,
    remembered,
    shape_matrix,
    shape_of_row,
)
from autofuse.schedule.preparations import winograd_text
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

Array = NDArray[np.float64]

#: Largest error of a result, relative to the largest result, by m.
ERROR: Mapping[int, float] = {2: 1e-5, 4: 2e-5}
#: Input channels up to which F(4×4) keeps its bound.
MOST_CHANNELS = 2048
# Multiply-adds below which transforms and parallel regions outweigh what is saved.
_LEAST_WORK = 200_000
# Configurations offered at most, by m.
_OFFERED = {2: 5, 4: 8}
# Half cycles that a last register tile of fewer rows costs besides its work.
_RAGGED = 1.2
# Bytes that all transformed data of a layer may take at least, whatever the last cache holds.
_MOST_APART = 16 << 20
# Additions and multiplications of a transform in one dimension, by m: of m + 2 data, of m + 2 products.
_INPUT_OPERATIONS = {2: 4, 4: 18}
_OUTPUT_OPERATIONS = {2: 4, 4: 14}


@dataclass(frozen=True)
class WinogradConfiguration(Configuration):
    """F(m×m, 3×3). Register tile: `nb` channel blocks × `mt` tiles of data.

    cols: tiles of a segment, a whole row of tiles or an even part of it. rows: segments (over the whole batch) that
    pass by a block of weights together. cob: channel tiles whose products are kept until the inverse transform.
    split: 0 a task transforms its own segments of data and makes all their channels; 1 all data is transformed before,
    a task then makes `cob` channel tiles of `rows` segments. ahead: whether the next block of weights is asked for
    while one is used. parallel: 0 runs on the calling thread.
    """

    m: int
    nb: int
    mt: int
    cols: int
    rows: int
    cob: int
    split: int
    ahead: int
    parallel: int


@dataclass(frozen=True)
class Layer:
    """A 3×3 convolution: `oc` and `ic` channel blocks of `lanes`; `weight`: its weights' place among group.inputs.

    pooled: a 2×2 max pool of stride 2 ends the group; a tile of results holds whole windows of it.
    """

    n: int
    oc: int
    oh: int
    ow: int
    ic: int
    height: int
    width: int
    top: int
    left: int
    padded: bool
    lanes: int
    weight: int
    pooled: bool

    def tiles(self, m: int) -> tuple[int, int]:
        """Rows of tiles over the whole batch, tiles in a row."""
        return self.n * -(-self.oh // m), -(-self.ow // m)

    def segments(self, m: int, cols: int) -> int:
        """Segments of `cols` tiles over the whole batch."""
        rows, across = self.tiles(m)
        return rows * (across // cols)


@remembered
def convolution_of(group: Group) -> W.Window | Refusal:
    """The convolution with what stands around it, a pool that ends the group left out; or why there is none."""
    pools = [op for op in group.operators if op.kind == "nn.max_pool2d"]
    if not pools:
        return W.parse(group, ("nn.conv2d",), ("blocked",))
    pair = conv_pool.split(group)
    if isinstance(pair, Refusal):
        return pair
    (pool,) = pools
    if group.operators[-1] is not pool or len(pair.pool.group.members) > 1:
        return Refusal("pool", f"something follows {pool.name} in the group", (pool.index,))
    if pair.taps != (2, 2) or W.pair(pool.attrs, "strides", 1) != (2, 2) or pair.pool.padded:
        return Refusal("pool", f"{pool.name} is no 2x2 pool of stride 2", (pool.index,))
    if any(extent % 2 for extent in pair.conv.out.shape[2:4]):
        return Refusal("pool", f"{pool.name} leaves out a row or a column", (pool.index,))
    return pair.conv


@remembered
def layer_of(group: Group, lanes: int) -> Layer | Refusal:
    """The group's layer, or why it is none for this family."""
    found = convolution_of(group)
    if isinstance(found, Refusal):
        return found
    anchor = found.anchor
    where = (anchor.index,)
    shape, attrs = found.weight.shape, anchor.attrs
    if len(shape) != 6 or shape[2:4] != (3, 3):
        return Refusal("kernel", f"{anchor.name} has no 3x3 kernel", where)
    if W.pair(attrs, "strides", 1) != (1, 1) or W.pair(attrs, "dilation", 1) != (1, 1):
        return Refusal("strides", f"{anchor.name} has strides or a dilation", where)
    if int(str(attrs.get("groups", 1))) != 1:
        return Refusal("groups", f"{anchor.name} is grouped", where)
    if shape[4:] != (lanes, lanes) or len(found.data.shape) != 5 or found.out.shape[-1] != lanes:
        return Refusal("layout", f"{anchor.name} is not in blocks of {lanes} channels", where)
    if found.weight.role is not Role.CONSTANT:
        return Refusal("weights", f"the weights of {anchor.name} are no constant", where)
    if sum(op.inputs.count(found.weight.index) for op in group.operators) != 1:
        return Refusal("weights", f"the weights of {anchor.name} are read by another operator", where)
    for op in found.epilogue:
        changed = found.tensor(op.outputs[0]).shape
        if op.kind == "layout_change" and changed[1] != shape[0] * lanes:
            return Refusal("layout", f"{op.name} leaves out channels that fill a block", (op.index,))
    if anchor.work.fma < _LEAST_WORK:
        return Refusal("small", f"{anchor.name} is too small for transforms to pay", where)
    n, oc, oh, ow, _ = found.out.shape
    padding = W.pair(attrs, "padding", 0)
    height, width = found.data.shape[2:4]
    return Layer(
        n, oc, oh, ow, shape[1], height, width, padding[0], padding[1], any(padding), lanes,
        group.inputs.index(found.weight.index), found.group != group,
    )  # fmt: skip


class WinogradFamily(ScheduleFamily):
    """See the module's description."""

    name: ClassVar[str] = "winograd"
    version: ClassVar[int] = 3
    configuration: ClassVar[type[Configuration]] = WinogradConfiguration
    beside: ClassVar[bool] = True

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One blocked 3×3 convolution of stride 1 with constant weights; elementwise operators around it, a 2×2 max
        pool behind."""
        found = layer_of(group, hardware.lanes)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[WinogradConfiguration]:
        """For m = 4 and 2 the best register tiles, each with the tasks that suit the size of weights and data."""
        return _configurations(self._layer(group, hardware), hardware)

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Multiply-adds saved, transforms added, traffic of transformed tiles counted."""
        return shape_of_row(self.shape_rows(group, [config], hardware)[0])

    def shape_rows(self, group: Group, configs: Sequence[Configuration], hardware: Hardware) -> Array:
        """All at once: groups around equal convolutions share most of it."""
        layer = self._layer(group, hardware)
        given = cast("tuple[WinogradConfiguration, ...]", tuple(configs))
        return _shape_rows(group, layer, _rows(layer, given, (hardware.l1_bytes, hardware.l2_bytes)))

    def prepared(self, group: Group, config: Any) -> Mapping[int, str]:
        """The weights, transformed."""
        anchor = next(op for op in group.operators if op.kind == "nn.conv2d")
        return {group.inputs.index(anchor.inputs[1]): winograd_text(config.m, config.nb)}

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """Transforms and products as loop nests of their own; the weights' parameter has the prepared shape."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.winograd_nests import WinogradNests

        layer, text = self._layer(group, hardware), winograd_text(config.m, config.nb)
        return blocks.guarded(f"winograd {config.text}", lambda: WinogradNests(func, layer, config, text).build())

    def _layer(self, group: Group, hardware: Hardware) -> Layer:
        return matched(layer_of(group, hardware.lanes))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache(maxsize=1024)
def _register_tiles(blocks: int, places: int, hardware: Hardware) -> tuple[tuple[int, int], ...]:
    """Register tiles (nb, mt), best first, for `blocks` channel blocks and `places` tiles of data."""
    registers = hardware.vector_registers
    most = registers - registers // 4
    chains = W.chains_needed(hardware)
    scored = []
    widths = range(1, min(6, blocks) + 1)
    for nb in [w for w in widths if blocks % w == 0 and (w > 1 or blocks == 1)] or widths:
        for mt in range(1, min(places, most // nb) + 1):
            if nb * mt + nb + 1 > registers:
                continue

            def time(n: int, t: int) -> float:
                # In half cycles, a multiply-add each. One and a half loads a cycle keep up; they cost a little even so.
                return max(n * t, 1.25 * (n + t), chains) + 0.45 * n + 0.1 * t if n and t else 0.0

            full, rest = divmod(places, mt)
            across, left = divmod(blocks, nb)
            total = across * (full * time(nb, mt) + time(nb, rest)) + full * time(left, mt) + time(left, rest)
            if full and rest:
                total += _RAGGED * _ceil_div(blocks, nb)
            scored.append((round(total / places / blocks, 3), left != 0, abs(nb - 2), -mt, (nb, mt)))
    scored.sort()
    return tuple(item[-1] for item in scored)


@lru_cache(maxsize=1024)
def _configurations(layer: Layer, hardware: Hardware) -> tuple[WinogradConfiguration, ...]:
    """The configurations of a layer, best guess first."""
    found: dict[WinogradConfiguration, None] = {}
    depth = layer.ic * layer.lanes
    sizes = (4, 2) if depth <= MOST_CHANNELS and layer.oh * layer.ow > 4 else (2,)
    cores = hardware.cores
    for m in sizes:
        products = (m + 2) ** 2
        tile_bytes = 4 * products * depth  # transformed data of a tile
        weights = tile_bytes * layer.oc * layer.lanes
        ahead = int(weights > 8 * hardware.l2_bytes)
        for split, cols, count in _tasks(layer, m, tile_bytes, bool(ahead), hardware):
            for nb, mt in _register_tiles(layer.oc, count * cols, hardware)[:2]:
                tiles = _ceil_div(layer.oc, nb)
                # Products of `cob` tiles of channels stay in L2 beside the data.
                each = 4 * products * count * cols * nb * layer.lanes
                most = max(1, hardware.l2_bytes // 4 // each)
                cob = W.divisor_near(tiles, float(min(most, _ceil_div(tiles, 2 * cores) if split else tiles)))
                # Far weights are best read in the order that they are stored in.
                for group in (1,) if split and ahead else dict.fromkeys((cob, 1)):
                    chunks = _ceil_div(layer.segments(m, cols), count)
                    parallel = int(cores > 1 and (split == 1 or chunks > 1))
                    found[WinogradConfiguration(m, nb, mt, cols, count, group, split, ahead, parallel)] = None
    ordered = [
        [c for c in found if c.m == m][: _OFFERED[m]] for m in sorted(sizes, key=lambda m: _least(layer, m, hardware))
    ]
    # In turn: the first choice of each size before the second of any.
    longest = max(len(some) for some in ordered)
    return tuple(some[rank] for rank in range(longest) for some in ordered if rank < len(some))


def _tasks(
    layer: Layer, m: int, tile_bytes: int, many_weights: bool, hardware: Hardware
) -> Sequence[tuple[int, int, int]]:
    """(split, cols, rows) that suit the caches, best guess first. tile_bytes: of a tile's transformed data."""
    rows, across = layer.tiles(m)
    cores, near = hardware.cores, hardware.l2_bytes // 2
    # Data in L2: some segments a task, enough tasks for the cores.
    cols = max(d for d in range(1, across + 1) if across % d == 0 and (d == 1 or d * tile_bytes <= near))
    segments = rows * (across // cols)
    fits = max(1, near // (cols * tile_bytes))
    together = []
    for wanted in (fits, 2 * fits, max(1, fits // 2)):
        count = max(1, min(wanted, _ceil_div(segments, cores)))
        together.append((0, cols, _even(segments, count, cores)))
    apart = []
    if rows * across * tile_bytes <= max(hardware.l3_bytes, _MOST_APART):
        fits = max(1, near // (across * tile_bytes))
        apart = [(1, across, _even(rows, min(wanted, rows), 1)) for wanted in (rows, 2 * fits)]
    return tuple(dict.fromkeys(apart + together if many_weights else together + apart))


def _least(layer: Layer, m: int, hardware: Hardware) -> float:
    """Seconds that the products take at least; many weights for few tiles come from memory."""
    rows, across = layer.tiles(m)
    weights = (m + 2) ** 2 * layer.ic * layer.oc * layer.lanes**2
    far = 4 * weights / hardware.memory_bandwidth if 4 * weights > hardware.l3_bytes // 2 else 0.0
    return max(weights * rows * across / (hardware.fma_per_second * hardware.cores), far)


def _even(rows: int, most: int, cores: int) -> int:
    """Segments a task, from half of `most` up to it, such that the core that does most does least;
    the larger of equals."""

    def longest(each: int) -> int:
        return min(rows, _ceil_div(_ceil_div(rows, each), cores) * each)

    return min(range(max(1, most // 2), max(1, most) + 1), key=lambda each: (longest(each), -each))


class _Rows(NamedTuple):
    """What some configurations make of a layer, whatever stands around it: one entry a configuration.

    shapes: the matrix of kernel shapes, without what data, results and neighbours add. again: scalar operations before
    the layer that are repeated, over needed. idle: share of the time that cores wait. weights: bytes transformed.
    multiply_adds: of the products.
    """

    shapes: Array
    again: Array
    idle: Array
    weights: Array
    multiply_adds: Array


@lru_cache(maxsize=1024)
def _rows(layer: Layer, configs: tuple[WinogradConfiguration, ...], caches: tuple[int, int]) -> _Rows:
    """caches: bytes of L1 and L2."""
    made = [_tiling(layer, c, *caches) for c in configs]
    others = np.array([numbers for _, numbers in made], np.float64).reshape(-1, 4).T
    return _Rows(shape_matrix([shape for shape, _ in made]), *others)


def _tiling(
    layer: Layer, c: WinogradConfiguration, l1_bytes: int, l2_bytes: int
) -> tuple[KernelShape, tuple[float, float, int, int]]:
    """A configuration's kernel shape, and its other entries of `_Rows`."""
    lanes = layer.lanes
    across, segments = c.cols, layer.segments(c.m, c.cols)
    places, depth, channels = segments * across, layer.ic * lanes, layer.oc * lanes
    products = (c.m + 2) ** 2
    alpha = c.m + 2
    fma = products * places * depth * channels
    chunks, groups = _ceil_div(segments, c.rows), _ceil_div(_ceil_div(layer.oc, c.nb), c.cob)
    tasks = chunks * (groups if c.split else 1)
    transforms = places * depth * 2 * alpha * _INPUT_OPERATIONS[c.m]
    transforms += places * channels * (alpha + c.m) * _OUTPUT_OPERATIONS[c.m]
    weights = 4 * products * depth * channels
    moved = 4 * products * places * depth  # transformed data
    results = 4 * products * places * channels
    accumulators = c.nb * min(c.mt, c.rows * across)
    l1 = 4 * fma * (c.nb * lanes + c.mt) // (c.nb * c.mt * lanes)
    panel = 4 * depth * c.nb * lanes
    plane = 4 * depth * min(places, c.rows * across)
    near = l1_bytes // 2
    tiles = _ceil_div(layer.oc, c.nb)
    l2 = 2 * moved + moved * (tiles - 1 if plane > near else max(0, groups - 1)) + 2 * results
    l2 += weights * chunks * (1 if panel <= near else _ceil_div(c.rows * across, c.mt))
    task_data = 4 * products * c.rows * across * depth
    task_results = 4 * products * c.rows * across * c.cob * c.nb * lanes
    footprint = task_data + task_results
    l3 = weights * chunks
    if c.split:  # written by the first loop, read by every group of channels
        l3 += moved * (1 + groups)
    elif footprint > l2_bytes:
        l3 += moved * groups
    # What comes in evenly while products are made is half waited for: data that one more group of channels reads, and
    # weights unless they come from afar.
    evenly = moved * groups * c.ahead if c.split else weights * chunks * (1 - c.ahead)
    exposed = 1.0 - evenly / (2 * l3)
    # A last task with fewer rows takes as long as the others: a core waits.
    idle = chunks * c.rows / segments - 1.0 if tasks > 1 else 0.0
    shape = KernelShape(
        tasks=tasks if c.parallel else 1,
        accumulators=accumulators,
        independent_chains=accumulators,
        loads_per_fma=(c.nb + c.mt) / max(1, c.nb * c.mt),
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
        footprint=footprint + panel,
        loops=1 + c.split,
        exposed=exposed,
        extra_simple=transforms,
    )
    return shape, ((alpha / c.m) ** 2 - 1.0, idle, weights, fma)


def _shape_rows(group: Group, layer: Layer, rows: _Rows) -> Array:
    """The kernels' shapes, as `shape_matrix` gives them."""
    found = convolution_of(group)
    assert not isinstance(found, Refusal)
    tensors = group.graph.tensors
    data, out = found.data.bytes, found.out.bytes // (4 if layer.pooled else 1)
    every = sum([tensors[t].bytes for t in (*group.inputs, *group.outputs)])
    extra = every - data - found.weight.bytes - out
    before = sum([op.work.flops for op in found.prologue])
    work = max(1, group.work.flops)
    shapes = rows.shapes.copy()
    shapes[:, SHAPE_COLUMN["recompute"]] = 1.0 + rows.again * before / work + rows.idle
    shapes[:, SHAPE_COLUMN["l2_bytes"]] += 2 * data + out
    shapes[:, SHAPE_COLUMN["l3_bytes"]] += data + out + max(0, extra)
    shapes[:, SHAPE_COLUMN["memory_bytes"]] = every - found.weight.bytes + rows.weights
    shapes[:, SHAPE_COLUMN["fma_ratio"]] = rows.multiply_adds / max(1, found.anchor.work.fma)
    return shapes
