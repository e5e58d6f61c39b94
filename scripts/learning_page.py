"""Writes docs/learning.md from data/ and models/: what was learned, how good it is, the thresholds, the strategies.

Usage: python scripts/learning_page.py [--strategies]

The evaluation is that of `autofuse evaluate --save` (models/cpu/evaluation.json), the study's report that of `autofuse
tune --json` (docs/results/tuning.json), docs/results/order.json is of scripts/order_trials.py. --strategies plans the
networks of data/plans anew with dp, hybrid and greedy (docs/results/strategies.json); what compiles take is taken from
docs/results/NETWORK-b1.json. scripts/learn.sh does all of it in order.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.cost.model import CostModel
    from autofuse.learn.plans import NetworkPlans

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))
PREDICTOR = ROOT / "models" / "cpu"
RESULTS = ROOT / "docs" / "results"
STRATEGIES = RESULTS / "strategies.json"
ORDER = RESULTS / "order.json"
PAGE = ROOT / "docs" / "learning.md"
#: What hybrid should keep of dp's gain, and may add to greedy's compile.
KEPT, ADDED = 0.90, 0.15
#: Shares of what choices promise that hybrid is tried with; what it takes by default is `Thresholds.hybrid_share`.
SHARES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
#: Share of the best plan's cost within which dp and hybrid take the plan with fewer kernels (`DPStrategy.tie`).
TIE = 0.01
#: Latencies that are less than this share apart are near ties.
NEAR = 0.05
_REPEATS = 3


def strategies() -> dict[str, Any]:
    """Plan cost and search seconds of each network of data/plans by strategy, with records and predictor."""
    import replay

    from autofuse.learn.replay_plans import read
    from autofuse.search.strategies import strategy

    found: dict[str, Any] = {}
    for path in sorted(replay.PLANS.glob("*.json.gz")):
        known = read(path)
        digest, hardware = replay.hardware_of(known.hardware)
        network = known.network(hardware, replay.thresholds())
        costs = replay.costs_of(network, digest)
        rows: dict[str, Any] = {}
        for name in ("greedy", "hybrid", "dp"):
            best = float("inf")
            for _ in range(_REPEATS):
                # What a search finds out about its choices stays with them, and no compile finds it there.
                problem = network.problem(costs)
                start = time.perf_counter()
                result = strategy(name, hardware=hardware).search(problem)
                best = min(best, time.perf_counter() - start)
            rows[name] = {"ms": 1e3 * network.predicted(result, costs), "seconds": best, "kernels": len(result.choices)}
        rows["shares"] = shares(network, costs)
        found[known.name] = rows
    return found


def shares(network: NetworkPlans, costs: CostModel) -> dict[str, dict[str, float]]:
    """Plan cost and search seconds of hybrid by `hybrid_share`."""
    from autofuse.search.strategies import strategy

    found = {}
    for share in SHARES:
        problem = network.problem(costs)
        problem = replace(problem, thresholds=replace(problem.thresholds, hybrid_share=share))
        start = time.perf_counter()
        result = strategy("hybrid", hardware=network.hardware).search(problem)
        seconds = time.perf_counter() - start
        found[f"{share:g}"] = {"ms": 1e3 * network.predicted(result, costs), "seconds": seconds}
    return found


def shares_part(found: Mapping[str, Any]) -> str:
    """What hybrid keeps of dp's gain, and adds to greedy's compile, by the share of promises that it goes after."""
    from autofuse.report.results import number, table

    rows = []
    for share in next(iter(found.values()))["shares"]:
        kept, added = [], []
        for name, row in found.items():
            gain, one = row["greedy"]["ms"] - row["dp"]["ms"], row["shares"][share]
            kept += [(row["greedy"]["ms"] - one["ms"]) / gain] if gain > 0 else []
            whole = whole_compile(name)
            added += [(one["seconds"] - row["greedy"]["seconds"]) / whole] if whole else []
        good = f"{sum(k >= KEPT for k in kept)} of {len(kept)}"
        cells = (100 * min(kept) if kept else None, 100 * sum(kept) / len(kept) if kept else None)
        most = 100 * max(added) if added else None
        rows.append([share, good, *(number(c, "{:.0f} %") for c in cells), number(most, "{:.1f} %")])
    headings = ["hybrid_share", f"networks with {100 * KEPT:.0f} % of dp's gain", "the least", "mean", "adds at most"]
    return table(headings, rows)


def whole_compile(name: str) -> float | None:
    """Seconds of greedy's compile of a network, None where it was not timed."""
    raw = RESULTS / f"{name}-b1.json"
    compiles = json.loads(raw.read_text(encoding="utf-8"))["compiles"] if raw.exists() else {}
    seconds: float | None = compiles.get("greedy", {}).get("seconds", {}).get("total")
    return seconds


def features_table() -> str:
    """Every feature with its unit."""
    from autofuse.cost import FEATURES
    from autofuse.report.results import table

    return table(["feature", "unit", "meaning"], [[f"`{f.name}`", f.unit, f.meaning] for f in FEATURES])


def strategies_part(found: Mapping[str, Any]) -> str:
    """dp, hybrid and greedy by network: predicted latency, and what searching adds to a compile."""
    from autofuse.report.results import number, table

    rows = []
    gains, kept, added = [], [], []
    for name, row in found.items():
        whole = whole_compile(name)
        gain = row["greedy"]["ms"] - row["dp"]["ms"]
        part = (row["greedy"]["ms"] - row["hybrid"]["ms"]) / gain if gain > 0 else None
        more = {s: (row[s]["seconds"] - row["greedy"]["seconds"]) / whole if whole else None for s in ("hybrid", "dp")}
        if part is not None:
            gains.append(gain / row["greedy"]["ms"])
            kept.append(part)
        added += [more["hybrid"]] if more["hybrid"] is not None else []
        rows.append(
            [
                name,
                *(number(row[s]["ms"], "{:.3f}") for s in ("greedy", "hybrid", "dp")),
                number(None if part is None else 100 * part, "{:.0f} %"),
                *(number(None if m is None else 100 * m, "{:.1f} %") for m in more.values()),
            ]
        )
    headings = ["network", "greedy, ms", "hybrid, ms", "dp, ms", "hybrid keeps of dp's gain", "hybrid adds", "dp adds"]
    parts = [table(headings, rows)]
    if kept:
        good, large = sum(k >= KEPT for k in kept), [k for k, g in zip(kept, gains, strict=True) if g >= TIE]
        parts.append(
            f"Hybrid keeps at least {100 * KEPT:.0f} % of dp's gain on {good} of {len(kept)} networks. Both settle for"
            f" fewer kernels where that costs less than {100 * TIE:g} %, so that shares of smaller gains say little: of"
            f" the {len(large)} networks where dp gains more, hybrid keeps that much on"
            f" {sum(k >= KEPT for k in large)}"
            + (f", at least {100 * min(large):.0f} %" if large else "")
            + ". dp's gain is"
            f" {100 * sum(gains) / len(gains):.1f} % of greedy's predicted latency on average.\n"
        )
    if added:
        parts.append(
            f"Hybrid's search adds {100 * max(added):.1f} % to greedy's compile at most (wanted: {100 * ADDED:.0f}"
            " %).\n"
        )
    if all("shares" in row for row in found.values()):
        parts.append(shares_part(found))
    return "\n".join(parts)


def card_part(card: Mapping[str, Any]) -> str:
    """What was trained on."""
    data, training = card["data"], card["training"]
    trees = sum(m["trees"] for m in card["members"])
    parts = [
        f"Trained on {data['records']} records ({data['rows']} latencies, {data['cold_rows']} with cold weights)"
        f" of {data['workloads']} workloads of {', '.join(data['models'])}; data hash `{data['hash']}`, features of"
        f" version {card['features']['version']}, {training['members']} members, {trees} trees. They are of"
        f" {hardware_text(card)}. The card is [models/cpu/card.md](../models/cpu/card.md).\n",
        failures_part(card),
    ]
    if training.get("tried"):
        parts.append(
            f"The settings of the trees are the best of {training['tried']} that were tried, by errors on held-out"
            " workloads of the same records: that choice flatters the errors below on held-out workloads, networks and"
            " families a little, those on unseen networks not.\n"
        )
    parts.append(
        "When the analytical model answers instead of the trees (`learn/predictor.py`), which tuned thresholds are"
        " taken (`search/tuning.py`) and how deep trees may be was decided after figures of unseen networks were seen,"
        " too: they are a little better than those of networks that nobody ever looked at would be.\n"
    )
    return "\n".join(parts)


def hardware_text(card: Mapping[str, Any]) -> str:
    """The hardware rows that were trained on with their records, most first."""
    from autofuse.records.machines import machine_name

    rows = sorted(card["hardware"], key=lambda h: (-h["records"], h["digest"]))
    described = ((h, h["description"]) for h in rows)
    return ", ".join(f"{machine_name(d['name'], d['isa'], d['cores'])} ({h['records']})" for h, d in described)


def failures_part(card: Mapping[str, Any]) -> str:
    """What was learned of candidates that do not build, run or give the right numbers."""
    failed, scores = card["data"]["failures"], card["checks"]["failures"]
    if scores is not None:
        return (
            f"{failed} candidates failed. A classifier prunes those that are expected to: it finds"
            f" {100 * scores['found']:.0f} % of the failures of workloads that it did not see, and loses"
            f" {100 * scores['lost']:.1f} % of what works.\n"
        )
    if not failed:
        return "No candidate failed: there was nothing to train a classifier of failures on, and nothing is pruned.\n"
    return (
        f"{failed} candidates failed, too few or too much like the others to be told from them: no classifier of"
        " failures was trained, and nothing is pruned.\n"
    )


def order_part(order: Mapping[str, Any]) -> str:
    """Why configurations of one workload are not always put in their order, and what was tried."""
    from autofuse.report.results import number, table

    total = sum(row["pairs"] for row in order["pairs"])
    rows = [
        [
            f"{100 * row['from']:g} to {100 * row['to']:g} %" if row["to"] else f"{100 * row['from']:g} % and more",
            number(100 * row["pairs"] / total, "{:.0f} %"),
            number(None if row["right"] is None else 100 * row["right"], "{:.0f} %"),
        ]
        for row in order["pairs"]
    ]
    near = 100 * sum(row["pairs"] for row in order["pairs"] if row["from"] < NEAR) / total
    tried = [
        [
            name,
            *(number(row[part]["tau_within"], "{:.3f}") for part in ("held", "unseen")),
            *(number(None if (e := row[part]["mape"]) is None else 100 * e, "{:.1f} %") for part in ("held", "unseen")),
        ]
        for name, row in order["objectives"].items()
    ]
    return "\n".join(
        [
            f"Of the pairs of configurations of one workload of unseen networks, {near:.0f} % are less than"
            f" {100 * NEAR:g} % apart. Two measurements tell most of these apart; a prediction that errs by several"
            " per cent cannot. Trees alone, in the right order by how far apart the two are:\n",
            table(["apart", "share of the pairs", "in the right order"], rows),
            "What was tried (`scripts/order_trials.py`): other objectives for the same trees, and trees that learn"
            " nothing but the order. tau within a workload, and MAPE, of trees alone:\n",
            table(["objective", "tau, held out", "tau, unseen", "MAPE, held out", "MAPE, unseen"], tried),
        ]
    )


def page(
    card: Mapping[str, Any],
    summary: Mapping[str, Any],
    study: Mapping[str, Any] | None,
    found: Any,
    order: Mapping[str, Any] | None = None,
) -> str:
    """docs/learning.md."""
    from autofuse.report.learning import evaluation_page, study_page

    parts: Sequence[str] = [
        "# Learning\n",
        "Written by `scripts/learning_page.py` from data/ and models/; not to be edited.\n",
        card_part(card),
        "![predicted against measured](../models/cpu/predicted.svg)\n",
        evaluation_page(summary, "## Evaluation\n").replace("\n## ", "\n### "),
        *(["### Order within a workload\n", order_part(order)] if order is not None else []),
        *(["## Thresholds\n", study_page(study)] if study is not None else []),
        *(["## Strategies\n", strategies_part(found)] if found is not None else []),
        "## Features\n",
        "`log2 x` means log2(1 + x), `ln s` the natural logarithm of seconds.\n",
        features_table(),
    ]
    return "\n".join(parts)


def main() -> int:
    """Plan with each strategy if asked, then write the page."""
    from autofuse.report.results import write_json, write_text

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", action="store_true", help="plan with dp, hybrid and greedy anew")
    options = parser.parse_args()
    if options.strategies:
        from raw_results import refuse_others

        # Searches that are timed here stand over compiles that were timed then.
        refuse_others(RESULTS.glob("*-b1.json"))
        write_json(STRATEGIES, strategies())

    def there(path: Path) -> Any:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    card, summary = there(PREDICTOR / "card.json"), there(PREDICTOR / "evaluation.json")
    if card is None or summary is None:
        raise SystemExit(f"{PREDICTOR} holds no evaluated predictor: run scripts/learn.sh")
    write_text(PAGE, page(card, summary, there(RESULTS / "tuning.json"), there(STRATEGIES), there(ORDER)))
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
