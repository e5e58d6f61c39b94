"""Raw results of the zoo's networks → how near each is to what the machine allows, and where the rest goes.

A kernel's limit: the arithmetic that its schedule executes (after Winograd) at sgemm's rate, or, where the network's
weights do not stay in the last cache, its weights at the rate of memory, if that is longer. A network's: the sum. Both
rates are those of the probes in the network's own run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo_figures import Raw

from autofuse.bench.peers.probe import ARITHMETIC_SIZE, MEMORY_BYTES
from autofuse.report.results import number, table

#: Share of the limit that a network should reach.
GOAL = 0.85


def rates(raw: Raw) -> tuple[float, float] | None:
    """FLOP/s of a matrix product on all threads and bytes/s of a copy, by the medians of the probes."""
    probe = raw["bench"]["probe"]
    if not {"arithmetic", "memory"} <= set(probe):
        return None
    flops = 2.0 * ARITHMETIC_SIZE**3 * raw["threads"]
    return flops / (probe["arithmetic"]["median_ms"] / 1e3), 2.0 * MEMORY_BYTES / (probe["memory"]["median_ms"] / 1e3)


def kernel_limit(kernel: Mapping[str, Any], cold: bool, flops: float, bandwidth: float) -> float:
    """Milliseconds of all calls of a profiled kernel at the machine's limit."""
    computing = float(kernel["executed"]) / flops
    return 1e3 * max(computing, float(kernel["weight_bytes"]) / bandwidth if cold else 0.0)


def limit(raw: Raw) -> float | None:
    """Milliseconds of the network under dp at the machine's limit; None where it was not profiled."""
    found, speed = raw.get("profile"), rates(raw)
    if not found or speed is None:
        return None
    return sum(kernel_limit(k, found["cold_weights"], *speed) for k in found["kernels"])


def missing(raw: Raw) -> str:
    """The families whose kernels lose most against their limits, by the profile."""
    found, speed = raw["profile"], rates(raw)
    assert speed is not None
    lost: dict[str, list[float]] = {}
    for kernel in found["kernels"]:
        entry = lost.setdefault(kernel["family"] or "outside every family", [0.0, 0.0, 0.0])
        entry[0] += kernel["total_ms"] - kernel_limit(kernel, found["cold_weights"], *speed)
        entry[1] += kernel["total_ms"]
        entry[2] += kernel["calls"]
    worst = sorted(lost.items(), key=lambda item: -item[1][0])[:4]
    beside = found["latency_ms"] - sum(k["total_ms"] for k in found["kernels"])
    parts = [
        f"{family} {over:.2f} of {whole:.2f} ms ({calls:.0f})" for family, (over, whole, calls) in worst if over > 0
    ]
    return "; ".join([*parts, f"beside the kernels {beside:.2f} ms"])


def limit_table(raws: Sequence[tuple[str, float | None, Raw]]) -> str:
    """Rows of (name, dp's milliseconds, raw): limit, share of it, and what is missing below the goal."""
    rows = []
    for name, measured, raw in raws:
        least, speed = limit(raw), rates(raw)
        share = least / measured if least and measured else None
        cold = (raw.get("profile") or {}).get("cold_weights")
        rows.append(
            [
                name,
                number(measured),
                number(least),
                number(share and 100 * share, "{:.0f} %"),
                number(speed and speed[0] / 1e9, "{:.0f}"),
                number(speed and speed[1] / 1e9, "{:.0f}"),
                "–" if cold is None else "memory" if cold else "cache",
                "" if share is None or share >= GOAL else missing(raw),
            ]
        )
    headings = ["dp, ms", "limit, ms", "limit / dp", "sgemm, GFLOP/s", "memory, GB/s", "weights from"]
    return table(["network", *headings, f"over their limits, by family (kernels), below {GOAL:.0%}"], rows)
