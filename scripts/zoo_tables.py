"""Raw results of the zoo's networks (scripts/bench_zoo.py) → Markdown tables with a row for each network."""

from __future__ import annotations

from collections.abc import Sequence

from zoo_figures import (
    PEERS,
    Raw,
    compile_ratio,
    compiled,
    fusion_gain,
    name,
    over_dp,
    over_fastest_peer,
    row,
    time_of,
)

from autofuse.report.results import geometric_mean, number, table


def with_spread(raw: Raw, engine: str) -> str:
    """dp's milliseconds with half the distance of the quartiles."""
    found = row(raw, engine)
    return f"{found['median_ms']:.2f} ±{found['iqr_ms'] / 2:.2f}" if found else "–"


def latency_table(raws: Sequence[Raw]) -> str:
    """Milliseconds, and the others over dp."""
    others = ("greedy", "interval", "none", "tvm-greedy")
    rows = [
        [
            name(raw),
            with_spread(raw, "dp"),
            *(number(over_dp(raw, e)) for e in others),
            *(number(time_of(raw, e)) for e in PEERS),
            number(over_fastest_peer(raw)),
        ]
        for raw in raws
    ]
    means = [geometric_mean(over_dp(raw, e) for raw in raws) for e in others]
    mean = geometric_mean(over_fastest_peer(raw) for raw in raws)
    rows.append(["geometric mean", "", *(number(m) for m in means), "", "", "", number(mean)])
    return table(
        ["network", "dp, ms", *(f"{e} / dp" for e in others), *(f"{e}, ms" for e in PEERS), "dp / fastest peer"], rows
    )


def fusion_table(raws: Sequence[Raw]) -> str:
    """Kernels, fusion ratios, bytes handed on."""
    strategies = ("dp", "greedy", "interval")
    rows = []
    for raw in raws:
        done = {s: compiled(raw, s) for s in (*strategies, "none")}
        moved = {s: found.get("handed_on_bytes") for s, found in done.items()}
        rows.append(
            [
                name(raw),
                number(done["none"].get("operators") or done["dp"].get("operators"), "{:d}"),
                *(number(done[s].get("kernels"), "{:d}") for s in (*strategies, "none")),
                number(row(raw, "tvm-greedy").get("kernels"), "{:d}"),
                *(number(done[s].get("fusion_ratio")) for s in strategies),
                number(fusion_gain(raw)),
                *(
                    number(None if b is None else b / 1e6, "{:.1f}")
                    for b in (moved[s] for s in done if s != "interval")
                ),
            ]
        )
    mean = geometric_mean(fusion_gain(raw) for raw in raws)
    rows.append(["geometric mean", *[""] * 9, number(mean), "", "", ""])
    return table(
        [
            "network",
            "operators",
            *(f"kernels, {s}" for s in (*strategies, "none", "tvm-greedy")),
            *(f"fusion ratio, {s}" for s in strategies),
            "dp over greedy",
            "handed on, dp, MB",
            "greedy, MB",
            "none, MB",
        ],
        rows,
    )


def compile_table(raws: Sequence[Raw]) -> str:
    """Compile seconds, search, and how good the predictions were."""
    rows = []
    for raw in raws:
        dp, greedy = compiled(raw, "dp"), compiled(raw, "greedy")
        seconds = dp.get("seconds", {})
        share = seconds["search"] / seconds["total"] if seconds else None
        predicted = []
        for strategy in ("dp", "greedy", "none"):
            measured, found = time_of(raw, strategy), compiled(raw, strategy)
            predicted.append(found["predicted_ms"] / measured if found and measured else None)
        search = dp.get("search", {})
        proved = {True: "yes", False: "no"}.get(search.get("proved_optimal"), "–")
        rows.append(
            [
                name(raw),
                number(seconds.get("total")),
                number(greedy.get("seconds", {}).get("total")),
                number(compile_ratio(raw)),
                number(seconds.get("search")),
                number(None if share is None else 100 * share, "{:.1f} %"),
                number(search.get("states"), "{:d}"),
                proved,
                *(number(p) for p in predicted),
            ]
        )
    mean = geometric_mean(compile_ratio(raw) for raw in raws)
    predictions = [
        geometric_mean(
            compiled(raw, s)["predicted_ms"] / t for raw in raws if compiled(raw, s) and (t := time_of(raw, s))
        )
        for s in ("dp", "greedy", "none")
    ]
    rows.append(["geometric mean", "", "", number(mean), "", "", "", "", *(number(p) for p in predictions)])
    return table(
        [
            "network",
            "compile, dp, s",
            "greedy, s",
            "dp / greedy",
            "search, s",
            "share of search",
            "states",
            "proved optimal",
            *(f"predicted / measured, {s}" for s in ("dp", "greedy", "none")),
        ],
        rows,
    )


def error_table(raws: Sequence[Raw]) -> str:
    """Largest error of every engine."""
    engines = ("dp", "greedy", "interval", "none", "tvm-greedy", "openvino", "torch-compile")
    rows = [[name(raw), *(number(row(raw, e).get("max_rel_err"), "{:.1e}") for e in engines)] for raw in raws]
    return table(["network", *engines], rows)


def probes(raws: Sequence[Raw]) -> str:
    """How quiet the machine was."""
    kinds = ("arithmetic", "memory")
    rows = [
        [
            name(raw),
            *(number((p := raw["bench"]["probe"].get(k)) and p["median_ms"]) for k in kinds),
            *(
                number((p := raw["bench"]["probe"].get(k)) and 100 * p["iqr_ms"] / p["median_ms"], "{:.0f} %")
                for k in kinds
            ),
            number(row(raw, "dp").get("rounds"), "{:d}"),
            number(row(raw, "tvm-greedy").get("rounds"), "{:d}"),
            f"{raw['seconds']:.0f}",
        ]
        for raw in raws
    ]
    headings = ["network", *(f"{k}, ms" for k in kinds), *(f"{k}, spread" for k in kinds)]
    return table([*headings, "rounds, dp", "rounds, tvm-greedy", "whole run, s"], rows)


def learned_table(learned: Sequence[Raw]) -> str:
    """A row for each network, a column for each way to choose its plan."""
    ways = list(learned[0]["ways"])
    rows = []
    for raw in learned:
        found = raw["ways"]
        first = found[ways[0]]
        measured = first.get("median_ms")
        rows.append(
            [
                raw["network"],
                number(measured, "{:.3f}"),
                *(number(found[way].get("ratio"), "{:.3f}") for way in ways[1:]),
                *(number(found[way].get("kernels"), "{:d}") for way in ways[:4]),
                number(first["predicted_ms"] / measured if measured else None),
                number(_searching(found[ways[1]]), "{:.1f} %"),
                ", ".join(f"{count} {source}" for source, count in first["cost_sources"].items()),
            ]
        )
    means = [geometric_mean(raw["ways"][way].get("ratio") for raw in learned) for way in ways[1:]]
    rows.append(["geometric mean", "", *(number(mean, "{:.3f}") for mean in means), *[""] * 7])
    headings = ["network", f"{ways[0]}, ms", *ways[1:], *(f"kernels, {way}" for way in ways[:4])]
    return table([*headings, "predicted / measured", f"search's share, {ways[1]}", "costs from"], rows)


def _searching(made: Raw) -> float | None:
    """Percent of a compile that its search took."""
    seconds = made.get("seconds")
    return 100 * seconds["search"] / seconds["total"] if seconds else None
