"""What the record store holds: records of measurements, the workloads and the hardware they belong to. Plain data."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autofuse.codegen.version import CODEGEN_VERSION

if TYPE_CHECKING:
    from autofuse.target.fingerprint import HardwareRow

STATUSES = ("ok", "wrong", "build_failed", "crashed", "timeout", "oom")
"""How a measurement ended: `ok` was timed; `wrong` ran but gave other numbers than the reference; the others did not
run to their end (`oom`: out of memory)."""

#: Reference kernels. "product" stands beside what is bound by arithmetic; "arithmetic" did so on CPUs before version 5
#: of the store's schema, and does on OpenCL devices.
REFERENCES = ("arithmetic", "memory", "product")
#: The one that a whole network runs beside: most of its time goes into products.
NETWORK_REFERENCE = "product"
"""The fixed reference kernels that every measurement is interleaved with."""


COLD_FIELDS = ("cold_samples", "cold_reference_samples")
"""What a record has from version 2 of the schema on."""

CODEGEN_FIELDS = ("codegen_version",)
"""What it has from version 4 on."""


def now() -> str:
    """The present time as records keep it: UTC, ISO 8601, microseconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def rounded(seconds: float) -> float:
    """Five significant digits: finer than any clock noise, and short in the database."""
    return float(f"{seconds:.5g}")


def quiet(times: Sequence[float]) -> float:
    """Mean of the least tenth: what a kernel takes when nobody disturbs it.

    Disturbances only ever add time: a thread that loses its processor milliseconds, other work on the same core or in
    the same cache a share of it, for seconds. Of 101 kernels timed in two processes, each in two parts minutes apart,
    the two least samples differed by 1 %, lower quartiles by 2 to 6 %.
    """
    count = max(1, round(len(times) / 10))
    return sum(sorted(times)[:count]) / count


#: Share of a reference's slowdown (in logarithms) that a kernel beside it has: 0.5 to 0.75 in trials with 58 kernels
#: on a disturbed machine.
SHARED = 0.75


def ratio_of(times: Sequence[float], beside: Sequence[float]) -> float:
    """What a kernel takes over what a reference takes, from samples taken beside each other.

    The geometric mean of two: the ratio of their quiet times, right where both stood in a quiet moment; and the median
    of the samples, corrected pair by pair for what the reference lost, over the reference's quiet time, right where no
    moment was quiet. docs/records.md has what other means gave.
    """
    calmest = quiet(beside)
    corrected = statistics.median(time / (other / calmest) ** SHARED for time, other in calmer_pairs(times, beside))
    return math.sqrt(quiet(times) * corrected) / calmest


def calmer_pairs(times: Sequence[float], beside: Sequence[float]) -> list[tuple[float, float]]:
    """Samples with those of the reference beside them, without the fifth with the slowest ones of it.

    What is left out stood beside a lost processor, or a long stop.
    """
    pairs = sorted(zip(beside, times, strict=False))
    return [(time, other) for other, time in pairs[: math.ceil(0.8 * len(pairs))]]


@dataclass(frozen=True)
class Identity:
    """What a record is about: which kernel, on which hardware. Several records may share one (repeated measurements).

    `layouts` is the text of the layouts at the group's borders, which the workload key leaves out. `codegen_version` is
    that of the code generation, which made machine code of what the family scheduled.
    """

    workload: str
    hardware: str
    family: str
    family_version: int
    config: str
    layouts: str = ""
    codegen_version: int = CODEGEN_VERSION


@dataclass(frozen=True)
class RecordedHardware:
    """Hardware as records know it, of whatever kind: a digest, a readable name and the details as plain JSON values."""

    digest: str
    name: str
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, row: HardwareRow) -> RecordedHardware:
        """A hardware row, as `target.hardware_row` gives it."""
        from autofuse.target.fingerprint import GPU_ARCHITECTURES

        detail = json.loads(json.dumps(row.to_json()))
        units = "compute units" if row.architecture in GPU_ARCHITECTURES else "threads"
        return cls(row.digest, f"{row.model_name or row.vendor}, {row.threads} {units}", detail)


@dataclass(frozen=True)
class Workload:
    """What a group computes: its key, the canonical text that the key is the hash of, and a short readable label."""

    key: str
    text: str
    label: str = ""


@dataclass(frozen=True)
class Form:
    """A group as it was measured, with these layouts at its borders: `text` is that of `groups.group_to_text`."""

    workload: str
    layouts: str
    text: str


@dataclass(frozen=True)
class Record:
    """One measurement, or one failure. Times in seconds.

    `samples[i]` was taken next to `reference_samples[name][i]`; `reference` names the reference kernel whose drift the
    measured kernel is taken to share. `normalised` is filled in by the store that the record is read from: the ratio to
    the reference times the reference's usual time on that hardware (the plain latency while that is not known).
    `tir_digest` identifies the scheduled code that was timed ("" if it is not known), `codegen_version` what made
    machine code of it (0 if that is not known).

    `cold_samples` were taken with weights outside the last cache, `cold_samples[i]` next to
    `cold_reference_samples[name][i]`. A kernel has none where that makes no difference: its cold latencies are those of
    its samples. `cold_normalised` is filled in like `normalised`.
    """

    workload: str
    hardware: str
    family: str
    family_version: int
    config: str
    layouts: str = ""
    status: str = "ok"
    message: str = ""
    samples: tuple[float, ...] = ()
    reference_samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    reference: str = "arithmetic"
    tvm_version: str = ""
    autofuse_version: str = ""
    tir_digest: str = ""
    created: str = field(default_factory=now)
    normalised: float | None = field(default=None, compare=False)
    cold_samples: tuple[float, ...] = ()
    cold_reference_samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    cold_normalised: float | None = field(default=None, compare=False)
    codegen_version: int = CODEGEN_VERSION

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")
        if self.reference not in REFERENCES:
            raise ValueError(f"reference {self.reference!r} is none of {', '.join(REFERENCES)}")
        if self.status == "ok" and not self.samples:
            raise ValueError("a successful record has no samples")
        if any(not 0 < s < float("inf") for s in (*self.samples, *self.cold_samples)):
            raise ValueError("samples must be positive and finite")

    @property
    def ok(self) -> bool:
        """True if the kernel was right and was timed."""
        return self.status == "ok"

    @cached_property
    def identity(self) -> Identity:
        """What the record is about."""
        return Identity(
            self.workload, self.hardware, self.family, self.family_version, self.config, self.layouts,
            self.codegen_version,
        )  # fmt: skip

    @cached_property
    def latency(self) -> float | None:
        """Median of the samples; None for a failure."""
        return statistics.median(self.samples) if self.ok else None

    @cached_property
    def reference_latency(self) -> float | None:
        """Quiet time of the reference kernel; None if it has no samples."""
        samples = self.reference_samples.get(self.reference, ())
        return quiet(samples) if self.ok and samples else None

    @cached_property
    def ratio(self) -> float | None:
        """`ratio_of` the kernel's samples to the reference's; None if there are none of that."""
        beside = self.reference_samples.get(self.reference, ())
        return ratio_of(self.samples, beside) if self.ok and beside else None

    @cached_property
    def cold_latency(self) -> float | None:
        """Median of the cold samples; None if there are none."""
        return statistics.median(self.cold_samples) if self.ok and self.cold_samples else None

    @cached_property
    def cold_ratio(self) -> float | None:
        """`ratio` of the cold samples to those of the reference beside them; None if there are none."""
        beside = self.cold_reference_samples.get(self.reference, ())
        return ratio_of(self.cold_samples, beside) if self.cold_latency is not None and beside else None

    @cached_property
    def digest(self) -> str:
        """Hash of everything measured: the same record merged twice is one record.

        Cold samples that were not taken, and a code generation that is not known, are left out: records keep the
        digests that they had before there were any.
        """
        content = record_to_dict(self)
        for name in (*COLD_FIELDS, *CODEGEN_FIELDS):
            if not content[name]:
                del content[name]
        return hashlib.sha256(canonical(content).encode()).hexdigest()[:32]

    def normalise(self, baseline: float | None) -> float | None:
        """Latency with the machine's drift taken out; `baseline` is the reference's usual time, None if not known."""
        if self.ratio is None or baseline is None:
            return self.latency
        return self.ratio * baseline

    def normalise_cold(self, baseline: float | None) -> float | None:
        """The same of the latency with cold weights: that of the cold samples, or the hot one if there are none."""
        if self.cold_latency is None:
            return self.normalise(baseline)
        if self.cold_ratio is None or baseline is None:
            return self.cold_latency
        return self.cold_ratio * baseline


@dataclass(frozen=True)
class Measured:
    """The short answer to a look-up: how the newest record ended, and its latencies (None for a failure).

    The cold ones are those with weights outside the last cache; the hot ones again where no cold samples were taken.
    """

    status: str
    latency: float | None
    normalised: float | None
    cold_latency: float | None
    cold_normalised: float | None


@dataclass(frozen=True)
class StoreStats:
    """What a store holds, counted. `failed` counts the records of each status other than ok.

    `evaluation_only`: nothing may be learned from it (`RecordStore.evaluation_only`).
    """

    ok: int
    failed: Mapping[str, int]
    workloads: int
    models: tuple[str, ...]
    hardware: tuple[str, ...]
    families: Mapping[str, int]
    evaluation_only: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "ok": self.ok,
            "failed": sum(self.failed.values()),
            "failures": dict(sorted(self.failed.items())),
            "workloads": self.workloads,
            "models": list(self.models),
            "hardware": list(self.hardware),
            "families": dict(sorted(self.families.items())),
            "evaluation_only": self.evaluation_only,
        }


def canonical(value: object) -> str:
    """JSON text that depends on nothing but the value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def record_to_dict(record: Record) -> dict[str, Any]:
    """Plain JSON values of what was measured (nothing that can be computed from the rest)."""
    return {
        "workload": record.workload,
        "hardware": record.hardware,
        "family": record.family,
        "family_version": record.family_version,
        "config": record.config,
        "layouts": record.layouts,
        "status": record.status,
        "message": record.message,
        "samples": list(record.samples),
        "reference_samples": {name: list(times) for name, times in sorted(record.reference_samples.items())},
        "reference": record.reference,
        "tvm_version": record.tvm_version,
        "autofuse_version": record.autofuse_version,
        "tir_digest": record.tir_digest,
        "created": record.created,
        "cold_samples": list(record.cold_samples),
        "cold_reference_samples": {name: list(times) for name, times in sorted(record.cold_reference_samples.items())},
        "codegen_version": record.codegen_version,
    }
