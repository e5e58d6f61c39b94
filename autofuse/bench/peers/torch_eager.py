"""PyTorch's own operators, called one by one, on the ONNX graph that `onnx_to_torch` brings over. It is optional."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from autofuse.bench.peer import Array, Peer, Workload, missing_packages, require_onnx


class TorchPeer(Peer):
    """The graph's operators in eager mode, without gradients."""

    name: ClassVar[str] = "torch"

    @classmethod
    def available(cls) -> str | None:
        return missing_packages({"torch": "torch", "onnx": "onnx"}, "pip install 'autofuse[torch]'")

    def prepare(self, workload: Workload) -> float:
        import onnx
        import torch

        from autofuse.bench.peers.onnx_to_torch import convert

        path = require_onnx(workload, self.name)
        torch.set_num_threads(workload.threads)
        self._inputs = [torch.from_numpy(array) for array in workload.inputs().values()]
        self._no_gradients = torch.no_grad
        start = time.perf_counter()
        self._model: Any = self.made(convert(onnx.load(str(path))))
        self.run_once()
        return time.perf_counter() - start

    def made(self, module: Any) -> Any:
        """What is called, of the converted module."""
        return module

    def run_once(self) -> None:
        with self._no_gradients():
            self._last = self._model(*self._inputs)

    def outputs(self) -> list[Array]:
        return [np.asarray(tensor.detach().numpy()) for tensor in self._last]
