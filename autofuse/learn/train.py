"""Training: takes a Dataset, gives the members of an ensemble and their card.

The ensemble is that of a cross-validation by workload: each member was trained without one fold, so that its
predictions for that fold are honest, and the members' disagreement tells how sure the ensemble is. A member stops
growing when the error on a part of its own training rows, again whole workloads, no longer falls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.features import FEATURE_VERSION, feature_names
from autofuse.errors import PredictorError
from autofuse.learn.booster import Booster
from autofuse.learn.card import Card, Member, TrainedHardware
from autofuse.learn.dataset import Dataset
from autofuse.learn.metrics import Metrics, score
from autofuse.learn.ranges import TrainingRange
from autofuse.learn.splits import by_workload, grouped_folds

Array = NDArray[np.float64]

MIN_RECORDS = 50
MIN_WORKLOADS = 10
EVALUATION_ONLY = "the records are kept for evaluation alone, nothing may be learned from them: give another store"
#: Expected errors below this (ln) are no reason to doubt a prediction, however good the analytical model is.
_SMALLEST_LIMIT = 0.05


@dataclass(frozen=True)
class TrainSettings:
    """`members` is also the number of folds. All trees together decide how fast a prediction is: 500 of depth 5 give
    over 100,000 predictions a second. `validation`: share of a member's training rows that decides when it stops."""

    seed: int = 0
    members: int = 5
    rounds: int = 100
    depth: int = 5
    eta: float = 0.15
    subsample: float = 0.8
    min_weight: float = 3.0
    patience: int = 15
    validation: float = 0.15


@dataclass(frozen=True)
class Trained:
    """The members' trees (XGBoost JSON) and the card; `metrics`: learned, analytical, analytical_scaled."""

    members: tuple[bytes, ...]
    card: Card
    metrics: dict[str, Metrics]


def train_predictor(
    dataset: Dataset, settings: TrainSettings | None = None, progress: Callable[[str], None] | None = None
) -> Trained:
    """Train on all of `dataset`. Deterministic: the same rows and settings give the same bytes.

    Raises PredictorError when there is too little to learn from, or nothing may be.
    """
    s = settings or TrainSettings()
    tell = progress or (lambda _: None)
    _check(dataset)
    folds = min(s.members, len(set(dataset.workloads)))
    outside = np.empty(len(dataset))
    scaled = np.empty(len(dataset))
    members: list[bytes] = []
    for k, split in enumerate(by_workload(dataset.workloads, folds, s.seed)):
        tell(f"training member {k + 1} of {folds}")
        part = dataset.select(split.train)
        members.append(_train_member(part, s, s.seed + k))
        outside[split.test] = Booster(members[-1]).predict(dataset.features[split.test])
        scaled[split.test] = np.median(part.residual)
    predictions = np.array([Booster(m).predict(dataset.features) for m in members])
    # A member is blind to its own fold only: the spread looks smaller than the error is, by about this factor.
    spread = float(np.sqrt(np.mean(predictions.var(axis=0, ddof=1))))
    error = float(np.sqrt(np.mean((dataset.residual - outside) ** 2)))
    offset = float(np.median(dataset.residual))
    tell("scoring")
    residuals = {"learned": outside, "analytical": np.zeros(len(dataset)), "analytical_scaled": scaled}
    metrics = {name: score(dataset.measured, dataset.base + r, dataset.workloads) for name, r in residuals.items()}
    card = Card(
        kind=next(iter(dataset.descriptions.values())).kind,
        feature_version=FEATURE_VERSION,
        features=tuple(feature_names()),
        families=dataset.family_versions,
        hardware=tuple(
            TrainedHardware(digest, dataset.hardware.count(digest), description)
            for digest, description in dataset.descriptions.items()
        ),
        data={
            "hash": dataset.hash,
            "records": len(dataset),
            "workloads": len(set(dataset.workloads)),
            "models": sorted({name for names in dataset.models for name in names}),
            "skipped": dict(dataset.skipped),
        },
        training={**asdict(s), "members": folds},
        metrics={name: m.as_dict() for name, m in metrics.items()},
        range=TrainingRange.of(dataset.features),
        offset=offset,
        spread_scale=error / spread if spread > 0 else 1.0,
        spread_limit=max(_SMALLEST_LIMIT, float(np.sqrt(np.mean((dataset.residual - offset) ** 2)))),
        members=tuple(
            Member(f"member-{k}.json", hashlib.sha256(m).hexdigest(), _trees(m)) for k, m in enumerate(members)
        ),
    )
    return Trained(tuple(members), card, metrics)


def _check(dataset: Dataset) -> None:
    if dataset.evaluation_only:
        raise PredictorError(EVALUATION_ONLY)
    rows, workloads = len(dataset), len(set(dataset.workloads))
    if rows >= MIN_RECORDS and workloads >= MIN_WORKLOADS:
        kinds = {h.kind for h in dataset.descriptions.values()}
        if len(kinds) > 1:
            raise PredictorError(f"the records are of {' and '.join(sorted(kinds))}: train a predictor for each")
        return
    left = "".join(f", {count} {reason}" for reason, count in dataset.skipped.items())
    raise PredictorError(
        f"{rows} usable records of {workloads} workloads{left}: too few to train on (at least {MIN_RECORDS} of "
        f"{MIN_WORKLOADS}); run `autofuse collect MODEL --db FILE` for longer"
    )


def _train_member(part: Dataset, s: TrainSettings, seed: int) -> bytes:
    """One booster on the rows of `part`, as JSON."""
    import xgboost

    folds = max(2, round(1 / s.validation))
    held = grouped_folds(part.workloads, folds, seed) == 0
    # Histograms add up in another order with another number of threads: one thread keeps the bytes the same anywhere.
    parameters = {
        "objective": "reg:squarederror",
        "tree_method": "hist",
        "max_depth": s.depth,
        "eta": s.eta,
        "subsample": s.subsample,
        "colsample_bytree": s.subsample,
        "min_child_weight": s.min_weight,
        "seed": seed,
        "nthread": 1,
        "verbosity": 0,
    }
    names = feature_names()
    fit, stop = (
        xgboost.DMatrix(
            part.features[rows], part.residual[rows], weight=part.weights[rows], feature_names=names, nthread=1
        )
        for rows in (~held, held)
    )
    booster = xgboost.train(
        parameters,
        fit,
        s.rounds,
        evals=[(stop, "validation")],
        early_stopping_rounds=s.patience,
        verbose_eval=False,
    )
    # What is saved is what is used: trees after the best round are cut off, and with them the notes of early stopping.
    best = booster[: booster.best_iteration + 1]
    best.set_attr(best_iteration=None, best_score=None)
    return bytes(best.save_raw("json"))


def _trees(member: bytes) -> int:
    import xgboost

    booster = xgboost.Booster(model_file=bytearray(member))
    return int(booster.num_boosted_rounds())
