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
    have at least three rows with different latencies; None where there are none. top_1, top_5: share of the workloads
    whose fastest row is predicted to be the fastest, or among the five fastest; of workloads with more rows than that.
    loss: how much slower the row that is predicted to be the fastest is than the fastest one, averaged over workloads
    with at least two rows.
    """

    mape: float
    within_5: float
    within_10: float
    within_20: float
    tau_across: float | None
    tau_within: float | None
    rows: int
    workloads: int
    top_1: float | None = None
    top_5: float | None = None
    loss: float | None = None

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
    """Metrics of `predicted` against `measured`, both ln seconds, row by row.

    `groups` says which rows are of one workload, to be compared with each other.
    """
    if not len(measured):
        raise ValueError("no rows to score")
    error = np.abs(np.expm1(predicted - measured))
    keys, member = np.unique(np.asarray(groups, object), return_inverse=True)
    taus: list[float] = []
    found: dict[int, list[bool]] = {1: [], 5: []}
    losses: list[float] = []
    order = np.argsort(member, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(member))[:-1]):
        if len(rows) > 1:
            ranked = rows[np.argsort(predicted[rows], kind="stable")]
            losses.append(float(np.expm1(measured[ranked[0]] - measured[rows].min())))
            for count, hits in found.items():
                if len(rows) > count:
                    hits.append(bool(measured[ranked[:count]].min() == measured[rows].min()))
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
        _mean(taus),
        len(measured),
        len(keys),
        _mean(found[1]),
        _mean(found[5]),
        _mean(losses),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
