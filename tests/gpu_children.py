"""A child process for tests that compiles for a GPU that LLVM does not know, as no checked target would."""

from __future__ import annotations

from typing import Any

import tvm

from autofuse.codegen.amdgpu import compile_device
from autofuse.codegen.transport import from_text
from autofuse.measure.child import Handler


def unknown_gpu(_: str) -> Handler:
    """Compiles what it is given for gfx936."""
    target = tvm.target.Target({"kind": "rocm", "mcpu": "gfx936"})

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        return {"source": compile_device(from_text(request["payload"]), target).assembly}

    return handle
