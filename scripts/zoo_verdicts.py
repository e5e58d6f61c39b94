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
from zoo_limits import GOAL, share

from autofuse.report.results import geometric_mean, number, table

#: The article's four networks, dp over greedy; its compile time over greedy's.
ARTICLE_SPEEDUPS = (1.34, 1.26, 1.33, 1.37)
ARTICLE_COMPILE = 1.35
#: The paper's gains in fusion ratio and in latency.
PAPER_FUSION = 1.27
PAPER_LATENCY = 1.75
PAPER_NETWORKS = ("vgg16", "efficientnet_b0", "mobilenet_v1", "yolov4")
TOLERANCE = 1e-3
#: The fastest peer over dp, geometric mean.
PEER_GOAL = 1.5
#: Seconds from ONNX to the saved file.
COMPILE_LIMITS = {"resnet50": 15.0, "yolov4": 40.0}


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
            check("not slower than the fastest peer", over_fastest_peer, lambda _, v: v <= 1.0),
            mean_over_peers(raws),
            check(
                f"{GOAL:.0%} of the machine's limit, by medians and by least times (what is missing: the table above)",
                worst_share,
                lambda _, v: v >= GOAL,
            ),
            check(
                "ResNet-50 compiled in under 15 s, YOLOv4 in under 40 s (share of the limit)",
                lambda raw: (
                    (s := compiled(raw, "dp").get("seconds")) and s["total"] / COMPILE_LIMITS[raw["network"]]
                    if raw["network"] in COMPILE_LIMITS
                    else 0.0
                ),
                lambda _, v: v < 1.0,
            ),
            fusion_over_greedy(raws),
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


def worst_share(raw: Raw) -> float | None:
    """The lesser of the shares of the limit by medians and by least times."""
    known = (share(raw, of) for of in ("median_ms", "min_ms"))
    return min((s for s in known if s is not None), default=None)


def mean_over_peers(raws: Sequence[Raw]) -> str:
    """The fastest peer over dp, geometric mean over the networks at batch 1, against its goal."""
    found = [1 / v for raw in raws if raw["batch"] == 1 and (v := over_fastest_peer(raw))]
    mean = geometric_mean(found)
    if mean is None:
        return "- the fastest peer over dp: not measured."
    text = f"{PEER_GOAL:g} × the fastest peer, geometric mean of {len(found)} networks at batch 1"
    if mean >= PEER_GOAL:
        return f"- {text}: holds ({mean:.2f})."
    below = sorted((1 / v, name(raw)) for raw in raws if raw["batch"] == 1 and (v := over_fastest_peer(raw)))
    under = ", ".join(f"{who} ({v:.2f})" for v, who in below if v < PEER_GOAL)
    return f"- {text}: missed ({mean:.2f}); below it {under}. Why: docs/kernels.md, what is not reached."


def fusion_over_greedy(raws: Sequence[Raw]) -> str:
    """dp's fusion ratio over greedy's, averaged over the paper's networks at batch 1, against the paper's."""
    found = {name(r): v for r in raws if name(r) in PAPER_NETWORKS and (v := fusion_gain(r)) is not None}
    text = f"fusion ratio {100 * (PAPER_FUSION - 1):.0f} % above greedy's on average over {', '.join(PAPER_NETWORKS)}"
    if len(found) < len(PAPER_NETWORKS):
        return f"- {text}: not measured."
    mean = sum(found.values()) / len(found)
    each = ", ".join(f"{v:.2f}" for v in (found[n] for n in PAPER_NETWORKS))
    return f"- {text}: {'holds' if mean >= PAPER_FUSION else 'missed'} ({mean:.2f}: {each})."


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
