"""Which candidates will not build or run: takes what was timed and what failed, gives a classifier with its threshold.

Its probability of failure prunes candidates before they are costed. The threshold is the least one at which, on
workloads that the classifier did not see, hardly any candidate that works is lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.learn.booster import Booster
from autofuse.learn.boosting import LOGISTIC, TreeSettings, fit
from autofuse.learn.dataset import Dataset
from autofuse.learn.splits import by_workload

#: Fewer failures, or of fewer workloads, teach nothing.
MIN_FAILURES = 20
MIN_WORKLOADS = 5
#: Share of the working candidates that pruning may lose.
LOST = 0.005
_LEAST_LIMIT = 0.5
_TREES = TreeSettings(rounds=60, depth=4, eta=0.2, min_weight=1.0)
_FOLDS = 4


@dataclass(frozen=True)
class FailureScores:
    """On workloads not seen: area under the ROC curve; share of the failures found; share of what works lost."""

    auc: float
    found: float
    lost: float
    failures: int
    working: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class FailureModel:
    """Trees (JSON) that give a probability of failure; candidates over `limit` are pruned."""

    model: bytes
    limit: float
    scores: FailureScores


def fit_failures(dataset: Dataset, seed: int = 0) -> FailureModel | None:
    """The classifier, None where too few candidates failed or it could not tell them from others."""
    failed = dataset.failures
    if len(failed) < MIN_FAILURES or len(set(failed.workloads)) < MIN_WORKLOADS:
        return None
    hot = np.flatnonzero(~dataset.cold)
    features = np.concatenate([dataset.features[hot], failed.features])
    target = np.concatenate([np.zeros(len(hot)), np.ones(len(failed))])
    groups = (*(dataset.workloads[i] for i in hot), *failed.workloads)
    weights = np.ones(len(target))
    probability = np.empty(len(target))
    for split in by_workload(groups, min(_FOLDS, len(set(groups))), seed):
        part = [groups[i] for i in split.train]
        if len(set(target[split.train])) < 2:
            return None
        model = fit(features[split.train], target[split.train], weights[split.train], part, _TREES, LOGISTIC, seed)
        probability[split.test] = Booster(model).predict(features[split.test])
    limit = _limit(probability[target == 0])
    found, lost = (float((probability[target == kind] > limit).mean()) for kind in (1, 0))
    if found == 0:
        return None
    from sklearn.metrics import roc_auc_score

    scores = FailureScores(float(roc_auc_score(target, probability)), found, lost, len(failed), len(hot))
    return FailureModel(fit(features, target, weights, groups, _TREES, LOGISTIC, seed), limit, scores)


def _limit(working: NDArray[np.float64]) -> float:
    """The least threshold, not below _LEAST_LIMIT, that no more than LOST of the working candidates exceed."""
    return max(_LEAST_LIMIT, float(np.quantile(working, 1 - LOST)))
