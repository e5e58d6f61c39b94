"""The analytical cost model of GPUs: what `schedule/gpu/roof.py` says of a group's work and its `GpuShape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.gpu_features import gpu_shape
from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.model import Group
from autofuse.schedule.family import KernelShape
from autofuse.schedule.gpu import roof
from autofuse.target import GpuHardware


class GpuCostModel(CostModel):
    """Latency of kernels on a GPU from its description alone. `call_cost` is what a plan adds for each launch."""

    name: ClassVar[str] = "analytical"

    def __init__(self, hardware: GpuHardware) -> None:
        self.hardware = hardware

    @property
    def call_cost(self) -> float:
        """Seconds of a launch."""
        return self.hardware.call_overhead

    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Seconds of each candidate; inf where not even one workgroup fits a compute unit."""
        found = [self.terms(c.group, c.family.shape(c.group, c.config, self.hardware))["total"] for c in candidates]
        return np.array(found, np.float64)

    def terms(self, group: Group, shape: KernelShape) -> dict[str, float]:
        """The named terms of a kernel's cost, in seconds: see `roof.terms`."""
        if shape.loops == 0:  # a view launches nothing
            return {"total": float(np.finfo(np.float64).tiny)}
        return roof.terms(group.work, gpu_shape(shape), self.hardware)
