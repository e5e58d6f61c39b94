"""OpenCL devices through the system's loader, by ctypes: takes OpenCL C with its launches and arrays, gives results.

DTK's OpenCL runs kernels on a card this way with nothing of TVM installed there; PoCL runs them on a CPU, which checks
indices and arithmetic. Drivers may hang or crash: `factory` makes the handler of a child process.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import TargetError
from autofuse.measure.child import Handler

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


@dataclass(frozen=True)
class Device:
    """An OpenCL device: its platform's name ("Portable Computing Language" is PoCL), its own, and their handles.

    gpu: whether it says that it is one.
    """

    platform: str
    name: str
    handles: tuple[int, int]
    gpu: bool = False


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


class Program:
    """Kernels of one source with their arrays on a device; `Session.program` makes it. Close it after use."""

    def __init__(
        self, session: Session, handle: Any, launches: Sequence[Mapping[str, Any]], arrays: Sequence[NDArray[Any]]
    ) -> None:
        self.buffers: list[Any] = []
        self._session, self._handle, self._launches = session, handle, launches
        self._kinds = [(array.shape, array.dtype) for array in arrays]

    def launch(self) -> list[float]:
        """Run the kernels in order, each to its end; the device's seconds of each."""
        return [self._session.launch(self._handle, launch, self.buffers) for launch in self._launches]

    def read(self, position: int) -> NDArray[Any]:
        """What an array holds now."""
        return self._session.read(self.buffers[position], *self._kinds[position])

    def close(self) -> None:
        """Give back what it holds on the device."""
        self._session.release(self._handle, self.buffers)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session:
    """A context and a queue of one device; kernels run one after another."""

    def __init__(self, device: Device) -> None:
        self._cl = library()
        self._device = ctypes.c_void_p(device.handles[1])
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

    def run(
        self, source: str, launches: Sequence[Mapping[str, Any]], arrays: Sequence[NDArray[Any]]
    ) -> tuple[list[NDArray[Any]], list[float]]:
        """Compile `source`, launch its kernels in order on copies of `arrays`; all arrays afterwards, and seconds each.

        launches: kernel, workgroups, threads, arguments (positions among the arrays).
        """
        with self.program(source, launches, arrays) as program:
            seconds = program.launch()
            return [program.read(i) for i in range(len(arrays))], seconds

    def program(self, source: str, launches: Sequence[Mapping[str, Any]], arrays: Sequence[NDArray[Any]]) -> Program:
        """The same, compiled and with copies of `arrays` on the device, to be launched as often as wanted."""
        cl, error = self._cl, ctypes.c_int32()
        text = ctypes.c_char_p(source.encode())
        handle = ctypes.c_void_p(
            cl.clCreateProgramWithSource(
                self._context, ctypes.c_uint32(1), ctypes.byref(text), None, ctypes.byref(error)
            )
        )
        self._check("clCreateProgramWithSource", error.value)
        made = Program(self, handle, launches, arrays)
        try:
            if cl.clBuildProgram(handle, ctypes.c_uint32(1), ctypes.byref(self._device), b"", None, None):
                raise TargetError(f"OpenCL: the kernel does not compile: {self._log(handle)}")
            for array in arrays:
                made.buffers.append(self._buffer(array))
        except BaseException:
            made.close()
            raise
        return made

    def _log(self, program: Any) -> str:
        buffer = ctypes.create_string_buffer(1 << 16)
        self._cl.clGetProgramBuildInfo(
            program, self._device, ctypes.c_uint32(_BUILD_LOG), ctypes.c_size_t(1 << 16), buffer, None
        )
        lines = [line for line in buffer.value.decode(errors="replace").splitlines() if line.strip()]
        return next((line.strip() for line in lines if "error" in line), lines[0] if lines else "no log")

    def _buffer(self, array: NDArray[Any]) -> Any:
        error = ctypes.c_int32()
        size = ctypes.c_size_t(max(1, array.nbytes))
        buffer = self._cl.clCreateBuffer(self._context, ctypes.c_uint64(_READ_WRITE), size, None, ctypes.byref(error))
        self._check("clCreateBuffer", error.value)
        made = ctypes.c_void_p(buffer)
        if array.nbytes:
            whole = np.ascontiguousarray(array)
            code = self._cl.clEnqueueWriteBuffer(
                self._queue, made, ctypes.c_uint32(1), ctypes.c_size_t(0), ctypes.c_size_t(array.nbytes),
                whole.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint32(0), None, None,
            )  # fmt: skip
            self._check("clEnqueueWriteBuffer", code)
        return made

    def release(self, program: Any, buffers: Sequence[Any]) -> None:
        """Give back a program and buffers."""
        for buffer in buffers:
            self._cl.clReleaseMemObject(buffer)
        self._cl.clReleaseProgram(program)

    def read(self, buffer: Any, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A buffer's content."""
        made = np.empty(shape, dtype)
        if made.nbytes:
            code = self._cl.clEnqueueReadBuffer(
                self._queue, buffer, ctypes.c_uint32(1), ctypes.c_size_t(0), ctypes.c_size_t(made.nbytes),
                made.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint32(0), None, None,
            )  # fmt: skip
            self._check("clEnqueueReadBuffer", code)
        return made

    def launch(self, program: Any, launch: Mapping[str, Any], buffers: Sequence[Any]) -> float:
        """Run a kernel to its end; the device's seconds."""
        cl, error = self._cl, ctypes.c_int32()
        kernel = ctypes.c_void_p(cl.clCreateKernel(program, str(launch["kernel"]).encode(), ctypes.byref(error)))
        self._check(f"clCreateKernel {launch['kernel']}", error.value)
        try:
            for position, argument in enumerate(launch["arguments"]):
                handle = ctypes.c_void_p(buffers[argument].value)
                size = ctypes.c_size_t(ctypes.sizeof(ctypes.c_void_p))
                code = cl.clSetKernelArg(kernel, ctypes.c_uint32(position), size, ctypes.byref(handle))
                self._check("clSetKernelArg", code)
            local = (ctypes.c_size_t * 3)(*launch["threads"])
            counts = [b * t for b, t in zip(launch["workgroups"], launch["threads"], strict=True)]
            event = ctypes.c_void_p()
            code = cl.clEnqueueNDRangeKernel(
                self._queue, kernel, ctypes.c_uint32(3), None, (ctypes.c_size_t * 3)(*counts), local,
                ctypes.c_uint32(0), None, ctypes.byref(event),
            )  # fmt: skip
            self._check(f"launching {launch['kernel']}", code)
            self._check("clFinish", cl.clFinish(self._queue))
            times = [self._time(event, what) for what in (_STARTED, _ENDED)]
            cl.clReleaseEvent(event)
            return 1e-9 * (times[1] - times[0])
        finally:
            cl.clReleaseKernel(kernel)

    def _time(self, event: Any, what: int) -> int:
        value = ctypes.c_uint64()
        code = self._cl.clGetEventProfilingInfo(
            event, ctypes.c_uint32(what), ctypes.c_size_t(8), ctypes.byref(value), None
        )
        self._check("clGetEventProfilingInfo", code)
        return value.value


def factory(wanted: str = "") -> Handler:
    """The handler of a child: runs kernels on the first device whose platform or name contains `wanted`.

    A request has source, launches, and arrays: paths of .npy files, which are overwritten with what they hold after.
    """
    device = device_called(wanted)
    session = Session(device)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        arrays = [np.load(path, allow_pickle=False) for path in request["arrays"]]
        after, seconds = session.run(request["source"], request["launches"], arrays)
        for path, array in zip(request["arrays"], after, strict=True):
            np.save(path, array)
        return {"seconds": seconds, "platform": device.platform, "device": device.name}

    return handle
