"""Why configurations of one workload are not always put in the order that they have: docs/results/order.json.

Usage: python scripts/order_trials.py

Trees of the shipped predictor's settings are trained with other objectives, and trees that only put configurations in
order (pairwise ranking). Each is judged as `autofuse evaluate` judges: held-out workloads of data/records.db by the
member that did not see them, unseen networks by all members. Beside that, how far apart pairs of configurations of one
workload are, and how many of them are put in the right order. scripts/learning_page.py puts it into docs/learning.md.
Nothing is measured; half a minute.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from autofuse.learn.dataset import Dataset

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RECORDS, UNSEEN = ROOT / "data" / "records.db", ROOT / "data" / "unseen.db"
PREDICTOR = ROOT / "models" / "cpu"
RESULTS = ROOT / "docs" / "results" / "order.json"
#: Objectives of boosted trees, by what the page calls them.
OBJECTIVES: Mapping[str, Mapping[str, Any]] = {
    "squared error of the logarithm, as it is": {"objective": "reg:squarederror"},
    "absolute error of the logarithm": {"objective": "reg:absoluteerror"},
    "Huber's, from 5 % on absolute": {"objective": "reg:pseudohubererror", "huber_slope": 0.05},
}
RANKING = "order alone, pair by pair"
#: Borders of how far apart two latencies are, as shares.
APART = (0.0, 0.02, 0.05, 0.1, 0.3, float("inf"))
_RANKS = 31  # XGBoost's ranking takes relevances up to this

Array = NDArray[np.float64]
Model = Callable[["Dataset"], Array]


def datasets() -> tuple[Dataset, Dataset, NDArray[np.intp]]:
    """What the predictor learned from, the unseen networks' rows that it did not, and which rows of the first count."""
    from autofuse.learn import build_dataset
    from autofuse.learn.predictor import read_card
    from autofuse.records import open_store

    card = read_card(PREDICTOR)
    described = {h.digest: h.description for h in card.hardware}
    main = max(card.hardware, key=lambda h: h.records).digest
    with open_store(RECORDS, readonly=True) as store, open_store(UNSEEN, readonly=True) as unseen:
        data = build_dataset(store, hardware=described, descriptions=described)
        other = build_dataset(unseen, descriptions=described, usual_of=store)
    seen = set(data.workloads)
    rows = [i for i, w in enumerate(other.workloads) if w not in seen and other.hardware[i] == main]
    return data, other.select(np.array(rows)), np.array([i for i, h in enumerate(data.hardware) if h == main])


def regression(data: Dataset, seed: int, objective: Mapping[str, Any]) -> Model:
    """ln seconds, by trees of the shipped settings."""
    from autofuse.learn.booster import Booster
    from autofuse.learn.boosting import fit
    from autofuse.learn.evaluation import settings_of
    from autofuse.learn.predictor import read_card

    trees = settings_of(read_card(PREDICTOR)).trees
    model = Booster(fit(data.features, data.residual, data.weights, data.workloads, trees, objective, seed))
    return lambda asked: asked.base + model.predict(asked.features)


def ranking(data: Dataset, seed: int) -> Model:
    """A number that is the larger the slower a configuration is among those of its workload, and means nothing else."""
    import xgboost

    names, group = np.unique(np.array(data.comparable, object), return_inverse=True)
    order = np.argsort(group, kind="stable")
    relevance = np.zeros(len(data))
    for number in range(len(names)):
        rows = np.flatnonzero(group == number)
        relevance[rows] = np.argsort(np.argsort(-data.measured[rows]))
    rows = xgboost.DMatrix(
        data.features[order], np.minimum(relevance[order], _RANKS), qid=group[order], nthread=1
    )  # fmt: skip
    settings = {"objective": "rank:pairwise", "tree_method": "hist", "max_depth": 6, "eta": 0.1, "subsample": 0.8}
    model = xgboost.train({**settings, "colsample_bytree": 0.6, "seed": seed, "nthread": 1, "verbosity": 0}, rows, 200)
    return lambda asked: -np.asarray(model.predict(xgboost.DMatrix(asked.features, nthread=1)), np.float64)


def judged(
    data: Dataset, unseen: Dataset, counted: NDArray[np.intp], train: Callable[[Dataset, int], Model]
) -> tuple[Array, dict[str, Any]]:
    """Predictions for unseen networks, and the metrics of these and of held-out rows that count."""
    from autofuse.learn.metrics import score
    from autofuse.learn.splits import by_workload

    outside, members = np.empty(len(data)), []
    for number, split in enumerate(by_workload(data.workloads, 5, 0)):
        model = train(data.select(split.train), number)
        outside[split.test] = model(data.select(split.test))
        members.append(model(unseen))
    new = np.mean(members, axis=0)
    here = data.select(counted)
    found = {"held": score(here.measured, outside[counted], here.comparable).as_dict()}
    found["unseen"] = score(unseen.measured, new, unseen.comparable).as_dict()
    return new, found


def pairs(data: Dataset, predicted: Array) -> list[dict[str, Any]]:
    """By how far apart two configurations of one workload are: how many pairs, and the share in the right order."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(data.comparable):
        groups.setdefault(name, []).append(i)
    count, right = np.zeros(len(APART) - 1, int), np.zeros(len(APART) - 1, int)
    for rows in groups.values():
        for a, b in itertools.combinations(rows, 2):
            gap = data.measured[a] - data.measured[b]
            place = int(np.searchsorted(APART, np.expm1(abs(gap)), side="right")) - 1
            count[place] += 1
            right[place] += bool(gap * (predicted[a] - predicted[b]) > 0)
    return [
        {"from": APART[i], "to": APART[i + 1] if np.isfinite(APART[i + 1]) else None, "pairs": int(count[i]),
         "right": float(right[i] / count[i]) if count[i] else None}
        for i in range(len(count))
    ]  # fmt: skip


def main() -> int:
    """Train and judge each, then write the results."""
    from autofuse.report.results import write_json

    data, unseen, counted = datasets()
    found: dict[str, Any] = {}
    apart: list[dict[str, Any]] = []
    for name, objective in OBJECTIVES.items():
        new, found[name] = judged(data, unseen, counted, partial(regression, objective=objective))
        apart = apart or pairs(unseen, new)
    _, found[RANKING] = judged(data, unseen, counted, ranking)
    for part in found[RANKING].values():
        part["mape"] = None  # no latencies
    for name, row in found.items():
        print(name, row["held"]["tau_within"], row["unseen"]["tau_within"])
    write_json(RESULTS, {"objectives": found, "pairs": apart})
    return 0


if __name__ == "__main__":
    sys.exit(main())
