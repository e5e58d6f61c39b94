"""Are a GPU program's kernels right? As `kernel_check.py`, each run on a device: a card, or what stands in for one."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.codegen.gpu_package import LOADED
from autofuse.codegen.kernels import Kernel
from autofuse.device.session import Device
from autofuse.errors import TargetError
from autofuse.measure.gpu_runner import gpu_row
from autofuse.measure.kernel_check import KernelCheck
from autofuse.measure.process import ChildProcess

if TYPE_CHECKING:
    from autofuse.compiler import Analysed


class GpuKernelCheck(KernelCheck):
    """Checks kernels of one model on `device`. What fails is recorded under the device's hardware row."""

    def __init__(self, model: Analysed, device: Device) -> None:
        self._form = device.form
        self._cache = tempfile.TemporaryDirectory(prefix="autofuse-")
        environment = {"POCL_CACHE_DIR": os.environ.get("POCL_CACHE_DIR", self._cache.name)}
        worker = ChildProcess("autofuse.measure.gpu_worker:checker", (device.text,), environment)
        super().__init__(model, worker, gpu_row(model.target, device))

    def look(
        self,
        kernels: Iterable[Kernel],
        files: Mapping[str, Mapping[str, bytes]],
        launches: Mapping[str, Sequence[Mapping[str, Any]]],
    ) -> dict[str, Exception]:
        """Name → what is wrong. files: of each kernel, the end of a file's name → its content; launches: its launches.

        TargetError where there is no code in the form that the device takes.
        """
        end = LOADED[self._form]
        with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:

            def library_of(kernel: Kernel) -> Path:
                code = files[kernel.name].get(end)
                if code is None:
                    raise TargetError(f"there is no machine code for this device ({self._form}): name its OpenCL")
                content = {
                    "code": base64.b64encode(code).decode(), "launches": [dict(made) for made in launches[kernel.name]]
                }  # fmt: skip
                path = Path(folder) / f"{kernel.name}.json"
                path.write_text(json.dumps(content), encoding="utf-8")
                return path

            return self.failing(kernels, library_of)
