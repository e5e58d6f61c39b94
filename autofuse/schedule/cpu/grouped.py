"""Schedule family of grouped convolutions whose groups do not fill channel blocks, with elementwise work around them.

A task takes rows of one block of results and copies the data that they read, with their padding. Where one fixed
rearrangement of a vector gives every lane its own group's channel (groups of four channels in blocks of eight), data
are loaded once, rearranged, and meet the taps of a row from registers; else the channels of the block's groups are
broadcast one after another, and a block reads no more of them than its groups have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_SERIAL_FMAS = 50_000


@dataclass(frozen=True)
class GroupedConfiguration(Configuration):
    """`mt` columns in registers; a task takes `hb` rows of a block. pad: 1 copies the data that a task reads first.

    parallel: 0 runs on the calling thread.
    """

    mt: int
    hb: int
    pad: int
    parallel: int


@dataclass(frozen=True)
class Layer:
    """Extents: `oc`, `ic` blocks of `lanes` channels; `inputs`, `outputs`: channels of one of `groups`.

    depth: channels that the weights hold for a block; read: those that a block reads, averaged; sources: blocks of data
    that a block of results reads at most. exact: lanes are rearranged.
    """

    n: int
    oc: int
    oh: int
    ow: int
    ic: int
    kh: int
    kw: int
    lanes: int
    groups: int
    inputs: int
    outputs: int
    depth: int
    read: float
    sources: int
    exact: bool
    strides: tuple[int, ...]
    dilation: tuple[int, ...]

    def rows(self, count: int) -> int:
        """Rows of data that `count` rows of results read."""
        return (count - 1) * self.strides[0] + (self.kh - 1) * self.dilation[0] + 1

    @property
    def columns(self) -> int:
        """Columns of data that a row of results reads."""
        return (self.ow - 1) * self.strides[1] + (self.kw - 1) * self.dilation[1] + 1

    def first(self, block: Any) -> Any:
        """The first channel that a block of results reads; `block` is an int or an expression."""
        return block * self.lanes // self.outputs * self.inputs


@remembered
def layer_of(group: Group, lanes: int) -> tuple[W.Window, Layer] | Refusal:
    """The group's window and layer, or why it has none."""
    from autofuse.lower.geometry import channel_ranges, shuffled

    found = W.parse(group, ("nn.conv2d",), ("grouped",))
    if isinstance(found, Refusal):
        return found
    if found.out.shape[-1] != lanes or len(found.out.shape) != 5:
        return Refusal("layout", f"the result is not in blocks of {lanes} channels", (found.anchor.index,))
    attrs = found.anchor.attrs
    oc, depth, kh, kw, _ = found.weight.shape
    n, _, oh, ow, _ = found.out.shape
    inputs, outputs = W.pair(attrs, "channels", 1)
    groups = int(str(attrs["groups"]))
    exact = shuffled(inputs, outputs, groups, lanes)
    if exact:
        read, sources = float(depth), max(1, lanes // outputs * inputs // lanes)
    else:
        ranges = channel_ranges(inputs, outputs, groups, lanes)
        read = sum(last - first for first, last in ranges) / len(ranges)
        sources = max((last - 1) // lanes - first // lanes + 1 for first, last in ranges)
    layer = Layer(
        n, oc, oh, ow, found.data.shape[1], kh, kw, lanes, groups, inputs, outputs, depth, read, sources, exact,
        W.pair(attrs, "strides", 1), W.pair(attrs, "dilation", 1),
    )  # fmt: skip
    return found, layer


class GroupedFamily(ScheduleFamily):
    """See the module's description."""

    name: ClassVar[str] = "grouped"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = GroupedConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Grouped convolutions whose groups do not fill blocks."""
        return op.kind == "nn.conv2d" and op.attrs.get("variant") == "grouped"

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One grouped convolution; elementwise operators before it, beside it and after it."""
        found = layer_of(group, hardware.lanes)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GroupedConfiguration]:
        """Tiles of columns that suit the row; as many rows as stay in L1 with the data they read."""
        window, layer = self._layer(group, hardware)
        staged = 1 if window.padded or window.prologue else 0
        most = hardware.vector_registers - (layer.kw + 2 if layer.exact else 3)
        chains = W.chains_needed(hardware)
        tiles = W.columns(layer.ow, max(1, min(most, 12)), 1, chains)[:2]
        blocks = layer.n * layer.oc
        fma = window.anchor.work.fma * layer.read / layer.depth
        order: tuple[int, ...] = (1, 0) if fma > _SERIAL_FMAS else (0, 1)
        if hardware.cores == 1:
            order = (0,)
        elif fma > 64 * _SERIAL_FMAS:
            order = (1,)
        row = 4 * layer.lanes * layer.columns * layer.sources * layer.strides[0]
        fitting = max(1.0, hardware.l1_bytes / 2 / row)
        enough = max(1.0, layer.oh * blocks / (4.0 * hardware.cores))
        near = W.divisor_near(layer.oh, min(fitting, enough, layer.oh))
        sizes = dict.fromkeys((near, W.divisor_near(layer.oh, min(2.0 * near, enough)), layer.oh))
        found: dict[GroupedConfiguration, None] = {}
        for parallel in order:
            for hb in sizes:
                for mt in tiles:
                    tasks = blocks * (layer.oh // hb)
                    for pad in (1,) if staged else (0,):
                        found[GroupedConfiguration(mt, hb, pad, int(parallel and tasks > 1))] = None
        return list(found)[:10]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Rows of data pass from L2 once a task and from L1 once a row of the kernel, or once a tap."""
        assert isinstance(config, GroupedConfiguration)
        window, layer = self._layer(group, hardware)
        tasks = layer.n * layer.oc * (layer.oh // config.hb)
        data = 4 * layer.sources * layer.lanes * layer.rows(config.hb) * layer.columns
        out = 4 * layer.lanes * config.hb * layer.ow
        weights = int(4 * layer.lanes * layer.read * layer.kh * layer.kw)
        full, rest = divmod(layer.ow, config.mt)
        needed = W.chains_needed(hardware)
        steps = full * max(config.mt, needed) + (max(rest, needed) if rest else 0)
        chains = config.mt if steps <= layer.ow else max(1, round(needed * layer.ow / steps))
        if layer.exact:
            columns = min(config.mt * layer.kw, (config.mt - 1) * layer.strides[1] + (layer.kw - 1) + 1)
            loads = (columns + layer.kw) / (config.mt * layer.kw)
        else:
            loads = (config.mt + 1) / config.mt
        multiplied = tasks * config.hb * layer.ow * layer.read * layer.kh * layer.kw
        moved = 2 * data if config.pad else 0
        extra = max(0, window.memory_bytes - window.data.bytes - window.weight.bytes - window.out.bytes)
        before = sum(op.work.flops for op in window.prologue)
        again = max(0.0, tasks * data / max(1, window.data.bytes) - 1.0)
        spill = data > hardware.l1_bytes // 2
        return KernelShape(
            tasks=tasks if config.parallel else 1,
            vector_fill=1.0,
            accumulators=config.mt,
            independent_chains=chains,
            recompute=1.0 + again * before / max(1, group.work.flops),
            loads_per_fma=loads,
            l1_bytes=int(4 * layer.lanes * multiplied * loads) + tasks * (out + moved),
            l2_bytes=tasks * (data * (2 if spill else 1) + (moved if spill else 0) + weights + out),
            l3_bytes=tasks * (data + weights + out) + extra,
            memory_bytes=window.memory_bytes,
            footprint=data * (2 if config.pad else 1) + weights + out,
            exposed=data / (data + weights + out) if config.pad else 0.0,
            fma_ratio=layer.read / layer.depth,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.grouped_nests import GroupedNests

        window, layer = self._layer(group, hardware)
        return blocks.guarded(f"grouped {config.text}", lambda: GroupedNests(func, window, layer, config).build())

    def _layer(self, group: Group, hardware: Hardware) -> tuple[W.Window, Layer]:
        return matched(layer_of(group, hardware.lanes))
