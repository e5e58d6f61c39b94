"""AMD's and NVIDIA's own drivers, by ctypes: takes modules of machine code with launches and arrays, gives results.

HIP (ROCm's runtime, and DTK's) and CUDA's driver have the same calls under two names. Nothing of TVM and no compiler is
needed where kernels run: HIP loads code objects, CUDA cubins or PTX.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from autofuse.device.session import Device, LaunchSpec, Session
from autofuse.errors import TargetError
from autofuse.target.needs import library_of


@dataclass(frozen=True)
class Driver:
    """A driver's library and what its calls are called; step: how to get it.

    packed: arguments of a kernel are given as one block of memory (HIP knows their number by it), else as an array of
    their addresses. `end` closes the list that says so.
    """

    name: str
    title: str
    calls: dict[str, str]
    packed: bool
    end: int
    step: str


_COMMON = (
    "Init", "ModuleLoadData", "ModuleUnload", "ModuleGetFunction", "EventRecord", "EventSynchronize",
    "EventElapsedTime", "DeviceGetName",
)  # fmt: skip
_HIP_CALLS = {name: f"hip{name}" for name in _COMMON} | {
    "DeviceCount": "hipGetDeviceCount", "Allocate": "hipMalloc", "Free": "hipFree", "ToDevice": "hipMemcpyHtoD",
    "ToHost": "hipMemcpyDtoH", "Launch": "hipModuleLaunchKernel", "EventCreate": "hipEventCreateWithFlags",
    "EventDestroy": "hipEventDestroy", "Synchronize": "hipDeviceSynchronize", "DeviceGet": "hipDeviceGet",
}  # fmt: skip
_CUDA_CALLS = {name: f"cu{name}" for name in _COMMON} | {
    "DeviceCount": "cuDeviceGetCount", "Allocate": "cuMemAlloc_v2", "Free": "cuMemFree_v2",
    "ToDevice": "cuMemcpyHtoD_v2", "ToHost": "cuMemcpyDtoH_v2", "Launch": "cuLaunchKernel",
    "EventCreate": "cuEventCreate", "EventDestroy": "cuEventDestroy_v2", "Synchronize": "cuCtxSynchronize",
    "DeviceGet": "cuDeviceGet",
}  # fmt: skip

DRIVERS = {
    "rocm": Driver(
        "rocm", "HIP", _HIP_CALLS, True, 3,
        "install DTK (Hygon) or ROCm (AMD), or say where its HIP library is: AUTOFUSE_HIP=FILE",
    ),
    "cuda": Driver(
        "cuda", "CUDA", _CUDA_CALLS, False, 0,
        "install NVIDIA's driver, or say where its library is: AUTOFUSE_CUDA=FILE",
    ),
}  # fmt: skip


def loaded(driver: Driver) -> Any:
    """The driver, initialised. TargetError, saying what to install, where it is missing or has no device."""
    path = library_of(driver.name)
    if not path:
        raise TargetError(f"no {driver.title} driver is installed: {driver.step}")
    try:
        library = ctypes.CDLL(path)
        for name in driver.calls.values():
            getattr(library, name).restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise TargetError(f"{path} is no {driver.title} driver ({error}): {driver.step}") from None
    code = getattr(library, driver.calls["Init"])(ctypes.c_uint(0))
    if code:
        raise TargetError(f"{driver.title}'s driver does not start: error {code}")
    return library


def devices(name: str, gpu: bool = True) -> list[Device]:
    """The devices of the driver `name` (rocm, cuda), in its order. TargetError without a driver.

    gpu: whether what it drives is a GPU; the driver cannot tell.
    """
    driver = DRIVERS[name]
    library = loaded(driver)
    count = ctypes.c_int()
    if getattr(library, driver.calls["DeviceCount"])(ctypes.byref(count)):
        return []
    found = []
    for number in range(count.value):
        handle, text = ctypes.c_int(), ctypes.create_string_buffer(256)
        if getattr(library, driver.calls["DeviceGet"])(ctypes.byref(handle), ctypes.c_int(number)):
            continue
        getattr(library, driver.calls["DeviceGetName"])(text, ctypes.c_int(256), handle)
        own = text.value.decode(errors="replace").strip()
        found.append(Device(library_of(name), own, (number, handle.value), gpu, name))
    return found


class ModuleSession(Session):
    """A context of a device of HIP's or CUDA's driver, on its default stream."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._driver = DRIVERS[device.driver]
        self._library = loaded(self._driver)
        self._functions: dict[tuple[int, str], Any] = {}
        self._context = ctypes.c_void_p()
        if device.driver == "cuda":
            handle = ctypes.c_int(device.handles[1])
            self._direct("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self._thread = 0
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self._events:
            self._call("EventCreate", ctypes.byref(event), ctypes.c_uint(0))

    def _call(self, name: str, *arguments: Any) -> None:
        # Which device calls are about belongs to a thread.
        if self._thread != threading.get_ident():
            if self._driver.name == "rocm":
                self._direct("hipSetDevice", ctypes.c_int(self.device.handles[0]))
            else:
                self._direct("cuCtxSetCurrent", self._context)
            self._thread = threading.get_ident()
        self._direct(self._driver.calls[name], *arguments)

    def _direct(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise TargetError(f"{self._driver.title}: {name} failed with error {code}")

    def load(self, code: bytes) -> Any:
        module = ctypes.c_void_p()
        # PTX is text, which ends with a zero.
        self._call("ModuleLoadData", ctypes.byref(module), ctypes.create_string_buffer(code, len(code) + 1))
        return module

    def unload(self, module: Any) -> None:
        for key in [key for key in self._functions if key[0] == module.value]:
            del self._functions[key]
        self._call("ModuleUnload", module)

    def allocate(self, size: int) -> Any:
        buffer = ctypes.c_void_p()
        self._call("Allocate", ctypes.byref(buffer), ctypes.c_size_t(max(1, size)))
        return buffer

    def free(self, buffer: Any) -> None:
        self._call("Free", buffer)

    def write(self, buffer: Any, array: NDArray[Any]) -> None:
        self._call("ToDevice", buffer, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))

    def fetch(self, buffer: Any, array: NDArray[Any]) -> None:
        self.finish()
        self._call("ToHost", array.ctypes.data_as(ctypes.c_void_p), buffer, ctypes.c_size_t(array.nbytes))

    def launch(self, module: Any, launch: LaunchSpec, buffers: Sequence[Any]) -> None:
        function = self._function(module, str(launch["kernel"]))
        addresses = (ctypes.c_void_p * len(launch["arguments"]))(*[buffers[a].value for a in launch["arguments"]])
        given: Any = None
        extra: Any = None
        if self._driver.packed:
            # Marks of the block's address, of its size, and of the list's end.
            size = ctypes.c_size_t(ctypes.sizeof(addresses))
            extra = (ctypes.c_void_p * 5)(
                1, ctypes.cast(addresses, ctypes.c_void_p).value, 2, ctypes.addressof(size), self._driver.end
            )
        else:
            step, first = ctypes.sizeof(ctypes.c_void_p), ctypes.addressof(addresses)
            given = (ctypes.c_void_p * len(addresses))(*[first + step * i for i in range(len(addresses))])
        sizes = [ctypes.c_uint(int(n)) for n in (*launch["workgroups"], *launch["threads"])]
        self._call("Launch", function, *sizes, ctypes.c_uint(0), None, given, extra)

    def timed(self, module: Any, launch: LaunchSpec, buffers: Sequence[Any]) -> float:
        begin, end = self._events
        self._call("EventRecord", begin, None)
        self.launch(module, launch, buffers)
        self._call("EventRecord", end, None)
        self._call("EventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._call("EventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return 1e-3 * milliseconds.value

    def finish(self) -> None:
        self._call("Synchronize")

    def _function(self, module: Any, name: str) -> Any:
        key = (module.value, name)
        if key not in self._functions:
            found = ctypes.c_void_p()
            self._call("ModuleGetFunction", ctypes.byref(found), module, name.encode())
            self._functions[key] = found
        return self._functions[key]
