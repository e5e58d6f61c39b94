"""The pages about learning, and the script that makes them: reuse, strategies, learned costs on the zoo."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from learn_stores import MACHINE as CPU
from learn_stores import RECORDED, family_of, fill, synthetic_store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import bench_learned
import bench_reuse
import collect_data
import learning_page
import order_trials
import replay
import zoo_tables

from autofuse.cost import AnalyticalCostModel
from autofuse.frontend.zoo import names
from autofuse.learn import Dataset, Trained, TrainSettings, build_dataset, train_predictor
from autofuse.learn.boosting import TreeSettings
from autofuse.learn.plans import NetworkPlans
from autofuse.learn.replay_plans import Replayable, renumbered, save
from autofuse.learn.splits import grouped_folds
from autofuse.records import RecordedHardware, SqliteStore
from autofuse.report.learning import goals_table, hardware_note, plans_table
from autofuse.search.baselines import GreedyStrategy
from autofuse.search.problem import SearchProblem, SearchResult, Thresholds
from autofuse.target.hardware_file import load_hardware
from autofuse.target.registry import resolve

SCRIPTS = Path(learning_page.__file__).parent
MACHINE = {
    "cpu": "A CPU", "isa": "avx2", "cores": 2, "processors": 2, "l1_bytes": 32 << 10, "l2_bytes": 512 << 10,
    "l3_bytes": 32 << 20, "memory_bytes": 8 << 30, "system": "Linux", "python": "3.11", "packages": {},
    "calibrated": True, "fma_per_second": 5e10, "memory_bandwidth": 2e10,
}  # fmt: skip


def test_strategies_are_held_against_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(learning_page, "RESULTS", tmp_path)
    (tmp_path / "net-b1.json").write_text('{"compiles": {"greedy": {"seconds": {"total": 5.0}}}}')
    row = {
        "greedy": {"ms": 10.0, "seconds": 0.1, "kernels": 9},
        "hybrid": {"ms": 9.2, "seconds": 0.3, "kernels": 8},
        "dp": {"ms": 9.0, "seconds": 0.6, "kernels": 7},
    }
    text = learning_page.strategies_part({"net": row, "other": {**row, "hybrid": row["dp"]}})
    assert "| net | 10.000 | 9.200 | 9.000 | 80 % | 4.0 % | 10.0 % |" in text
    assert "at least 90 % of dp's gain on 1 of 2" in text and "adds 4.0 % to greedy's compile" in text


CARD: dict[str, Any] = {
    "data": {"records": 10, "rows": 12, "cold_rows": 2, "workloads": 5, "models": ["net"], "hash": "abc",
             "failures": 0},
    "features": {"version": 4}, "members": [{"trees": 9}], "training": {"members": 5, "tried": 0},
    "hardware": [
        {"digest": "one", "records": 3, "description": {"name": "A CPU", "isa": "avx2", "cores": 1}},
        {"digest": "two", "records": 7, "description": {"name": "A CPU", "isa": "avx512", "cores": 2}},
    ],
    "checks": {"failures": None},
}  # fmt: skip


def test_what_was_learned_of_failures_is_said() -> None:
    """Nothing, where nothing failed."""
    text = learning_page.card_part(CARD)
    assert "They are of A CPU (avx512), 2 threads (7), A CPU (avx2), 1 thread (3)." in text
    assert "10 records (12 latencies" in text and "No candidate failed" in text and "nothing is pruned" in text
    few = {**CARD, "data": {**CARD["data"], "failures": 7}}
    assert "7 candidates failed, too few" in learning_page.card_part(few)
    many = {**few, "checks": {"failures": {"found": 0.9, "lost": 0.004}}}
    assert (
        "it finds 90 % of the failures of workloads that it did not see, and loses 0.4 % of what works"
        in learning_page.card_part(many)
    )


def test_settings_chosen_on_the_records_that_they_are_tested_on_are_said_to_be() -> None:
    assert "that were tried" not in learning_page.card_part(CARD)
    searched = learning_page.card_part({**CARD, "training": {"members": 5, "tried": 13}})
    assert "best of 13 that were tried" in searched and "those on unseen networks not." in searched


def test_hardware_of_which_nothing_was_predicted_is_said_to_be() -> None:
    splits = {"hardware/one": {"predicted": 0.0}, "hardware/two": {"predicted": 0.0}, "workload": {"predicted": 0.0}}
    text = hardware_note({"splits": splits})
    assert "Of other hardware (one) and other hardware (two) nothing is predicted" in text and "scaled" in text
    assert hardware_note({"splits": {"hardware/one": {"predicted": 0.1}}}) == ""


def test_the_page_has_the_notes_where_the_figures_are() -> None:
    shares = dict.fromkeys(("mape", "within_5", "within_10", "within_20", "top_1", "top_5", "loss"), 0.1)
    metrics = {**shares, "rows": 9, "tau_within": 0.5, "tau_across": None}
    split = {
        **dict.fromkeys(("learned", "analytical", "analytical_scaled"), metrics),
        "coverage": {"one": 0.7, "two": 0.9, "rank": None}, "predicted": 0.0, "left_out": 0,
    }  # fmt: skip
    networks = summary(net=found(0.01, None, failure="timeout: not done after 300 s"))
    unseen = {**split, **networks["splits"]["unseen"], "overlap": 0}
    whole = {
        **networks,
        "splits": {"hardware/one": split, "unseen": unseen},
        "analytical": {"unseen_networks": networks["unseen_networks"]},
    }
    parts = learning_page.page(CARD, whole, None, None).split("\n## ")
    assert "No candidate failed" in parts[0]
    errors, sure, plans = (part for part in parts[1].split("\n### ") if not part.startswith("Evaluation"))
    assert "Of other hardware (one) nothing is predicted" in errors and "nothing is predicted" not in sure
    assert "net was not run: timeout: not done after 300 s." in plans


def test_hybrid_is_told_by_its_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(learning_page, "RESULTS", tmp_path)
    (tmp_path / "net-b1.json").write_text('{"compiles": {"greedy": {"seconds": {"total": 5.0}}}}')

    def row(*kept: float) -> dict[str, Any]:
        found = {"0.05": {"ms": 10 - kept[0], "seconds": 0.2}, "0.4": {"ms": 10 - kept[1], "seconds": 0.6}}
        plan = {"seconds": 0.1, "kernels": 9}
        return {
            "greedy": {"ms": 10.0, **plan},
            "hybrid": {"ms": 9.5, **plan},
            "dp": {"ms": 9.0, **plan},
            "shares": found,
        }

    text = learning_page.strategies_part({"net": row(0.5, 1.0), "other": row(0.3, 0.9)})
    assert "| 0.05 | 0 of 2 | 30 % | 40 % | 2.0 % |" in text and "| 0.4 | 2 of 2 | 90 % | 95 % | 10.0 % |" in text


def test_searches_are_timed_on_problems_of_their_own(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And under the thresholds of the predictor."""
    hardware = load_hardware(resolve("llvm", 2))
    graph, greedy = renumbered(NetworkPlans.of_model(str(network), hardware))
    save(Replayable("net", "digest", graph, greedy, (), 0.0), tmp_path / "net.json.gz")
    monkeypatch.setattr(replay, "PLANS", tmp_path)
    monkeypatch.setattr(replay, "hardware_of", lambda _: ("digest", hardware))
    monkeypatch.setattr(replay, "costs_of", lambda *_: AnalyticalCostModel(hardware))
    monkeypatch.setattr(replay, "thresholds", lambda: Thresholds(max_group_size=3))
    seen: list[SearchProblem] = []

    class Noted(GreedyStrategy):
        def search(self, problem: SearchProblem) -> SearchResult:
            seen.append(problem)
            return super().search(problem)

    monkeypatch.setattr("autofuse.search.strategies.strategy", lambda *_, **__: Noted())
    (rows,) = learning_page.strategies().values()
    assert len({id(p.choices) for p in seen}) == len(seen) == 3 * 3 + len(learning_page.SHARES)
    assert {p.thresholds.max_group_size for p in seen} == {3}
    assert tuple(p.thresholds.hybrid_share for p in seen[9:]) == learning_page.SHARES
    assert list(rows["shares"]) == [f"{share:g}" for share in learning_page.SHARES]
    assert rows["shares"]["0.8"]["ms"] == rows["greedy"]["ms"] > 0


def test_every_feature_is_in_the_table() -> None:
    text = learning_page.features_table()
    assert "| `bytes_cold` | log2 bytes |" in text and "| `halo` |" in text


def test_reuse_is_told_by_network_and_hardware() -> None:
    ways: dict[str, Any] = {
        way: {"kernels": 20, "recorded": 5, "predicted_ms": 1.0, "measuring_s": 0.0, "median_ms": ms, "ratio": 1.0}
        for way, ms in zip(bench_reuse.ENGINES, (2.04, 2.02, 2.0, 2.5), strict=True)
    }
    raw = {
        "network": "net", "unseen": True, "machine": MACHINE, "ways": ways,
        "shares": {"candidates": 200, "candidates_known": 50, "groups": 40, "groups_known": 10, "greedy_kernels": 30,
                   "greedy_kernels_known": 20},
    }  # fmt: skip
    moved: list[dict[str, Any]] = [
        {"hardware": "abc", "name": "A CPU, 1 thread", "from": ["b", "c"],
         "records": 49.7, "mape": 0.1, "tau_within": 0.5, "predicted": 0.9,
         "analytical_scaled_mape": 0.2, "analytical_tau_within": None}
    ]  # fmt: skip
    text = bench_reuse.page([raw, {**raw, "network": "gone", "unseen": False}], moved)
    for part in (
        "| net | 50 of 200 (25 %) | 10 of 40 (25 %) | 20 of 30 (67 %) |", "| gone, left out |",
        "| net | 2.000 | 1.020 | 1.010 | 1.250 | 5 of 20 | 0 |", "within 3 % of all records: 2 of 2",
        "| A CPU, 1 thread | b; c | 50 | 10.0 % | 20.0 % | 0.500 | – | 90 % |",
    ):  # fmt: skip
        assert part in text
    assert "that is everywhere" not in text
    assert "that is everywhere" in bench_reuse.page([raw], [{**moved[0], "records": 0.0, "predicted": 0.0}])


def test_all_records_of_an_unseen_network_are_those_of_both_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it shares with the networks trained on was not measured for it again."""
    for name in ("records", "unseen"):
        monkeypatch.setattr(bench_reuse, name.upper(), tmp_path / f"{name}.db")
        with SqliteStore(tmp_path / f"{name}.db") as store:
            if name == "unseen":
                store.keep_for_evaluation()
            fill(store, limit=6) if name == "records" else fill(store, start=4, limit=9, seed=3)
    digests = []
    for path in (bench_reuse.RECORDS, bench_reuse.UNSEEN, bench_reuse.everything(True, tmp_path)):
        with SqliteStore(path, readonly=True) as store:
            digests.append({r.digest for r in store.records()})
            assert store.evaluation_only == (path != bench_reuse.RECORDS)
    records, unseen, both = digests
    assert both == records | unseen and records - unseen and unseen - records
    assert bench_reuse.everything(False, tmp_path) == bench_reuse.RECORDS


def test_transfer_learns_from_so_many_records_of_other_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with cold latencies, which has two rows, counts once; every amount is tested on the same rows."""
    store = synthetic_store(limit=30, cold=True)
    row = RecordedHardware("one", "one thread", RECORDED.detail)
    store.add_hardware(row)
    for record in list(store.records()):
        store.add(replace(record, hardware="one"))
    descriptions = {RECORDED.digest: CPU, "one": replace(CPU, cores=1)}
    data = build_dataset(store, descriptions=descriptions, family_of=family_of)
    seen: list[Dataset] = []

    def train(part: Dataset) -> Trained:
        seen.append(part)
        return train_predictor(part, TrainSettings(members=2, trees=TreeSettings(rounds=5)))

    monkeypatch.setattr("autofuse.learn.train_predictor", train)
    found = [bench_reuse.transferred(data, "one", amount, 1) for amount in (0, 7, 10**6)]
    held = {key for key, fold in zip(data.workloads, grouped_folds(data.workloads, bench_reuse.FOLDS), strict=True)
            if fold == 1}  # fmt: skip
    for part, result in zip(seen, found, strict=True):
        drawn = {d for d, h in zip(part.digests, part.hardware, strict=True) if h == "one"}
        assert result is not None and result["records"] == len(drawn) and not set(part.workloads) & held
        assert len(part.digests) - len(set(part.digests)) == part.cold.sum() > 0  # both rows of each, or neither
        assert result["analytical_tau_within"] == found[0]["analytical_tau_within"]  # type: ignore[index]
    assert [r and r["records"] for r in found[:2]] == [0, 7] and found[0]["predicted"] == 0  # type: ignore[index]
    few = data.select(i for i, key in enumerate(data.workloads) if key < "w005")
    assert bench_reuse.transferred(few, "one", 0, 1) is None  # too little to train on


def test_transfer_is_to_another_machine_and_to_another_pool() -> None:
    other = replace(CPU, isa="avx512", vector_bytes=64)
    descriptions = {"a2": CPU, "a1": replace(CPU, cores=1), "b2": other, "b1": replace(other, cores=1)}
    hardware = ("a1", "a2", "a2", "b1", "b2", "b2", "b2")

    def data(*digests: str) -> Any:
        rows = tuple(h for h in hardware if h in digests)
        return SimpleNamespace(hardware=rows, descriptions={d: descriptions[d] for d in digests})

    found = dict(bench_reuse.cases(data(*descriptions)))
    assert found == {"b2": {"b1", "b2"}, "a2": {"a1", "a2"}, "b1": {"b1"}, "a1": {"a1"}}
    assert dict(bench_reuse.cases(data("a1", "a2"))) == {"a1": {"a1"}, "a2": {"a2"}}
    assert dict(bench_reuse.cases(data("a2", "b2"))) == {"a2": {"a2"}, "b2": {"b2"}}


def test_nothing_is_learned_from_hardware_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    store = synthetic_store(limit=30)
    for name in ("one", "two"):
        store.add_hardware(RecordedHardware(name, name, RECORDED.detail))
        for record in list(store.records(RECORDED.digest)):
            store.add(replace(record, hardware=name))
    descriptions = {RECORDED.digest: CPU, "one": replace(CPU, cores=1), "two": replace(CPU, isa="avx512")}
    data = build_dataset(store, descriptions=descriptions, family_of=family_of)
    seen: list[Dataset] = []

    def train(part: Dataset) -> Trained:
        seen.append(part)
        return train_predictor(part, TrainSettings(members=2, trees=TreeSettings(rounds=5)))

    monkeypatch.setattr("autofuse.learn.train_predictor", train)
    for amount in (0, 9):
        found = bench_reuse.transferred(data, RECORDED.digest, amount, 0, without={RECORDED.digest, "one"})
        assert found is not None and found["records"] == amount
    bare, some = (Counter(part.hardware) for part in seen)
    assert bare == {"two": bare["two"]} and some == {"two": bare["two"], RECORDED.digest: 9}


def test_learned_costs_have_a_table_in_the_results() -> None:
    sources = {"predicted": 12, "record": 8}
    ways = {
        way: {
            "kernels": 20 + n,
            "predicted_ms": 1.9,
            "cost_sources": sources,
            "median_ms": 2.0 + n,
            "ratio": 1 + n / 10,
            "seconds": {"search": 0.5, "total": 8.0 + n},
        }
        for n, way in enumerate(bench_learned.WAYS)
    }
    text = zoo_tables.learned_table([{"network": "net", "ways": ways}])
    ratios = "1.100 | 1.200 | 1.300 | 1.400 | 1.500"
    assert f"| net | 2.000 | {ratios} | 20 | 21 | 22 | 23 | 0.95 | 5.6 % | 12 predicted, 8 record |" in text
    lines = text.splitlines()
    assert f"| geometric mean |  | {ratios} |" in text and len({line.count("|") for line in lines}) == 1
    assert "search's share, dp, predictor alone" in lines[0]
    alone = bench_learned.WAYS["dp, records alone"]
    assert alone["cost_model"] == "analytical" and alone["db"] == bench_learned.WAYS["dp, learned"]["db"]


def found(regret: float, error: float | None, unmeasured: int = 0, failure: str | None = None) -> dict[str, Any]:
    """What an evaluation says of one unseen network; without an error it was not run."""
    run = error is not None
    return {
        "plan_regret": {"learned": regret, "analytical": 0.1},
        "kernels": 20,
        "kernels_unmeasured": unmeasured,
        "covered": 0.5,
        "predicted_ms": {"learned": 1.0 + (error or 0), "analytical": 2.0} if run else {},
        "measured_ms": 1.0 if run else None,
        "end_to_end_error": {"learned": error, "analytical": 1.0} if run else {},
        "failure": failure,
    }


def summary(**networks: dict[str, Any]) -> dict[str, Any]:
    """An evaluation's summary as far as the goals and the plans of unseen networks go."""
    return {
        "noise_floor": {"mape": 0.02, "tau_within": 0.9},
        "splits": {"unseen": {"networks": networks}},
        "unseen_networks": {"mape": 0.08, "tau_within": 0.8, "plan_regret": 0.01},
    }


def test_the_worst_network_stands_beside_the_mean() -> None:
    text = goals_table(summary(a=found(-0.01, 0.04), b=found(0.03, 0.12)))
    assert "| plan regret, unseen networks, mean | ≤ 2 % | 1.0 % | reached |" in text
    assert "| plan regret, the worst network | ≤ 2 % | 3.0 % | missed |" in text
    assert "| end-to-end error, the worst network | ≤ 10 % | 12.0 % | missed |" in text


def test_networks_that_were_not_run_have_no_error() -> None:
    none = goals_table(summary(a=found(-0.01, None)))
    assert "| end-to-end error, the worst of the 0 of 1 networks run | ≤ 10 % | – |  |" in none
    networks = summary(a=found(0.01, 0.04), b=found(0.0, None, failure="crashed: SIGSEGV"))
    assert "| end-to-end error, the worst of the 1 of 2 networks run | ≤ 10 % | 4.0 % | reached |" in goals_table(
        networks
    )
    text = plans_table(networks)
    assert "| 1.040 | 2.000 | 1.000 | 4.0 % | 100.0 % |" in text and "| – | – | – | – | – |" in text
    assert text.endswith("\n\nb was not run: crashed: SIGSEGV.\n") and text.count("was not run") == 1


def test_kernels_without_a_record_are_counted_beside_the_regret() -> None:
    text = plans_table(summary(a=found(0.0, 0.04), b=found(0.03, 0.12, unmeasured=3)))
    assert "| network | candidates measured | kernels | without a record | regret, learned |" in text
    assert "| a | 50 % | 20 | 0 | 0.00 % |" in text and "| b | 50 % | 20 | 3 | 3.00 % |" in text


#: Instead of the programs that the script calls: they note their arguments, and a predictor is a card.
SETUP = """
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
echo "setup $*" >> calls
export PATH="$PWD/bin:$PATH"
"""
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> calls
case "$1" in
train) mkdir -p models/cpu && echo "$CARD" > models/cpu/card.json ;;
evaluate) [ ! -e models/cpu/thresholds.json ] ;;
tune) touch models/cpu/thresholds.json ;;
esac
"""


def learn(folder: Path, card: str, *arguments: str) -> list[str]:
    """What scripts/learn.sh calls."""
    (folder / "calls").unlink(missing_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "CARD": card}
    subprocess.run(
        ["bash", "scripts/learn.sh", *arguments], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
    )
    return (folder / "calls").read_text().splitlines()


def test_a_predictor_is_trained_evaluated_tuned_for_and_shown(tmp_path: Path) -> None:
    """The script's argument is its own, not that of what sets it up; thresholds and studies are of one predictor."""
    for name in ("scripts", "bin"):
        (tmp_path / name).mkdir()
    shutil.copy(SCRIPTS / "learn.sh", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").write_text(SETUP)
    for name in ("autofuse", "python"):
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)
    calls = learn(tmp_path, "one", "7")
    assert calls[0] == "setup bench" and [c.split()[1] for c in calls[1:4]] == ["train", "evaluate", "tune"]
    assert calls[4:] == [
        "python scripts/replay.py --write",
        "python scripts/order_trials.py",
        "python scripts/learning_page.py --strategies",
    ]
    words = calls[3].split()
    assert words[words.index("--trials") + 1] == "7"
    study = words[words.index("--study") + 1]
    digest = hashlib.sha256(b"one\n").hexdigest()
    assert study == f"build/thresholds-{digest[:12]}.study"
    checked = [word for before, word in itertools.pairwise(words) if before == "--check"]
    tuned = words[2 : words.index("--db")]
    assert sorted([*tuned, *checked]) == sorted(names()) and set(collect_data.KEPT_BACK) <= set(checked)
    # The thresholds of the first predictor are there now: the second is not evaluated with them.
    again = learn(tmp_path, "two")
    assert study not in again[3] and "--trials 100 " in again[3]


def test_the_order_of_near_ties_is_told_from_that_of_others() -> None:
    row = {"tau_within": 0.5, "mape": 0.04}
    order = {
        "objectives": {"as it is": {"held": row, "unseen": {**row, "tau_within": 0.25}},
                       "order": {"held": {**row, "mape": None}, "unseen": {**row, "mape": None}}},
        "pairs": [{"from": 0.0, "to": 0.05, "pairs": 3, "right": 0.5},
                  {"from": 0.05, "to": None, "pairs": 1, "right": 1.0}],
    }  # fmt: skip
    text = learning_page.order_part(order)
    assert "75 % are less than 5 % apart" in text
    assert "| 0 to 5 % | 75 % | 50 % |" in text and "| 5 % and more | 25 % | 100 % |" in text
    assert "| as it is | 0.500 | 0.250 | 4.0 % | 4.0 % |" in text and "| order | 0.500 | 0.500 | – | – |" in text


def test_pairs_are_counted_by_how_far_apart_they_are() -> None:
    data = SimpleNamespace(comparable=("a", "a", "a", "b"), measured=np.log([1.0, 1.01, 2.0, 3.0]))
    found = order_trials.pairs(data, np.array([2.0, 1.0, 3.0, 0.0]))
    assert sum(row["pairs"] for row in found) == 3
    first, last = found[0], found[-1]
    assert (first["from"], first["to"], first["pairs"], first["right"]) == (0.0, 0.02, 1, 0.0)
    assert (last["to"], last["pairs"], last["right"]) == (None, 2, 1.0)
