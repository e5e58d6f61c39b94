"""Where a predictor may be trusted: takes the training rows' features, tells which other rows lie within their range.

Trees give a constant outside what they saw. The columns that say how much work a kernel does, of which kinds, and on
what hardware are checked, each with a margin; the others follow from them or move within fixed bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.features import FEATURES
from autofuse.cost.group_features import Feature

_COUNTS = frozenset(["operators", "anchors", "blocks", "arguments", "outputs"])
_SIZES = frozenset(
    ["fma", "simple", "compare", "divide", "special", "bytes_in", "bytes_constant", "bytes_out", "bytes_internal",
     "reduction", "output_elements", "tasks", "footprint", "memory_bytes"]
)  # fmt: skip
_EXACT = frozenset(["hw_lanes", "hw_registers", "hw_cores", "hw_wave", "hw_waves"])
#: A size may be half of the smallest or twice the largest that was seen (log2 columns).
_SIZE_MARGIN = 1.0
#: A rate, bandwidth or cache may be off by a quarter of an octave: another calibration, not another machine.
_HARDWARE_MARGIN = 0.25
#: ln: the time of a kernel may be a quarter of the shortest or four times the longest that was seen.
_TIME_MARGIN = float(np.log(4.0))


def margins(feature: Feature, low: float, high: float) -> tuple[float, float] | None:
    """The bounds of a column whose training rows lie in [low, high]; None if it is not checked."""
    name = feature.name
    if name in _COUNTS or name.startswith(("mapping_", "kind_")):
        # What was never seen (an operator kind, say) stays out of range.
        return 0.0, 1.5 * high
    if name in _SIZES:
        return low - _SIZE_MARGIN, high + _SIZE_MARGIN
    if name in _EXACT:
        return low, high
    if name == "hw_parallel_overhead":
        return low - _TIME_MARGIN, high + _TIME_MARGIN
    if name.startswith("hw_"):
        return low - _HARDWARE_MARGIN, high + _HARDWARE_MARGIN
    if name == "log_total":
        return low - _TIME_MARGIN, high + _TIME_MARGIN
    return None


@dataclass(frozen=True)
class TrainingRange:
    """Bounds of the checked columns by name, margins included. `columns`: what the columns of rows are."""

    bounds: Mapping[str, tuple[float, float]]
    columns: tuple[Feature, ...] = FEATURES

    @classmethod
    def of(cls, features: NDArray[np.float32], columns: tuple[Feature, ...] = FEATURES) -> TrainingRange:
        """The range of training rows (n, columns), n >= 1."""
        low, high = features.min(axis=0), features.max(axis=0)
        bounds = {}
        for i, feature in enumerate(columns):
            limits = margins(feature, float(low[i]), float(high[i]))
            if limits is not None:
                bounds[feature.name] = limits
        return cls(bounds, columns)

    def contains(self, features: NDArray[np.float32]) -> NDArray[np.bool_]:
        """For each row whether every checked column is within its bounds."""
        columns = [i for i, f in enumerate(self.columns) if f.name in self.bounds]
        limits = np.array([self.bounds[self.columns[i].name] for i in columns], np.float64).reshape(-1, 2)
        # float32 columns that equal a bound must not fail by rounding.
        slack = 1e-5 * np.maximum(1.0, np.abs(limits))
        chosen = features[:, columns]
        inside = (chosen >= limits[:, 0] - slack[:, 0]) & (chosen <= limits[:, 1] + slack[:, 1])
        return np.asarray(inside.all(axis=1), np.bool_)

    def violated(self, row: NDArray[np.float32]) -> list[str]:
        """Names of the columns that put one row out of range: why a prediction is not trusted."""
        return [
            f.name
            for f in self.columns
            if f.name in self.bounds
            and not TrainingRange({f.name: self.bounds[f.name]}, self.columns).contains(row[None, :])[0]
        ]
