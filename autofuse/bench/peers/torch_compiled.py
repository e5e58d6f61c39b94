"""`torch.compile` (Inductor) of the model's ONNX graph, brought into PyTorch by onnx2torch; both are optional."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from autofuse.bench.peer import Array, Peer, Workload, missing_packages, require_onnx


class TorchCompilePeer(Peer):
    """Inductor's C++ backend with static shapes; `compile_s` includes the first call, which is what compiles."""

    @classmethod
    def available(cls) -> str | None:
        needed = {"torch": "torch", "onnx2torch": "onnx2torch", "torchvision": "torchvision"}
        return missing_packages(needed, "pip install torch torchvision onnx2torch")

    def prepare(self, workload: Workload) -> float:
        import torch

        onnx2torch: Any = importlib.import_module("onnx2torch")

        path = require_onnx(workload, "torch-compile")
        torch.set_num_threads(workload.threads)
        self._inputs = [torch.from_numpy(array) for array in workload.inputs().values()]
        self._no_gradients = torch.inference_mode
        start = time.perf_counter()
        model = onnx2torch.convert(str(path)).eval()
        self._model: Any = torch.compile(model, dynamic=False)
        self.run_once()
        return time.perf_counter() - start

    def run_once(self) -> None:
        with self._no_gradients():
            self._last = self._model(*self._inputs)

    def outputs(self) -> list[Array]:
        last = self._last if isinstance(self._last, (tuple, list)) else (self._last,)
        return [np.asarray(tensor.detach().cpu().numpy()) for tensor in last]
