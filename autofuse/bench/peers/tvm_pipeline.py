"""TVM's own compilation of the prepared module under one of its Relax pipelines: what the two TVM baselines share."""

from __future__ import annotations

import time
from abc import abstractmethod
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
        self._machine.set_input("main", *(tvm.runtime.tensor(array) for array in inputs.values()))
        return seconds

    def run_once(self) -> None:
        self._machine.invoke_stateful("main")

    def outputs(self) -> list[Array]:
        return [tensor.numpy() for tensor in flat_tensors(self._machine.get_outputs("main"))]

    def kernels(self) -> int | None:
        import tvm

        calls: list[str] = []

        def note(_function: Any, symbol: str, before: bool, _value: Any, *_arguments: Any) -> int:
            if before and not symbol.startswith("vm.builtin."):
                calls.append(symbol)
            return 0

        plain = self._machine
        plain.set_instrument(tvm.runtime.convert(note))
        try:
            plain.invoke_stateful("main")
        finally:
            plain.set_instrument(tvm.runtime.convert(lambda *_: 0))
        return len(calls)


def model_source(workload: Workload) -> Any:
    """The model as the frontend takes it: the path of an ONNX file, or a Relax module read from its JSON."""
    if workload.is_onnx():
        return workload.model_path
    import tvm

    with open(workload.model_path, encoding="utf-8") as file:
        return tvm.ir.load_json(file.read())


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
