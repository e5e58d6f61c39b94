"""A model compiled for a GPU, that can be called, saved and loaded: its kernels go to a driver, nothing of TVM runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.described import Described
from autofuse.codegen.gpu_package import GpuPackage, read_gpu_package, write_gpu_package
from autofuse.device.choose import device_of, first_device, session
from autofuse.device.session import Device, Session


class GpuExecutable(Described):
    """Call it with arrays in the order of the model's inputs, or by name; it gives the outputs as numpy arrays.

    It runs on the first GPU of this machine that takes its code, or on the device named by `on`. Inputs and outputs
    travel to and from the device in every call, weights once. Safe to call from several threads, one after another.
    `package` holds the kernels.
    """

    def __init__(self, package: GpuPackage, device: str = "") -> None:
        super().__init__(package.description)
        self.package = package
        self._wanted = device
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None

    def on(self, device: str) -> GpuExecutable:
        """The same model for the device that `device` names ("opencl:gfx906", "rocm", "rocm:1"; "": the first GPU)."""
        return GpuExecutable(self.package, device)

    @property
    def device(self) -> Device:
        """The device that it runs on. TargetError where there is none."""
        return self._ready().session.device

    def __call__(self, /, *arrays: Any, **named: Any) -> list[NDArray[Any]]:
        """Run the model once.

        Raises InputError for a missing, unknown or misshapen input, TargetError where no device runs it.
        """
        given = self._inputs.arrange(arrays, named)
        with self._lock:
            loaded = self._ready()
            loaded.write(given)
            loaded.launch()
            return loaded.results()

    def timer(self, /, *arrays: Any, **named: Any) -> Callable[[], None]:
        """A function without arguments that runs the kernels on these inputs, already on the device, and waits.

        Raises InputError as a call does.
        """
        given = self._inputs.arrange(arrays, named)
        with self._lock:
            loaded = self._ready()
            loaded.write(given)

        def run() -> None:
            with self._lock:
                loaded.launch()
                loaded.session.finish()

        return run

    def seconds(self, /, *arrays: Any, **named: Any) -> list[tuple[str, float]]:
        """Run the model once, kernel by kernel: the name and the device's seconds of each step, in order."""
        given = self._inputs.arrange(arrays, named)
        with self._lock:
            loaded = self._ready()
            loaded.write(given)
            return loaded.timed()

    def save(self, path: str | Path) -> None:
        """Write the folder that `autofuse.load` reads. Raises ModelError when it cannot be written."""
        write_gpu_package(Path(path), self.package)

    def close(self) -> None:
        """Give back what it holds on the device; the next call takes it again."""
        with self._lock:
            if self._loaded is not None:
                self._loaded.close()
                self._loaded = None

    def _ready(self) -> _Loaded:
        if self._loaded is None:
            kind = str(self.description["kind"])
            device = device_of(self._wanted) if self._wanted else first_device(kind, self.package.forms)
            self._loaded = _Loaded(self.package, session(device))
        return self._loaded


class _Loaded:
    """A model on a device: its kernels, its weights, a buffer for everything else."""

    def __init__(self, package: GpuPackage, opened: Session) -> None:
        self.session = opened
        self._program = package.program
        self._modules: dict[str, Any] = {}
        self._buffers: list[Any] = []
        try:
            for name, code in package.code(opened.form).items():
                self._modules[name] = opened.load(code)
            for size in self._program.sizes:
                self._buffers.append(opened.allocate(size))
            for buffer, array in zip(self._program.weights, package.weights, strict=True):
                self._write(buffer, array)
        except BaseException:
            self.close()
            raise
        self._calls = [
            (step.kernel, self._modules[step.kernel], launch, [self._buffers[b] for b in step.arguments])
            for step in self._program.steps
            for launch in self._program.launches[step.kernel]
        ]

    def _write(self, buffer: int, array: NDArray[Any]) -> None:
        if array.nbytes:
            self.session.write(self._buffers[buffer], np.ascontiguousarray(array))

    def write(self, arrays: Sequence[NDArray[Any]]) -> None:
        """The model's inputs."""
        for buffer, array in zip(self._program.inputs, arrays, strict=True):
            self._write(buffer, array)

    def launch(self) -> None:
        """All kernels in order; they may still run when this returns."""
        for _, module, launch, buffers in self._calls:
            self.session.launch(module, launch, buffers)

    def timed(self) -> list[tuple[str, float]]:
        """All kernels in order, each to its end: names and the device's seconds of each call."""
        return [(name, self.session.timed(module, launch, buffers)) for name, module, launch, buffers in self._calls]

    def results(self) -> list[NDArray[Any]]:
        """The model's outputs."""
        return [self.session.read(self._buffers[o.buffer], o.shape, np.dtype(o.dtype)) for o in self._program.outputs]

    def close(self) -> None:
        """Give everything back."""
        for buffer in self._buffers:
            self.session.free(buffer)
        for module in self._modules.values():
            self.session.unload(module)
        self._buffers, self._modules = [], {}


def load_gpu(path: Path) -> GpuExecutable:
    """Load a folder that `GpuExecutable.save` wrote. ModelError when it is no such folder."""
    return GpuExecutable(read_gpu_package(path))
