"""How good predictions are: takes measured and predicted log latencies, gives errors and rank correlations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Metrics:
    """Errors as fractions of the measured latency. tau: Kendall's tau-b of predicted and measured latencies.

    tau_across: over all rows. tau_within: over the configurations of one workload, averaged over the workloads that
    have at least three rows with different latencies; None where there are none.
    """

    mape: float
    within_5: float
    within_10: float
    within_20: float
    tau_across: float | None
    tau_within: float | None
    rows: int
    workloads: int

    def as_dict(self) -> dict[str, float | int | None]:
        """Plain JSON values."""
        return asdict(self)


def kendall(a: Array, b: Array) -> float | None:
    """Kendall's tau-b, None where it is not defined (fewer than two rows, or one side is constant)."""
    if len(a) < 2:
        return None
    from scipy.stats import kendalltau

    value = float(kendalltau(a, b).statistic)
    return value if np.isfinite(value) else None


def score(measured: Array, predicted: Array, groups: Sequence[str]) -> Metrics:
    """Metrics of `predicted` against `measured`, both ln seconds, row by row; `groups` are the workload keys."""
    if not len(measured):
        raise ValueError("no rows to score")
    error = np.abs(np.expm1(predicted - measured))
    keys, member = np.unique(np.asarray(groups, object), return_inverse=True)
    taus = []
    order = np.argsort(member, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(member))[:-1]):
        if len(rows) < 3 or np.ptp(measured[rows]) == 0:
            continue
        # A model that tells no configuration from another is right by no more than chance.
        taus.append(kendall(measured[rows], predicted[rows]) or 0.0)
    within_5, within_10, within_20 = (float((error <= bound).mean()) for bound in (0.05, 0.10, 0.20))
    return Metrics(
        float(error.mean()),
        within_5,
        within_10,
        within_20,
        kendall(measured, predicted),
        float(np.mean(taus)) if taus else None,
        len(measured),
        len(keys),
    )
