"""Schedule family of max and average pooling, on NCHW or blocked layouts, with elementwise work around it."""

from __future__ import annotations

from typing import ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu.plane_family import PlaneFamily
from autofuse.target import Hardware

_KINDS = ("nn.max_pool2d", "nn.avg_pool2d")


class PoolFamily(PlaneFamily):
    """Pooling over a window of rows and columns."""

    name: ClassVar[str] = "pool"
    version: ClassVar[int] = 2
    role: ClassVar[str] = "pool"

    def anchors(self, op: Operator) -> bool:
        """Pooling operators."""
        return op.kind in _KINDS

    def window(self, group: Group) -> W.Window | Refusal:
        """One pooling operator."""
        return W.parse(group, _KINDS)

    def taps(self, window: W.Window) -> tuple[int, ...]:
        """Those of the pooling window."""
        if len(window.anchor.reduction) == 2:
            return window.anchor.reduction
        for key in ("pool_size", "window"):
            if key in window.anchor.attrs:
                return W.pair(window.anchor.attrs, key, 1)
        return ()

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One pooling operator; elementwise operators before it, beside it and after it."""
        found = self.window(group)
        if isinstance(found, Refusal):
            return found
        if len(found.out.shape) not in (4, 5):
            return Refusal("layout", f"{found.anchor.name} has {len(found.out.shape)} axes", (found.anchor.index,))
        if len(self.taps(found)) != 2:
            return Refusal(
                "window", f"{found.anchor.name} does not say the extents of its window", (found.anchor.index,)
            )
        return None
