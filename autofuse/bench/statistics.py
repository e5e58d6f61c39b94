"""Samples and outputs of engines → the numbers of a result: medians, spreads, paired ratios, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autofuse.bench.interleave import Visit
from autofuse.bench.peer import Array


@dataclass(frozen=True)
class Summary:
    """Of the timed calls that count (see `counted`): their number; median, distance between the quartiles, and least.

    Times in milliseconds.
    """

    median_ms: float
    iqr_ms: float
    min_ms: float
    calls: int


def counted(visits: Sequence[Visit]) -> Sequence[Visit]:
    """The visits during which the machine was quiet; all of them where it never was."""
    return [visit for visit in visits if visit.quiet] or visits


def summarise(visits: Sequence[Visit]) -> Summary | None:
    """None where nothing was timed."""
    visits = counted(visits)
    samples = np.array([seconds for visit in visits for seconds in visit.seconds])
    if not samples.size:
        return None
    low, median, high = (1e3 * float(value) for value in np.percentile(samples, (25, 50, 75)))
    return Summary(median, high - low, 1e3 * float(samples.min()), int(samples.size))


def paired_ratio(visits: Sequence[Visit], base: Sequence[Visit]) -> tuple[float, float] | None:
    """Median and interquartile distance, over the rounds that both were in, of one's median time over the other's.

    A slow spell of the machine that lasts a round cancels out of that round's ratio. Rounds in which one of the two was
    disturbed count only where there are no others. None without a common round.
    """
    quiet = [visit for visit in visits if visit.quiet], [visit for visit in base if visit.quiet]
    if {visit.round for visit in quiet[0]} & {visit.round for visit in quiet[1]}:
        visits, base = quiet
    medians = {visit.round: float(np.median(visit.seconds)) for visit in base}
    ratios = [float(np.median(visit.seconds)) / medians[visit.round] for visit in visits if visit.round in medians]
    if not ratios:
        return None
    low, median, high = (float(value) for value in np.percentile(ratios, (25, 50, 75)))
    return median, high - low


@dataclass(frozen=True)
class Difference:
    """Largest absolute difference of any element, and the same over the largest element of that output."""

    max_abs: float
    max_rel: float


def compare(outputs: Sequence[Array], reference: Sequence[Array]) -> Difference | str:
    """How far outputs are from the reference, or one line that says why they cannot be compared.

    Relative differences are to the largest element of the reference's output (not element by element: a network's
    near-zero outputs are sums of large terms). Where both are the same infinity or both NaN there is no difference.
    """
    if len(outputs) != len(reference):
        return f"gives {len(outputs)} outputs where the reference gives {len(reference)}"
    largest_abs = largest_rel = 0.0
    for index, (mine, theirs) in enumerate(zip(outputs, reference, strict=True)):
        if mine.shape != theirs.shape:
            return f"output {index} has shape {list(mine.shape)} where the reference has {list(theirs.shape)}"
        if not mine.size:
            continue
        left, right = mine.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(right)
        if not np.array_equal(np.where(finite, 0.0, right), np.where(np.isfinite(left), 0.0, left), equal_nan=True):
            return f"output {index} is not finite where the reference is, or the other way round"
        difference = float(np.abs(left[finite] - right[finite]).max(initial=0.0))
        scale = float(np.abs(right[finite]).max(initial=0.0))
        largest_abs = max(largest_abs, difference)
        # An output that is zero throughout has no scale: any difference is then as large as it says.
        largest_rel = max(largest_rel, difference / scale if scale else difference)
    return Difference(largest_abs, largest_rel)
