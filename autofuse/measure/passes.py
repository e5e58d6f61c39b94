"""Passes over a kernel: takes what is known of it and the result of another pass, gives what is known then.

How far a kernel's timing has come is said by its record's message, so that a run that goes on later knows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autofuse.measure.jobs import MeasureJob, MeasureResult
from autofuse.measure.timing import half_width
from autofuse.records.record import Identity, Record, now, quiet, ratio_of

#: Messages of successes that are timed in several passes: a pass found what was known, and the interval of the samples
#: is narrow enough; it did not, and all passes were made; passes are left. Records of a single pass, and those from
#: before this was said, say nothing.
SETTLED, CAPPED, UNFINISHED = "settled", "not settled, all passes made", "passes are left"


@dataclass(frozen=True)
class Timing:
    """A kernel that is timed in passes: its job, its record so far, when it is due again (batches done in all).

    `failed`: the pass before did not succeed. Nothing is due once it is settled, has failed, or has had all passes.
    """

    job: MeasureJob
    record: Record
    due: tuple[int, ...]
    failed: bool = False


def unfinished(record: Record) -> bool:
    """Whether a run was cut short before it had made all passes over the record's kernel."""
    return record.ok and record.message == UNFINISHED


def after_pass(timing: Timing, result: MeasureResult, within: float) -> Timing:
    """What is known after the pass that is due: settled if it found the same times, and all samples together tell the
    ratio to the reference, `within` a share.

    A pass that did not succeed is made once more before it counts, unless the numbers were wrong: what was timed well
    may have been ended from outside, for want of memory that something else took.
    """
    record, (first, *later) = timing.record, timing.due
    if result.status != "ok":
        if result.status == "wrong" or timing.failed:
            return replace(timing, record=with_samples(record, result), due=())
        return replace(timing, due=tuple(later) or (first + 1,), failed=True)
    longer = with_samples(record, result)
    settled = agrees(record, result, within) and narrow(longer, within)
    message = SETTLED if settled else UNFINISHED if later else CAPPED
    return replace(timing, record=replace(longer, message=message), due=() if settled else tuple(later), failed=False)


def passes_made(record: Record, most_samples: int) -> int:
    """How many passes of up to so many samples a record is of, at least."""
    return max(1, -(-len(record.samples) // most_samples))


def first_record(
    identity: Identity, reference: str, status: str, message: str, tir_digest: str, versions: Mapping[str, str],
    result: MeasureResult | None,
) -> Record:  # fmt: skip
    """The record of a kernel's first pass, or of one that was not built (no result). `versions` as `software.py`."""
    return Record(
        identity.workload,
        identity.hardware,
        identity.family,
        identity.family_version,
        identity.config,
        identity.layouts,
        status,
        message,
        result.samples if result else (),
        result.reference_samples if result else {},
        reference,
        versions["tvm"],
        versions["autofuse"],
        tir_digest,
        cold_samples=result.cold_samples if result else (),
        cold_reference_samples=result.cold_reference_samples if result else {},
        codegen_version=identity.codegen_version,
    )


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

    What is compared is what counts: ratios to the reference beside them, or quiet times where there is none.
    """
    return near(
        (record.samples, record.reference_samples), (result.samples, result.reference_samples), record.reference, within
    ) and near(
        (record.cold_samples, record.cold_reference_samples), (result.cold_samples, result.cold_reference_samples),
        record.reference, within,
    )  # fmt: skip


Samples = tuple[Sequence[float], Mapping[str, Sequence[float]]]


def near(before: Samples, after: Samples, reference: str, within: float) -> bool:
    """Whether two sets of samples, each with those of the references beside them, tell the same; two empty ones do."""
    if not before[0] or not after[0]:
        return not before[0] and not after[0]
    if before[1].get(reference) and after[1].get(reference):
        change = ratio_of(after[0], after[1][reference]) / ratio_of(before[0], before[1][reference])
    else:
        change = quiet(after[0]) / quiet(before[0])
    return abs(change - 1) <= within


def narrow(record: Record, within: float) -> bool:
    """Whether the 95 % confidence interval of a kernel's time over its reference's is ±`within` of it, hot and cold."""

    def told(samples: Sequence[float], references: Mapping[str, Sequence[float]]) -> bool:
        beside = references.get(record.reference)
        ratios = [s / r for s, r in zip(samples, beside, strict=False)] if beside else samples
        return not samples or half_width(ratios) <= within

    return told(record.samples, record.reference_samples) and told(record.cold_samples, record.cold_reference_samples)
