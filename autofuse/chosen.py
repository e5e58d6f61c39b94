"""What a compile's arguments name: a cost model, a predictor and thresholds, opened, with what is taken by default."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autofuse.arguments import NO_PREDICTOR
from autofuse.errors import PlanError
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.compiler import Analysed
    from autofuse.cost.model import CostModel
    from autofuse.records import RecordStore
    from autofuse.search.problem import Thresholds
    from autofuse.target.registry import Target


def choose_predictor(
    hardware: Hardware, cost_model: str | CostModel | None, predictor: str | Path | None
) -> str | Path | None:
    """The predictor that a compile uses: the one given, else the one that there is for the hardware, if wanted."""
    if predictor is not None or cost_model not in (None, "learned"):
        return predictor
    from autofuse.learn.default import default_predictor

    return default_predictor(hardware)


def choose_cost_model(
    analysed: Analysed, cost_model: str | CostModel | None, predictor: str | Path | None, db: str | Path | None
) -> CostModel:
    """The cost model asked for, with the records of `db` in front of it.

    None takes the learned model where a predictor is given or there for the hardware, else the analytical one.
    All know whether the network's weights stay in the last cache. Raises PredictorError, RecordError.
    """
    from autofuse.cost.kinds import analytical_costs
    from autofuse.cost.model import CostModel
    from autofuse.cost.weights import weights_are_cold

    cold = weights_are_cold(analysed.graph, analysed.hardware)
    if isinstance(cost_model, CostModel):
        base: CostModel = cost_model
    elif cost_model not in (None, "analytical", "learned"):
        raise PlanError(f"unknown cost model {cost_model!r}: choose analytical or learned")
    else:
        chosen = choose_predictor(analysed.hardware, cost_model, predictor)
        base = analytical_costs(analysed.hardware, cold)
        if cost_model == "learned" or (cost_model is None and chosen is not None):
            from autofuse.errors import PredictorError
            from autofuse.learn import load_predictor

            if chosen is None:
                raise PredictorError(NO_PREDICTOR)
            base = load_predictor(chosen, analysed.hardware, cold)
    if db is None or str(db) == "none":
        return base
    from autofuse.records import open_store
    from autofuse.records.model import RecordedCostModel

    store = open_store(db, readonly=True)
    return RecordedCostModel(store, recorded_hardware(store, analysed.target), base, cold=cold)


def recorded_hardware(store: RecordStore, target: Target) -> str:
    """The digest of the hardware row whose records say what kernels for `target` take.

    Of a GPU those of its machine code, else those through its OpenCL; never those of what stood in for it.
    """
    from autofuse.target.registry import hardware_row

    row = hardware_row(target)
    if target.device == "gpu" and next(iter(store.records(row.digest)), None) is None:
        through = replace(row, features=(*row.features, "opencl")).digest
        if next(iter(store.records(through)), None) is not None:
            return through
    return row.digest


def choose_thresholds(thresholds: Thresholds | str | Path | None, predictor: str | Path | None) -> Thresholds | None:
    """The thresholds given (or their file), else those that were tuned for the predictor, else None: the defaults.

    Raises PlanError when a file cannot be read.
    """
    from autofuse.search.thresholds import load_thresholds

    if thresholds is None and predictor is not None and (Path(predictor) / "thresholds.json").is_file():
        thresholds = Path(predictor) / "thresholds.json"
    return load_thresholds(os.fspath(thresholds)) if isinstance(thresholds, str | os.PathLike) else thresholds
