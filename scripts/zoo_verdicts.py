"""Raw results of the zoo's networks → what they say: why dp is faster, what was expected of it, what was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from zoo_figures import (
    Raw,
    compile_ratio,
    compiled,
    fusion_gain,
    largest_error,
    name,
    noise,
    over_dp,
    over_fastest_peer,
)

from autofuse.report.results import geometric_mean, number, table

#: The article's four networks, dp over greedy; its compile time over greedy's.
ARTICLE_SPEEDUPS = (1.34, 1.26, 1.33, 1.37)
ARTICLE_COMPILE = 1.35
#: The paper's gains in fusion ratio and in latency.
PAPER_FUSION = 1.27
PAPER_LATENCY = 1.75
TOLERANCE = 1e-3


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
