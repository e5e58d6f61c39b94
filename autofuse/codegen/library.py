"""A built program (TVM's VM executable) → the bytes of a shared library, and the other way round."""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autofuse.codegen.link import linker


def machine_code(executable: Any, triple: str = "") -> bytes:
    """The shared library of a VM executable for the architecture of `triple` ("" for this machine).

    What TVM's `export_library` gives, but the parts that LLVM compiled write their object files side by side, in
    threads. Raises TargetError when there is no linker for that architecture.
    """
    import tvm_ffi

    link = linker(triple)
    root = executable.mod
    parts = [part for part in root.imports if part.kind == "llvm"]
    with tempfile.TemporaryDirectory(prefix="autofuse-") as name:
        folder = Path(name)
        objects = [folder / f"part{i}.o" for i in range(len(parts))]

        def write(part: Any, path: Path) -> None:
            part.write_to_file(str(path))

        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            list(pool.map(write, parts, objects))
        # What is no machine code (the bytecode that calls the kernels) becomes data of the library.
        pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToLLVM")
        described = parts[0]["_get_target_string"]() if parts else _target_of(triple)
        objects.append(folder / "bytecode.o")
        write(pack(root, False, described, ""), objects[-1])
        library = folder / "model.so"
        link(str(library), [str(path) for path in objects])
        return library.read_bytes()


def load_code(code: bytes) -> Any:
    """The module of a shared library for this machine."""
    import tvm  # noqa: F401 (registers the loader)
    import tvm_ffi

    with tempfile.TemporaryDirectory(prefix="autofuse-") as name:
        path = Path(name) / "model.so"
        path.write_bytes(code)
        return tvm_ffi.load_module(str(path))


def _target_of(triple: str) -> str:
    return json.dumps({"kind": "llvm", **({"mtriple": triple} if triple else {})})
