"""Scheduled kernels → CUDA C and, where CUDA's nvcc is installed, machine code with its resources. For a child process.

The families' kernels are the same as for AMD's GPUs: TVM writes them as CUDA C, nvcc compiles them, CUDA's driver runs
them. Nothing of CUDA has to be there to get the source.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tvm.tirx.build import codegen_build

from autofuse.codegen.amdgpu import DeviceCode, asked, lower_device
from autofuse.codegen.resources import CodeError, InstructionMix, KernelResources
from autofuse.target.needs import cuda_compiler

# What ptxas says of a kernel: its name, then spills, then registers and LDS.
_NAME = re.compile(r"Compiling entry function '(\w+)' for")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_LDS = re.compile(r"(\d+) bytes smem")


def compile_device(func: Any, target: Any) -> DeviceCode:
    """A scheduled PrimFunc → CUDA C, and a cubin for a cuda target (TVM's) where there is an nvcc.

    Raises CodeError where it does not compile, or what TVM raises. Without nvcc the result is not `linked`, and says
    nothing of registers.
    """
    device, launches = lower_device(func, target)
    source = str(codegen_build(device, target).inspect_source("cuda"))
    if not source:
        raise CodeError("this TVM writes no CUDA C")
    compiler = cuda_compiler()
    code, said = compiled(source, str(target.attrs["arch"]), compiler) if compiler else (b"", "")
    threads = {launch.kernel: launch.threads[0] * launch.threads[1] * launch.threads[2] for launch in launches}
    return DeviceCode(source, code, bool(code), resources_of(said, threads), launches, asked(device, launches))


def compiled(source: str, arch: str, compiler: str) -> tuple[bytes, str]:
    """CUDA C → a cubin for an architecture, and what ptxas says of its kernels. CodeError where nvcc refuses it."""
    with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        text, made = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        text.write_text(source, encoding="utf-8")
        command = [compiler, "-cubin", f"-arch={arch}", "-O3", "-Xptxas", "-v", str(text), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode or not made.exists():
            lines = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
            raise CodeError(f"nvcc does not compile a kernel: {(lines or [done.stderr.strip() or 'no message'])[0]}")
        return made.read_bytes(), done.stderr


def resources_of(said: str, threads: dict[str, int]) -> tuple[KernelResources, ...]:
    """What ptxas's report (`-v`) says of kernels, in its order; threads: of a workgroup, by kernel.

    Registers are `vgprs`, shared memory is LDS. It says nothing of instructions.
    """
    found = []
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", said):
        name, stack, used = _NAME.search(part), _STACK.search(part), _USED.search(part)
        if not name or not stack or not used:
            continue
        lds = _LDS.search(part)
        spills = (int(stack[2]) + int(stack[3])) // 4
        size, most = int(lds[1]) if lds else 0, threads.get(name[1], 0)
        none = InstructionMix()
        found.append(KernelResources(name[1], int(used[1]), 0, spills, 0, size, int(stack[1]), 32, most, none, none))
    return tuple(found)
