"""Fitting boosted trees: takes features, targets and groups, gives an XGBoost model as JSON bytes.

Trees grow until the error on a part of the rows that stands for what is not known yet, whole workloads, no longer
falls. The same rows and settings give the same bytes, on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.learn.splits import grouped_folds

SQUARED: Mapping[str, Any] = {"objective": "reg:squarederror"}
LOGISTIC: Mapping[str, Any] = {"objective": "binary:logistic", "eval_metric": "logloss"}


def quantile(alpha: float) -> Mapping[str, Any]:
    """The objective whose predictions a share `alpha` of the targets stays below."""
    return {"objective": "reg:quantileerror", "quantile_alpha": alpha}


@dataclass(frozen=True)
class TreeSettings:
    """How one ensemble of trees grows. `validation`: share of the rows that decides when it stops."""

    rounds: int = 100
    depth: int = 5
    eta: float = 0.15
    subsample: float = 0.8
    columns: float = 0.8
    min_weight: float = 3.0
    patience: int = 15
    validation: float = 0.15


def fit(
    features: NDArray[np.float32],
    target: NDArray[np.float64],
    weights: NDArray[np.float64],
    groups: Sequence[str],
    settings: TreeSettings,
    objective: Mapping[str, Any] = SQUARED,
    seed: int = 0,
) -> bytes:
    """A model of `target` (n,) from `features` (n, columns); `groups` are the rows' workloads."""
    import xgboost

    folds = max(2, round(1 / settings.validation))
    held = grouped_folds(groups, folds, seed) == 0
    if held.all() or not held.any():
        held = np.zeros(len(target), bool)
        held[: max(1, len(target) // folds)] = True
    # Histograms add up in another order with another number of threads: one thread keeps the bytes the same anywhere.
    parameters = {
        **objective,
        "tree_method": "hist",
        "max_depth": settings.depth,
        "eta": settings.eta,
        "subsample": settings.subsample,
        "colsample_bytree": settings.columns,
        "min_child_weight": settings.min_weight,
        "seed": seed,
        "nthread": 1,
        "verbosity": 0,
    }
    # Without names: XGBoost would hand all of them over again in every round.
    fitted, stop = (
        xgboost.DMatrix(features[rows], target[rows], weight=weights[rows], nthread=1) for rows in (~held, held)
    )
    booster = xgboost.train(
        parameters,
        fitted,
        settings.rounds,
        evals=[(stop, "validation")],
        early_stopping_rounds=settings.patience,
        verbose_eval=False,
    )
    # What is saved is what is used: trees after the best round are cut off, and with them the notes of early stopping.
    best = booster[: booster.best_iteration + 1]
    best.set_attr(best_iteration=None, best_score=None)
    return bytes(best.save_raw("json"))


def trees(model: bytes) -> int:
    """How many trees a model has."""
    import xgboost

    return int(xgboost.Booster(model_file=bytearray(model)).num_boosted_rounds())


def contributions(models: Sequence[bytes], features: NDArray[np.float32]) -> NDArray[np.float64]:
    """SHAP values (columns,): how far each column moves the models' predictions of `features`, mean of absolute values.

    They are those of the trees' exact algorithm (Lundberg et al., Nature Machine Intelligence 2, 2020), which XGBoost
    implements.
    """
    import xgboost

    rows = xgboost.DMatrix(features, nthread=1)
    total = np.zeros(features.shape)
    for model in models:
        booster = xgboost.Booster(model_file=bytearray(model))
        booster.set_param({"nthread": 1})
        total += booster.predict(rows, pred_contribs=True)[:, :-1]
    return np.asarray(np.abs(total / len(models)).mean(axis=0), np.float64)
