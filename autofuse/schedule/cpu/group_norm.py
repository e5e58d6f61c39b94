"""Schedule family of group normalisations in channel blocks, with elementwise work before and after them.

A task takes a group of channels: its sum, the sum of squared distances from the mean, and the results with what follows
applied, in three passes over data that stay in the nearest cache. What is computed before is kept by the first pass.
"""

from __future__ import annotations

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
        """Group normalisations of whole blocks."""
        return op.kind == "nn.group_norm" and op.attrs.get("variant") == "blocked"

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One normalisation; elementwise operators before it, beside it and after it."""
        found = W.parse(group, ("nn.group_norm",), ("blocked",))
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
        if hardware.cores == 1 or groups_of(window) == 1:
            order = (0,)
        elif elements > 16 * _SERIAL_ELEMENTS:
            order = (1,)
        width = window.out.shape[3]
        most = min(width, W.chains_needed(hardware))
        vectors = dict.fromkeys((most, max(1, most // 2)))
        return [GroupNormConfiguration(v, parallel) for parallel in order for v in vectors]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Three passes over a group's data, from the nearest cache that holds them."""
        assert isinstance(config, GroupNormConfiguration)
        window = self._window(group)
        tasks = groups_of(window)
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
        from autofuse.schedule.cpu.group_norm_nests import GroupNormNests

        window = self._window(group)
        return blocks.guarded(
            f"group_norm {config.text}", lambda: GroupNormNests(func, window, config, hardware.lanes).build()
        )

    def _window(self, group: Group) -> W.Window:
        return matched(W.parse(group, ("nn.group_norm",), ("blocked",)))


def groups_of(window: W.Window) -> int:
    """Groups of channels over the whole batch."""
    return window.out.shape[0] * int(str(window.anchor.attrs["groups"]))
