"""How trees should grow: takes a Dataset, gives the settings with the least error on workloads that were held out.

A random search with scikit-learn: settings are drawn from lists, each is judged by a grouped cross-validation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autofuse.learn.booster import Booster
from autofuse.learn.boosting import TreeSettings, fit
from autofuse.learn.dataset import Dataset

_FOLDS = 3
#: What is drawn from. All trees of a predictor together decide how fast it is and how large its files are: 500 (rounds
#: × members) of depth 5 gave 270,000 predictions a second on two cores of a Zen 4, of depth 8 206,000.
_SPACE = {
    "depth": [4, 5, 6, 7],
    "eta": [0.08, 0.12, 0.15, 0.2, 0.3],
    "subsample": [0.6, 0.8, 1.0],
    "columns": [0.4, 0.6, 0.8],
    "min_weight": [1.0, 3.0, 8.0],
}


def search_trees(
    data: Dataset, trials: int, start: TreeSettings, seed: int = 0, tell: Callable[[str], None] = lambda _: None
) -> TreeSettings:
    """The best of `start` and `trials` settings drawn; the mean absolute error of ln latencies decides."""
    from sklearn.metrics import mean_absolute_error
    from sklearn.model_selection import GroupKFold, ParameterSampler

    groups = np.array(data.workloads, object)
    folds = list(GroupKFold(min(_FOLDS, len(set(data.workloads)))).split(data.features, groups=groups))
    best, least = start, np.inf
    drawn = ParameterSampler(_SPACE, n_iter=trials, random_state=seed)
    for number, settings in enumerate([start, *(replace(start, **values) for values in drawn)]):
        tell(f"settings {number} of {trials}")
        found = np.empty(len(data))
        for train, test in folds:
            model = fit(
                data.features[train], data.residual[train], data.weights[train], list(groups[train]), settings,
                seed=seed,
            )  # fmt: skip
            found[test] = Booster(model).predict(data.features[test])
        error = float(mean_absolute_error(data.residual, found))
        if error < least:
            best, least = settings, error
    return best
