"""Scheduled kernels → AMDGPU code: assembly with its resources, and the code object. For a child process.

TVM ends the process where LLVM cannot generate code, so that `autofuse.measure.cross` is what others call. Nothing of
ROCm has to be installed: kernels call no device library, and are linked by LLD where there is one.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import codegen_build, split_host_device_mods

from autofuse.codegen.build import PASS_CONFIG
from autofuse.codegen.resources import CodeError, KernelResources, kernels_of
from autofuse.codegen.traffic import Traffic, traffic
from autofuse.target.needs import linker_of_code_objects

#: The kernels call the GPU's own instructions: exp, log and square roots are single ones there.
PIPELINE = "s_tir"
# Where an ELF file says which version it has of a system's interface, the byte behind that of the system; AMD's (HSA).
_ABI_PLACE, _HSA = 8, 64


@dataclass(frozen=True)
class Launch:
    """A kernel's name, its workgroups and its threads a workgroup (three axes each), and its arguments.

    An argument is the position of a parameter of the function.
    """

    kernel: str
    workgroups: tuple[int, int, int]
    threads: tuple[int, int, int]
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class DeviceCode:
    """Machine code of one scheduled function. It may launch several kernels, one after another.

    `launches` say how, `traffic` what all of them ask of memory. `code` is the code object; an object file where no
    LLD is found that links it.
    """

    assembly: str
    code: bytes
    linked: bool
    kernels: tuple[KernelResources, ...]
    launches: tuple[Launch, ...]
    traffic: Traffic


def lower_device(func: Any, target: Any) -> tuple[Any, tuple[Launch, ...]]:
    """A scheduled PrimFunc → TVM's module of device functions, and how they are launched.

    Raises CodeError where the function has no kernel, or sizes that are no constants.
    """
    made = _named(func)
    host = tvm.target.Target("llvm")
    passes, _, finalize = tirx.get_tir_pipeline(PIPELINE)
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        module = tirx.transform.BindTarget(target.with_host(host))(tvm.IRModule({"main": made}))
        _, devices = split_host_device_mods(passes(module))
        if len(devices) != 1:
            raise CodeError("the function launches no kernel: its loops are bound to no threads")
        device = finalize()(next(iter(devices.values())))
    return device, tuple(_launch(kernel) for kernel in _in_order(device))


def compile_device(func: Any, target: Any) -> DeviceCode:
    """A scheduled PrimFunc → AMDGPU code for a rocm target (TVM's). Raises CodeError, or what TVM raises."""
    linker = linker_of_code_objects()
    objects: list[tuple[bytes, bool]] = []
    _register(linker, objects)
    device, launches = lower_device(func, target)
    assembly = str(codegen_build(device, target).inspect_source("asm"))
    return DeviceCode(assembly, *objects[-1], kernels_of(assembly), launches, asked(device, launches))


def asked(device: Any, launches: Sequence[Launch]) -> Traffic:
    """What the kernels of a module ask of memory, all their threads together."""
    pairs = zip(_in_order(device), launches, strict=True)
    return sum((traffic(kernel, launch.workgroups, launch.threads) for kernel, launch in pairs), Traffic())


def opencl_source(func: Any, target: Any) -> tuple[str, tuple[Launch, ...]]:
    """The same schedule as OpenCL C, for any GPU target, and how its kernels are launched."""
    opencl = tvm.target.Target({"kind": "opencl", **{k: int(target.attrs[k]) for k in _LIMITS if k in target.attrs}})
    device, launches = lower_device(func, opencl)
    return str(codegen_build(device, opencl).inspect_source("cl")), launches


_LIMITS = ("max_num_threads", "thread_warp_size")


def _named(func: Any) -> Any:
    """The function with parameters of distinct names, by which a kernel's arguments are told apart."""
    fresh: dict[Any, Any] = {}
    params = []
    for position, param in enumerate(func.params):
        buffer = tirx.decl_buffer(param.shape, param.dtype, f"argument{position:03d}")
        fresh[param] = buffer
        params.append(buffer)
    body = tvm_ffi.structural_map(func.body, (tirx.Var, lambda var: fresh.get(var, var)))
    return tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs).with_attr("global_symbol", "main")


def _in_order(device: Any) -> list[Any]:
    """The kernels of a module in the order in which the function launches them: as they are numbered."""
    kernels = {str(f.attrs["global_symbol"]): f for f in device.functions.values()}

    def number(name: str) -> int:
        found = re.search(r"_(\d+)$", name)
        return int(found[1]) if found else 0

    return [kernels[name] for name in sorted(kernels, key=number)]


def _launch(kernel: Any) -> Launch:
    """How a device function is launched, from the thread axes in it."""
    name = str(kernel.attrs["global_symbol"])
    sizes: dict[str, int] = {}

    def visit(node: Any) -> None:
        if node.attr_key == "thread_extent":
            if not isinstance(node.value, tirx.IntImm):
                raise CodeError(f"kernel {name} has no constant number of {node.node.thread_tag}")
            sizes[str(node.node.thread_tag)] = int(node.value)

    tvm_ffi.structural_walk(kernel.body, (tirx.AttrStmt, visit))
    positions = [re.fullmatch(r"argument(\d+)(_ptr)?", str(p.name)) for p in kernel.params]
    if not all(positions):
        raise CodeError(f"kernel {name} takes more than the function's parameters")
    x, y, z = "xyz"
    return Launch(
        name,
        (sizes.get(f"blockIdx.{x}", 1), sizes.get(f"blockIdx.{y}", 1), sizes.get(f"blockIdx.{z}", 1)),
        (sizes.get(f"threadIdx.{x}", 1), sizes.get(f"threadIdx.{y}", 1), sizes.get(f"threadIdx.{z}", 1)),
        tuple(int(found[1]) for found in positions if found),
    )


def _register(linker: str, objects: list[tuple[bytes, bool]]) -> None:
    """Replace TVM's callbacks, which look for a ROCm installation.

    What is compiled is added to `objects`, with whether it was linked: an LLD that is older than TVM's LLVM refuses its
    code objects, which can be inspected all the same.
    """

    def bitcode(_: Any = None) -> list[str]:
        return []

    def link(code: Any) -> bytes:
        made = _linked(linker, bytes(code)) if linker else b""
        objects.append((made or bytes(code), bool(made)))
        return objects[-1][0]

    tvm_ffi.register_global_func("tvm_callback_rocm_bitcode_path", bitcode, override=True)
    tvm_ffi.register_global_func("tvm_callback_rocm_link", link, override=True)


def of_version(code: bytes, version: int) -> bytes:
    """An AMDGPU object or code object that says that it is of another version: the same but for this byte.

    True of code for one GPU that takes nothing but what it is given: versions differ in what the runtime adds to a
    kernel's arguments, and in code for several GPUs (LLVM's AMDGPU usage guide, code object V4 to V6).
    """
    if code[:4] != b"\x7fELF" or code[_ABI_PLACE - 1] != _HSA:
        return code
    return code[:_ABI_PLACE] + bytes((version - 2,)) + code[_ABI_PLACE + 1 :]


def _linked(linker: str, code: bytes) -> bytes:
    """An object file as a code object of version 5, empty where the linker does not take it.

    ROCm before 6.3, DTK and linkers before LLVM 19 do not know version 6, linkers before LLVM 15 not even 5.
    """
    with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        source, made = Path(folder) / "kernel.o", Path(folder) / "kernel.co"
        command = [linker, "-flavor", "gnu", "--no-undefined", "-shared", str(source), "-o", str(made)]
        for version in (5, 4):
            source.write_bytes(of_version(code, version))
            if subprocess.run(command, capture_output=True).returncode == 0:
                return of_version(made.read_bytes(), 5)
        return b""
