"""What runs in a builder's child process: takes a request with scheduled TIR, leaves a library. Needs TVM."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import tvm

from autofuse.codegen.digest import tir_digest
from autofuse.codegen.link import linker
from autofuse.codegen.stack import pipeline
from autofuse.codegen.transport import from_text
from autofuse.measure.child import Handler


def factory(*setup: str) -> Handler:
    """The handler of build requests; the functions named in `setup` ("module:function") are called first."""
    for entry in setup:
        module, _, name = entry.partition(":")
        getattr(importlib.import_module(module), name)()

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        library = Path(request["library"])
        func = from_text(request["payload"])
        if tir_digest(func) != request["tir_digest"]:
            raise ValueError("the scheduled code does not survive its text form")
        module = tvm.IRModule({request["function"]: func})
        with tvm.transform.PassContext(opt_level=3, config=request["options"]):
            target = tvm.target.Target(request["target"])
            built = tvm.compile(module, target=target, tir_pipeline=pipeline())
        # The name must end in .so: the linker is told by it what to make.
        temporary = library.with_name(f"partial-{library.name}")
        built.export_library(str(temporary), fcompile=linker(str(target.attrs.get("mtriple", ""))))
        temporary.replace(library)
        return {}

    return handle
