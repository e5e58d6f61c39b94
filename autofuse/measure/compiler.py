"""What runs in a builder's child process: takes a request with scheduled TIR, leaves a library. Needs TVM."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.script import parser

from autofuse.codegen.digest import tir_digest
from autofuse.codegen.link import linker
from autofuse.codegen.stack import pipeline
from autofuse.measure.child import Handler


def read_module(text: str) -> tvm.IRModule:
    """The module that TVMScript says, with the calls that TVM writes into such text and does not read."""
    if not hasattr(parser, "prefetch"):
        parser.prefetch = _prefetch
    return tvm.script.from_source(text)


def _prefetch(*arguments: Any) -> Any:
    return tirx.call_intrin("void", "tirx.prefetch", *arguments)


def factory(*setup: str) -> Handler:
    """The handler of build requests; the functions named in `setup` ("module:function") are called first."""
    for entry in setup:
        module, _, name = entry.partition(":")
        getattr(importlib.import_module(module), name)()

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        library = Path(request["library"])
        module = read_module(request["payload"])
        if tir_digest(module[request["function"]]) != request["tir_digest"]:
            raise ValueError("the scheduled code does not survive its text form")
        with tvm.transform.PassContext(opt_level=3, config=request["options"]):
            target = tvm.target.Target(request["target"])
            built = tvm.compile(module, target=target, tir_pipeline=pipeline())
        # The name must end in .so: the linker is told by it what to make.
        temporary = library.with_name(f"partial-{library.name}")
        built.export_library(str(temporary), fcompile=linker(str(target.attrs.get("mtriple", ""))))
        temporary.replace(library)
        return {}

    return handle
