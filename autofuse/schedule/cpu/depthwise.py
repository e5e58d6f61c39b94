"""Schedule family of blocked depthwise convolutions with elementwise work before and after them."""

from __future__ import annotations

from typing import ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.plane_family import PlaneFamily
from autofuse.target import Hardware


class DepthwiseFamily(PlaneFamily):
    """Depthwise convolution on blocked layouts: taps unrolled, several columns in registers."""

    name: ClassVar[str] = "depthwise"
    version: ClassVar[int] = 2
    role: ClassVar[str] = "dwconv"

    def anchors(self, op: Operator) -> bool:
        """Blocked depthwise convolutions."""
        return op.kind == "nn.conv2d" and op.attrs.get("variant") == "depthwise"

    def window(self, group: Group) -> W.Window | Refusal:
        """One blocked depthwise convolution."""
        return W.parse(group, ("nn.conv2d",), ("depthwise",))

    def taps(self, window: W.Window) -> tuple[int, ...]:
        """Those of the weights."""
        return window.weight.shape[1:3]

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One blocked depthwise convolution; elementwise operators before it, beside it and after it."""
        found = self.window(group)
        if isinstance(found, Refusal):
            return found
        if len(found.out.shape) != 5 or found.out.shape[-1] != hardware.lanes:
            return Refusal("layout", f"the result is not in blocks of {hardware.lanes} channels", (found.anchor.index,))
        return None
