"""Targets and hardware descriptions."""

from autofuse.target.fingerprint import HardwareRow, fingerprint
from autofuse.target.hardware import Hardware
from autofuse.target.hardware_file import default_hardware, load_hardware, save_hardware
from autofuse.target.hardware_gpu import GpuHardware
from autofuse.target.host import processors
from autofuse.target.registry import Target, hardware_row, host_features, missing_features, resolve

__all__ = [
    "GpuHardware",
    "Hardware",
    "HardwareRow",
    "Target",
    "default_hardware",
    "fingerprint",
    "hardware_row",
    "host_features",
    "load_hardware",
    "missing_features",
    "processors",
    "resolve",
    "save_hardware",
]
