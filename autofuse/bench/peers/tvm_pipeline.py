"""TVM's own compilation of the prepared module under one of its Relax pipelines: what the two TVM baselines share."""

from __future__ import annotations

import time
from abc import abstractmethod
from pathlib import Path
from typing import Any

from autofuse.bench.peer import Array, Peer, Workload, missing_packages


class TvmPipelinePeer(Peer):
    """Prepares the model as autofuse does, so that what differs is fusion and schedules alone.

    `compile_s` runs from the model file to the loaded virtual machine, preparation included. The kernels are those
    that the virtual machine calls in one inference, its own built-in functions apart.
    """

    @classmethod
    def available(cls) -> str | None:
        return missing_packages({"tvm": "apache-tvm"}, "pip install autofuse again, it pins the version")

    @abstractmethod
    def pipeline(self, target: Any) -> Any:
        """The Relax pipeline that `tvm.compile` is given."""

    def prepare(self, workload: Workload) -> float:
        import tvm
        from tvm import relax

        from autofuse.frontend import prepare

        inputs = workload.inputs()
        start = time.perf_counter()
        prepared = prepare(model_source(workload))
        target = host_target()
        executable = tvm.compile(prepared.module, target, relax_pipeline=self.pipeline(target))
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        seconds = time.perf_counter() - start
        # Tensors of TVM's own allocator: aligned, and not copied again at each call.
        tensors = [tvm.runtime.tensor(array) for array in inputs.values()]
        self._machine.set_input("main", *tensors)
        # An instrument cannot be taken off a machine: a second one makes the first call, and counts kernels.
        self._clean: Any = self._machine
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._machine.set_input("main", *tensors)
        self._calls: list[str] = []
        self._kernels: int | None = None
        self._machine.set_instrument(tvm.runtime.convert(self._note))
        return seconds

    def run_once(self) -> None:
        self._machine.invoke_stateful("main")

    def run(self, calls: int) -> list[float]:
        if self._kernels is not None and self._clean is not None:
            self._machine, self._clean = self._clean, None
        seconds = super().run(calls)
        if self._kernels is None:
            self._kernels = len(self._calls) // calls
        return seconds

    def outputs(self) -> list[Array]:
        return [tensor.numpy() for tensor in flat_tensors(self._machine.get_outputs("main"))]

    def kernels(self) -> int | None:
        return self._kernels

    def _note(self, _function: Any, symbol: str, before: bool, _value: Any, *_arguments: Any) -> int:
        if before and not symbol.startswith("vm.builtin."):
            self._calls.append(symbol)
        return 0


def model_source(workload: Workload) -> Any:
    """The model as the frontend takes it: the path of an ONNX file, or a Relax module as the parent wrote it."""
    if workload.is_onnx():
        return workload.model_path
    from autofuse.bench.relax_file import read_module

    return read_module(Path(workload.model_path))


def host_target() -> Any:
    """This machine's processor with all its vector instructions: TVM's plain `llvm` uses the oldest ones only."""
    import tvm
    from tvm.target import codegen

    return tvm.target.Target({"kind": "llvm", "mcpu": codegen.llvm_get_system_cpu()})


def flat_tensors(value: Any) -> list[Any]:
    """The tensors in what a virtual machine returns: one, or nested tuples of them."""
    if hasattr(value, "numpy"):
        return [value]
    return [tensor for part in value for tensor in flat_tensors(part)]
