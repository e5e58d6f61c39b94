"""What records of other models are worth to a new one: docs/results/reuse/*.json and docs/reuse.md.

Usage: python scripts/bench_reuse.py [NETWORK...] [--measure TIME] [--budget S] [--again] [--page-only] [--no-transfer]

For each of the unseen networks (data/unseen.db), and for each of those in data/records.db left out in turn: which of
its candidates the store has from other models; and its latency, interleaved, compiled with no measurement of its own,
with `--measure 30s`, with all its records, and greedy. A network that is left out has a predictor trained without what
only it contains. Last, transfer to other hardware, another machine or another pool of threads: errors there after 0, 50
and 200 of its records. What is there already is skipped unless named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from autofuse.learn.dataset import Dataset

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))
RECORDS, UNSEEN = ROOT / "data" / "records.db", ROOT / "data" / "unseen.db"
PREDICTOR = ROOT / "models" / "cpu"
RAW = ROOT / "docs" / "results" / "reuse"
PAGE = ROOT / "docs" / "reuse.md"
SCHEMA = 1
#: What an unseen network with no measurement may take over what it takes with all its records.
GOAL = 1.03
AMOUNTS = (0, 50, 200)
#: One part of so many of the workloads is tested on, three of them in turn.
FOLDS, TESTED = 6, 3
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
    from autofuse.target import hardware_row, resolve

    own = hardware_row(resolve("llvm", None)).digest
    known = max(read_card(PREDICTOR).hardware, key=lambda h: (h.digest == own, h.records))
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


def everything(unseen: bool, folder: Path) -> Path:
    """A store with all records of a network: its own, and those of other networks' kernels that it has too.

    That is data/records.db for the networks in it. For an unseen one, what it shares with them was not measured again.
    """
    if not unseen:
        return RECORDS
    from autofuse.records import open_store

    path = folder / "everything.db"
    with open_store(path) as store:
        for part in (UNSEEN, RECORDS):
            with open_store(part, readonly=True) as source:
                store.merge(source)
    return path


def latencies(network: str, db: Path, predictor: Path, whole: Path, options: argparse.Namespace) -> dict[str, Any]:
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
            "all records": {"db": whole},
            "greedy": {"db": whole, "strategy": "greedy"},
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
        whole = everything(unseen, Path(name))
        return {
            "schema": SCHEMA,
            "network": network,
            "unseen": unseen,
            "machine": machine(),
            "shares": shares(network, db),
            "ways": latencies(network, db, predictor, whole, options),
        }


def transfer(seed: int = 0) -> list[dict[str, Any]]:
    """Errors on other hardware after some of its records: means over the same parts of its workloads every time."""
    from autofuse.learn import build_dataset
    from autofuse.learn.predictor import read_card
    from autofuse.records import open_store
    from autofuse.records.machines import description_name

    descriptions = {h.digest: h.description for h in read_card(PREDICTOR).hardware}
    with open_store(RECORDS, readonly=True) as store:
        data = build_dataset(store, hardware=descriptions, descriptions=descriptions)
    names = {digest: description_name(description) for digest, description in data.descriptions.items()}
    rows = []
    for digest, without in cases(data):
        told = {
            "hardware": digest,
            "name": names[digest],
            "from": sorted(name for other, name in names.items() if other not in without),
        }
        for amount in AMOUNTS:
            found = [transferred(data, digest, amount, part, seed, without) for part in range(TESTED)]
            known = [f for f in found if f is not None]
            if known:
                rows.append({**told, **{k: _mean([f[k] for f in known]) for k in known[0]}})
    return rows


def cases(data: Dataset) -> list[tuple[str, frozenset[str]]]:
    """What is transferred to: the digest of a hardware row, and those of all rows that are left out for it.

    Of each machine that row with most records, without all that the machine measured (another machine, if there are
    several); each other row by itself (another pool of threads).
    """
    from autofuse.learn.evaluation import machine_of

    machines: dict[str, list[str]] = {}
    for digest, _ in sorted(Counter(data.hardware).items(), key=lambda item: (-item[1], item[0])):
        machines.setdefault(machine_of(data.descriptions[digest]), []).append(digest)
    return [
        (digest, frozenset(rows if not number and len(machines) > 1 else (digest,)))
        for rows in machines.values()
        for number, digest in enumerate(rows)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def transferred(
    data: Dataset, digest: str, amount: int, part: int, seed: int = 0, without: Collection[str] = ()
) -> dict[str, float | None] | None:
    """Errors on a part of the workloads of one hardware, from other hardware and `amount` records of its other ones.

    `without`: hardware that nothing is learned from either. `records` says how many of the one's it was, where there
    are fewer. None where there is too little to train on, or to test.
    """
    from autofuse.errors import PredictorError
    from autofuse.learn import LearnedCostModel, train_predictor
    from autofuse.learn.evaluation import predict_rows, tested
    from autofuse.learn.splits import grouped_folds

    here = np.array([h == digest for h in data.hardware])
    held = grouped_folds(data.workloads, FOLDS, seed) == part
    test = np.flatnonzero(here & held)
    gone = here | np.array([h in without for h in data.hardware])
    if gone.all() or not len(test):
        return None
    # A record with hot and with cold latencies has two rows.
    others = sorted({data.digests[i] for i in np.flatnonzero(here & ~held)})
    drawn = {others[i] for i in np.random.default_rng(seed + part).permutation(len(others))[:amount]}
    extra = np.array([d in drawn for d in data.digests])
    try:
        trained = train_predictor(data.select(np.flatnonzero((~gone & ~held) | extra)))
    except PredictorError:
        return None
    model = LearnedCostModel(trained.card, trained.files, data.descriptions[digest])
    found = tested([(data, test, predict_rows(model, data, test))])
    learned, scaled = found.models["learned"], found.models["analytical_scaled"]
    return {
        "records": len(drawn),
        "mape": learned.mape,
        "tau_within": learned.tau_within,
        "predicted": found.predicted,
        "analytical_scaled_mape": scaled.mape,
        "analytical_tau_within": scaled.tau_within,
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
        " its records (its own, and those of kernels that it shares with other networks; they are given to the compile,"
        " never to training), and greedy with all its records; over the third, medians of interleaved rounds.\n",
        table(headings, times),
        f"None measured within {100 * (GOAL - 1):.0f} % of all records: {within} of {len(raws)}.\n",
    ]
    if moved:
        rows = [
            [
                m["name"],
                "; ".join(m["from"]),
                f"{m['records']:.0f}",
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
            "Trained on records of other hardware rows and some of this one's, by their number; tested on workloads not"
            " trained on."
            " Where the training range does not reach, the analytical model answers, scaled."
            + (
                " Where nothing is predicted that is everywhere: without records of the hardware itself its number of"
                " cores, or the width of its vectors, was never seen.\n"
                if any(not m["records"] and not m["predicted"] for m in moved)
                else "\n"
            ),
            table(
                [
                    "hardware",
                    "trained on",
                    "its records",
                    "MAPE",
                    "analytical, scaled",
                    "tau within",
                    "analytical's",
                    "predicted",
                ],
                rows,
            ),
        ]
    return "\n".join(part for part in parts if part)


def main() -> int:
    """Measure what is missing or named, then write the page."""
    from raw_results import one_machine, refuse_others

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
    if not options.page_only:
        refuse_others(RAW / f"{name}.json" for name in every)
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
    one_machine(raws)
    moved = RAW / "transfer.json"
    write_text(PAGE, page(raws, json.loads(moved.read_text(encoding="utf-8")) if moved.exists() else []))
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
