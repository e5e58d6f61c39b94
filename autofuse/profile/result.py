"""A profile as data: what each kernel of a model took, could take and was predicted to take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autofuse.target import Hardware


@dataclass(frozen=True)
class KernelProfile:
    """All calls of one function in one run of the model.

    total_ms: median over the runs of the time in all calls; share: of the sum over kernels. gflops, gbytes: arithmetic
    and compulsory traffic per second. roofline: the least time that the hardware allows over the time it took (0..1).
    predicted_ms: for all calls, None where a call has no prediction. labels: the groups, each once. executed,
    weight_bytes: of all calls, the arithmetic that the schedules execute and the constants that they read.
    """

    name: str
    labels: tuple[str, ...]
    family: str
    config: str
    calls: int
    total_ms: float
    share: float
    gflops: float
    gbytes: float
    roofline: float
    predicted_ms: float | None
    source: str
    operators: tuple[str, ...]
    executed: int
    weight_bytes: int

    @property
    def call_ms(self) -> float:
        """Mean time of one call."""
        return self.total_ms / self.calls


@dataclass(frozen=True)
class Profile:
    """Kernels by the time they took, longest first.

    latency_ms: median of whole runs without a clock around the kernels; kernels_ms: sum of the kernels' times.
    peak_gflops, l3_gbytes, memory_gbytes: the roofs, for all cores together, per second.
    """

    model: str
    threads: int
    runs: int
    strategy: str
    cost_model: str
    hardware: str
    latency_ms: float
    kernels_ms: float
    predicted_ms: float
    peak_gflops: float
    l3_gbytes: float
    memory_gbytes: float
    kernels: tuple[KernelProfile, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "kernels": [{**asdict(k), "call_ms": k.call_ms} for k in self.kernels]}


def least_seconds(flops: float, traffic: float, hardware: Hardware) -> float:
    """The roofline: the longer of executing `flops` at the full rate of all cores and of moving `traffic` bytes once.

    Kernels whose tensors fit in L3 may find them there, others have to wait for memory. Williams, Waterman and
    Patterson, Roofline: an insightful visual performance model, 2009.
    """
    compute = flops / (2.0 * hardware.fma_per_second * hardware.cores)
    cached = traffic <= hardware.l3_bytes
    bandwidth = hardware.l3_bandwidth * hardware.cores if cached else hardware.memory_bandwidth
    return max(compute, traffic / bandwidth)


def summarise(
    description: Mapping[str, Any],
    hardware: Hardware,
    latencies: Sequence[float],
    times: Mapping[str, Sequence[Sequence[float]]],
) -> Profile:
    """The profile of a model. `latencies`: seconds of whole runs; `times[name][run]`: seconds of each call.

    Functions that the description does not know (library calls of operators outside every group) are kernels without
    a group.
    """
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in description["kernel_list"]:
        entries.setdefault(entry["name"], []).append(entry)
    totals = {name: statistics.median(sum(run) for run in runs) for name, runs in times.items()}
    whole = sum(totals.values())
    kernels = []
    for name, seconds in sorted(totals.items(), key=lambda item: -item[1]):
        known = entries.get(name, []) if name else []
        calls = len(times[name][0])
        flops, traffic = (sum(e[key] for e in known) for key in ("flops", "bytes"))
        # Files of earlier versions do not say what is executed.
        executed = [int(e.get("executed", e["flops"])) for e in known]
        least = sum(least_seconds(n, e["bytes"], hardware) for n, e in zip(executed, known, strict=True))
        predictions = [e["predicted_ms"] for e in known]
        safe = max(seconds, 1e-9)
        kernels.append(
            KernelProfile(
                name=name,
                labels=tuple(dict.fromkeys(e["label"] for e in known)),
                family=known[0]["family"] if known else "",
                config=known[0]["config"] if known else "",
                calls=calls,
                total_ms=seconds * 1e3,
                share=seconds / max(whole, 1e-12),
                gflops=flops / safe / 1e9,
                gbytes=traffic / safe / 1e9,
                roofline=least / safe,
                predicted_ms=None if not known or None in predictions else sum(predictions),
                source="+".join(sorted({e["source"] for e in known if e["source"]})),
                operators=tuple(o for e in known for o in e["operators"]),
                executed=sum(executed),
                weight_bytes=sum(int(e.get("weight_bytes", 0)) for e in known),
            )
        )
    return Profile(
        model=str(description["model"]),
        threads=int(description["threads"]),
        runs=len(latencies),
        strategy=str(description["strategy"]),
        cost_model=str(description["cost_model"]),
        hardware=hardware.name,
        latency_ms=statistics.median(latencies) * 1e3,
        kernels_ms=whole * 1e3,
        predicted_ms=float(description["predicted_ms"]),
        peak_gflops=2.0 * hardware.fma_per_second * hardware.cores / 1e9,
        l3_gbytes=hardware.l3_bandwidth * hardware.cores / 1e9,
        memory_gbytes=hardware.memory_bandwidth / 1e9,
        kernels=tuple(kernels),
    )
