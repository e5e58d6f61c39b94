"""Which device a text names: "opencl:gfx906", "rocm", "rocm:1", "cuda"; gives it, and a session with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autofuse.device import modules, opencl
from autofuse.device.session import FORMS, Device, Session
from autofuse.errors import TargetError
from autofuse.target.gpu import gpus_here, nvidia_here

#: Drivers in the order in which they are tried for a kind of target: those that take its machine code, then OpenCL.
OF_KIND = {"rocm": ("rocm", "opencl"), "cuda": ("cuda", "opencl")}
_HOW = "write opencl:PART-OF-ITS-NAME, rocm, cuda, or rocm:NUMBER"


def device_of(text: str) -> Device:
    """The device that `text` names. TargetError where there is none.

    Of OpenCL the first whose platform or name contains what stands behind the colon, of ROCm and CUDA the one of that
    number, the first without one.
    """
    driver, _, which = text.partition(":")
    if driver == "opencl":
        return opencl.device_called(which)
    if driver not in modules.DRIVERS:
        raise TargetError(f"device {text!r} is unknown: {_HOW}")
    found = modules.devices(driver, gpu=is_gpu(driver))
    if which and not which.isdecimal():
        raise TargetError(f"device {text!r} is unknown: {_HOW}")
    number = int(which or 0)
    if number >= len(found):
        raise TargetError(f"{modules.DRIVERS[driver].title}'s driver has {len(found)} devices, not number {number}")
    return found[number]


def is_gpu(driver: str) -> bool:
    """Whether what a driver drives is a GPU: rocminfo or nvidia-smi list one. A library in its place drives none."""
    return bool(gpus_here() if driver == "rocm" else nvidia_here())


def first_device(kind: str, forms: Collection[str] = tuple(FORMS.values())) -> Device:
    """The first GPU of this machine that runs code for a kind of target (rocm, cuda) in one of some forms.

    TargetError, in one line, where there is none: what stands in for a GPU has to be named.
    """
    said: list[str] = []
    for driver in (name for name in OF_KIND[kind] if FORMS[name] in forms):
        try:
            found: Sequence[Device] = (
                opencl.devices() if driver == "opencl" else modules.devices(driver, gpu=is_gpu(driver))
            )
        except TargetError as error:
            said.append(str(error).partition(":")[0])
            continue
        if gpus := [device for device in found if device.gpu]:
            return gpus[0]
        said.append(f"{driver} has no GPU")
    raise TargetError(f"no GPU is found here ({'; '.join(said)}): name a device, {_HOW}; autofuse doctor says more")


def all_devices(kind: str) -> list[Device]:
    """Every device that runs code for a kind of target, GPUs first in the order in which they are tried."""
    found: list[Device] = []
    for driver in OF_KIND[kind]:
        try:
            found += opencl.devices() if driver == "opencl" else modules.devices(driver, gpu=is_gpu(driver))
        except TargetError:
            continue
    return sorted(found, key=lambda device: not device.gpu)


def session(device: Device) -> Session:
    """A session with a device. TargetError where its driver fails."""
    return opencl.OpenClSession(device) if device.driver == "opencl" else modules.ModuleSession(device)
