"""Takes the name of a well-known network, gives its ONNX graph with seeded random weights: no download, no PyTorch.

`names` and `describe` are instant; `build`, `parameters`, `macs` and `sample_inputs` load onnx when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.frontend.zoo.catalog import ZooEntry, ZooInput, describe, names

if TYPE_CHECKING:
    from autofuse.frontend.zoo.counting import macs, parameters
    from autofuse.frontend.zoo.networks import build, sample_inputs

__all__ = ["ZooEntry", "ZooInput", "build", "describe", "macs", "names", "parameters", "sample_inputs"]


def __getattr__(name: str) -> Any:
    if name in ("build", "sample_inputs"):
        from autofuse.frontend.zoo import networks

        return getattr(networks, name)
    if name in ("macs", "parameters"):
        from autofuse.frontend.zoo import counting

        return getattr(counting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
