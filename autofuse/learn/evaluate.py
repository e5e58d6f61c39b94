"""From files to an `Evaluation`: a store that was trained on, one of unseen networks, a predictor's directory.

What is read from where, and in which order; the figures are those of `evaluation.py`, `plans.py` and `end_to_end.py`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.model import CostModel
from autofuse.errors import PredictorError
from autofuse.learn.dataset import FamilyOf, build_dataset
from autofuse.learn.evaluation import (
    Evaluation,
    NetworkResult,
    evaluate_splits,
    evaluate_unseen,
    noise_floor,
    rows_of,
    settings_of,
)
from autofuse.learn.plans import MeasuredKernels, NetworkPlans, regrets
from autofuse.learn.predictor import LearnedCostModel, load_predictor, read_card
from autofuse.learn.train import EVALUATION_ONLY
from autofuse.records import open_store
from autofuse.records.machines import row_names
from autofuse.records.model import RecordedCostModel
from autofuse.records.record import NETWORK_REFERENCE
from autofuse.records.store import RecordStore
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.learn.dataset import Dataset

#: The ways to cost a plan that are compared: the predictor alone, with records of the networks that were trained on,
#: those records with the analytical model where there are none, and the analytical model alone.
WAYS = ("learned", "learned_and_records", "records", "analytical")


def evaluate(
    db: str | Path,
    unseen: str | Path | None,
    predictor: str | Path,
    *,
    networks: Sequence[str] | None = None,
    splits: bool = True,
    run: bool = True,
    family_of: FamilyOf | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Test the predictor in the directory `predictor`, which was trained on the store `db`.

    networks: the unseen ones that are planned, by default all models of the store `unseen` that can be opened. splits:
    whether to train on parts of `db`. run: whether to compile and run the unseen networks, which only the machine that
    their records are of can do. The figures are of this machine's hardware row, or, if the stores do not have it, of
    that with most records; those of other rows stand beside them. Raises PredictorError, RecordError.
    """
    card = read_card(predictor)
    descriptions = {h.digest: h.description for h in card.hardware}
    with ExitStack() as stack:
        store = stack.enter_context(open_store(db, readonly=True))
        if store.evaluation_only:
            raise PredictorError(f"{db}: {EVALUATION_ONLY}")
        tell("reading records")
        data = build_dataset(store, hardware=descriptions, descriptions=descriptions, family_of=family_of)
        if data.hash != card.data.get("hash"):
            warnings.warn(
                f"the predictor in {predictor} was trained on other records than {db} holds now: train it again for "
                "figures that belong together",
                stacklevel=2,
            )
        if not len(data):
            raise PredictorError(f"{db} holds no records that the predictor in {predictor} could have been trained on")
        kept = stack.enter_context(open_store(unseen, readonly=True)) if unseen is not None else None
        other = None
        if kept is not None:
            other = build_dataset(kept, descriptions=descriptions, family_of=family_of, usual_of=store)
            other = other if len(other) else None
        here = headline(data, other)
        known = {**(other.descriptions if other is not None else {}), **data.descriptions, **descriptions}
        model = load_predictor(predictor, known[here])
        by_hardware, elsewhere = evaluate_splits(data, settings_of(card), known[here], tell) if splits else ({}, {})

        def one(digest: str) -> Evaluation:
            """What there is to say of a hardware row without planning anything."""
            parts = [rows_of(d, digest) for d in (data, other) if d is not None]
            tested, overlap = None, 0
            if other is not None and len(parts[-1]):
                tested, overlap = evaluate_unseen(model, data, parts[-1])  # features say what hardware a row is of
            return Evaluation(noise_floor(*parts), by_hardware.get(digest, {}), tested, overlap, hardware=digest)

        present = Counter(data.hardware) + Counter(other.hardware if other is not None else ())
        rows = [here, *(digest for digest, _ in present.most_common() if digest != here)]
        found = {digest: one(digest) for digest in rows}
        if kept is not None and networks != []:
            wanted = networks if networks is not None else openable(kept.stats().models)
            for digest in rows:
                if digest != here and (other is None or digest not in other.hardware):
                    continue
                plans = []
                for name in wanted:
                    tell(f"analysing {name}")
                    plans.append(NetworkPlans.of_model(name, known[digest]))
                results = [plan_result(n, store, kept, digest, predictor, tell) for n in plans]
                if run and plans and digest == here:
                    usual = store.baseline(here).get(NETWORK_REFERENCE)
                    results = _with_latencies(results, plans, predictor, here, usual, tell)
                found[digest] = replace(found[digest], networks=tuple(results))
        names = row_names([*store.hardware(), *(kept.hardware() if kept is not None else ())])
        return replace(
            found.pop(here), names={digest: names[digest] for digest in rows}, others=found, elsewhere=elsewhere
        )


def headline(data: Dataset, other: Dataset | None) -> str:
    """The digest of the hardware whose figures come first: this machine's, else that with most rows trained on.

    Of those that the unseen networks' records are of, where there are any.
    """
    from autofuse.target.registry import hardware_row, resolve

    rows, tested = Counter(data.hardware), Counter((other or data).hardware)
    own = hardware_row(resolve("llvm", None)).digest
    return max(tested, key=lambda digest: (digest == own, rows[digest], tested[digest], digest))


def openable(models: Sequence[str]) -> list[str]:
    """Those of the models that are zoo networks or files that are there."""
    from autofuse.frontend.zoo import names

    return [name for name in models if name in names() or Path(name).is_file()]


def ways(network: NetworkPlans, predictor: str | Path, store: RecordStore, digest: str) -> dict[str, CostModel]:
    """The cost models that are compared, for one network; `store` has the records that were trained on."""
    learned: CostModel = load_quietly(predictor, network.hardware, network.cold)
    analytical = AnalyticalCostModel(network.hardware, network.cold)

    def recorded(fallback: CostModel) -> CostModel:
        return RecordedCostModel(store, digest, fallback, cold=network.cold)

    return dict(zip(WAYS, (learned, recorded(learned), recorded(analytical), analytical), strict=True))


def load_quietly(predictor: str | Path, hardware: Hardware, cold: bool) -> LearnedCostModel:
    """The predictor, without a warning for hardware that it does not know: that was given once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_predictor(predictor, hardware, cold)


def plan_result(
    network: NetworkPlans,
    store: RecordStore,
    kept: RecordStore,
    digest: str,
    predictor: str | Path,
    tell: Callable[[str], None] = lambda _: None,
) -> NetworkResult:
    """Regrets of a network's plans among the kernels that the store `kept` has measured."""
    tell(f"planning {network.name}")
    kernels = MeasuredKernels(kept, digest)
    found = regrets(network, kernels, ways(network, predictor, store, digest))
    candidates = network.candidates()
    known = np.isfinite(kernels.seconds(candidates, network.cold)[:, 0])
    plan = found["learned"].worth
    return NetworkResult(
        network.name,
        {name: r.regret for name, r in found.items()},
        {name: r.same for name, r in found.items()},
        plan.kernels,
        plan.once,
        plan.unmeasured,
        float(known.mean()) if len(known) else 0.0,
    )


def _with_latencies(
    results: Sequence[NetworkResult],
    plans: Sequence[NetworkPlans],
    predictor: str | Path,
    digest: str,
    usual: float | None,
    tell: Callable[[str], None],
) -> list[NetworkResult]:
    """The results with predicted and measured latencies, as they are where this is another machine."""
    from autofuse.learn.end_to_end import run_networks
    from autofuse.target.registry import hardware_row, resolve

    threads = plans[0].hardware.cores
    if hardware_row(resolve("llvm", threads)).digest != digest:
        warnings.warn("this is not the machine of the records: whole networks are not run", stacklevel=3)
        return list(results)

    def models(network: NetworkPlans) -> Mapping[str, CostModel]:
        return {
            "learned": load_quietly(predictor, network.hardware, network.cold),
            "analytical": AnalyticalCostModel(network.hardware, network.cold),
        }

    runs = run_networks(plans, predictor, models, threads, usual, tell)
    for name, run in runs.items():
        if run.failure:
            warnings.warn(f"{name} is not run: {run.failure}", stacklevel=3)
    return [
        replace(r, predicted=run.predicted, measured=run.measured, failure=run.failure)
        for r, run in ((r, runs[r.name]) for r in results)
    ]
