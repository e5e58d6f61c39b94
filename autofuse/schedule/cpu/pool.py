"""Schedule family of max and average pooling, on NCHW or blocked layouts, with elementwise work around it."""

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

_KINDS = ("nn.max_pool2d", "nn.avg_pool2d")


class PoolFamily(ScheduleFamily):
    """Pooling over a window of rows and columns."""

    name: ClassVar[str] = "pool"
    version: ClassVar[int] = 2
    configuration: ClassVar[type[Configuration]] = PlaneConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Pooling operators."""
        return op.kind in _KINDS

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One pooling operator; elementwise operators before it, beside it and after it."""
        found = W.parse(group, _KINDS)
        if isinstance(found, Refusal):
            return found
        if len(found.out.shape) not in (4, 5):
            return Refusal("layout", f"{found.anchor.name} has {len(found.out.shape)} axes", (found.anchor.index,))
        if len(_taps(found)) != 2:
            return Refusal(
                "window", f"{found.anchor.name} does not say the extents of its window", (found.anchor.index,)
            )
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

        return B.guarded(f"pool {config.text}", lambda: plane.apply(func, "pool", config, hardware))

    def _plane(self, group: Group) -> tuple[W.Window, plane.Plane]:
        found = matched(W.parse(group, _KINDS))
        rows, columns = _taps(found)
        return found, plane.extents(found, (rows, columns))


def _taps(window: W.Window) -> tuple[int, ...]:
    """(rows, columns) of the pooling window, empty if it is not known."""
    if len(window.anchor.reduction) == 2:
        return window.anchor.reduction
    for key in ("pool_size", "window"):
        if key in window.anchor.attrs:
            return W.pair(window.anchor.attrs, key, 1)
    return ()
