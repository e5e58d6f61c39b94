"""The analytical cost model of a kind of hardware: takes its description, a CPU's or a GPU's, gives the model."""

from __future__ import annotations

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.gpu import GpuCostModel
from autofuse.cost.model import CostModel
from autofuse.target import GpuHardware, Hardware


def analytical_costs(hardware: Hardware, cold: bool = False) -> CostModel:
    """cold: of a network whose weights are not found in a CPU's last cache (`weights.py`)."""
    return GpuCostModel(hardware) if isinstance(hardware, GpuHardware) else AnalyticalCostModel(hardware, cold)
