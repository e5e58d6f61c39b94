"""The runner of OpenCL devices, and the builder of what it runs: GPU kernels on a card through the driver's own OpenCL.

A device that is no GPU (PoCL, which runs kernels on a CPU) stands in for one: it checks the whole way from candidates
to records. What is measured on it is kept under a hardware row of its own, which says so, and never under a card's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace

from autofuse.measure.builder import PoolBuilder
from autofuse.measure.jobs import MeasureJob, MeasureResult
from autofuse.measure.local import result_of
from autofuse.measure.opencl import Device, device_called
from autofuse.measure.process import ChildProcess
from autofuse.measure.runner import Runner
from autofuse.target.fingerprint import STAND_IN, HardwareRow
from autofuse.target.registry import Target, hardware_row


class OpenClRunner(Runner):
    """Measures on the first OpenCL device whose platform or name contains `device`, in one long-lived child process.

    TargetError if there is none. A kernel that crashes or hangs takes the child with it; another is started.
    """

    arithmetic = "arithmetic"

    def __init__(self, device: str) -> None:
        device_called(device)  # say now what is missing, not with the first kernel
        self._cache = tempfile.TemporaryDirectory(prefix="autofuse-")
        # PoCL keeps every kernel that it ever compiled, unless it is told where.
        environment = {"POCL_CACHE_DIR": os.environ.get("POCL_CACHE_DIR", self._cache.name)}
        self._child = ChildProcess("autofuse.measure.opencl_worker:runner", (device,), environment)

    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        for job in jobs:
            yield result_of(job, self._child.request(job.to_dict(), job.limits.timeout))

    def close(self) -> None:
        self._child.close()


def opencl_builder(workers: int, timeout: float = 60.0) -> PoolBuilder:
    """Makes OpenCL C of GPU kernels, with `workers` child processes at once."""
    return PoolBuilder(workers, timeout, "autofuse.measure.opencl_worker:builder", ())


def opencl_row(target: Target, device: Device) -> HardwareRow:
    """The hardware row of what is measured on a device with code for `target`, the card that it should be.

    OpenCL's compiler is not TVM's: its times are not those of code that TVM's makes.
    """
    row = hardware_row(target)
    if device.gpu:
        return replace(row, features=(*row.features, "opencl"), model_name=f"{device.name} (OpenCL)")
    name = f"{device.name} ({device.platform}) in place of {row.model_name}"
    features = (*row.features, "opencl", f"on {device.name}")
    return replace(row, architecture=STAND_IN, features=features, model_name=name)
