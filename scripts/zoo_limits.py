"""Raw results of the zoo's networks → how near each is to what the machine allows, and where the rest goes.

A kernel's limit: the arithmetic that its schedule executes (after Winograd) at sgemm's rate, or, where the network's
weights do not stay in the last cache, its weights at the rate of memory, if that is longer. A network's: the sum. Both
rates are those of the probes in the network's own run. The probes vary more than a network does: medians over medians
flatter where the probe had worse moments; least over least is the harder one, since a short probe finds an undisturbed
moment sooner than a network does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo_figures import Raw, row

from autofuse.bench.peers.probe import ARITHMETIC_SIZE, MEMORY_BYTES
from autofuse.report.results import number, table

#: Share of the limit that a network should reach.
GOAL = 0.85


def rates(raw: Raw, of: str = "median_ms") -> tuple[float, float] | None:
    """FLOP/s of a matrix product on all threads and bytes/s of a copy, by the probes' medians, or least times."""
    probe = raw["bench"]["probe"]
    if not {"arithmetic", "memory"} <= set(probe):
        return None
    flops = 2.0 * ARITHMETIC_SIZE**3 * raw["threads"]
    return flops / (probe["arithmetic"][of] / 1e3), 2.0 * MEMORY_BYTES / (probe["memory"][of] / 1e3)


def kernel_limit(kernel: Mapping[str, Any], cold: bool, flops: float, bandwidth: float) -> float:
    """Milliseconds of all calls of a profiled kernel at the machine's limit."""
    computing = float(kernel["executed"]) / flops
    return 1e3 * max(computing, float(kernel["weight_bytes"]) / bandwidth if cold else 0.0)


def limit(raw: Raw, of: str = "median_ms") -> float | None:
    """Milliseconds of the network under dp at the machine's limit; None where it was not profiled."""
    found, speed = raw.get("profile"), rates(raw, of)
    if not found or speed is None:
        return None
    return sum(kernel_limit(k, found["cold_weights"], *speed) for k in found["kernels"])


def share(raw: Raw, of: str = "median_ms") -> float | None:
    """The limit over dp's time, both by medians or both by least times."""
    found, measured = limit(raw, of), row(raw, "dp").get(of)
    return found / measured if found and measured else None


def missing(raw: Raw) -> str:
    """The families whose kernels lose most against their limits: dp's least time, divided as the profile's is."""
    found, speed = raw["profile"], rates(raw, "min_ms")
    assert speed is not None
    scale = row(raw, "dp")["min_ms"] / found["latency_ms"]
    lost: dict[str, list[float]] = {}
    for kernel in found["kernels"]:
        entry = lost.setdefault(kernel["family"] or "outside every family", [0.0, 0.0, 0.0])
        entry[0] += scale * kernel["total_ms"] - kernel_limit(kernel, found["cold_weights"], *speed)
        entry[1] += scale * kernel["total_ms"]
        entry[2] += kernel["calls"]
    worst = sorted(lost.items(), key=lambda item: -item[1][0])[:4]
    beside = scale * (found["latency_ms"] - sum(k["total_ms"] for k in found["kernels"]))
    parts = [
        f"{family} {over:.2f} of {whole:.2f} ms ({calls:.0f})" for family, (over, whole, calls) in worst if over > 0
    ]
    return "; ".join([*parts, f"beside the kernels {beside:.2f} ms"])


def limit_table(raws: Sequence[tuple[str, Raw]]) -> str:
    """Limit, share of it by medians and by least times, and what is missing where either is below the goal."""
    rows = []
    for name, raw in raws:
        speed, shares = rates(raw), [share(raw), share(raw, "min_ms")]
        best = rates(raw, "min_ms")
        cold = (raw.get("profile") or {}).get("cold_weights")
        known = [s for s in shares if s is not None]
        rows.append(
            [
                name,
                number(row(raw, "dp").get("median_ms")),
                number(limit(raw)),
                *(number(s and 100 * s, "{:.0f} %") for s in shares),
                f"{speed[0] / 1e9:.0f}, {best[0] / 1e9:.0f}" if speed and best else "–",
                f"{speed[1] / 1e9:.0f}, {best[1] / 1e9:.0f}" if speed and best else "–",
                "–" if cold is None else "memory" if cold else "cache",
                missing(raw) if known and min(known) < GOAL else "",
            ]
        )
    headings = ["dp, ms", "limit, ms", "limit / dp", "least / least", "sgemm, GFLOP/s", "memory, GB/s", "weights from"]
    return table(["network", *headings, f"over their limits, by family (kernels), below {GOAL:.0%}"], rows)
