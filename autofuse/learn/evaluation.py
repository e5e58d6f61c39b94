"""How good a predictor is, honestly: takes datasets, a predictor and networks, gives errors on what it did not see.

Three kinds of tests. Splits of the training data: a predictor is trained anew, with the settings of the one that is
evaluated, without a part of the data, and tested on that part. Networks kept out of everything: their records, and
plans of them. Whatever workload was trained on is not tested on. Beside every figure stand those of the analytical
model, as it is and with its usual error taken out, and the noise: how far two measurements of one kernel differ.

A predictor may learn from several machines. Figures are of one hardware row each: rows of two are never averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.group_features import GROUP_COLUMN
from autofuse.errors import PredictorError
from autofuse.learn.boosting import TreeSettings
from autofuse.learn.card import Card
from autofuse.learn.dataset import Dataset
from autofuse.learn.metrics import Metrics, score
from autofuse.learn.predictor import LearnedCostModel
from autofuse.learn.splits import (
    Split,
    by_workload,
    kinds_of_networks,
    leave_hardware_out,
    leave_one_family_out,
    leave_one_network_out,
)
from autofuse.learn.train import TrainSettings, train_predictor
from autofuse.learn.uncertainty import Coverage
from autofuse.target import Hardware

Array = NDArray[np.float64]
_FOLDS = 5
_HARDWARE_FOLDS = 3


@dataclass(frozen=True)
class Tested:
    """Errors on rows whose workloads were not trained on.

    models: learned, analytical, analytical_scaled → Metrics. coverage: of the expected errors. predicted: share of the
    rows that the predictor answered for itself. left_out: rows that were neither trained nor tested on.
    """

    models: Mapping[str, Metrics]
    coverage: Coverage
    predicted: float
    left_out: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **{name: metrics.as_dict() for name, metrics in self.models.items()},
            "coverage": {"one": self.coverage.one, "two": self.coverage.two, "rank": self.coverage.rank},
            "predicted": self.predicted,
            "left_out": self.left_out,
        }


@dataclass(frozen=True)
class NetworkResult:
    """What became of one unseen network: regrets of its plans by cost model, and predicted and measured latency.

    regrets: name of the cost models → share; `same`: by the measurement that chose the best plan. kernels, once,
    unmeasured: of the predictor's plan. coverage: share of the network's candidates that records are there for.
    predicted: seconds of the compiled plan by cost model; measured: what it took, None if it was not run. failure: why
    it could not be.
    """

    name: str
    regrets: Mapping[str, float]
    same: Mapping[str, float]
    kernels: int
    once: int
    unmeasured: int
    covered: float
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: float | None = None
    failure: str = ""

    def error(self, model: str) -> float | None:
        """Share by which a cost model's prediction of the whole network is off."""
        if self.measured is None or model not in self.predicted:
            return None
        return abs(self.predicted[model] / self.measured - 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "plan_regret": dict(self.regrets),
            "plan_regret_same": dict(self.same),
            "kernels": self.kernels,
            "kernels_measured_once": self.once,
            "kernels_unmeasured": self.unmeasured,
            "covered": self.covered,
            "predicted_ms": {name: 1e3 * seconds for name, seconds in self.predicted.items()},
            "measured_ms": None if self.measured is None else 1e3 * self.measured,
            "end_to_end_error": {name: self.error(name) for name in self.predicted},
            "failure": self.failure or None,
        }


@dataclass(frozen=True)
class Evaluation:
    """Everything found out about one hardware row. `noise`: between two measurements of one kernel, None without any.

    splits: "workload", "network/NAME", "family/KIND" → Tested; `unseen`: rows of unseen networks. overlap: rows of
    unseen networks whose workloads were trained on, and are not tested. hardware: the row's digest; names: of this and
    other rows, for people. others: what was found out about other rows that the stores hold, by digest. elsewhere:
    "hardware/DIGEST" and "machine/NAME", what becomes of hardware that was left out of training.
    """

    noise: Metrics | None
    splits: Mapping[str, Tested]
    unseen: Tested | None
    overlap: int
    networks: tuple[NetworkResult, ...] = ()
    hardware: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Evaluation] = field(default_factory=dict)
    elsewhere: Mapping[str, Tested] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """What `autofuse evaluate --json` prints: plain JSON values, errors and regrets as shares.

        Where there is more than one hardware row, "hardware" (digest, and names by digest) says whose figures these
        are, and "other_hardware" has the same figures of the others by digest.
        """
        found = self._figures({**self.splits, **self.elsewhere})
        if not self.others:
            return found
        others = {digest: other._figures(other.splits) for digest, other in self.others.items()}
        return {**found, "hardware": {"digest": self.hardware, "names": dict(self.names)}, "other_hardware": others}

    def _figures(self, tests: Mapping[str, Tested]) -> dict[str, Any]:
        noise = self.noise
        splits = {name: tested.as_dict() for name, tested in tests.items()}
        if self.unseen is not None:
            networks = {n.name: n.as_dict() for n in self.networks}
            splits["unseen"] = {**self.unseen.as_dict(), "overlap": self.overlap, "networks": networks}
        return {
            "noise_floor": {"mape": noise and noise.mape, "tau_within": noise and noise.tau_within},
            "splits": splits,
            "unseen_networks": self._unseen("learned"),
            "analytical": {"unseen_networks": self._unseen("analytical")},
        }

    def _unseen(self, model: str) -> dict[str, float | None]:
        metrics = self.unseen.models[model] if self.unseen is not None else None
        return {
            "mape": None if metrics is None else metrics.mape,
            "tau_within": None if metrics is None else metrics.tau_within,
            "tau_across": None if metrics is None else metrics.tau_across,
            "plan_regret": _mean([n.regrets.get(model) for n in self.networks]),
            "end_to_end_error": _mean([n.error(model) for n in self.networks]),
        }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def noise_floor(*datasets: Dataset) -> Metrics | None:
    """How well a second measurement predicts the first one; of rows that have both."""
    measured: list[Array] = []
    again: list[Array] = []
    groups: list[str] = []
    for data in datasets:
        rows = np.flatnonzero(np.isfinite(data.again))
        measured.append(data.measured[rows])
        again.append(data.again[rows])
        comparable = data.comparable
        groups += [comparable[i] for i in rows]
    return score(np.concatenate(measured), np.concatenate(again), groups) if groups else None


def settings_of(card: Card) -> TrainSettings:
    """How a predictor was trained; `tried` is left at 0: who trains with them again tries none."""
    try:
        values = dict(card.training)
        return TrainSettings(int(values["seed"]), int(values["members"]), TreeSettings(**values["trees"]))
    except (KeyError, TypeError, ValueError):
        raise PredictorError("the predictor's card does not say how it was trained: train it again") from None


def splits_of(data: Dataset) -> Iterator[tuple[str, Split]]:
    """The splits of a training set, by name. What is trained on is large enough to be a predictor of."""
    for split in by_workload(data.workloads, min(_FOLDS, len(set(data.workloads)))):
        yield "workload", split
    for split in leave_one_network_out(data.workloads, data.models):
        yield f"network/{split.name}", split
    for split in leave_one_family_out(data.workloads, data.models, kinds(data)):
        yield f"family/{split.name}", split
    for split in leave_hardware_out(data.workloads, data.hardware, _HARDWARE_FOLDS):
        yield f"hardware/{split.name}", split
    machines = {digest: machine_of(description) for digest, description in data.descriptions.items()}
    if len(set(machines.values())) < len(machines):  # else each row is a machine
        for split in leave_hardware_out(data.workloads, [machines[d] for d in data.hardware], _HARDWARE_FOLDS):
            yield f"machine/{split.name}", split


def machine_of(description: Hardware) -> str:
    """A name for all hardware rows of one machine, whatever their pool of threads."""
    return f"{description.name} ({description.isa}, L2 {description.l2_bytes >> 10} KB)"


def rows_of(data: Dataset, hardware: str) -> Dataset:
    """The part of a dataset that was measured on one hardware row."""
    return data.select(i for i, digest in enumerate(data.hardware) if digest == hardware)


def kinds(data: Dataset) -> dict[str, str]:
    """Network → "cnn" or "transformer"."""
    fma = np.exp2(data.features[:, GROUP_COLUMN["fma"]].astype(np.float64)) - 1

    def of(*names: str) -> Array:
        present = sum(data.features[:, GROUP_COLUMN[f"kind_{name}"]] for name in names) > 0
        return np.where(present, fma, 0.0)

    return kinds_of_networks(data.models, of("conv", "depthwise"), of("matmul"))


def predict_rows(model: LearnedCostModel, data: Dataset, rows: NDArray[np.intp]) -> dict[str, Array]:
    """Of some rows: ln of the predicted seconds by cost model, the expected error, and whether it was predicted."""
    versions = model.card.families
    known = np.array([versions.get(data.families[i]) == data.family_versions[data.families[i]] for i in rows], bool)
    found = model.predict_rows(data.features[rows], known)
    finite = np.where(np.isfinite(found.seconds), found.seconds, np.exp(data.base[rows] + model.card.trust.offset))
    base = data.base[rows]
    return {
        "learned": np.log(finite),
        "analytical": base,
        "analytical_scaled": base + model.card.trust.offset,
        "uncertainty": found.uncertainty,
        "trusted": found.trusted.astype(np.float64),
    }


_Part = tuple[Dataset, NDArray[np.intp], Mapping[str, Array]]


def tested(parts: Sequence[_Part], left_out: int = 0) -> Tested:
    """The figures of rows that were tested in parts."""
    measured = np.concatenate([data.measured[rows] for data, rows, _ in parts])
    groups = _groups(parts)
    joined = {name: np.concatenate([p[name] for _, _, p in parts]) for name in parts[0][2]}
    models = {name: score(measured, joined[name], groups) for name in ("learned", "analytical", "analytical_scaled")}
    errors = np.abs(measured - joined["learned"])
    return Tested(models, Coverage.of(errors, joined["uncertainty"]), float(joined["trusted"].mean()), left_out)


def _groups(parts: Sequence[_Part]) -> list[str]:
    named: dict[int, tuple[str, ...]] = {}
    groups: list[str] = []
    for data, rows, _ in parts:
        comparable = named.setdefault(id(data), data.comparable)
        groups += [comparable[i] for i in rows]
    return groups


def evaluate_splits(
    data: Dataset, settings: TrainSettings, hardware: Hardware, tell: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, dict[str, Tested]], dict[str, Tested]]:
    """A predictor for each split, tested on what it was not trained on. Splits with too little data are left out.

    By hardware row the tests of splits that part workloads, on the rows of that hardware; and the tests of splits that
    leave hardware out, by name.
    """
    digests = np.asarray(data.hardware, object)
    parts: dict[tuple[str, str], list[_Part]] = {}
    left: dict[tuple[str, str], int] = {}
    for name, split in splits_of(data):
        if not len(split.test):
            continue
        tell(f"split {name}")
        try:
            trained = train_predictor(data.select(split.train), settings)
        except PredictorError:
            continue
        model = LearnedCostModel(trained.card, trained.files, hardware)
        apart = name.startswith(("hardware/", "machine/"))
        for digest in [""] if apart else sorted(set(digests[split.test])):
            rows, out = (r if apart else r[digests[r] == digest] for r in (split.test, split.left_out))
            parts.setdefault((digest, name), []).append((data, rows, predict_rows(model, data, rows)))
            left[digest, name] = left.get((digest, name), 0) + len(out)
    found: dict[str, dict[str, Tested]] = {}
    for (digest, name), tests in parts.items():
        found.setdefault(digest, {})[name] = tested(tests, left[digest, name])
    return found, found.pop("", {})


def evaluate_unseen(model: LearnedCostModel, data: Dataset, unseen: Dataset) -> tuple[Tested | None, int]:
    """The rows of unseen networks whose workloads were not trained on, and how many were."""
    seen = set(data.workloads)
    rows = np.array([i for i, key in enumerate(unseen.workloads) if key not in seen], np.intp)
    overlap = len(unseen) - len(rows)
    return (tested([(unseen, rows, predict_rows(model, unseen, rows))]) if len(rows) else None), overlap
