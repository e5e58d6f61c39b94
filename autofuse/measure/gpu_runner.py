"""The runner of GPUs, and the builder of what it runs: kernels on a card through its own driver, or through OpenCL.

What is no GPU (PoCL, which runs kernels on a CPU) stands in for one: it checks the whole way from candidates to
records. What is measured on it is kept under a hardware row of its own, which says so, and never under a card's.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autofuse.device.choose import device_of
from autofuse.device.session import FORMS, Device
from autofuse.errors import TargetError
from autofuse.measure.builder import PoolBuilder
from autofuse.measure.jobs import MeasureJob, MeasureResult
from autofuse.measure.local import result_of
from autofuse.measure.process import ChildProcess, MeasureError
from autofuse.measure.runner import Runner
from autofuse.target.fingerprint import GPU_ARCHITECTURES, NVIDIA_GPU, STAND_IN, HardwareRow
from autofuse.target.needs import CODE_MAKERS, code_maker
from autofuse.target.registry import Target, hardware_row

#: Seconds that the reference kernels may take to compile, on a busy machine.
_PATIENCE = 300.0
#: Seconds that drivers may take to list their devices.
_ASKED = 60.0


class GpuRunner(Runner):
    """Measures on the device that `device` names ("opencl:gfx906", "rocm"), in one long-lived child process.

    target: what kernels are compiled for; the reference kernels are, too, where the device takes no OpenCL C, unless
    their code is in the file `references`. TargetError if there is no such device; without `check` the child says it.
    A kernel that crashes or hangs takes the child with it; another is started.
    """

    arithmetic = "arithmetic"

    def __init__(
        self, device: str, target: Target | None = None, references: Path | None = None, check: bool = True
    ) -> None:
        if target is not None and not target.loadable and form_of_device(device) != "opencl":
            raise TargetError(
                f"machine code for {target.card} takes DTK's own compiler: --device opencl:NAME needs none"
            )
        if check:
            device_of(device)  # say now what is missing, not with the first kernel
        self._cache = tempfile.TemporaryDirectory(prefix="autofuse-")
        # PoCL keeps every kernel that it ever compiled, unless it is told where.
        environment = {"POCL_CACHE_DIR": os.environ.get("POCL_CACHE_DIR", self._cache.name)}
        form = form_of_device(device)
        file = references or Path(self._cache.name) / "references.json"
        arguments = (device,) if form == "opencl" else (device, str(file))
        self._references = (target, form, file)
        self._child = ChildProcess("autofuse.measure.gpu_worker:runner", arguments, environment)

    def start(self) -> None:
        """Have the device ready, which the first kernel does otherwise. MeasureError where nothing can be measured."""
        target, form, path = self._references
        if form != "opencl" and not path.exists():
            if target is None:
                raise MeasureError(f"the reference kernels of a device that takes {form} need its target")
            path.write_text(json.dumps(reference_code(target, form)), encoding="utf-8")
        self._child.start()

    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        self.start()
        for job in jobs:
            yield result_of(job, self._child.request(job.to_dict(), job.limits.timeout))

    def close(self) -> None:
        self._child.close()


def devices_here(kind: str) -> list[tuple[str, str]]:
    """Names, as --device takes them, and titles of the devices that run code for a kind of target.

    Drivers are asked in a process of their own; none where they crash or hang.
    """
    child = ChildProcess("autofuse.measure.gpu_worker:lister")
    try:
        outcome = child.request({"kind": kind}, _ASKED)
    finally:
        child.close()
    return [(str(text), str(title)) for text, title in outcome.value.get("devices", ())]


def forms_of(target: Target) -> tuple[str, ...]:
    """The forms of code for a target that devices can load: OpenCL C, and machine code where it is the GPU's own."""
    return ("opencl", FORMS[target.kind]) if target.loadable else ("opencl",)


def device_here(target: Target, device: str = "") -> Device:
    """The device of that name, by default the first GPU that takes code for a target; found by a process of its own.

    TargetError where there is none, or where its driver crashes or hangs.
    """
    child = ChildProcess("autofuse.measure.gpu_worker:describer")
    try:
        asked = {"kind": target.kind, "device": device, "forms": forms_of(target)}
        outcome = child.request(asked, _ASKED)
    finally:
        child.close()
    if outcome.status != "ok":
        said = outcome.message.partition(": ")[2] or f"the driver of {device or target.kind}: {outcome.status}"
        raise TargetError(said)
    handles = outcome.value["handles"]
    return Device(**{**outcome.value, "handles": (int(handles[0]), int(handles[1]))})


def gpu_builder(workers: int, form: str = "opencl", timeout: float = 60.0) -> PoolBuilder:
    """Makes code of GPU kernels in a form that a device takes, with `workers` child processes at once.

    TargetError where this machine lacks what makes it.
    """
    if form != "opencl" and not code_maker(form):
        raise TargetError(f"kernels for the card's own driver cannot be made here: {CODE_MAKERS[form]}")
    return PoolBuilder(workers, timeout, "autofuse.measure.gpu_worker:builder", (form,))


def reference_code(target: Target, form: str) -> Mapping[str, Any]:
    """The code of the reference kernels for a target in a form. MeasureError where it cannot be made."""
    child = ChildProcess("autofuse.measure.gpu_worker:reference_builder")
    try:
        outcome = child.request({"target": target.text, "form": form}, _PATIENCE)
    finally:
        child.close()
    if outcome.status != "ok":
        raise MeasureError(f"the reference kernels cannot be compiled: {outcome.message or outcome.status}")
    return outcome.value


def form_of_device(device: str) -> str:
    """The form of code that the device of this name takes."""
    return FORMS.get(device.partition(":")[0], "opencl")


def form_of(row: HardwareRow) -> str:
    """The form of code that devices of a hardware row take, "" for CPUs."""
    if row.architecture not in GPU_ARCHITECTURES:
        return ""
    own = "cuda" if row.architecture == NVIDIA_GPU else "rocm"
    return FORMS[next((driver for driver in FORMS if driver in row.features), own)]


def gpu_row(target: Target, device: Device) -> HardwareRow:
    """The hardware row of what is measured on a device with code for `target`, the card that it should be.

    OpenCL's compiler is not TVM's: its times are not those of code that TVM's makes, and have a row of their own.
    """
    row = hardware_row(target)
    through = () if device.driver in ("rocm", "cuda") else (device.driver,)
    if device.gpu:
        titles = {"opencl": "OpenCL", "rocm": "ROCm", "cuda": "CUDA"}
        name = f"{device.name} ({titles[device.driver]})"
        return replace(row, features=(*row.features, *through), model_name=name)
    name = f"{device.name} ({device.platform}) in place of {row.model_name}"
    features = (*row.features, device.driver, f"on {device.name}")
    return replace(row, architecture=STAND_IN, features=features, model_name=name)
