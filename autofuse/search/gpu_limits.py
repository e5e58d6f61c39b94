"""Configurations of GPU kernels that take too much of a card, left out before they cost anything: no TVM, no compiling.

What is looked at is what families estimate (`GpuShape`): registers of a lane, LDS of a workgroup, and the waves that
both leave on a compute unit. A kernel with more registers than there are would spill them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autofuse.graph.model import Group
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.search.problem import Thresholds
from autofuse.target import GpuHardware, Hardware


def limits(thresholds: Thresholds, hardware: Hardware) -> bool:
    """Whether the thresholds limit anything on this hardware."""
    usual = Thresholds()
    names = ("gpu_registers", "gpu_lds", "gpu_occupancy")
    return hardware.kind == "gpu" and any(getattr(thresholds, n) != getattr(usual, n) for n in names)


def within(
    group: Group,
    family: ScheduleFamily,
    configs: Sequence[Configuration],
    hardware: Hardware,
    thresholds: Thresholds,
    pruned: Counter[str],
) -> Sequence[Configuration]:
    """The configurations within the thresholds; the first where none is, since a group needs one.

    pruned: counts what is left out, by threshold.
    """
    if not isinstance(hardware, GpuHardware):
        return configs
    over = [_over(family.shape(group, config, hardware), hardware, thresholds) for config in configs]
    if all(over):
        over[:1] = [""]
    pruned.update(name for name in over if name)
    return [config for config, name in zip(configs, over, strict=True) if not name]


def _over(shape: KernelShape, hardware: GpuHardware, thresholds: Thresholds) -> str:
    """`exceeded`; "" for kernels that say nothing of a GPU."""
    return exceeded(shape, hardware, thresholds) if isinstance(shape, GpuShape) else ""


def exceeded(shape: GpuShape, hardware: GpuHardware, thresholds: Thresholds) -> str:
    """The threshold that a kernel is beyond, "" if it is within all of them."""
    if shape.registers > thresholds.gpu_registers:
        return "gpu_registers"
    if shape.lds_bytes > thresholds.gpu_lds:
        return "gpu_lds"
    if hardware.occupancy(shape.registers, shape.lds_bytes, shape.threads) < thresholds.gpu_occupancy:
        return "gpu_occupancy"
    return ""
