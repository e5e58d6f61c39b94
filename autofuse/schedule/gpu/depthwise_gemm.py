"""A depthwise convolution and the pointwise (1×1) one behind it in one kernel on a GPU.

The kernel is that of `gemm.py` for the pointwise convolution, whose data are computed where they are brought to LDS:
each thread makes a vector of depthwise results with all their taps, applies what follows them, and puts it there. What
is between the two never goes to memory; each tile of output channels makes the depthwise results that it reads again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator, Work
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu import window_pair as P
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.schedule.gpu.elementwise import INJECTIVE
from autofuse.schedule.gpu.gemm import GpuGemmConfig, Product, product_of, ranked, tiled
from autofuse.schedule.gpu.roof import terms
from autofuse.schedule.gpu.shape import BASE_REGISTERS, GpuShape, ceil_div, computed_again
from autofuse.target import GpuHardware, Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_CONFIGURATIONS = 16


class GpuDepthwiseGemmFamily(ScheduleFamily):
    """A depthwise convolution, elementwise operators, a pointwise convolution; anything injective before the first,
    elementwise operators after the second.
    """

    name: ClassVar[str] = "gpu_depthwise_gemm"
    version: ClassVar[int] = 2
    configuration: ClassVar[type[Configuration]] = GpuGemmConfig
    least_anchors: ClassVar[int] = 2
    most_anchors: ClassVar[int] = 2
    results_behind: ClassVar[bool] = True
    one_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Depthwise and pointwise convolutions."""
        return P.is_depthwise(op) or P.is_pointwise(op)

    def admits(self, op: Operator) -> bool:
        """Those, and what neither reduces nor contracts."""
        return self.anchors(op) or (op.mapping in INJECTIVE and not op.reduction)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """See the class's description."""
        found = _pair(group, hardware.lanes)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GpuGemmConfig]:
        """Those of the product, first those that take least with the depthwise results that they make again."""
        assert isinstance(hardware, GpuHardware)
        product, taps = _extents(group, hardware)
        work = Work(fma=product.rows * product.depth * (product.columns + taps))
        times = {
            config: terms(work, _shape(product, taps, config, 0, 0), hardware)["total"]
            for config in ranked(product, hardware)
        }
        return sorted(times, key=lambda c: (times[c], c.text))[:_CONFIGURATIONS]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """See `_shape`; what stands before a convolution is computed as often as it is read."""
        assert isinstance(config, GpuGemmConfig) and isinstance(hardware, GpuHardware)
        tensors = group.graph.tensors
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        product, taps = _extents(group, hardware)
        made = _shape(product, taps, config, memory, sum(tensors[t].bytes for t in group.outputs))
        depthwise = next(op for op in group.operators if P.is_depthwise(op))
        pointwise = next(op for op in group.operators if P.is_pointwise(op))
        left = made.tasks * ceil_div(product.depth, config.depth) * config.depth * config.rows
        before = group.graph.ancestors[depthwise.index] | 1 << depthwise.index
        again = computed_again(group, depthwise, [left * taps]) + computed_again(group, pointwise, [left], before)
        return replace(made, extra_simple=made.extra_simple + again)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule.gpu.gemm_nests import build

        return build(func, config, behind=1)


@remembered
def _pair(group: Group, lanes: int) -> tuple[Product, int] | Refusal:
    """The pointwise convolution as a product and the taps of the depthwise one, or why the family takes them not."""
    pair = P.pair_of(group, lanes, "depthwise", "pointwise")
    if isinstance(pair, Refusal):
        return pair
    tensors = group.graph.tensors
    pointwise = next(op for op in group.operators if P.is_pointwise(op))
    product = product_of(pointwise, group)
    if isinstance(product, Refusal):
        return product
    shape = tensors[pointwise.outputs[0]].shape
    after = set(pointwise.outputs)
    for op in group.operators:
        if op is not pointwise and after.intersection(op.inputs):
            if not op.elementwise or tensors[op.outputs[0]].shape != shape:
                return Refusal("shape", f"{op.name} ({op.kind}) moves or repeats the product", (op.index,))
            after.update(op.outputs)
    if not after.issuperset(group.outputs):
        return Refusal("results", "a result does not depend on the product", group.members)
    return product, pair.depthwise.taps


def _extents(group: Group, hardware: Hardware) -> tuple[Product, int]:
    found = _pair(group, hardware.lanes)
    assert not isinstance(found, Refusal)
    return found


def _shape(product: Product, taps: int, config: GpuGemmConfig, memory: int, results: int) -> GpuShape:
    """The product's, its left operand made anew in each tile of columns: a multiply-add and two loads a tap."""
    made = tiled(product, config, memory, results)
    pieces = ceil_div(product.depth, config.depth)
    left = made.tasks * pieces * config.depth * config.rows
    again = left * taps - product.rows * product.depth * taps
    # Neighbouring results share most of what they read; weights of a channel are the same for a whole row.
    loads = 4 * left * taps
    return replace(
        made,
        recompute=1.0,
        extra_simple=int(made.extra_simple * made.recompute)
        + int((made.recompute - 1.0) * product.rows * product.columns * product.depth)
        + max(0, again) + left,
        l1_bytes=made.l1_bytes - 4 * left + 2 * loads,
        # While taps are added up, several of their vectors are on the way (read in compiled kernels).
        registers=max(made.registers, BASE_REGISTERS + made.accumulators + 8 * min(taps, 12) + 4),
    )  # fmt: skip
