"""Training: takes a Dataset, gives the members of an ensemble, what tells where it errs, and their card.

The ensemble is that of a cross-validation by workload: each member was trained without one fold, so that its
predictions for that fold are honest. From their errors a second model learns how sure a prediction is
(`uncertainty.py`), from the analytical model's another how sure that one is, and what failed teaches which candidates
to leave out (`failing.py`). A model stops growing when the error on a part of its own training rows, again whole
workloads, no longer falls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import PredictorError
from autofuse.learn.booster import Booster
from autofuse.learn.boosting import TreeSettings, contributions, fit, trees
from autofuse.learn.card import BASE_ERRORS, ERRORS, FAILURES, Card, Member, TrainedHardware, Trust
from autofuse.learn.dataset import Dataset
from autofuse.learn.failing import FailureModel, fit_failures
from autofuse.learn.metrics import Metrics, score
from autofuse.learn.ranges import TrainingRange
from autofuse.learn.splits import by_workload
from autofuse.learn.uncertainty import Coverage, ErrorModel, fit_errors

Array = NDArray[np.float64]

MIN_RECORDS = 50
MIN_WORKLOADS = 10
EVALUATION_ONLY = "the records are kept for evaluation alone, nothing may be learned from them: give another store"
#: Rows whose SHAP values are taken.
_EXPLAINED = 1000


@dataclass(frozen=True)
class TrainSettings:
    """`members` is also the number of folds; how large `trees` may be is told in `tree_search.py`.

    tried: settings of the trees that these were the best of, on the same records.
    """

    seed: int = 0
    members: int = 5
    trees: TreeSettings = field(default_factory=TreeSettings)
    tried: int = 0


@dataclass(frozen=True)
class Trained:
    """A predictor's files by name, and its card. `metrics`: learned, analytical, analytical_scaled.

    `outside`: ln of the predicted seconds of each row of the dataset, by the member that did not see its workload.
    """

    files: Mapping[str, bytes]
    card: Card
    metrics: Mapping[str, Metrics]
    outside: Array


def train_predictor(
    dataset: Dataset, settings: TrainSettings | None = None, progress: Callable[[str], None] | None = None
) -> Trained:
    """Train on all of `dataset`. Deterministic: the same rows and settings give the same bytes.

    Raises PredictorError when there is too little to learn from, or nothing may be.
    """
    s = settings or TrainSettings()
    tell = progress or (lambda _: None)
    check_dataset(dataset)
    folds = min(s.members, len(set(dataset.workloads)))
    outside = np.empty(len(dataset))
    scaled = np.empty(len(dataset))
    members: list[bytes] = []
    for k, split in enumerate(by_workload(dataset.workloads, folds, s.seed)):
        tell(f"training member {k + 1} of {folds}")
        part = dataset.select(split.train)
        members.append(fit(part.features, part.residual, part.weights, part.workloads, s.trees, seed=s.seed + k))
        outside[split.test] = Booster(members[-1]).predict(dataset.features[split.test])
        scaled[split.test] = np.median(part.residual)
    offset = float(np.median(dataset.residual))
    tell("training the model of its errors")
    wrong = np.abs(dataset.residual - outside)
    errors = fit_errors(dataset.features, wrong, dataset.workloads, s.seed)
    base_errors = fit_errors(dataset.features, np.abs(dataset.residual - offset), dataset.workloads, s.seed)
    tell("training the classifier of failures")
    failing = fit_failures(dataset, s.seed)
    tell("scoring")
    residuals = {"learned": outside, "analytical": np.zeros(len(dataset)), "analytical_scaled": scaled}
    metrics = {name: score(dataset.measured, dataset.base + r, dataset.comparable) for name, r in residuals.items()}
    trust = Trust(offset, errors.scale, base_errors.scale, None if failing is None else failing.limit)
    coverage = Coverage.of(wrong, errors.outside)
    files = _files(members, errors, base_errors, failing)
    card = Card(
        kind=dataset.schema.kind,
        feature_version=dataset.schema.version,
        features=dataset.schema.names,
        families=dataset.family_versions,
        hardware=tuple(
            TrainedHardware(
                digest,
                len({d for d, h in zip(dataset.digests, dataset.hardware, strict=True) if h == digest}),
                description,
            )
            for digest, description in dataset.descriptions.items()
        ),
        data={
            "hash": dataset.hash,
            "records": dataset.records,
            "rows": len(dataset),
            "cold_rows": int(dataset.cold.sum()),
            "workloads": len(set(dataset.workloads)),
            "models": sorted({name for names in dataset.models for name in names}),
            "skipped": dict(dataset.skipped),
            "failures": len(dataset.failures),
        },
        training={**asdict(s), "members": folds},
        metrics={name: m.as_dict() for name, m in metrics.items()},
        checks={"coverage": asdict(coverage), "failures": None if failing is None else failing.scores.as_dict()},
        importance=_importance(dataset, members, s.seed),
        range=TrainingRange.of(dataset.features, dataset.schema.features),
        trust=trust,
        members=tuple(
            Member(name, hashlib.sha256(content).hexdigest(), trees(content)) for name, content in files.items()
        ),
    )
    return Trained(files, card, metrics, dataset.base + outside)


def _files(
    members: list[bytes], errors: ErrorModel, base_errors: ErrorModel, failing: FailureModel | None
) -> dict[str, bytes]:
    files = {f"member-{k}.json": m for k, m in enumerate(members)}
    files |= {ERRORS: errors.model, BASE_ERRORS: base_errors.model}
    if failing is not None:
        files[FAILURES] = failing.model
    return files


def _importance(dataset: Dataset, members: list[bytes], seed: int) -> dict[str, float]:
    """Column → mean absolute SHAP value (ln) over some rows, largest first; columns without influence are left out."""
    order = np.random.default_rng(seed).permutation(len(dataset))[:_EXPLAINED]
    values = contributions(members, dataset.features[np.sort(order)])
    ranked = sorted(zip(dataset.schema.names, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return {name: float(f"{value:.5g}") for name, value in ranked if value > 0}


def check_dataset(dataset: Dataset) -> None:
    """PredictorError where there is too little to learn from, or nothing may be."""
    if dataset.evaluation_only:
        raise PredictorError(EVALUATION_ONLY)
    rows, workloads = dataset.records, len(set(dataset.workloads))
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
