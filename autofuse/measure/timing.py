"""The clock: takes a kernel and reference kernels as callables, gives interleaved samples. No TVM.

On shared machines the same kernel varies by a factor as other work comes and goes; the reference kernels, run next to
every sample, vary with it, and the ratio is what can be compared.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.measure.jobs import MeasureLimits

# Runs a kernel so many times in a row, gives the seconds of one run.
Timed = Callable[[int], float]
# A kernel this long (seconds) brings its data back into the caches in a small part of its own time.
_LONG = 0.05
# Seconds that a reference may be run for again, for a better figure, and how often it is run at most.
_SHORT, _SHORT_RUNS = 6e-4, 3


@dataclass(frozen=True)
class Samples:
    """Times in seconds of one run of the kernel, and of each reference kernel next to it."""

    kernel: tuple[float, ...]
    references: Mapping[str, tuple[float, ...]]


def half_width(values: Sequence[float]) -> float:
    """Half the 95 % confidence interval of the median, relative to it; infinite below four values.

    The interval is ±1.96 · 1.2533 · s / √n with s = interquartile range / 1.349, the normal approximation of the
    median's error (McGill, Tukey and Larsen, Variations of box plots, 1978), which outliers do not move.
    """
    if len(values) < 4:
        return math.inf
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return 1.96 * 1.2533 * (high - low) / 1.349 / math.sqrt(len(values)) / middle


class Steadiness:
    """What the reference kernels usually take, from their latest runs in this process, over all that was timed."""

    def __init__(self, remembered: int = 400) -> None:
        self._remembered = remembered
        self._times: dict[str, deque[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        """One more run of a reference kernel."""
        self._times.setdefault(name, deque(maxlen=self._remembered)).append(seconds)

    def usual(self, name: str) -> float | None:
        """Median of the latest runs, seconds; None if there was none."""
        return statistics.median(self._times[name]) if name in self._times else None


def take_samples(
    kernel: Callable[[], object],
    references: Mapping[str, Callable[[], object]],
    reference: str,
    limits: MeasureLimits,
    clock: Callable[[], float] = time.perf_counter,
    steadiness: Steadiness | None = None,
) -> Samples:
    """`sample_runs` of callables that run a kernel once in this process, timed by `clock`."""
    runs = {name: timed(run, clock) for name, run in references.items()}
    return sample_runs(timed(kernel, clock), runs, reference, limits, clock, steadiness)


def timed(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Timed:
    """Times a callable that runs a kernel once in this process."""

    def seconds(times: int) -> float:
        begin = clock()
        for _ in range(times):
            run()
        return max(clock() - begin, 1e-9) / times

    return seconds


def sample_runs(
    kernel: Timed,
    references: Mapping[str, Timed],
    reference: str,
    limits: MeasureLimits,
    clock: Callable[[], float] = time.perf_counter,
    steadiness: Steadiness | None = None,
) -> Samples:
    """Time `kernel`, each sample next to every reference, until `limits` say that it is enough.

    The references run in the order of the mapping; the kernel once more, untimed, before its sample, so that it finds
    its data in the caches as it would in a network run over and over. Of a few timings in a row the least counts, of
    the references too where they are short. A sample whose reference is further than `limits.drift` off its usual time
    was taken while something else had part of the machine: it is taken again, up to `limits.retakes` of them, and left
    out unless too few remain. `clock` (seconds) is what the budget is held against.
    """
    steady = steadiness or Steadiness()
    start = clock()
    once = min(kernel(1) for _ in range(max(limits.warmup, 1)))
    repeats = max(1, min(math.ceil(limits.min_sample / once), 10_000))
    samples: list[float] = []
    beside: dict[str, list[float]] = {name: [] for name in references}
    while True:
        for name, run in references.items():
            beside[name].append(_least(run, 1, min(_SHORT_RUNS, limits.least_of), _SHORT))
            steady.add(name, beside[name][-1])
        if once < _LONG:
            kernel(1)
        samples.append(_least(kernel, repeats, limits.least_of, limits.burst))
        kept = _undisturbed(beside.get(reference), steady.usual(reference), len(samples), limits)
        n = len(kept)
        if n >= limits.max_samples or len(samples) >= limits.max_samples + limits.retakes:
            break
        if len(samples) >= 3 and clock() - start > limits.budget:
            break
        ratios = [samples[i] / beside[reference][i] if reference in beside else samples[i] for i in kept]
        if n >= limits.min_samples and half_width(ratios) <= limits.confidence:
            break
    if len(kept) < min(limits.min_samples, len(samples)):
        kept = list(range(len(samples)))
    return Samples(
        tuple(samples[i] for i in kept),
        {name: tuple(times[i] for i in kept) for name, times in beside.items()},
    )


def _least(run: Timed, times: int, most: int, span: float) -> float:
    """The least of up to `most` timings of `times` runs, as many as fit into `span` seconds; of one at least."""
    found = run(times)
    spent = found * times
    for _ in range(most - 1):
        if spent + found * times > span:
            break
        seconds = run(times)
        spent += seconds * times
        found = min(found, seconds)
    return found


def _undisturbed(times: Sequence[float] | None, usual: float | None, count: int, limits: MeasureLimits) -> list[int]:
    """Which of the samples so far stood next to a reference that took what it usually takes."""
    if not times or usual is None:
        return list(range(count))
    return [i for i, seconds in enumerate(times) if abs(seconds / usual - 1) <= limits.drift]
