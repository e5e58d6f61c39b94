"""What records of other models are worth to a new one: docs/results/reuse/*.json and docs/reuse.md.

Usage: python scripts/bench_reuse.py [NETWORK...] [--measure TIME] [--budget S] [--again] [--page-only] [--no-transfer]

For each of the unseen networks (data/unseen.db), and for each of those in data/records.db left out in turn: which of
its candidates the store has from other models; and its latency, interleaved, compiled with no measurement of its own,
with `--measure 30s`, with all its records, and greedy. A network that is left out has a predictor trained without what
only it contains. Last, transfer to other hardware: errors there after 0, 50 and 200 of its records. What is there
already is skipped unless named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from autofuse.learn.dataset import Dataset

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RECORDS, UNSEEN = ROOT / "data" / "records.db", ROOT / "data" / "unseen.db"
PREDICTOR = ROOT / "models" / "cpu"
RAW = ROOT / "docs" / "results" / "reuse"
PAGE = ROOT / "docs" / "reuse.md"
SCHEMA = 1
#: What an unseen network with no measurement may take over what it takes with all its records.
GOAL = 1.03
AMOUNTS = (0, 50, 200)
ENGINES = ("none measured", "some measured", "all records", "greedy")


def models_of(path: Path) -> tuple[str, ...]:
    """The models whose kernels a store holds."""
    from autofuse.records import open_store

    with open_store(path, readonly=True) as store:
        return store.stats().models


def without(network: str, folder: Path) -> tuple[Path, Path]:
    """A copy of data/records.db without the records that only this network has, and a predictor trained on it."""
    from autofuse.learn import build_dataset, save_predictor, train_predictor
    from autofuse.learn.evaluation import settings_of
    from autofuse.learn.predictor import read_card
    from autofuse.records import open_store

    db = folder / "others.db"
    with open_store(RECORDS, readonly=True) as source, open_store(db) as store:
        store.merge(source)
        only = {w.key for w in source.workloads() if set(source.models(w.key)) == {network}}
        store.drop([r.digest for r in source.records() if r.workload in only])
        card = read_card(PREDICTOR)
        descriptions = {h.digest: h.description for h in card.hardware}
        data = build_dataset(store, hardware=descriptions, descriptions=descriptions)
    return db, save_predictor(train_predictor(data, settings_of(card)), folder / "predictor")


def shares(network: str, db: Path) -> dict[str, Any]:
    """How much of a network a store knows: of its candidates, its groups, and the kernels of its greedy plan."""
    from autofuse.cost import AnalyticalCostModel
    from autofuse.learn.plans import MeasuredKernels, NetworkPlans
    from autofuse.learn.predictor import read_card
    from autofuse.records import open_store

    known = max(read_card(PREDICTOR).hardware, key=lambda h: h.records)
    plans = NetworkPlans.of_model(network, known.description)
    with open_store(db, readonly=True) as store:
        kernels = MeasuredKernels(store, known.digest)
        candidates = plans.candidates()
        there = np.isfinite(kernels.seconds(candidates, plans.cold)[:, 0])
        greedy = plans.plan(AnalyticalCostModel(known.description, plans.cold), "greedy")
        chosen = [c for c in map(plans.candidate, greedy.choices) if c is not None]
        planned = np.isfinite(kernels.seconds(chosen, plans.cold)[:, 0])
    groups: dict[int, bool] = {}
    for candidate, found in zip(candidates, there, strict=True):
        groups[id(candidate.group)] = groups.get(id(candidate.group), False) or bool(found)
    return {
        "candidates": len(candidates),
        "candidates_known": int(there.sum()),
        "groups": len(groups),
        "groups_known": sum(groups.values()),
        "greedy_kernels": len(chosen),
        "greedy_kernels_known": int(planned.sum()),
    }


def latencies(network: str, db: Path, predictor: Path, everything: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The network compiled in four ways and timed round by round."""
    import autofuse
    from autofuse.bench.runner import run

    with tempfile.TemporaryDirectory(prefix="autofuse-reuse-") as name:
        folder = Path(name)
        asked = folder / "asked.db"
        shutil.copy(db, asked)
        ways: dict[str, dict[str, Any]] = {
            "none measured": {"db": db},
            "some measured": {"db": asked, "measure": options.measure},
            "all records": {"db": everything},
            "greedy": {"db": everything, "strategy": "greedy"},
        }
        executables: dict[str, str] = {}
        made: dict[str, Any] = {}
        for way, arguments in ways.items():
            compiled = autofuse.compile(
                network, **{"strategy": "dp", "cost_model": "learned", "predictor": predictor, **arguments}
            )
            executables[way] = str(folder / f"{way.replace(' ', '-')}.so")
            compiled.save(executables[way])
            made[way] = {
                "kernels": compiled.description["kernels"],
                "recorded": (compiled.description["records"] or {}).get("groups", 0),
                "predicted_ms": compiled.description["predicted_ms"],
                "measuring_s": compiled.description["seconds"].get("measure", 0.0),
            }
        found = run(network, engines=ENGINES, executables=executables, budget=options.budget)
    for row in found.results:
        if row.engine in made:
            made[row.engine] |= {
                "median_ms": row.median_ms,
                "min_ms": row.min_ms,
                "ratio": row.ratio,
                "error": row.error,
            }
    return made


def measure(network: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one network."""
    from autofuse.report.results import machine

    unseen = network in models_of(UNSEEN)
    with tempfile.TemporaryDirectory(prefix="autofuse-reuse-") as name:
        db, predictor = (RECORDS, PREDICTOR) if unseen else without(network, Path(name))
        return {
            "schema": SCHEMA,
            "network": network,
            "unseen": unseen,
            "machine": machine(),
            "shares": shares(network, db),
            "ways": latencies(network, db, predictor, UNSEEN if unseen else RECORDS, options),
        }


def transfer(seed: int = 0, repeats: int = 3) -> list[dict[str, Any]]:
    """Errors on other hardware after some of its records; workloads that are tested are not trained on."""
    from autofuse.learn import build_dataset
    from autofuse.records import open_store

    with open_store(RECORDS, readonly=True) as store:
        data = build_dataset(store)
    rows = []
    for digest in sorted(set(data.hardware)):
        for amount in AMOUNTS:
            found = [transferred(data, digest, amount, seed + number) for number in range(repeats if amount else 1)]
            known = [f for f in found if f is not None]
            if known:
                rows.append({"hardware": digest, "records": amount, **{k: float(np.mean([f[k] for f in known]))
                                                                        for k in known[0]}})  # fmt: skip
    return rows


def transferred(data: Dataset, digest: str, amount: int, seed: int) -> dict[str, float] | None:
    """Errors on half of the workloads of one hardware, from all other hardware and `amount` of its other records."""
    from autofuse.learn import LearnedCostModel, train_predictor
    from autofuse.learn.evaluation import predict_rows, tested
    from autofuse.learn.splits import grouped_folds

    here = np.array([h == digest for h in data.hardware])
    if here.all():
        return None
    fold = grouped_folds(data.workloads, 2, seed)
    extra = np.flatnonzero(here & (fold == 1))
    extra = np.random.default_rng(seed).permutation(extra)[:amount]
    train = np.concatenate([np.flatnonzero(~here & (fold == 1)), extra])
    test = np.flatnonzero(here & (fold == 0))
    trained = train_predictor(data.select(np.sort(train)))
    model = LearnedCostModel(trained.card, trained.files, data.descriptions[digest])
    found = tested([(data, test, predict_rows(model, data, test))])
    learned, scaled = found.models["learned"], found.models["analytical_scaled"]
    return {
        "mape": learned.mape,
        "tau_within": learned.tau_within or 0.0,
        "predicted": found.predicted,
        "analytical_scaled_mape": scaled.mape,
        "analytical_tau_within": scaled.tau_within or 0.0,
    }


def share(known: int, of: int) -> str:
    """known/of as a cell."""
    return f"{known} of {of} ({100 * known / max(1, of):.0f} %)"


def page(raws: Sequence[Mapping[str, Any]], moved: Sequence[Mapping[str, Any]]) -> str:
    """docs/reuse.md."""
    from autofuse.report.results import machine_text, number, table

    known, times = [], []
    within = 0
    for raw in raws:
        s, ways = raw["shares"], raw["ways"]
        name = raw["network"] + ("" if raw["unseen"] else ", left out")
        known.append(
            [name, *(share(s[f"{what}_known"], s[what]) for what in ("candidates", "groups", "greedy_kernels"))]
        )
        best = ways["all records"].get("median_ms")
        ratios = {way: (w["median_ms"] / best if best and w.get("median_ms") else None) for way, w in ways.items()}
        within += bool(ratios["none measured"] and ratios["none measured"] <= GOAL)
        times.append(
            [
                name,
                number(best, "{:.3f}"),
                *(number(ratios[way], "{:.3f}") for way in ENGINES if way != "all records"),
                f"{ways['none measured']['recorded']} of {ways['none measured']['kernels']}",
                number(ways["some measured"]["measuring_s"], "{:.0f}"),
            ]
        )
    headings = ["network", "all its records, ms", "none measured", "some measured", "greedy", "kernels with a record",
                "measuring, s"]  # fmt: skip
    parts = [
        "# Records of other models\n",
        "Written by `scripts/bench_reuse.py` from docs/results/reuse/*.json; not to be edited.\n",
        machine_text(raws[0]["machine"]) + "\n" if raws else "",
        "The unseen networks are those of data/unseen.db, compiled with data/records.db and models/cpu. The others are"
        " left out in turn: store and predictor are made without what only that network contains.\n",
        "## What the store has already\n",
        table(["network", "candidates", "groups", "kernels of greedy's plan"], known),
        "## Latency\n",
        "Compiled with no measurement of its own (predictor, and records of other networks), with `--measure`, with all"
        " its records (which are given to the compile, never to training), and greedy with all its records; over the"
        " third, medians of interleaved rounds.\n",
        table(headings, times),
        f"None measured within {100 * (GOAL - 1):.0f} % of all records: {within} of {len(raws)}.\n",
    ]
    if moved:
        rows = [
            [
                m["hardware"],
                str(m["records"]),
                number(100 * m["mape"], "{:.1f} %"),
                number(100 * m["analytical_scaled_mape"], "{:.1f} %"),
                number(m["tau_within"], "{:.3f}"),
                number(m["analytical_tau_within"], "{:.3f}"),
                number(100 * m["predicted"], "{:.0f} %"),
            ]
            for m in moved
        ]
        parts += [
            "## Other hardware\n",
            "Trained on records of other hardware rows and some of this one's; tested on workloads not trained on."
            " Where the training range does not reach, the analytical model answers.\n",
            table(
                ["hardware", "its records", "MAPE", "analytical, scaled", "tau within", "analytical's", "predicted"],
                rows,
            ),
        ]
    return "\n".join(part for part in parts if part)


def main() -> int:
    """Measure what is missing or named, then write the page."""
    from autofuse.cli.options import duration
    from autofuse.report.results import write_json, write_text

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help="by default all of both stores without results")
    parser.add_argument("--measure", type=lambda text: duration("--measure", text), default=30.0)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of rounds a network (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--no-transfer", action="store_true", help="leave the other hardware as it is")
    options = parser.parse_args()
    every = [*models_of(UNSEEN), *models_of(RECORDS)]
    for network in [] if options.page_only else options.networks or every:
        if (RAW / f"{network}.json").exists() and not (options.networks or options.again):
            continue
        begin = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {network}", file=sys.stderr, flush=True)
        write_json(RAW / f"{network}.json", measure(network, options))
        print(f"  took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    if not (options.page_only or options.no_transfer):
        write_json(RAW / "transfer.json", transfer())
    found = [RAW / f"{name}.json" for name in every]
    raws = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.exists()]
    moved = RAW / "transfer.json"
    write_text(PAGE, page(raws, json.loads(moved.read_text(encoding="utf-8")) if moved.exists() else []))
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
