"""A session with a GPU: code is loaded, buffers are made, kernels run one after another. What all drivers share.

Drivers may hang or crash: what measures runs its sessions in a child process.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: How a kernel is launched, as JSON has it: kernel (its name in the code), workgroups, threads (three numbers each) and
#: arguments (positions among the buffers).
LaunchSpec = Mapping[str, Any]
#: Driver → the form of code that its devices take: OpenCL C, AMDGPU code objects, or cubins (PTX).
FORMS = {"opencl": "opencl", "rocm": "amdgcn", "cuda": "cuda"}


@dataclass(frozen=True)
class Device:
    """A GPU, or what stands in for one.

    platform: OpenCL's ("Portable Computing Language" is PoCL), else the library that drives it; `handles`: the driver's
    own; gpu: whether it is known to be one; driver: opencl, rocm or cuda.
    """

    platform: str
    name: str
    handles: tuple[int, int]
    gpu: bool = False
    driver: str = "opencl"

    @property
    def text(self) -> str:
        """What names it for `choose.device_of`, here and in a child process."""
        return f"opencl:{self.platform} {self.name}" if self.driver == "opencl" else f"{self.driver}:{self.handles[0]}"

    @property
    def form(self) -> str:
        """The form of code that it takes, see FORMS."""
        return FORMS[self.driver]

    @property
    def title(self) -> str:
        """For people; says of what is no GPU that it stands in for one."""
        return f"{self.name} ({self.platform})" + ("" if self.gpu else ", a stand-in: no GPU")


class Program:
    """Kernels of one module with their arrays on a device; `Session.program` makes it. Close it after use."""

    def __init__(
        self, session: Session, module: Any, launches: Sequence[LaunchSpec], arrays: Sequence[NDArray[Any]]
    ) -> None:
        self.buffers: list[Any] = []
        self._session, self._module, self._launches = session, module, launches
        self._kinds = [(array.shape, array.dtype) for array in arrays]

    def launch(self) -> list[float]:
        """Run the kernels in order, each to its end; the device's seconds of each."""
        return [self._session.timed(self._module, launch, self.buffers) for launch in self._launches]

    def read(self, position: int) -> NDArray[Any]:
        """What an array holds now."""
        return self._session.read(self.buffers[position], *self._kinds[position])

    def close(self) -> None:
        """Give back what it holds on the device."""
        for buffer in self.buffers:
            self._session.free(buffer)
        self._session.unload(self._module)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session(abc.ABC):
    """A context of one device. Kernels run in the order in which they are launched. TargetError where a driver fails.

    Modules and buffers are the driver's handles; they belong to the session that made them.
    """

    def __init__(self, device: Device) -> None:
        self.device = device

    @property
    def form(self) -> str:
        """The form of code that it takes: opencl (OpenCL C), amdgcn (code objects) or cuda (cubins, PTX)."""
        return self.device.form

    @abc.abstractmethod
    def load(self, code: bytes) -> Any:
        """A module of kernels. TargetError with what the compiler says."""

    @abc.abstractmethod
    def unload(self, module: Any) -> None:
        """Give back a module."""

    @abc.abstractmethod
    def allocate(self, size: int) -> Any:
        """A buffer of so many bytes (at least one)."""

    @abc.abstractmethod
    def free(self, buffer: Any) -> None:
        """Give back a buffer."""

    @abc.abstractmethod
    def write(self, buffer: Any, array: NDArray[Any]) -> None:
        """Copy a contiguous array to the beginning of a buffer."""

    @abc.abstractmethod
    def fetch(self, buffer: Any, array: NDArray[Any]) -> None:
        """Copy the beginning of a buffer to a contiguous array, after everything that was launched."""

    @abc.abstractmethod
    def launch(self, module: Any, launch: LaunchSpec, buffers: Sequence[Any]) -> None:
        """Have a kernel run after those launched before."""

    @abc.abstractmethod
    def timed(self, module: Any, launch: LaunchSpec, buffers: Sequence[Any]) -> float:
        """Run a kernel to its end; the device's seconds."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until all that was launched has run."""

    def read(self, buffer: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A buffer's content."""
        made = np.empty(shape, dtype)
        if made.nbytes:
            self.fetch(buffer, made)
        return made

    def program(self, code: bytes, launches: Sequence[LaunchSpec], arrays: Sequence[NDArray[Any]]) -> Program:
        """Code, loaded, and copies of `arrays` on the device, to be launched as often as wanted."""
        made = Program(self, self.load(code), launches, arrays)
        try:
            for array in arrays:
                buffer = self.allocate(array.nbytes)
                made.buffers.append(buffer)
                if array.nbytes:
                    self.write(buffer, np.ascontiguousarray(array))
        except BaseException:
            made.close()
            raise
        return made

    def run(
        self, code: bytes, launches: Sequence[LaunchSpec], arrays: Sequence[NDArray[Any]]
    ) -> tuple[list[NDArray[Any]], list[float]]:
        """Launch the kernels of `code` in order on copies of `arrays`; all arrays afterwards, and seconds of each."""
        with self.program(code, launches, arrays) as program:
            seconds = program.launch()
            return [program.read(i) for i in range(len(arrays))], seconds
