"""What goes to a runner and what comes back: plain frozen data, with JSON forms for the way to another process."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.records.record import rounded


@dataclass(frozen=True)
class ArgumentSpec:
    """One parameter of a kernel. Inputs are filled with numbers in [low, high] (integers: both ends included).

    preparation: the form in which the kernel takes an input (`schedule/preparations.py`); `shape` is that of the input
    itself, which is filled first: the right outputs do not depend on the form. constant: whether the input is one of
    the network's constants (its weights).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    output: bool = False
    low: float = -1.0
    high: float = 1.0
    preparation: str = ""
    constant: bool = False


@dataclass(frozen=True)
class MeasureLimits:
    """How long and how well to time one kernel. Times in seconds.

    `timeout` covers the whole job from loading to the last sample. Timing ends when the 95 % confidence interval of the
    ratio to the reference is within ±`confidence` of it, after `max_samples`, or when `budget` is used up. Samples
    whose reference is further than `drift` off its usual time are taken again, up to `retakes` of them. `most_cold`: of
    samples with cold weights no more than that, and no more retakes. A sample is the least of up to `least_of` timings
    in a row that together take no longer than `burst`, or a single one: disturbances only ever add time.
    """

    timeout: float = 30.0
    budget: float = 1.0
    warmup: int = 2
    min_samples: int = 6
    max_samples: int = 20
    confidence: float = 0.03
    min_sample: float = 2e-4  # a timing repeats the kernel until it lasts this long
    drift: float = 0.10
    retakes: int = 5
    most_cold: int = 10
    least_of: int = 8
    burst: float = 2.5e-3

    def part(self, parts: int) -> MeasureLimits:
        """Those for a kernel that is timed `parts` times, each time with its share of the samples and of the time."""
        most = -(-self.max_samples // parts)
        return replace(
            self,
            budget=self.budget / parts,
            min_samples=min(self.min_samples, most),
            max_samples=most,
            retakes=-(-self.retakes // parts),
            most_cold=-(-self.most_cold // parts),
        )

    @property
    def cold(self) -> MeasureLimits:
        """Those for the samples with cold weights: fewer of them, in half the time."""
        most = min(self.max_samples, self.most_cold)
        return replace(
            self,
            budget=self.budget / 2,
            min_samples=min(self.min_samples, most),
            max_samples=most,
            retakes=min(self.retakes, self.most_cold),
        )


@dataclass(frozen=True)
class MeasureJob:
    """One built kernel to check and to time.

    `key` and `candidate` say what it is (workload key; family, version, configuration, layouts). `expected` is an .npz
    file (`numpy.savez` of the arrays in order) that the outputs must match within `tolerance` times the largest
    expected value (but for `loose` of the values, see `rounding.py`), or None. `reference` names the reference kernel
    whose drift the kernel shares. `last_cache`: bytes of the machine's last cache, which cold weights must not be
    found in; 0: no cold samples are taken.
    """

    key: str
    candidate: str
    library: str
    function: str
    arguments: tuple[ArgumentSpec, ...]
    expected: str | None = None
    tolerance: float = 1e-3
    seed: int = 0
    reference: str = "arithmetic"
    limits: MeasureLimits = field(default_factory=MeasureLimits)
    last_cache: int = 0
    loose: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> MeasureJob:
        """The inverse of `to_dict`."""
        return cls(
            **{
                **value,
                "arguments": arguments_from(value["arguments"]),
                "limits": MeasureLimits(**value["limits"]),
            }
        )


@dataclass(frozen=True)
class MeasureResult:
    """How a job ended: a status of `records.STATUSES`, one line of message, samples in seconds for `ok`.

    `reference_samples[name][i]` was taken next to `samples[i]`. `cold_samples` are those with cold weights, in the same
    way beside `cold_reference_samples`; none for a kernel whose cold latency is its hot one (`cold.py`).
    """

    key: str
    candidate: str
    status: str
    message: str = ""
    samples: tuple[float, ...] = ()
    reference_samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    reference: str = "arithmetic"
    cold_samples: tuple[float, ...] = ()
    cold_reference_samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)

    @property
    def latency(self) -> float | None:
        """Median of the samples; None for a failure."""
        return statistics.median(self.samples) if self.samples else None

    @classmethod
    def failure(cls, job: MeasureJob, status: str, message: str) -> MeasureResult:
        """A result without samples."""
        return cls(job.key, job.candidate, status, one_line(message), reference=job.reference)


def arguments_from(values: Sequence[Mapping[str, Any]]) -> tuple[ArgumentSpec, ...]:
    """Argument specifications from their JSON form."""
    return tuple(ArgumentSpec(**{**value, "shape": tuple(value["shape"])}) for value in values)


def samples_from(values: Sequence[float]) -> tuple[float, ...]:
    """Times as records keep them."""
    return tuple(rounded(value) for value in values)


def one_line(text: str, limit: int = 300) -> str:
    """The text on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def fill_inputs(arguments: Sequence[ArgumentSpec], seed: int) -> list[NDArray[Any]]:
    """The input arrays of a kernel, outputs left out: the same for the same arguments and seed, everywhere."""
    rng = np.random.Generator(np.random.PCG64(seed))
    arrays: list[NDArray[Any]] = []
    for spec in arguments:
        if spec.output:
            continue
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            unit = rng.random(spec.shape, dtype=np.float32)
            arrays.append((unit * np.float32(spec.high - spec.low) + np.float32(spec.low)).astype(dtype, copy=False))
        elif dtype.kind == "b":
            arrays.append(rng.integers(0, 2, spec.shape).astype(np.bool_))
        else:
            low = max(int(spec.low), 0) if dtype.kind == "u" else int(spec.low)
            arrays.append(rng.integers(low, int(spec.high), spec.shape, endpoint=True).astype(dtype))
    return arrays
