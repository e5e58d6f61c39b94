"""Raw results of a network (scripts/bench_zoo.py) → single figures: times, ratios, gains. Nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = Mapping[str, Any]
PEERS = ("onnxruntime", "openvino", "torch-compile")


def row(raw: Raw, engine: str) -> dict[str, Any]:
    """An engine's row, empty where it did not run or failed."""
    found = next((r for r in raw["bench"]["results"] if r["engine"] == engine), None)
    return dict(found) if found and found["median_ms"] else {}


def time_of(raw: Raw, engine: str) -> float | None:
    """Median milliseconds."""
    value = row(raw, engine).get("median_ms")
    return float(value) if value else None


def rival(raw: Raw, engine: str) -> dict[str, Any]:
    """An engine's row in the run of dp against greedy alone, empty if it was not in it."""
    found = next((r for r in (raw.get("duel") or {}).get("results", ()) if r["engine"] == engine), None)
    return dict(found) if found and found["median_ms"] else {}


def over_dp(raw: Raw, engine: str) -> float | None:
    """How many times slower than dp: median of the rounds that both were in, of a run of the two if there is one.

    Of the medians where there was no such round.
    """
    own, base = time_of(raw, engine), time_of(raw, "dp")
    if own is None or base is None:
        return None
    return float((rival(raw, engine) or row(raw, engine)).get("ratio") or own / base)


def noise(raw: Raw) -> float:
    """Half the interquartile distance of greedy / dp over the rounds."""
    return float((rival(raw, "greedy") or row(raw, "greedy")).get("ratio_iqr") or 0.0) / 2


def compiled(raw: Raw, strategy: str) -> dict[str, Any]:
    """What a compile said, empty if it failed."""
    found = raw["compiles"].get(strategy, {})
    return {} if "error" in found else dict(found)


def fusion_gain(raw: Raw) -> float | None:
    """dp's fusion ratio over greedy's."""
    dp, greedy = compiled(raw, "dp"), compiled(raw, "greedy")
    return dp["fusion_ratio"] / greedy["fusion_ratio"] if dp and greedy else None


def compile_ratio(raw: Raw) -> float | None:
    """dp's whole compile over greedy's."""
    dp, greedy = compiled(raw, "dp"), compiled(raw, "greedy")
    return dp["seconds"]["total"] / greedy["seconds"]["total"] if dp and greedy else None


def fastest_peer(raw: Raw) -> float | None:
    """Milliseconds of the fastest peer."""
    return min((t for engine in PEERS if (t := time_of(raw, engine)) is not None), default=None)


def over_fastest_peer(raw: Raw) -> float | None:
    """dp over the fastest peer."""
    dp, peer = time_of(raw, "dp"), fastest_peer(raw)
    return dp / peer if dp and peer else None


def largest_error(raw: Raw) -> float | None:
    """Of autofuse's own builds, relative to the largest output of ONNX Runtime."""
    found = [row(raw, s).get("max_rel_err") for s in ("dp", "greedy", "interval", "none")]
    return max((e for e in found if e is not None), default=None)


def name(raw: Raw) -> str:
    """What the network is called in tables."""
    return f"{raw['network']}" if raw["batch"] == 1 else f"{raw['network']}, batch {raw['batch']}"
