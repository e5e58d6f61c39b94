"""`torch.compile` (Inductor) of the ONNX graph, brought into PyTorch by `onnx_to_torch`. PyTorch is optional."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autofuse.bench.peer import Array, Peer, Workload, missing_packages, require_onnx


class TorchCompilePeer(Peer):
    """Inductor's C++ backend, static shapes, frozen weights; `compile_s` includes the first call, which compiles."""

    @classmethod
    def available(cls) -> str | None:
        return missing_packages({"torch": "torch", "onnx": "onnx"}, "pip install 'autofuse[torch]'")

    def prepare(self, workload: Workload) -> float:
        import onnx
        import torch

        from autofuse.bench.peers.onnx_to_torch import convert

        path = require_onnx(workload, "torch-compile")
        torch.set_num_threads(workload.threads)
        # Without it weights stay arguments, which Inductor may neither fold nor bring into a blocked layout.
        torch._inductor.config.freezing = True
        self._inputs = [torch.from_numpy(array) for array in workload.inputs().values()]
        self._no_gradients = torch.no_grad
        start = time.perf_counter()
        self._model: Any = torch.compile(convert(onnx.load(str(path))), dynamic=False)
        self.run_once()
        return time.perf_counter() - start

    def run_once(self) -> None:
        with self._no_gradients():
            self._last = self._model(*self._inputs)

    def outputs(self) -> list[Array]:
        return [np.asarray(tensor.detach().numpy()) for tensor in self._last]
