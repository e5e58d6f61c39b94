"""The folder of a model compiled for a GPU: kernels as text and machine code, weights, and one JSON file that says how
they belong together.

    program.json    format, description, buffers, steps, launches, what each kernel takes of the card
    weights.bin     the weights, each at a multiple of 64 bytes
    kernels/        of each kernel NAME.cl (OpenCL C) and what the target's own compiler made: NAME.s and NAME.co
                    (AMDGPU assembly, code object), or NAME.cu and NAME.cubin (CUDA C, machine code)

Everything can be read and changed by hand. The folder appears whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.gpu_program import GpuProgram
from autofuse.errors import ModelError

FORMAT, VERSION = "autofuse-gpu-model", 1
#: Form of code (`device.Session.form`) → the end of its files' names. What nobody loads is there to be read.
LOADED = {"opencl": "cl", "amdgcn": "co", "cuda": "cubin"}
_FILES = frozenset((*LOADED.values(), "s", "cu"))
_ALIGNMENT = 64
_ADVICE = "make one with `autofuse compile MODEL --target dcu -o FOLDER`"


@dataclass(frozen=True)
class GpuPackage:
    """A compiled model. `files`: name of a kernel and end of a file's name ("cl", "co", …) → its content."""

    description: dict[str, Any]
    program: GpuProgram
    files: Mapping[tuple[str, str], bytes]
    weights: Sequence[NDArray[Any]] = field(default_factory=tuple)

    def code(self, form: str) -> dict[str, bytes]:
        """The code of every kernel in a form, by name. ModelError where the package does not have it."""
        end = LOADED[form]
        lacking = [name for name in self.program.launches if (name, end) not in self.files]
        if lacking:
            raise ModelError(
                f"{self.description.get('model')} has no kernels/*.{end} for {form}: "
                + (f"what makes them was missing when it was compiled ({_MAKERS[form]})" if form in _MAKERS else "")
            )
        return {name: self.files[name, end] for name in self.program.launches}

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms in which all kernels are there."""
        return tuple(
            form for form, end in LOADED.items() if all((name, end) in self.files for name in self.program.launches)
        )


_MAKERS = {"amdgcn": "LLD: ld.lld", "cuda": "CUDA's nvcc"}


def is_gpu_package(path: Path) -> bool:
    """Whether a path is such a folder."""
    return (path / "program.json").is_file()


def check_gpu_folder(path: Path) -> None:
    """ModelError where a model for a GPU cannot be written to `path`: it holds something else, or has no place."""
    if path.exists() and not is_gpu_package(path) and not (path.is_dir() and not any(path.iterdir())):
        raise ModelError(f"cannot write {path}: it is there and no compiled model for a GPU; choose another -o")
    if not path.resolve().parent.is_dir():
        raise ModelError(f"cannot write {path}: the folder {path.resolve().parent} does not exist")


def write_gpu_package(path: Path, package: GpuPackage) -> None:
    """Write the folder `path`, in the place of an older one. ModelError where it cannot be, or holds something else."""
    check_gpu_folder(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        (temporary / "kernels").mkdir(parents=True)
        for (name, end), text in package.files.items():
            (temporary / "kernels" / f"{name}.{end}").write_bytes(text)
        entries = []
        with (temporary / "weights.bin").open("wb") as out:
            for array in package.weights:
                out.write(b"\0" * (-out.tell() % _ALIGNMENT))
                entries.append({"offset": out.tell(), "shape": list(array.shape), "dtype": str(array.dtype)})
                out.write(np.ascontiguousarray(array).tobytes())
        content = {
            "format": FORMAT, "version": VERSION, "description": package.description,
            "program": package.program.to_json(), "weights": entries,
        }  # fmt: skip
        (temporary / "program.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    except OSError as error:
        if old.exists() and not path.exists():
            old.rename(path)
        raise ModelError(f"cannot write {path}: {error.strerror or error}; choose another -o") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def read_gpu_package(path: Path) -> GpuPackage:
    """Open the folder; weights are mapped. ModelError where it is damaged or of another version."""
    try:
        content = json.loads((path / "program.json").read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ModelError(f"{path} is no compiled model for a GPU; {_ADVICE}")
        if content.get("version") != VERSION:
            raise ModelError(
                f"{path} has version {content.get('version')}, this version reads {VERSION}: compile the model again"
            )
        program = GpuProgram.from_json(content["program"])
        names = set(program.launches)
        files = {
            (file.stem, file.suffix[1:]): file.read_bytes()
            for file in sorted((path / "kernels").iterdir())
            if file.stem in names and file.suffix[1:] in _FILES
        }
        weights = [_weight(path / "weights.bin", entry) for entry in content["weights"]]
        if len(weights) != len(program.weights):
            raise ValueError("its weights are not those of its program")
        return GpuPackage(dict(content["description"]), program, files, weights)
    except OSError as error:
        raise ModelError(f"cannot read {error.filename or path}: {error.strerror}; {_ADVICE}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is damaged ({error}); {_ADVICE}") from None


def _weight(path: Path, entry: dict[str, Any]) -> NDArray[Any]:
    shape, dtype = tuple(int(e) for e in entry["shape"]), np.dtype(entry["dtype"])
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.zeros(shape, dtype)
    if not 0 <= entry["offset"] <= path.stat().st_size - size:
        raise ValueError("weights.bin is shorter than its entries")
    return np.memmap(path, dtype=dtype, mode="r", offset=int(entry["offset"]), shape=shape)
