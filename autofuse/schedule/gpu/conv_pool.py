"""A dense convolution and the pool behind it in one kernel on a GPU: what is pooled never goes to memory.

The kernel is that of `gemm.py` with its rows in another order: places of a window follow each other, so that all of
them stand in one thread's micro-tile, which pools them in registers. Windows that overlap make what they share again.
Only windows of two or four places fit a micro-tile that way (2×2, 1×2, 2×1, 1×4, 4×1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator, Work
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu import conv_pool as pairs
from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.schedule.gpu.gemm import GpuGemmConfig, Product, product_of, ranked, tiled
from autofuse.schedule.gpu.roof import terms
from autofuse.schedule.gpu.shape import GpuShape, ceil_div, computed_again
from autofuse.target import GpuHardware, Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_CONFIGURATIONS = 16
_POOLS = ("nn.max_pool2d", "nn.avg_pool2d")
_PLACES = (2, 4)


@dataclass(frozen=True)
class Pooled:
    """A pool over the places (height, width) of a convolution: rows and columns of a window, its strides, what stands
    before the first row and column, and the results along both."""

    height: int
    width: int
    window: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]
    results: tuple[int, int]

    @property
    def places(self) -> int:
        """Places of a window."""
        return self.window[0] * self.window[1]


class GpuConvPoolFamily(ScheduleFamily):
    """A dense convolution, elementwise operators, a pool of small windows, elementwise operators."""

    name: ClassVar[str] = "gpu_conv_pool"
    version: ClassVar[int] = 2
    configuration: ClassVar[type[Configuration]] = GpuGemmConfig
    most_anchors: ClassVar[int] = 1

    def anchors(self, op: Operator) -> bool:
        """Pools."""
        return op.kind in _POOLS

    def admits(self, op: Operator) -> bool:
        """Convolutions, pools, and what is elementwise."""
        return op.kind in ("nn.conv2d", *_POOLS) or op.elementwise

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """See the module's description."""
        found = _split(group)
        if isinstance(found, Refusal):
            return found
        out = found[1].out
        if out.shape[-1] != hardware.lanes:
            return Refusal("layout", f"the result is not in blocks of {hardware.lanes} channels")
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GpuGemmConfig]:
        """Those of the product whose micro-tile holds whole windows, those first that take least."""
        assert isinstance(hardware, GpuHardware)
        product, pooled, size = _extents(group)
        work = Work(fma=product.rows * product.columns * product.depth)
        fitting = [c for c in ranked(size, hardware) if c.micro_rows % pooled.places == 0]
        times = {c: terms(work, _shape(product, size, c, 0, 0), hardware)["total"] for c in fitting}
        return sorted(times, key=lambda c: (times[c], c.text))[:_CONFIGURATIONS]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """See `_shape`; what stands before the convolution is computed for each tile that reads it."""
        assert isinstance(config, GpuGemmConfig) and isinstance(hardware, GpuHardware)
        tensors = group.graph.tensors
        product, _, size = _extents(group)
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        made = _shape(product, size, config, memory, sum(tensors[t].bytes for t in group.outputs))
        anchor = next(op for op in group.operators if op.kind == "nn.conv2d")
        brought = made.tasks * ceil_div(size.depth, config.depth) * config.depth
        again = computed_again(group, anchor, (brought * config.rows, brought * config.columns))
        return replace(made, extra_simple=made.extra_simple + int(again / made.recompute))

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule.gpu.conv_pool_nests import build

        return build(func, config, _extents(group)[1])


@remembered
def _split(group: Group) -> tuple[Product, W.Window, Pooled] | Refusal:
    """The group's convolution as a product, its pool, and how the one lies over the other; or why it has not both."""
    pair = pairs.split(group)
    if isinstance(pair, Refusal):
        return pair
    conv, pool = pair.conv.anchor, pair.pool.anchor
    product = product_of(conv, group)
    if isinstance(product, Refusal):
        return product
    tensors = group.graph.tensors
    shape = tensors[pool.outputs[0]].shape
    if any(tensors[t].shape != shape for t in group.outputs):
        return Refusal("shape", f"a result does not have the shape of {pool.name}'s", (pool.index,))
    rows, columns = (pair.taps * 2)[:2]
    if rows * columns not in _PLACES:
        return Refusal("window", f"{pool.name} has windows of {rows}×{columns}: no two or four places", (pool.index,))
    padding = (W.pair(pool.attrs, "padding", 0) * 2)[:2]
    strides = (W.pair(pool.attrs, "strides", 1) * 2)[:2]
    height, width = tensors[conv.outputs[0]].shape[2:4]
    pooled = Pooled(
        height, width, (rows, columns), (strides[0], strides[1]), (padding[0], padding[1]), (shape[2], shape[3])
    )
    return product, pair.pool, pooled


def _extents(group: Group) -> tuple[Product, Pooled, Product]:
    """The convolution as a product, the pool, and the product whose rows are the places of all windows."""
    found = _split(group)
    assert not isinstance(found, Refusal)
    product, window, pooled = found
    rows = window.out.shape[0] * pooled.results[0] * pooled.results[1] * pooled.places
    return product, pooled, replace(product, rows=rows)


def _shape(product: Product, size: Product, config: GpuGemmConfig, memory: int, results: int) -> GpuShape:
    """That of the product of all windows' places; what windows share is computed again."""
    made = tiled(size, config, memory, results)
    again = size.rows / product.rows
    return replace(made, recompute=made.recompute * again, extra_simple=int(made.extra_simple / again))
