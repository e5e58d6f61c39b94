"""The card of a predictor: what it was trained on, how good it is, where it may be trusted. JSON and Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from autofuse.cost.schema import schema_of
from autofuse.learn.ranges import TrainingRange
from autofuse.target import GpuHardware, Hardware

FORMAT = "autofuse-predictor"
VERSION = 3


@dataclass(frozen=True)
class TrainedHardware:
    """Hardware with records in the training data; `description` as it was then: the base of its residuals."""

    digest: str
    records: int
    description: Hardware


@dataclass(frozen=True)
class Member:
    """One ensemble of trees, in a file of its own."""

    file: str
    sha256: str
    trees: int


@dataclass(frozen=True)
class Trust:
    """What decides whether a prediction counts.

    offset: ln of the usual measured/analytical ratio. scale: what the error trees say times this is the expected error
    (ln); base_scale: the same of the analytical model, scaled by exp(offset), which answers where less is expected of
    it. failing: candidates whose probability of failure is higher are left out, None without a classifier.
    """

    offset: float
    scale: float
    base_scale: float
    failing: float | None = None


#: Files of trees that say how large an error is to be expected, of the predictor and of the analytical model, and of
#: those that say what fails.
ERRORS, BASE_ERRORS, FAILURES = "member-errors.json", "member-base-errors.json", "member-failures.json"


@dataclass(frozen=True)
class Card:
    """Everything about a predictor but its trees.

    data: hash, counts, workload keys, models, skipped. training: seed and settings. metrics: name → Metrics as plain
    values. checks: coverage of the expected errors, scores of the classifier of failures. importance: column → mean
    absolute SHAP value (ln).
    """

    kind: str
    feature_version: int
    features: tuple[str, ...]
    families: Mapping[str, int]
    hardware: tuple[TrainedHardware, ...]
    data: Mapping[str, Any]
    training: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Any]]
    checks: Mapping[str, Any]
    importance: Mapping[str, float]
    range: TrainingRange
    trust: Trust
    members: tuple[Member, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the same for the same training."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "features": {"version": self.feature_version, "names": list(self.features)},
            "families": dict(sorted(self.families.items())),
            "hardware": [asdict(h) for h in self.hardware],
            "data": dict(self.data),
            "training": dict(self.training),
            "metrics": {name: dict(values) for name, values in self.metrics.items()},
            "checks": dict(self.checks),
            "importance": dict(self.importance),
            "range": {name: list(bounds) for name, bounds in self.range.bounds.items()},
            "trust": asdict(self.trust),
            "members": [asdict(m) for m in self.members],
        }

    @classmethod
    def from_json(cls, content: Any) -> Card:
        """The inverse of `to_json`. ValueError that says what is wrong, or of another version than this program's."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError("it is no card of a predictor")
        if content.get("version") != VERSION:
            raise ValueError(f"it is of version {content.get('version')!r}, this program reads {VERSION}")
        try:
            features, kind = content["features"], _text(content["kind"])
            schema = schema_of(kind)
            if features["version"] != schema.version or tuple(features["names"]) != schema.names:
                raise ValueError(
                    f"it was trained on features of version {features['version']!r}, this program has {schema.version}"
                    if features["version"] != schema.version
                    else "its features are not those of this program"
                )
            card = cls(
                kind=kind,
                feature_version=schema.version,
                features=schema.names,
                families={_text(k): int(v) for k, v in content["families"].items()},
                hardware=tuple(
                    TrainedHardware(_text(h["digest"]), int(h["records"]), _hardware(h["description"]))
                    for h in content["hardware"]
                ),
                data=dict(content["data"]),
                training=dict(content["training"]),
                metrics=dict(content["metrics"]),
                checks=dict(content["checks"]),
                importance={_text(k): _number(v) for k, v in content["importance"].items()},
                range=TrainingRange(
                    {_text(k): (_number(low), _number(high)) for k, (low, high) in content["range"].items()},
                    schema.features,
                ),
                trust=_trust(content["trust"]),
                members=tuple(
                    Member(_text(m["file"]), _text(m["sha256"]), int(m["trees"])) for m in content["members"]
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"its card is damaged ({type(error).__name__}: {error})") from None
        files = [m.file for m in card.members]
        wanted = {ERRORS, BASE_ERRORS, *([FAILURES] if card.trust.failing is not None else [])}
        if any("/" in name or "\\" in name for name in files) or not wanted < set(files):
            raise ValueError("its card is damaged (members)")
        return card

    def markdown(self) -> str:
        """The card for people."""
        data, training = self.data, self.training
        lines = [
            "# Predictor of kernel latencies",
            "",
            f"Trained on {data['records']} records of {data['workloads']} workloads, {data['cold_rows']} of them with"
            " latencies of cold weights too"
            f" (data hash `{data['hash']}`), seed {training['seed']}, feature version {self.feature_version}.",
            "It predicts ln(measured / analytical) of a candidate kernel; where a candidate lies outside what it was",
            "trained on, or a smaller error is expected of the analytical model, that one answers,",
            f"scaled by {math.exp(self.trust.offset):.3g}.",
            "",
            "## Errors on workloads that the predicting member did not see",
            "",
            "| model | MAPE | within 5 % | within 10 % | within 20 % | tau within a workload | tau across |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for name, row in self.metrics.items():
            lines.append(f"| {' | '.join([name.replace('_', ' '), *metric_cells(row)])} |")
        if len(self.hardware) > 1:
            lines += ["", "Of the records of all hardware together; `autofuse evaluate` has each by itself."]
        lines += ["", *self._checked(), "", "## What decides", "", "![predicted against measured](predicted.svg)", ""]
        lines += ["![errors](errors.svg)", "", "![importance](importance.svg)", ""]
        lines += ["Mean absolute SHAP values (ln), the ten largest:", ""]
        lines += [f"- `{name}`: {value:.3f}" for name, value in list(self.importance.items())[:10]]
        lines += ["", "## Hardware", ""]
        for h in self.hardware:
            d = h.description
            lines.append(f"- {d.name}: {d.isa}, {d.cores} threads, {h.records} records (`{h.digest}`)")
        lines += ["", "## Schedule families", ""]
        lines += [f"- {name}, version {version}" for name, version in sorted(self.families.items())]
        if data["models"]:
            lines += ["", "## Models whose kernels were measured", "", ", ".join(data["models"])]
        if data["skipped"]:
            lines += ["", "## Records left out", ""]
            lines += [f"- {reason}: {count}" for reason, count in data["skipped"].items()]
        return "\n".join([*lines, ""])

    def _checked(self) -> list[str]:
        coverage, failures = self.checks["coverage"], self.checks["failures"]
        lines = [
            f"Of these errors {100 * coverage['one']:.1f} % are within the expected one and {100 * coverage['two']:.1f}"
            " % within twice of it (wanted: 68.3 % and 95 %).",
            "",
        ]
        if failures is None:
            return [*lines, f"Of {self.data['failures']} failures nothing could be learned: no candidate is pruned."]
        return [
            *lines,
            f"Candidates with a probability of failure over {self.trust.failing:.2f} are pruned: of workloads not seen"
            f" {100 * failures['found']:.1f} % of the failures and {100 * failures['lost']:.2f} % of what works (area"
            f" under the ROC curve {failures['auc']:.3f}).",
        ]


def metric_cells(row: Mapping[str, Any]) -> list[str]:
    """MAPE, within 5/10/20 %, tau within, tau across as text."""

    def tau(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    shares = [f"{100 * row[name]:.1f} %" for name in ("mape", "within_5", "within_10", "within_20")]
    return [*shares, tau(row["tau_within"]), tau(row["tau_across"])]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _trust(content: Mapping[str, Any]) -> Trust:
    failing = content["failing"]
    return Trust(
        _number(content["offset"]),
        _number(content["scale"]),
        _number(content["base_scale"]),
        None if failing is None else _number(failing),
    )


def _hardware(content: Mapping[str, Any]) -> Hardware:
    made = GpuHardware if content.get("kind") == "gpu" else Hardware
    if set(content) != {f.name for f in fields(made)}:
        raise TypeError("a hardware description has missing or unknown fields")
    for f in fields(made):
        value = content[f.name]
        if f.type == "str":
            _text(value)
        elif _number(value) <= 0:
            raise TypeError(f"{f.name} is {value!r}")
    return made(**content)
