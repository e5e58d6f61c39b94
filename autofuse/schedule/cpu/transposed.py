"""Schedule family of transposed convolutions with a stride, with elementwise work around them.

Results that are a stride apart see the same taps: each phase of rows and columns is a small convolution of the data by
itself, with a register tile of channel blocks × columns, whose results are stored a stride apart after what follows has
been applied to them. Nothing is multiplied by the zeros between the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.lower.geometry import Phases, transposed_phases
from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_SERIAL_FMAS = 100_000


@dataclass(frozen=True)
class TransposedConfiguration(Configuration):
    """Register tile: `nb` channel blocks × `mt` columns of a phase. A task: `cob` tiles of channels × `hb` rows.

    Rows are those of the data, of which each phase has one of results.
    pad: 1 copies the data that a task reads first. parallel: 0 runs on the calling thread.
    """

    nb: int
    mt: int
    cob: int
    hb: int
    pad: int
    parallel: int


@dataclass(frozen=True)
class Layer:
    """Extents: `oc` blocks of `lanes` channels, `ic` of one of the `groups` (1 where each channel is a group)."""

    n: int
    oc: int
    ic: int
    lanes: int
    groups: int
    depthwise: bool
    rows: Phases
    columns: Phases
    height: int
    width: int

    @property
    def steps(self) -> int:
        """Rows of results of the phase with most of them."""
        return max(self.rows.counts)

    @property
    def taps(self) -> float:
        """Taps that a result sees, averaged over rows and columns of results."""
        found = 1.0
        for axis in (self.rows, self.columns):
            found *= sum(n * t for n, t in zip(axis.counts, axis.lengths, strict=True)) / axis.out
        return found

    def data_rows(self, count: int) -> int:
        """Rows of data that `count` rows of every phase read."""
        return count + max(self.rows.low) - min(self.rows.low) + self.rows.taps - 1

    @property
    def data_columns(self) -> int:
        """Columns of data with their padding."""
        return self.width + self.columns.before + self.columns.after


@remembered
def layer_of(group: Group, lanes: int) -> tuple[W.Window, Layer] | Refusal:
    """The group's window and layer, or why it has none."""
    found = W.parse(group, ("nn.conv2d_transpose",), ("blocked", "depthwise"))
    if isinstance(found, Refusal):
        return found
    if found.out.shape[-1] != lanes or len(found.out.shape) != 5:
        return Refusal("layout", f"the result is not in blocks of {lanes} channels", (found.anchor.index,))
    attrs = found.anchor.attrs
    depthwise = attrs["variant"] == "depthwise"
    n, oc, oh, ow, _ = found.out.shape
    height, width = found.data.shape[2:4]
    rows, columns = transposed_phases(
        (height, width), W.pair(attrs, "kernel", 1), W.pair(attrs, "strides", 1), W.pair(attrs, "padding", 0), (oh, ow)
    )
    groups = oc if depthwise else int(str(attrs["groups"]))
    ic = 1 if depthwise else found.weight.shape[1]
    return found, Layer(n, oc, ic, lanes, groups, depthwise, rows, columns, height, width)


def is_padded(layer: Layer) -> bool:
    """Whether the data need zeros around them."""
    return any((layer.rows.before, layer.rows.after, layer.columns.before, layer.columns.after))


class TransposedFamily(ScheduleFamily):
    """See the module's description."""

    name: ClassVar[str] = "transposed"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = TransposedConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Transposed convolutions."""
        return op.kind == "nn.conv2d_transpose" and op.attrs.get("variant") in ("blocked", "depthwise")

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One transposed convolution; elementwise operators before it, beside it and after it."""
        found = layer_of(group, hardware.lanes)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[TransposedConfiguration]:
        """Register tiles that fit, each with tasks of rows and of channels."""
        window, layer = self._layer(group, hardware)
        pad = int(is_padded(layer) or bool(window.prologue))
        fma = layer.n * layer.oc * layer.lanes**2 * layer.ic * layer.rows.out * layer.columns.out * layer.taps
        order: tuple[int, ...] = (1, 0) if fma > _SERIAL_FMAS else (0, 1)
        if hardware.cores == 1:
            order = (0,)
        elif fma > 64 * _SERIAL_FMAS:
            order = (1,)
        found: dict[TransposedConfiguration, None] = {}
        wanted = 4.0 * hardware.cores / layer.n
        row = 4 * layer.ic * layer.lanes * layer.data_columns
        for parallel in order:
            for nb, mt in _tiles(layer, hardware)[:3]:
                tiles = layer.oc // nb
                # Whole rows of all channels where there are rows enough; else some of the channels.
                fitting = max(1.0, hardware.l2_bytes / 2 / row)
                rows = W.divisor_near(layer.steps, min(max(1.0, layer.steps / wanted), fitting))
                few = W.divisor_near(layer.steps, max(1.0, rows / 2.0))
                half = W.divisor_near(tiles, max(1.0, tiles / 2.0))
                for cob, hb in ((tiles, rows), (half, rows), (tiles, few), (1, layer.steps)):
                    if layer.depthwise and cob > 1:
                        cob = 1
                    tasks = layer.n * (tiles // cob) * (layer.steps // hb)
                    found[TransposedConfiguration(nb, mt, cob, hb, pad, int(parallel and tasks > 1))] = None
        return list(found)[:12]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """As of a convolution for each phase: weights pass once a task and tile of channels, data once a phase."""
        assert isinstance(config, TransposedConfiguration)
        window, layer = self._layer(group, hardware)
        c = config
        tiles = layer.oc // c.nb
        tasks = layer.n * (tiles // c.cob) * (layer.steps // c.hb)
        blocks = 1 if layer.depthwise else layer.ic
        data = 4 * blocks * layer.lanes * layer.data_rows(c.hb) * layer.data_columns
        phases = layer.rows.stride * layer.columns.stride
        out = 4 * c.cob * c.nb * layer.lanes * c.hb * layer.rows.stride * layer.columns.out
        weights = window.weight.bytes // tiles * c.cob
        accumulators = c.nb * c.mt
        loads = (1.0 + 1.0 / c.mt) if layer.depthwise else (c.nb + c.mt) / accumulators
        full, rest = divmod(max(layer.columns.counts), c.mt)
        needed = W.chains_needed(hardware)
        steps = full * max(accumulators, needed) + (max(rest * c.nb, needed) if rest else 0)
        ideal = max(layer.columns.counts) * c.nb
        chains = accumulators if steps <= ideal else max(1, round(needed * ideal / steps))
        multiplied = layer.n * layer.oc * layer.rows.out * layer.columns.out * layer.taps
        multiplied *= 1 if layer.depthwise else blocks * layer.lanes
        moved = 2 * data if c.pad else 0
        extra = max(0, window.memory_bytes - window.data.bytes - window.weight.bytes - window.out.bytes)
        before = sum(op.work.flops for op in window.prologue)
        again = max(0.0, tasks * data / max(1, window.data.bytes) - 1.0)
        near = data <= hardware.l1_bytes // 2
        per_phase = window.weight.bytes // tiles // phases
        weight_passes = 1 if per_phase <= hardware.l1_bytes // 2 else c.hb
        return KernelShape(
            tasks=tasks if c.parallel else 1,
            vector_fill=1.0,
            accumulators=accumulators,
            independent_chains=chains,
            recompute=1.0 + again * before / max(1, group.work.flops),
            loads_per_fma=loads,
            l1_bytes=int(4 * layer.lanes * multiplied * loads) + tasks * (out + moved),
            l2_bytes=tasks * (data * (1 if near else phases * c.cob) + moved + weights * weight_passes + out),
            l3_bytes=tasks * (data + weights + out) + extra,
            memory_bytes=window.memory_bytes,
            footprint=data * (2 if c.pad else 1) + weights + out,
            exposed=data / (data + weights + out) if c.pad else 0.0,
            fma_ratio=min(1.0, layer.taps / (layer.rows.taps * layer.columns.taps)),
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.transposed_nests import TransposedNests

        window, layer = self._layer(group, hardware)
        return blocks.guarded(f"transposed {config.text}", lambda: TransposedNests(func, window, layer, config).build())

    def _layer(self, group: Group, hardware: Hardware) -> tuple[W.Window, Layer]:
        return matched(layer_of(group, hardware.lanes))


def _tiles(layer: Layer, hardware: Hardware) -> list[tuple[int, int]]:
    """Register tiles (nb, mt), best first: accumulators, weights and one broadcast have to fit the registers."""
    registers = hardware.vector_registers
    most = registers - registers // 4
    chains = W.chains_needed(hardware)
    width = max(layer.columns.counts)
    if layer.depthwise:
        return [(1, mt) for mt in W.columns(width, min(most - 2, 8), 1, chains)[:2]]
    scored = []
    for nb in W.divisors(layer.oc // layer.groups):
        if nb > 6:
            break
        for mt in range(1, min(width, most // nb) + 1):
            if nb * mt + nb + 1 > registers:
                continue

            def cost(columns: int, nb: int = nb) -> float:
                if not columns:
                    return 0.0
                return max(nb * columns / 2, (nb + columns) / 2.5, chains / 2) + 0.1 * nb + 0.05 * columns

            full, rest = divmod(width, mt)
            scored.append(((full * cost(mt) + cost(rest)) / (nb * width), rest != 0, nb, -mt, (nb, mt)))
    scored.sort()
    return [item[-1] for item in scored]
