"""Compiling kernels for a GPU target in a child process: takes scheduled functions, gives code with its resources.

TVM ends the process where LLVM cannot generate code: that costs a child, and is a result with a status.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import Any

from autofuse.codegen.resources import KernelResources
from autofuse.measure.child import Handler
from autofuse.measure.process import ChildProcess
from autofuse.target.registry import Target

_FUNCTION = "main"


@dataclass(frozen=True)
class CrossResult:
    """What became of a function: `status` is ok, failed, crashed, timeout or oom, `message` why it is not ok.

    `source`: AMDGPU assembly or CUDA C, or OpenCL C where that was asked for; `code`: machine code, where something
    here makes it; `kernels`: its resources (none of OpenCL C); `launches`: name, workgroups, threads and arguments of
    each kernel, as JSON values; `traffic`: bytes that they ask memory (and LDS) for: loads, stores, lds.
    """

    status: str
    message: str = ""
    source: str = ""
    code: bytes = b""
    kernels: tuple[KernelResources, ...] = ()
    launches: tuple[Mapping[str, Any], ...] = ()
    traffic: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is code."""
        return self.status == "ok"


class CrossCompiler:
    """Compiles for one target in one child, which starts when it is first needed. Belongs to one thread.

    `factory` makes the child's handler, given the target's text.
    """

    def __init__(self, target: Target, timeout: float = 60.0, factory: str = "autofuse.measure.cross:factory") -> None:
        self._timeout = timeout
        self._child = ChildProcess(factory, (target.text,))

    def code(self, func: Any) -> CrossResult:
        """Code of a scheduled PrimFunc: AMDGPU assembly, or CUDA C for NVIDIA's GPUs."""
        return self._ask(func, "code")

    def opencl(self, func: Any) -> CrossResult:
        """The same schedule as OpenCL C."""
        return self._ask(func, "opencl")

    def _ask(self, func: Any, what: str) -> CrossResult:
        from autofuse.codegen.digest import tir_digest
        from autofuse.codegen.transport import to_text

        named = func.with_attr("global_symbol", _FUNCTION)
        request = {"payload": to_text(named), "tir_digest": tir_digest(named), "what": what}
        outcome = self._child.request(request, self._timeout)
        if outcome.status != "ok":
            return CrossResult(outcome.status, outcome.message)
        value = outcome.value
        kernels = tuple(KernelResources.from_json(k) for k in value["kernels"])
        code = base64.b64decode(value["code"])
        return CrossResult("ok", "", str(value["source"]), code, kernels, tuple(value["launches"]), value["traffic"])

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def __enter__(self) -> CrossCompiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def factory(target: str) -> Handler:
    """The handler of the child: see `CrossCompiler`."""
    from dataclasses import asdict

    from autofuse.codegen.amdgpu import opencl_source
    from autofuse.codegen.digest import tir_digest
    from autofuse.codegen.transport import from_text
    from autofuse.target.registry import KINDS, resolve

    chosen = resolve(target)
    made = chosen.tvm_target()
    compile_device = import_module(KINDS[chosen.kind].builder).compile_device

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        func = from_text(request["payload"])
        if tir_digest(func) != request["tir_digest"]:
            raise ValueError("the scheduled code does not survive its text form")
        if request["what"] == "opencl":
            source, launches = opencl_source(func, made)
            asked = [asdict(launch) for launch in launches]
            return {"source": source, "code": "", "kernels": [], "launches": asked, "traffic": {}}
        code = compile_device(func, made)
        return {
            "source": code.assembly,
            "code": base64.b64encode(code.code).decode() if code.linked else "",
            "kernels": [kernel.to_json() for kernel in code.kernels],
            "launches": [asdict(launch) for launch in code.launches],
            "traffic": asdict(code.traffic),
        }

    return handle
