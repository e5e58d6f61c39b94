"""Passes over a kernel: takes the record of those before and another result, gives the record of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autofuse.measure.jobs import MeasureResult
from autofuse.records.record import Record, now, quiet


def with_samples(record: Record, result: MeasureResult) -> Record:
    """The record with the samples of another run of its kernel; a failure where that did not succeed."""
    if result.status != "ok":
        return replace(
            record, status=result.status, message=result.message, samples=(), reference_samples={}, cold_samples=(),
            cold_reference_samples={}, created=now(),
        )  # fmt: skip

    def longer(
        first: Mapping[str, tuple[float, ...]], more: Mapping[str, tuple[float, ...]]
    ) -> Mapping[str, tuple[float, ...]]:
        return {name: (*first[name], *more[name]) for name in first if name in more}

    return replace(
        record,
        samples=(*record.samples, *result.samples),
        reference_samples=longer(record.reference_samples, result.reference_samples),
        cold_samples=(*record.cold_samples, *result.cold_samples),
        cold_reference_samples=longer(record.cold_reference_samples, result.cold_reference_samples),
        created=now(),
    )


def agrees(record: Record, result: MeasureResult, within: float) -> bool:
    """Whether another run of a kernel found the times that its record has, hot and cold, within a share of them.

    What is compared is what counts: quiet times over those of the reference beside them. A disturbance that is still
    there, or that the record stood in throughout, makes them differ.
    """

    def near(
        before: Sequence[float], beside: Mapping[str, Sequence[float]],
        now_: Sequence[float], now_beside: Mapping[str, Sequence[float]],
    ) -> bool:  # fmt: skip
        if not before or not now_:
            return not before and not now_
        change = quiet(now_) / quiet(before)
        if beside.get(record.reference) and now_beside.get(record.reference):
            change *= quiet(beside[record.reference]) / quiet(now_beside[record.reference])
        return abs(change - 1) <= within

    return near(record.samples, record.reference_samples, result.samples, result.reference_samples) and near(
        record.cold_samples, record.cold_reference_samples, result.cold_samples, result.cold_reference_samples
    )
