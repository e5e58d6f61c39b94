"""Schedule family of group normalisations in channel blocks, with elementwise work before and after them.

A task takes a group of channels: its sum, the sum of squared distances from the mean, and the results with what follows
applied, in three passes over data that stay in the nearest cache. What is computed before is kept by the first pass.
Where groups do not fill blocks, a task takes the fewest whole groups that do, and sums are those of channels first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_SERIAL_ELEMENTS = 8192
# Groups of whole blocks, and others: see `lower/normalizations.py`.
_VARIANTS = ("blocked", "lanes")


@dataclass(frozen=True)
class GroupNormConfiguration(Configuration):
    """`vectors`: registers of partial sums. parallel: 0 runs on the calling thread."""

    vectors: int
    parallel: int


class GroupNormFamily(ScheduleFamily):
    """See the module's description."""

    name: ClassVar[str] = "group_norm"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = GroupNormConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Group normalisations in channel blocks."""
        return op.kind == "nn.group_norm" and op.attrs.get("variant") in _VARIANTS

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One normalisation; elementwise operators before it, beside it and after it."""
        found = W.parse(group, ("nn.group_norm",), _VARIANTS)
        if isinstance(found, Refusal):
            return found
        if found.out.shape[-1] != hardware.lanes or len(found.out.shape) != 5:
            return Refusal("layout", f"the result is not in blocks of {hardware.lanes} channels", (found.anchor.index,))
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GroupNormConfiguration]:
        """As many partial sums as hide an addition's latency, and half as many."""
        window = self._window(group)
        elements = window.out.elements
        order: tuple[int, ...] = (1, 0) if elements > _SERIAL_ELEMENTS else (0, 1)
        if hardware.cores == 1 or share_of(window).tasks == 1:
            order = (0,)
        elif elements > 16 * _SERIAL_ELEMENTS:
            order = (1,)
        width = window.out.shape[3]
        most = min(width, W.chains_needed(hardware))
        vectors = dict.fromkeys((most, max(1, most // 2)))
        return [GroupNormConfiguration(v, parallel) for parallel in order for v in vectors]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Three passes over a task's data, from the nearest cache that holds them."""
        assert isinstance(config, GroupNormConfiguration)
        window = self._window(group)
        tasks = share_of(window).tasks
        data = window.data.bytes // tasks
        memory = window.memory_bytes
        again = 2 * window.data.bytes + (window.data.bytes if window.prologue else 0)
        return KernelShape(
            tasks=tasks if config.parallel else 1,
            accumulators=config.vectors,
            independent_chains=config.vectors,
            loads_per_fma=1.0,
            l1_bytes=memory + again,
            l2_bytes=memory + (again if data > hardware.l1_bytes // 2 else 0),
            l3_bytes=memory + (again if data > hardware.l2_bytes // 2 else 0),
            memory_bytes=memory,
            footprint=2 * data,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.group_norm_nests import GroupNormNests, LaneNormNests

        window = self._window(group)
        nests = GroupNormNests if window.anchor.attrs["variant"] == "blocked" else LaneNormNests
        return blocks.guarded(f"group_norm {config.text}", lambda: nests(func, window, config, hardware.lanes).build())

    def _window(self, group: Group) -> W.Window:
        return matched(W.parse(group, ("nn.group_norm",), _VARIANTS))


@dataclass(frozen=True)
class Share:
    """What a task takes of an image: `blocks` of channels, which hold `groups` whole groups of `channels` each.

    images: of the batch; tasks: over all of them.
    """

    blocks: int
    groups: int
    channels: int
    images: int
    tasks: int


def share_of(window: W.Window) -> Share:
    """The fewest blocks that hold whole groups; all of an image whose last block is not full."""
    images, blocks, _, _, lanes = window.out.shape
    groups = int(str(window.anchor.attrs["groups"]))
    stored = blocks * lanes
    channels = (window.out.logical_shape[1] if window.out.logical_shape else stored) // groups
    shares = stored // math.lcm(channels, lanes) if groups * channels == stored else 1
    return Share(blocks // shares, groups // shares, channels, images, images * shares)
