"""OpenVINO on the CPU in its latency mode, kept to float32 and to the given number of threads."""

from __future__ import annotations

import time

import numpy as np

from autofuse.bench.peer import Array, Peer, Workload, missing_packages, require_onnx

# Nodes of the compiled model that run nothing.
_NOT_KERNELS = frozenset({"Input", "Output", "Parameter", "Result", "Constant", "Const"})


class OpenVinoPeer(Peer):
    """A compiled model with one inference request that reads the inputs in place."""

    @classmethod
    def available(cls) -> str | None:
        return missing_packages({"openvino": "openvino"}, "pip install 'autofuse[bench]'")

    def prepare(self, workload: Workload) -> float:
        import openvino

        path = require_onnx(workload, "openvino")
        self._inputs = workload.inputs()
        settings = {
            "INFERENCE_NUM_THREADS": str(workload.threads),
            "NUM_STREAMS": "1",
            "PERFORMANCE_HINT": "LATENCY",
            # Without it a CPU with bfloat16 units is compared at another precision.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = openvino.Core()
        start = time.perf_counter()
        self._compiled = core.compile_model(core.read_model(str(path)), "CPU", settings)
        self._request = self._compiled.create_infer_request()
        seconds = time.perf_counter() - start
        for port in self._compiled.inputs:
            name = next(name for name in workload.input_names if name in port.get_names())
            self._request.set_tensor(port, openvino.Tensor(self._inputs[name], shared_memory=True))
        self._ports = [self._compiled.output(name) for name in workload.output_names]
        return seconds

    def run_once(self) -> None:
        self._request.infer()

    def outputs(self) -> list[Array]:
        return [np.array(self._request.get_tensor(port).data) for port in self._ports]

    def kernels(self) -> int | None:
        operators = self._compiled.get_runtime_model().get_ops()
        kinds = [operator.get_rt_info()["layerType"] for operator in operators]
        names = [str(kind.astype(str) if hasattr(kind, "astype") else kind) for kind in kinds]
        return sum(name not in _NOT_KERNELS for name in names)
