"""The clock: takes a kernel and reference kernels as callables, gives interleaved samples. No TVM.

On shared machines the same kernel varies by a factor as neighbours come and go; the reference kernels, run next to
every sample, vary with it, and the ratio is what can be compared.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autofuse.measure.jobs import MeasureLimits

# A kernel this long (seconds) brings its data back into the caches in a small part of its own time.
_LONG = 0.05


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


def take_samples(
    kernel: Callable[[], object],
    references: Mapping[str, Callable[[], object]],
    reference: str,
    limits: MeasureLimits,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time `kernel`, each sample next to one run of every reference, until `limits` say that it is enough.

    The references run in the order of the mapping; the kernel once more, untimed, before its sample, so that it finds
    its data in the caches as it would in a network run over and over.
    """

    def timed(run: Callable[[], object], times: int = 1) -> float:
        begin = clock()
        for _ in range(times):
            run()
        return max(clock() - begin, 1e-9) / times

    start = clock()
    once = min(timed(kernel) for _ in range(max(limits.warmup, 1)))
    for run in references.values():
        run()
    repeats = max(1, min(math.ceil(limits.min_sample / once), 10_000))
    samples: list[float] = []
    beside: dict[str, list[float]] = {name: [] for name in references}
    ratios: list[float] = []
    while True:
        for name, run in references.items():
            beside[name].append(timed(run))
        if once < _LONG:
            kernel()
        samples.append(timed(kernel, repeats))
        ratios.append(samples[-1] / beside[reference][-1] if reference in beside else samples[-1])
        n = len(samples)
        if n >= limits.max_samples or (n >= 3 and clock() - start > limits.budget):
            break
        if n >= limits.min_samples and half_width(ratios) <= limits.confidence:
            break
    return Samples(tuple(samples), {name: tuple(times) for name, times in beside.items()})
