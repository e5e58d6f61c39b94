"""What compiling for a GPU target and running on it takes, what of it this host has, and the steps to get the rest.

Looks at files and names alone; nothing is started but rocminfo and nvidia-smi. TVM is asked what it can generate.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autofuse.target.cards import cards
from autofuse.target.gpu import gpus_here, known_gfx, nvidia_here
from autofuse.target.registry import Target

ROOT = Path("/")
#: Form of machine code → what makes it, in the words of an installer.
CODE_MAKERS = {"amdgcn": "install lld (Debian: apt install lld), or DTK", "cuda": "install CUDA's nvcc"}
#: Driver → the variable that names its library, and where that is looked for (names without a path: by the loader).
VARIABLES = {"rocm": "AUTOFUSE_HIP", "cuda": "AUTOFUSE_CUDA"}
LIBRARIES = {
    "rocm": (
        "amdhip64", "galaxyhip", "/opt/dtk/hip/lib/libgalaxyhip.so", "/opt/dtk/lib/libgalaxyhip.so",
        "/opt/dtk/hip/lib/libamdhip64.so", "/opt/dtk/lib/libamdhip64.so", "/opt/rocm/lib/libamdhip64.so",
    ),
    "cuda": ("cuda",),
}  # fmt: skip
_LINKERS = ("ld.lld", "opt/dtk/llvm/bin/ld.lld", "opt/rocm/llvm/bin/ld.lld")


@dataclass(frozen=True)
class Need:
    """Something that a purpose ("compile", "finish", "run", "run-opencl") takes: `found` says where, "" if it lacks."""

    purpose: str
    what: str
    found: str
    step: str


def needs(target: Target, root: Path = ROOT, runtime: Callable[[str], bool] | None = None) -> list[Need]:
    """What a GPU target takes on this host, in the order in which it is needed.

    runtime: whether TVM has a function of that name (default: asks the installed one).
    """
    ask = runtime or _has_function
    if target.kind == "cuda":
        return _cuda_needs(target, root, ask)
    card = cards().get(target.card)
    found = [
        Need(
            "compile", f"code generation for {target.mcpu}",
            "TVM's LLVM" if target.mcpu in known_gfx() and ask("target.build.rocm") else "",
            "install the wheel of apache-tvm, whose LLVM generates code for AMD GPUs",
        ),
        Need(
            "compile", "a linker of code objects", linker_of_code_objects(root),
            "install lld (Debian: apt install lld), or DTK",
        ),
    ]  # fmt: skip
    if card is not None and card.gfx != card.code:
        found.append(
            Need(
                "finish", f"a compiler for {card.gfx}", _first(root, "opt/dtk/llvm/bin/clang", "opt/dtk/bin/hipcc"),
                f"install DTK, Hygon's toolkit: LLVM knows no {card.gfx}, DTK's compiler has to finish the code",
            )
        )  # fmt: skip
    gpus = ", ".join(gpus_here()) if root == ROOT else ""
    found += [
        Need(
            "run", "the card and its driver", gpus or _first(root, "dev/kfd"),
            "install DTK's driver, and join the groups video and render; rocminfo then lists the card",
        ),
        Need(
            "run", "HIP, the runtime of ROCm and DTK", _library(root, "rocm"),
            "install DTK (its HIP library is libgalaxyhip.so) or ROCm, or name the file in AUTOFUSE_HIP;"
            " or run through DTK's OpenCL",
        ),
        Need(
            "run-opencl", "an OpenCL driver of the card", _opencl(root),
            "install DTK's OpenCL (or, to check numbers on the CPU, PoCL: apt install pocl-opencl-icd)",
        ),
    ]  # fmt: skip
    return found


def _cuda_needs(target: Target, root: Path, ask: Callable[[str], bool]) -> list[Need]:
    """The same for NVIDIA's GPUs."""
    gpus = ", ".join(name for _, name in nvidia_here()) if root == ROOT else ""
    return [
        Need(
            "compile", "CUDA C of kernels", "TVM" if ask("target.build.cuda") else "",
            "install the wheel of apache-tvm, which writes CUDA C",
        ),
        Need(
            "compile", f"a compiler for {target.mcpu}", cuda_compiler(root),
            "install CUDA's nvcc (Debian: apt install nvidia-cuda-toolkit; it has to know the card)",
        ),
        Need(
            "run", "the card and its driver", gpus or _first(root, "dev/nvidia0"),
            "install NVIDIA's driver; nvidia-smi then lists the card",
        ),
        Need("run", "CUDA's driver library", _library(root, "cuda"), "install NVIDIA's driver: libcuda.so.1"),
        Need(
            "run-opencl", "an OpenCL driver of the card", _opencl(root),
            "NVIDIA's driver brings one; the loader is ocl-icd-libopencl1 (Debian)",
        ),
    ]  # fmt: skip


def _library(root: Path, driver: str) -> str:
    """Where a driver's library is, "" where it is not."""
    if root == ROOT:
        return library_of(driver)
    return _first(root, *[path.lstrip("/") for path in LIBRARIES[driver] if path.startswith("/")])


def library_of(driver: str) -> str:
    """The path or name of the library of a driver (rocm, cuda), "" where there is none.

    An environment variable (AUTOFUSE_HIP, AUTOFUSE_CUDA) names the file where it is in no usual place.
    """
    given = os.environ.get(VARIABLES[driver], "")
    if given:
        return given if Path(given).exists() else ""
    for name in LIBRARIES[driver]:
        if name.startswith("/"):
            if Path(name).exists():
                return name
        elif found := ctypes.util.find_library(name):
            return found
    return ""


def code_maker(form: str) -> str:
    """What makes machine code in a form (amdgcn, cuda) on this host: its path, "" where it is missing."""
    return linker_of_code_objects() if form == "amdgcn" else cuda_compiler()


def cuda_compiler(root: Path = ROOT) -> str:
    """The path of CUDA's nvcc, "" where there is none."""
    if root == ROOT and (found := shutil.which("nvcc")):
        return found
    return _first(root, "usr/local/cuda/bin/nvcc")


def _has_function(name: str) -> bool:
    import tvm

    return tvm.get_global_func(name, allow_missing=True) is not None


def _first(root: Path, *names: str) -> str:
    return next((f"/{name}" for name in names if (root / name).exists()), "")


def linker_of_code_objects(root: Path = ROOT) -> str:
    """The path of an LLD that links AMDGPU code objects, "" where there is none."""
    if root == ROOT and (found := shutil.which(_LINKERS[0])):
        return found
    return _first(root, *_LINKERS[1:])


def _opencl(root: Path) -> str:
    """The drivers that OpenCL's loader would find; "" without a loader."""
    drivers = sorted(path.stem for path in (root / "etc/OpenCL/vendors").glob("*.icd"))
    loader = ctypes.util.find_library("OpenCL") if root == ROOT else "libOpenCL.so.1"
    return f"{loader}: {', '.join(drivers)}" if drivers and loader else ""
