"""What compiling for a GPU target and running on it takes, what of it this host has, and the steps to get the rest.

Looks at files and names alone; nothing is started but rocminfo. TVM is asked whether it has a runtime if it is given.
"""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autofuse.target.cards import cards
from autofuse.target.gpu import gpus_here, known_gfx
from autofuse.target.registry import Target

ROOT = Path("/")
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
            "run", "TVM with a ROCm runtime", "device_api.rocm" if ask("device_api.rocm") else "",
            "build apache-tvm 0.27 with USE_ROCM=/opt/dtk and USE_LLVM on, since its wheels bring none;"
            " or measure through DTK's OpenCL",
        ),
        Need(
            "run-opencl", "an OpenCL driver of the card", _opencl(root),
            "install DTK's OpenCL (or, to check numbers on the CPU, PoCL: apt install pocl-opencl-icd)",
        ),
    ]  # fmt: skip
    return found


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
