"""Learning: from record stores to a predictor in a directory, and the cost model that reads it.

XGBoost and scikit-learn load when something is trained; prediction needs only XGBoost's C library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.learn.dataset import Dataset, build_dataset
    from autofuse.learn.predictor import LearnedCostModel, load_predictor, save_predictor
    from autofuse.learn.train import Trained, TrainSettings, train_predictor

__all__ = [
    "Dataset",
    "LearnedCostModel",
    "TrainSettings",
    "Trained",
    "build_dataset",
    "load_predictor",
    "save_predictor",
    "train_predictor",
]

_HOME = {
    "Dataset": "dataset",
    "build_dataset": "dataset",
    "LearnedCostModel": "predictor",
    "load_predictor": "predictor",
    "save_predictor": "predictor",
    "TrainSettings": "train",
    "Trained": "train",
    "train_predictor": "train",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"autofuse.learn.{_HOME[name]}"), name)
    raise AttributeError(name)
