"""The learned cost model, and predictors in directories: card.json, card.md and one JSON file for each member."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.kinds import analytical_costs
from autofuse.cost.model import Candidate, CostModel
from autofuse.cost.schema import schema_of
from autofuse.errors import PredictorError
from autofuse.learn.booster import Booster
from autofuse.learn.card import BASE_ERRORS, ERRORS, FAILURES, Card
from autofuse.learn.train import Trained
from autofuse.learn.uncertainty import expected
from autofuse.target import Hardware

#: Files of a predictor besides its trees; those of an older one go with it.
_OWN = frozenset(
    ["card.json", "card.md", "predicted.svg", "errors.svg", "importance.svg", "evaluation.json", "evaluation.md"]
)
_ADVICE = "train it with `autofuse train --db FILE -o DIR`"


@dataclass(frozen=True)
class Prediction:
    """For each candidate: seconds; whether the trees said so (else the analytical model); the expected error, ln.

    Seconds are infinite where the candidate is expected not to build or run.
    """

    seconds: NDArray[np.float64]
    trusted: NDArray[np.bool_]
    uncertainty: NDArray[np.float64]


class LearnedCostModel(CostModel):
    """analytical × exp(predicted residual).

    The analytical model, scaled by the ratio that is usual in the training data, answers for what the predictor cannot
    know: candidates of families (or of versions of them) that it was not trained on, candidates outside the training
    range, and those of which a smaller error is expected of it. On hardware that the card describes the
    analytical part uses the description in the card, so that a new calibration shifts nothing. `cold`: of a network
    whose weights do not stay in the last cache (`cost/weights.py`). Candidates that are expected to fail cost infinity.
    """

    name: ClassVar[str] = "learned"

    def __init__(self, card: Card, files: Mapping[str, bytes], hardware: Hardware, cold: bool = False) -> None:
        self.card = card
        self.cold = cold
        self._schema = schema_of(card.kind)
        models = {name: Booster(content) for name, content in files.items()}
        self._errors, self._base_errors = models.pop(ERRORS), models.pop(BASE_ERRORS)
        self._failures = models.pop(FAILURES, None)
        self._members = list(models.values())
        alike = [h for h in card.hardware if _same_machine(h.description, hardware)]
        alike.sort(key=lambda h: (h.description.name != hardware.name, -h.records, h.digest))
        #: Whether the card describes this hardware.
        self.known_hardware = bool(alike)
        self.hardware = alike[0].description if alike else hardware

    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Seconds of each candidate; see CostModel."""
        return self.predict(candidates).seconds

    def prefilter(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """What the analytical model says: trees may be wrong about configurations that nobody would have measured."""
        return analytical_costs(self.hardware, self.cold).costs(candidates)

    def sources(self, candidates: Sequence[Candidate]) -> list[str]:
        """ "predicted", or "analytical" where the predictor is not trusted."""
        return ["predicted" if trusted else "analytical" for trusted in self.predict(candidates).trusted]

    def uncertainty(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """The expected error of each cost's logarithm: most errors (68 %) are smaller."""
        return self.predict(candidates).uncertainty

    def predict(self, candidates: Sequence[Candidate]) -> Prediction:
        """Costs with where they come from and how sure they are."""
        if not candidates:
            return Prediction(np.empty(0), np.empty(0, bool), np.empty(0))
        versions = self.card.families
        known = [versions.get(c.family.name) == c.family.version for c in candidates]
        return self.predict_rows(self._schema.extract(candidates, self.hardware, self.cold), np.array(known, bool))

    def predict_rows(self, features: NDArray[np.float32], known: NDArray[np.bool_] | None = None) -> Prediction:
        """The same from features (n, columns); `known`: whether the card knows a row's family."""
        trust = self.card.trust
        residuals = np.array([member.predict(features) for member in self._members])
        residual = residuals.mean(axis=0)
        # Where the members disagree more than they err elsewhere the error trees have not seen the like.
        spread = residuals.std(axis=0, ddof=1) if len(residuals) > 1 else np.zeros(len(features))
        uncertainty = np.maximum(expected(self._errors, trust.scale, features), spread)
        otherwise = expected(self._base_errors, trust.base_scale, features)
        trusted = self.card.range.contains(features) & (uncertainty <= otherwise)
        if known is not None:
            trusted &= known
        shift = np.where(trusted, residual, trust.offset)
        seconds = np.exp(features[:, self._schema.base].astype(np.float64) + shift)
        if self._failures is not None and trust.failing is not None:
            fails = trusted & (self._failures.predict(features) > trust.failing)
            seconds = np.where(fails, np.inf, seconds)
        return Prediction(seconds, trusted, np.where(trusted, uncertainty, otherwise))


def describes(card: Card, hardware: Hardware) -> bool:
    """Whether a predictor was trained on hardware of this kind."""
    return card.kind == hardware.kind and any(_same_machine(h.description, hardware) for h in card.hardware)


def _same_machine(a: Hardware, b: Hardware) -> bool:
    """Whether two descriptions are of one kind of machine: what a calibration measures may differ."""
    return all(
        getattr(a, name) == getattr(b, name)
        for name in ("kind", "isa", "cores", "vector_bytes", "vector_registers", "l1_bytes", "l2_bytes", "l3_bytes")
    )


def check_output(directory: str | Path) -> Path:
    """PredictorError if a predictor cannot go there: it is a file, or a directory that holds something else."""
    target = Path(directory)
    if target.exists() and not target.is_dir():
        raise PredictorError(f"cannot write the predictor to {target}: it is a file, give a directory")
    if target.is_dir() and any(target.iterdir()) and not (target / "card.json").is_file():
        raise PredictorError(f"cannot write the predictor to {target}: it holds other files, give a new directory")
    return target


def save_predictor(trained: Trained, directory: str | Path, plots: Mapping[str, bytes] | None = None) -> Path:
    """Write a predictor to `directory`, all or nothing; `plots`: pictures for its card, by name.

    An older predictor there is replaced, with what was found out about it, and other files next to it (thresholds) are
    kept. A directory that holds something else is refused with a PredictorError.
    """
    target = check_output(directory).resolve()
    replaced = (target / "card.json").is_file()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        temporary.mkdir(parents=True)
        for name, content in {**trained.files, **(plots or {})}.items():
            (temporary / name).write_bytes(content)
        text = json.dumps(trained.card.to_json(), indent=1, allow_nan=False)
        (temporary / "card.json").write_text(text + "\n", encoding="utf-8")
        (temporary / "card.md").write_text(trained.card.markdown(), encoding="utf-8")
        if replaced:
            for path in target.iterdir():
                if path.name not in _OWN and not path.name.startswith("member-"):
                    (shutil.copytree if path.is_dir() else shutil.copy2)(path, temporary / path.name)
            target.rename(old)
        elif target.is_dir():
            target.rmdir()
        try:
            temporary.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    except OSError as error:
        raise PredictorError(f"cannot write the predictor to {target}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
    return target


def check_predictor(directory: str | Path) -> None:
    """PredictorError if there is no predictor in `directory`; says how to make one."""
    if not (Path(directory) / "card.json").is_file():
        raise PredictorError(f"there is no predictor in {directory} (no card.json); {_ADVICE}")


def read_card(directory: str | Path) -> Card:
    """The card of the predictor in `directory`. PredictorError if it is missing, damaged or of another version."""
    folder = Path(directory)
    path = folder / "card.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PredictorError(f"there is no predictor in {folder} (no card.json); {_ADVICE}") from None
    except OSError as error:
        raise PredictorError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise PredictorError(f"the predictor in {folder} is damaged (card.json is not JSON); {_ADVICE} again") from None
    try:
        return Card.from_json(content)
    except ValueError as error:
        raise PredictorError(f"the predictor in {folder} cannot be used: {error}; {_ADVICE} again") from None


def load_predictor(directory: str | Path, hardware: Hardware, cold: bool = False) -> LearnedCostModel:
    """The predictor in `directory` as a cost model for `hardware`; `cold`: see LearnedCostModel.

    PredictorError if it is missing, damaged, or of another version or kind of target. On hardware that it was not
    trained for a warning says so.
    """
    folder = Path(directory)
    advice = _ADVICE
    card = read_card(folder)
    if card.kind != hardware.kind:
        raise PredictorError(
            f"the predictor in {folder} is for a {card.kind}, the target is a {hardware.kind}; {advice} for it"
        )
    files = {}
    for member in card.members:
        try:
            content = files[member.file] = (folder / member.file).read_bytes()
        except OSError as error:
            raise PredictorError(
                f"the predictor in {folder} is damaged ({member.file}: {error.strerror or error}); {advice} again"
            ) from None
        if hashlib.sha256(content).hexdigest() != member.sha256:
            raise PredictorError(f"the predictor in {folder} is damaged ({member.file} was changed); {advice} again")
    try:
        model = LearnedCostModel(card, files, hardware, cold)
    except ValueError as error:
        raise PredictorError(f"the predictor in {folder} is damaged ({error}); {advice} again") from None
    if not model.known_hardware:
        names = ", ".join(f"{h.description.isa}, {h.description.cores} threads" for h in card.hardware)
        warnings.warn(
            f"the predictor in {folder} was trained for other hardware ({names}): where it does not carry over the "
            "analytical model answers",
            stacklevel=2,
        )
    return model
