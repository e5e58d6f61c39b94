"""`torch.compile` (Inductor) of the ONNX graph, brought into PyTorch by `onnx_to_torch`. PyTorch is optional."""

from __future__ import annotations

from typing import Any, ClassVar

from autofuse.bench.peers.torch_eager import TorchPeer


class TorchCompilePeer(TorchPeer):
    """Inductor's C++ backend, static shapes, frozen weights; `compile_s` includes the first call, which compiles."""

    name: ClassVar[str] = "torch-compile"

    def made(self, module: Any) -> Any:
        import torch

        # Without it weights stay arguments, which Inductor may neither fold nor bring into a blocked layout.
        torch._inductor.config.freezing = True
        return torch.compile(module, dynamic=False)
