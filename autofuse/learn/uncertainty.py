"""How sure a prediction is: takes the errors that were made on rows not trained on, gives a model of their size.

The expected error of a prediction is the size that a share EXPECTED of the errors stays below: of a normal
distribution that would be one standard deviation. Trees learn where errors are large; a factor, found on workloads
that those trees did not see, makes the share right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofuse.learn.booster import Booster
from autofuse.learn.boosting import TreeSettings, fit, quantile
from autofuse.learn.splits import by_workload

Array = NDArray[np.float64]

#: Share of the errors that stay below the expected error.
EXPECTED = 0.683
#: No error is expected to be smaller (ln): clocks are not that good.
LEAST_ERROR = 0.005
_TREES = TreeSettings(rounds=60, depth=3, eta=0.1, min_weight=10.0)
_FOLDS = 3


@dataclass(frozen=True)
class ErrorModel:
    """`model`: trees (JSON) of the expected error, to be multiplied by `scale`.

    `outside`: the expected error (n,) of each row by trees and a factor that did not see its workload.
    """

    model: bytes
    scale: float
    outside: Array


def fit_errors(features: NDArray[np.float32], errors: Array, groups: Sequence[str], seed: int = 0) -> ErrorModel:
    """A model of `errors` (n,), absolute errors (ln) of predictions for rows that were not trained on."""
    weights = np.ones(len(errors))
    objective = quantile(EXPECTED)
    plain = np.empty(len(errors))
    splits = list(by_workload(groups, min(_FOLDS, len(set(groups))), seed + 1))
    for split in splits:
        part = [groups[i] for i in split.train]
        trained = fit(features[split.train], errors[split.train], weights[split.train], part, _TREES, objective, seed)
        plain[split.test] = expected(trained, 1.0, features[split.test])
    ratios = errors / plain
    outside = np.empty(len(errors))
    for split in splits:
        outside[split.test] = plain[split.test] * _scale(ratios[split.train])
    return ErrorModel(fit(features, errors, weights, groups, _TREES, objective, seed), _scale(ratios), outside)


def _scale(ratios: Array) -> float:
    """The factor that brings a share EXPECTED of the errors below the expected ones."""
    return max(float(np.quantile(ratios, EXPECTED)), 0.1)


def expected(model: bytes | Booster, scale: float, features: NDArray[np.float32]) -> Array:
    """The expected error (n,) of predictions for `features`."""
    booster = model if isinstance(model, Booster) else Booster(model)
    found: Array = np.maximum(booster.predict(features), LEAST_ERROR) * scale
    return found


@dataclass(frozen=True)
class Coverage:
    """Shares of the errors within the expected error and within twice of it; wanted are EXPECTED and 0.95.

    `rank`: Kendall's tau of expected and actual errors: above 0, larger ones are known to be larger.
    """

    one: float
    two: float
    rank: float | None

    @classmethod
    def of(cls, errors: Array, uncertainty: Array) -> Coverage:
        """Of absolute errors and expected ones, both (n,) ln."""
        from autofuse.learn.metrics import kendall

        return cls(
            float((errors <= uncertainty).mean()),
            float((errors <= 2 * uncertainty).mean()),
            kendall(errors, uncertainty),
        )
