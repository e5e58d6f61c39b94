"""OpenCL devices through the system's loader, by ctypes: takes OpenCL C with its launches and arrays, gives results.

DTK's OpenCL runs kernels on a card this way with nothing of TVM installed there; PoCL runs them on a CPU, which checks
indices and arithmetic.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from autofuse.device.session import Device, LaunchSpec, Session
from autofuse.errors import TargetError

_ALL_DEVICES = 0xFFFFFFFF
_DEVICE_NAME, _DEVICE_TYPE, _PLATFORM_NAME, _BUILD_LOG = 0x102B, 0x1000, 0x0902, 0x1183
_IS_GPU = 4
_READ_WRITE, _PROFILING = 1, 2
_STARTED, _ENDED = 0x1282, 0x1283
_MOST = 16
_FUNCTIONS = (
    "clGetPlatformIDs", "clGetPlatformInfo", "clGetDeviceIDs", "clGetDeviceInfo", "clBuildProgram",
    "clGetProgramBuildInfo", "clSetKernelArg", "clEnqueueWriteBuffer", "clEnqueueReadBuffer", "clFinish",
    "clEnqueueNDRangeKernel", "clGetEventProfilingInfo", "clReleaseEvent", "clReleaseKernel", "clReleaseProgram",
    "clReleaseMemObject",
)  # fmt: skip
_CREATORS = (
    "clCreateContext", "clCreateCommandQueue", "clCreateProgramWithSource", "clCreateKernel", "clCreateBuffer",
)  # fmt: skip


def library() -> Any:
    """OpenCL's loader. TargetError, saying what to install, where there is none."""
    found = ctypes.util.find_library("OpenCL")
    if found is None:
        raise TargetError("no OpenCL loader is installed: install DTK's OpenCL, or pocl-opencl-icd (Debian) for a CPU")
    loaded = ctypes.CDLL(found)
    for name in _FUNCTIONS:
        getattr(loaded, name).restype = ctypes.c_int32
    for name in _CREATORS:
        getattr(loaded, name).restype = ctypes.c_void_p
    return loaded


def devices() -> list[Device]:
    """The devices of all platforms, in the loader's order. TargetError without a loader."""
    cl = library()
    found = []
    for platform in _listed(cl.clGetPlatformIDs):
        name = _text(cl.clGetPlatformInfo, platform, _PLATFORM_NAME)
        for device in _listed(cl.clGetDeviceIDs, ctypes.c_void_p(platform), ctypes.c_uint64(_ALL_DEVICES)):
            kind = ctypes.c_uint64()
            cl.clGetDeviceInfo(
                ctypes.c_void_p(device), ctypes.c_uint32(_DEVICE_TYPE), ctypes.c_size_t(8), ctypes.byref(kind), None
            )
            own = _text(cl.clGetDeviceInfo, device, _DEVICE_NAME)
            found.append(Device(name, own, (platform, device), bool(kind.value & _IS_GPU)))
    return found


def device_called(wanted: str) -> Device:
    """The first device whose platform or name contains `wanted`, whatever its case. TargetError if there is none."""
    offered = devices()
    found = next((d for d in offered if wanted.lower() in f"{d.platform} {d.name}".lower()), None)
    if found is None:
        names = "; ".join(f"{d.platform}: {d.name}" for d in offered) or "none"
        raise TargetError(
            f"no OpenCL device {wanted!r} among those here ({names}): autofuse doctor --target dcu says what is missing"
        )
    return found


def _listed(ask: Any, *first: Any) -> list[int]:
    """Handles that a function lists; none where it reports an error (a platform without devices does)."""
    handles, count = (ctypes.c_void_p * _MOST)(), ctypes.c_uint32()
    if ask(*first, ctypes.c_uint32(_MOST), handles, ctypes.byref(count)):
        return []
    return [int(handle) for handle in handles[: min(count.value, _MOST)] if handle]


def _text(ask: Any, handle: int, what: int) -> str:
    buffer = ctypes.create_string_buffer(512)
    code = ask(ctypes.c_void_p(handle), ctypes.c_uint32(what), ctypes.c_size_t(512), buffer, None)
    return "" if code else buffer.value.decode(errors="replace").strip()


class OpenClSession(Session):
    """A context and a queue of one OpenCL device."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._cl = library()
        self._device = ctypes.c_void_p(device.handles[1])
        self._kernels: dict[tuple[int, str], Any] = {}
        error = ctypes.c_int32()
        context = self._cl.clCreateContext(
            None, ctypes.c_uint32(1), ctypes.byref(self._device), None, None, ctypes.byref(error)
        )
        self._check("clCreateContext", error.value)
        self._context = ctypes.c_void_p(context)
        queue = self._cl.clCreateCommandQueue(
            self._context, self._device, ctypes.c_uint64(_PROFILING), ctypes.byref(error)
        )
        self._check("clCreateCommandQueue", error.value)
        self._queue = ctypes.c_void_p(queue)

    @staticmethod
    def _check(what: str, code: int) -> None:
        if code:
            raise TargetError(f"OpenCL: {what} failed with error {code}")

    def load(self, code: bytes) -> Any:
        error, text = ctypes.c_int32(), ctypes.c_char_p(code)
        module = ctypes.c_void_p(
            self._cl.clCreateProgramWithSource(
                self._context, ctypes.c_uint32(1), ctypes.byref(text), None, ctypes.byref(error)
            )
        )
        self._check("clCreateProgramWithSource", error.value)
        if self._cl.clBuildProgram(module, ctypes.c_uint32(1), ctypes.byref(self._device), b"", None, None):
            said = self._log(module)
            self._cl.clReleaseProgram(module)
            raise TargetError(f"OpenCL: the kernel does not compile: {said}")
        return module

    def _log(self, module: Any) -> str:
        buffer = ctypes.create_string_buffer(1 << 16)
        self._cl.clGetProgramBuildInfo(
            module, self._device, ctypes.c_uint32(_BUILD_LOG), ctypes.c_size_t(1 << 16), buffer, None
        )
        lines = [line for line in buffer.value.decode(errors="replace").splitlines() if line.strip()]
        return next((line.strip() for line in lines if "error" in line), lines[0] if lines else "no log")

    def unload(self, module: Any) -> None:
        for key in [key for key in self._kernels if key[0] == module.value]:
            self._cl.clReleaseKernel(self._kernels.pop(key))
        self._cl.clReleaseProgram(module)

    def allocate(self, size: int) -> Any:
        error = ctypes.c_int32()
        buffer = self._cl.clCreateBuffer(
            self._context, ctypes.c_uint64(_READ_WRITE), ctypes.c_size_t(max(1, size)), None, ctypes.byref(error)
        )
        self._check(f"clCreateBuffer of {size} bytes", error.value)
        return ctypes.c_void_p(buffer)

    def free(self, buffer: Any) -> None:
        self._cl.clReleaseMemObject(buffer)

    def write(self, buffer: Any, array: NDArray[Any]) -> None:
        self._copy("clEnqueueWriteBuffer", buffer, array)

    def fetch(self, buffer: Any, array: NDArray[Any]) -> None:
        self._copy("clEnqueueReadBuffer", buffer, array)

    def _copy(self, way: str, buffer: Any, array: NDArray[Any]) -> None:
        """Between a buffer and an array; waits for it."""
        code = getattr(self._cl, way)(
            self._queue, buffer, ctypes.c_uint32(1), ctypes.c_size_t(0), ctypes.c_size_t(array.nbytes),
            array.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint32(0), None, None,
        )  # fmt: skip
        self._check(way, code)

    def launch(self, module: Any, launch: LaunchSpec, buffers: Sequence[Any]) -> None:
        self._enqueue(module, launch, buffers, None)

    def timed(self, module: Any, launch: LaunchSpec, buffers: Sequence[Any]) -> float:
        event = ctypes.c_void_p()
        self._enqueue(module, launch, buffers, ctypes.byref(event))
        self.finish()
        times = [self._time(event, what) for what in (_STARTED, _ENDED)]
        self._cl.clReleaseEvent(event)
        return 1e-9 * (times[1] - times[0])

    def finish(self) -> None:
        self._check("clFinish", self._cl.clFinish(self._queue))

    def _enqueue(self, module: Any, launch: LaunchSpec, buffers: Sequence[Any], event: Any) -> None:
        name = str(launch["kernel"])
        kernel = self._kernel(module, name)
        for position, argument in enumerate(launch["arguments"]):
            handle = ctypes.c_void_p(buffers[argument].value)
            size = ctypes.c_size_t(ctypes.sizeof(ctypes.c_void_p))
            code = self._cl.clSetKernelArg(kernel, ctypes.c_uint32(position), size, ctypes.byref(handle))
            self._check("clSetKernelArg", code)
        local = (ctypes.c_size_t * 3)(*launch["threads"])
        counts = [b * t for b, t in zip(launch["workgroups"], launch["threads"], strict=True)]
        code = self._cl.clEnqueueNDRangeKernel(
            self._queue, kernel, ctypes.c_uint32(3), None, (ctypes.c_size_t * 3)(*counts), local,
            ctypes.c_uint32(0), None, event,
        )  # fmt: skip
        self._check(f"launching {name}", code)

    def _kernel(self, module: Any, name: str) -> Any:
        key = (module.value, name)
        if key not in self._kernels:
            error = ctypes.c_int32()
            made = ctypes.c_void_p(self._cl.clCreateKernel(module, name.encode(), ctypes.byref(error)))
            self._check(f"clCreateKernel {name}", error.value)
            self._kernels[key] = made
        return self._kernels[key]

    def _time(self, event: Any, what: int) -> int:
        value = ctypes.c_uint64()
        code = self._cl.clGetEventProfilingInfo(
            event, ctypes.c_uint32(what), ctypes.c_size_t(8), ctypes.byref(value), None
        )
        self._check("clGetEventProfilingInfo", code)
        return value.value
