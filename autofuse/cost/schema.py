"""Which features a kind of target has: names, version, and what extracts them. A CPU's and a GPU's differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.features import FEATURE_VERSION, FEATURES, extract
from autofuse.cost.gpu_features import GPU_FEATURE_VERSION, GPU_FEATURES, extract_gpu
from autofuse.cost.group_features import Feature
from autofuse.cost.model import Candidate
from autofuse.target import Hardware


def _of_cpu(candidates: Sequence[Candidate], hardware: Hardware, cold: bool = False) -> NDArray[np.float32]:
    return extract(candidates, hardware, cold=cold)


@dataclass(frozen=True)
class FeatureSchema:
    """The columns of a kind of target. `extract` takes candidates, hardware and whether weights are cold."""

    kind: str
    version: int
    features: tuple[Feature, ...]
    extract: Callable[[Sequence[Candidate], Hardware, bool], NDArray[np.float32]]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns in order."""
        return tuple(f.name for f in self.features)

    @cached_property
    def base(self) -> int:
        """The column that holds ln(analytical seconds)."""
        return self.names.index("log_total")


_SCHEMAS = {
    "cpu": FeatureSchema("cpu", FEATURE_VERSION, FEATURES, _of_cpu),
    "gpu": FeatureSchema("gpu", GPU_FEATURE_VERSION, GPU_FEATURES, extract_gpu),
}


def schema_of(kind: str) -> FeatureSchema:
    """The schema of a kind of target (cpu, gpu). KeyError for another."""
    return _SCHEMAS[kind]
