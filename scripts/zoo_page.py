"""Raw results of the zoo's networks (scripts/bench_zoo.py) → the Markdown page docs/results.md. Nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from zoo_limits import limit_table

from autofuse.report.results import geometric_mean, machine_text, number, table

Raw = Mapping[str, Any]
#: The article's four networks, dp over greedy; its compile time over greedy's.
ARTICLE_SPEEDUPS = (1.34, 1.26, 1.33, 1.37)
ARTICLE_COMPILE = 1.35
#: The paper's gains in fusion ratio and in latency.
PAPER_FUSION = 1.27
PAPER_LATENCY = 1.75
TOLERANCE = 1e-3
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
    """The row's heading."""
    return f"{raw['network']}" if raw["batch"] == 1 else f"{raw['network']}, batch {raw['batch']}"


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


def reason(raw: Raw) -> str:
    """What dp's plan does that greedy's does not, in numbers out of both plans."""
    dp, greedy = compiled(raw, "dp"), compiled(raw, "greedy")
    if not dp or not greedy:
        failed = {s: c["error"] for s, c in raw["compiles"].items() if "error" in c}
        return "; ".join(f"{s} did not compile: {e}" for s, e in failed.items()) or "not compiled under both"
    home = {m: i for i, group in enumerate(greedy["groups"]) for m in group["members"]}
    labels = [group["label"] for group in greedy["groups"]]
    whole = sum(group["seconds"] for group in greedy["groups"])
    joined: Counter[str] = Counter()
    touched: set[int] = set()
    split = len({frozenset(g["members"]) for g in greedy["groups"]} - {frozenset(g["members"]) for g in dp["groups"]})
    for group in dp["groups"]:
        parts = list(dict.fromkeys(home[m] for m in group["members"]))
        if len(parts) > 1:
            joined[" | ".join(labels[p] for p in parts)] += 1
            touched.update(parts)
    if not joined:
        text = f"no kernel of dp spans two of greedy's ({split} of greedy's {len(labels)} differ)"
    else:
        share = 100 * sum(greedy["groups"][p]["seconds"] for p in touched) / whole if whole else 0.0
        common = ", ".join(f"{count} × `{label[:110]}`" for label, count in joined.most_common(3))
        text = (
            f"{sum(joined.values())} kernels of dp span several of greedy's {len(labels)}, which make up {share:.0f} %"
            f" of greedy's predicted time; most often {common}"
        )
    saved = 1 - dp["handed_on_bytes"] / greedy["handed_on_bytes"] if greedy["handed_on_bytes"] else 0.0
    hoped = greedy["predicted_ms"] / dp["predicted_ms"]
    got = over_dp(raw, "greedy")
    return f"{text}. Bytes handed on: {-100 * saved:+.0f} %; greedy / dp predicted {hoped:.2f}, measured {number(got)}."


def noise(raw: Raw) -> float:
    """Half the interquartile distance of greedy / dp over the rounds."""
    return float((rival(raw, "greedy") or row(raw, "greedy")).get("ratio_iqr") or 0.0) / 2


def expectations(raws: Sequence[Raw]) -> str:
    """Each expectation with the networks that miss it."""

    def verdict(text: str, missed: list[str], unknown: list[str]) -> str:
        if len(unknown) == len(raws):
            return f"- {text}: not measured."
        state = "missed by " + ", ".join(missed) if missed else "holds"
        return f"- {text}: {state}" + (f" (not measured: {', '.join(unknown)})" if unknown else "") + "."

    def check(text: str, value: Any, good: Any, show: str = "{:.2f}") -> str:
        found = [(raw, value(raw)) for raw in raws]
        missed = [f"{name(raw)} ({show.format(v)})" for raw, v in found if v is not None and not good(raw, v)]
        return verdict(text, missed, [name(raw) for raw, v in found if v is None])

    return "\n".join(
        [
            check(
                f"largest error under {TOLERANCE:g} of the largest output",
                largest_error,
                lambda _, v: v < TOLERANCE,
                "{:.1e}",
            ),
            check(
                "dp not slower than greedy beyond noise (median of greedy / dp over the rounds, half its"
                " interquartile distance as noise)",
                lambda raw: over_dp(raw, "greedy"),
                lambda raw, v: v + max(noise(raw), 0.01) >= 1.0,
            ),
            check("at least 20 × faster than tvm-greedy", lambda raw: over_dp(raw, "tvm-greedy"), lambda _, v: v >= 20),
            check("within 2 × of the fastest peer", over_fastest_peer, lambda _, v: v <= 2.0),
            check(
                "search under 10 % of the whole compile, and under 2 s",
                lambda raw: (
                    (s := compiled(raw, "dp").get("seconds")) and max(s["search"] / 2, 10 * s["search"] / s["total"])
                ),
                lambda _, v: v < 1.0,
                "{:.2f} of the limit",
            ),
        ]
    )


def published(raws: Sequence[Raw]) -> str:
    """The figures of the paper and of the article beside these."""
    fusion = geometric_mean(fusion_gain(raw) for raw in raws)
    latency = geometric_mean(over_dp(raw, "greedy") for raw in raws)
    article = ", ".join(f"{v:.2f}" for v in ARTICLE_SPEEDUPS)
    return table(
        ["figure", "published", "here, geometric mean"],
        [
            ["fusion ratio over greedy (paper)", f"{PAPER_FUSION:.2f}", number(fusion)],
            ["greedy / dp (paper)", f"{PAPER_LATENCY:.2f}", number(latency)],
            ["greedy / dp (article, four networks)", article, number(latency)],
            [
                "compile time, dp over greedy (article)",
                f"{ARTICLE_COMPILE:.2f}",
                number(geometric_mean(compile_ratio(raw) for raw in raws)),
            ],
        ],
    )


def error_table(raws: Sequence[Raw]) -> str:
    """Largest error of every engine."""
    engines = ("dp", "greedy", "interval", "none", "tvm-greedy", "openvino", "torch-compile")
    rows = [[name(raw), *(number(row(raw, e).get("max_rel_err"), "{:.1e}") for e in engines)] for raw in raws]
    return table(["network", *engines], rows)


def problems(raws: Sequence[Raw]) -> str:
    """Engines without figures, and groups that had to be taken apart."""
    lines = []
    for raw in raws:
        for engine, why in raw["skipped"].items():
            lines.append(f"- {name(raw)}, {engine}: {why}")
        lines += [f"- {name(raw)}, {r['engine']}: {r['error']}" for r in raw["bench"]["results"] if r["error"]]
        for strategy, found in raw["compiles"].items():
            lines += [f"- {name(raw)}, {strategy}: {w}" for w in found.get("warnings", [])]
    return "\n".join(lines) or "None."


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


def machines(raws: Sequence[Raw]) -> str:
    """The machine, or each of them with its networks."""
    found: dict[str, list[str]] = {}
    for raw in raws:
        found.setdefault(machine_text(raw["machine"]), []).append(name(raw))
    if len(found) == 1:
        return next(iter(found))
    return "\n\n".join(f"{', '.join(names)}: {text}" for text, names in found.items())


LEARNED = (
    "From runs of their own (`scripts/bench_learned.py`), batch 1, the five taking turns: dp with the predictor and the"
    " records that come along, dp with the predictor alone, dp with the analytical model, greedy under either model."
    " Ratios are medians over the rounds, of an engine's time over that of dp with predictor and records; predicted"
    " over measured is that of the same plan."
)


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
                *(number(found[way].get("kernels"), "{:d}") for way in ways[:3]),
                number(first["predicted_ms"] / measured if measured else None),
                ", ".join(f"{count} {source}" for source, count in first["cost_sources"].items()),
            ]
        )
    means = [geometric_mean(raw["ways"][way].get("ratio") for raw in learned) for way in ways[1:]]
    rows.append(["geometric mean", "", *(number(mean, "{:.3f}") for mean in means), "", "", "", "", ""])
    headings = ["network", f"{ways[0]}, ms", *ways[1:], *(f"kernels, {way}" for way in ways[:3])]
    return table([*headings, "predicted / measured", "costs from"], rows)


def page(raws: Sequence[Raw], learned: Sequence[Raw] = ()) -> str:
    """The whole page."""
    if not raws:
        return "# Results\n\nNothing was measured yet: run `python scripts/bench_zoo.py`.\n"
    single = [raw for raw in raws if raw["batch"] == 1]
    large = [raw for raw in raws if raw["batch"] > 1]
    threads = sorted({raw["threads"] for raw in raws})
    parts = [
        "# Results",
        "Written by `scripts/bench_zoo.py` from docs/results/*.json; not to be edited.",
        "## Machine and method",
        machines(raws),
        f"Every engine ran with {' or '.join(map(str, threads))} threads in a process of its own, on the same inputs;"
        " they took turns round by round, in an order that rotates, with a pause before each turn, and threads that"
        " wait do not spin. A fixed kernel on all threads runs before and after each turn: while it takes over 1.5"
        " times its best time a neighbour has part of the machine, and the turn is put off or repeated, up to four"
        " times; turns that stay disturbed count only where there are no others. A latency is the median of the calls"
        " that count, ± half the distance between the quartiles; a ratio is the median over the rounds that both"
        " engines were in."
        " A slow engine gets fewer rounds. greedy / dp comes from a run of the two alone, in many short turns, since"
        " they differ by less than the machine does between longer ones. `greedy` is TVM's own partition (FuseOps),"
        " `none` leaves every operator alone, `interval` is a DP over intervals of one order; all have the schedules"
        " and the costs of `dp`. `tvm-greedy` is TVM's default pipeline. Weights are random, so are inputs. Compile"
        " times are those of a process that compiled a tiny model before, from the model's name to the saved file;"
        " under dp and greedy the median where there were several compiles.",
        "## Batch 1",
        "### Latency",
        latency_table(single),
        "### Fusion",
        "Fusion ratio: operators before fusion over kernels launched. Handed on: bytes of intermediates that kernels"
        " write for, or read from, other kernels.",
        fusion_table(single),
        "### Compiling",
        "Search includes mapping analysis, enumeration and costing of candidates.",
        compile_table(single),
    ]
    if large:
        parts += [
            "## Beyond the last-level cache",
            "The batch is the smallest power of two at which over half of the bytes between unfused kernels belong to"
            " kernels whose activations (inputs and outputs together) are larger than L3: there, fusion keeps"
            " tensors out of memory and not just out of a cache.",
            latency_table(large),
            fusion_table(large),
            compile_table(large),
        ]
    parts += [
        *(["## Learned costs", LEARNED, learned_table(learned)] if learned else []),
        "## The machine's limit",
        "A kernel's limit is the arithmetic that its schedule executes (after Winograd) at the rate of the matrix"
        " product that ran in the same rounds, or, where the network's weights do not stay in the last cache, its"
        " weights at the rate of the copy, if that is longer; a network's is the sum over its kernels. What is over"
        " the limits is out of a profile by kernel, taken after the run.",
        limit_table([(name(raw), time_of(raw, "dp"), raw) for raw in raws]),
        "## Published figures",
        "At batch 1. The published ones come from other machines and other baselines.",
        published(single),
        *(["At the larger batches:", published(large)] if large else []),
        "## What was expected",
        expectations(raws),
        "## Why, network by network",
        "\n".join(f"- **{name(raw)}**: {reason(raw)}" for raw in raws),
        "## Errors",
        "Largest difference from ONNX Runtime's output, relative to the largest output.",
        error_table(raws),
        "## The machine meanwhile",
        "Two fixed kernels timed in every round: a matrix product, and a copy of 64 MB. Spread: distance of the"
        " quartiles over the median.",
        probes(raws),
        "## Left out, failed, or taken apart",
        problems(raws),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
