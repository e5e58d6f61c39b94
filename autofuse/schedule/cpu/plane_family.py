"""What the families of depthwise convolutions and pooling share; each says which windows it takes, and their taps."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu import plane
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.plane import PlaneConfiguration
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


class PlaneFamily(ScheduleFamily):
    """A family of windows over planes. `role` is that of the anchor's block in TIR."""

    configuration: ClassVar[type[Configuration]] = PlaneConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True
    role: ClassVar[str]

    @abc.abstractmethod
    def window(self, group: Group) -> W.Window | Refusal:
        """The group's window, or why it has none."""

    @abc.abstractmethod
    def taps(self, window: W.Window) -> tuple[int, ...]:
        """(rows, columns) of the window's taps, empty if they are not known."""

    def admits(self, op: Operator) -> bool:
        """Anchors, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def configs(self, group: Group, hardware: Hardware) -> Sequence[PlaneConfiguration]:
        """See plane.configs."""
        return plane.configs(*self._plane(group), hardware)

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """See plane.shape."""
        assert isinstance(config, PlaneConfiguration)
        return plane.shape(*self._plane(group), config, hardware)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See plane.apply."""
        from autofuse.schedule import blocks as B

        return B.guarded(f"{self.name} {config.text}", lambda: plane.apply(func, self.role, config, hardware))

    def _plane(self, group: Group) -> tuple[W.Window, plane.Plane]:
        window = matched(self.window(group))
        rows, columns = self.taps(window)
        return window, plane.extents(window, (rows, columns))
