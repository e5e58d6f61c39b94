"""Schedule family of blocked depthwise convolutions with elementwise work before and after them."""

from __future__ import annotations

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


class DepthwiseFamily(ScheduleFamily):
    """Depthwise convolution on blocked layouts: taps unrolled, several columns in registers."""

    name: ClassVar[str] = "depthwise"
    version: ClassVar[int] = 2
    configuration: ClassVar[type[Configuration]] = PlaneConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Blocked depthwise convolutions."""
        return op.kind == "nn.conv2d" and op.attrs.get("variant") == "depthwise"

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One blocked depthwise convolution; elementwise operators before it, beside it and after it."""
        found = W.parse(group, ("nn.conv2d",), ("depthwise",))
        if isinstance(found, Refusal):
            return found
        if len(found.out.shape) != 5 or found.out.shape[-1] != hardware.lanes:
            return Refusal("layout", f"the result is not in blocks of {hardware.lanes} channels", (found.anchor.index,))
        return None

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

        return B.guarded(f"depthwise {config.text}", lambda: plane.apply(func, "dwconv", config, hardware))

    def _plane(self, group: Group) -> tuple[W.Window, plane.Plane]:
        found = matched(W.parse(group, ("nn.conv2d",), ("depthwise",)))
        return found, plane.extents(found, (found.weight.shape[1], found.weight.shape[2]))
