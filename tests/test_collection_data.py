"""The script that makes data/: what it asks of the stores, and the page that it writes."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from records_samples import cold, failure, fill, record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import collect_data
import collection_page

from autofuse.measure.passes import CAPPED, SETTLED, UNFINISHED
from autofuse.records import SqliteStore, StoreStats

RUN = {
    "store": "records.db", "measured": 5400, "failed": 100, "cached": 0, "skipped": 0, "left": 0, "seconds": 2750.0,
    "interrupted": False, "failures": {}, "wall_seconds": 2900.0, "configs": 4, "explore": 2, "per_model": 800,
    "again": 500,
}  # fmt: skip


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, Any]:
    """Both stores, small; one kernel of each was measured twice."""
    found = {}
    for name in ("records.db", "unseen.db"):
        with SqliteStore(tmp_path / name) as store:
            if name == "unseen.db":
                store.keep_for_evaluation()
            fill(store)
            for r in (record(), record(9, 1.01e-3), cold(1, config="a=2"), failure(2, config="a=3")):
                store.add(r)
            store.refresh_baseline("hw1")
        found[name] = collect_data.contents(tmp_path / name)
    return found


def test_says_what_a_store_holds_of_each_hardware_row(stores: dict[str, Any]) -> None:
    found = stores["records.db"]
    assert (found["ok"], found["failed"]) == (3, 1)
    (row,) = found["rows"].values()
    assert (row["name"], row["ok"], row["failures"], row["cold"], row["samples"]) == (
        "a machine", 3, {"crashed": 1}, 1, 3,
    )  # fmt: skip
    assert row["records_of"] == {"resnet50": 3} and row["workloads_of"] == {"resnet50": 1}
    assert row["noise"]["normalised"]["median"] == pytest.approx(0.00995, rel=0.01)


def test_the_stores_that_ship_are_what_is_wanted(tmp_path: Path) -> None:
    def counted(path: Path) -> StoreStats:
        # Whoever reads a store leaves an index of its log beside it.
        with SqliteStore(shutil.copy(path, tmp_path), readonly=True) as store:
            return store.stats()

    seen, kept = counted(collect_data.RECORDS), counted(collect_data.UNSEEN)
    assert seen.ok >= collect_data.LEAST_RECORDS and kept.ok > 0
    assert collect_data.RECORDS.stat().st_size <= 1e6 * collect_data.MOST_MEGABYTES
    assert (seen.evaluation_only, kept.evaluation_only) == (False, True)
    assert len(seen.models) == 8 and set(kept.models) == set(collect_data.KEPT_BACK)
    assert not set(seen.models) & set(kept.models)


def test_counts_how_the_timing_of_kernels_ended(tmp_path: Path) -> None:
    beside = {"arithmetic": (2e-4,) * 4}
    steady, noisy = (1e-3,) * 4, (1e-3, 1.1e-3, 1.2e-3, 1.3e-3)
    said = [(SETTLED, steady), (SETTLED, noisy), (CAPPED, noisy), (UNFINISHED, steady), ("", steady), ("", steady[:3])]
    with SqliteStore(tmp_path / "r.db") as store:
        fill(store)
        for second, (message, samples) in enumerate(said):
            references = {name: times[: len(samples)] for name, times in beside.items()}
            store.add(record(second, message=message, samples=samples, reference_samples=references))
        store.add(failure(50))
    found = collect_data.contents(tmp_path / "r.db")
    assert found["rows"]["hw1"]["timing"] == {"narrow": 3, "settled": 2, "capped": 1, "unfinished": 1, "unsaid": 2}
    text = collection_page.timing_table({}, {"r.db": found})
    assert "| `data/r.db`, a machine | 2 of 6 | 1 of 6 | 1 of 6 | 2 of 6 | 3 of 6 |" in text


def test_names_every_fault(stores: dict[str, Any]) -> None:
    for store in stores.values():
        store["problems"] = []  # its workloads' keys are made up
    records, unseen = stores["records.db"], stores["unseen.db"]
    log = {"runs": [RUN], "hardware": ["hw1"]}
    assert [line.split(":")[0] for line in collect_data.faults(log, stores)] == ["records.db"]
    records["rows"]["hw1"]["ok"] = 5000
    records["megabytes"] = 24.9
    assert collect_data.faults(log, stores) == []
    records["megabytes"] = 25.1
    unseen |= {"evaluation_only": False, "problems": ["record 1: is none"]}
    unseen["rows"]["hw1"]["noise"]["normalised"]["p95"] = 0.2
    slow = {**log, "runs": [{**RUN, "seconds": 4000.0}]}
    text = "\n".join(collect_data.faults(slow, stores))
    for part in ("25.1 MB", "mark of the store", "record 1", "noise is not within", "1.38 kernels a second"):
        assert part in text


def test_what_is_wanted_is_wanted_of_the_machine_of_the_log(stores: dict[str, Any]) -> None:
    for store in stores.values():
        store["problems"] = []
        (row,) = store["rows"].values()
        other = json.loads(json.dumps(row)) | {"ok": 9000}
        other["noise"]["normalised"] = {"median": 0.5, "p95": 0.9}
        store["rows"]["hw2"] = other
        row["ok"] = 5000
    log = {"runs": [RUN], "hardware": ["hw1"]}
    assert collect_data.faults(log, stores) == []
    (few,) = collect_data.faults({**log, "hardware": ["hw2"]}, {n: _without(s, "hw2") for n, s in stores.items()})[:1]
    assert few == "records.db: 0 records of this machine, at least 5000 were wanted"
    said = collect_data.faults({"runs": [RUN]}, stores)  # a log that does not say whose it is: all rows count
    assert said == [f"{name}: the noise is not within 3 % and 10 %" for name in stores]


def _without(store: dict[str, Any], digest: str) -> dict[str, Any]:
    return {**store, "rows": {d: row for d, row in store["rows"].items() if d != digest}}


def test_the_page_tells_all_of_it(stores: dict[str, Any]) -> None:
    text = collection_page.page({"runs": [RUN, {**RUN, "store": "unseen.db"}]}, stores)
    for part in (
        "| `data/records.db`, a machine | 3 | 1 crashed | 1 | 1 | 0 | 3 |",
        "| resnet50 | `unseen.db` | 3 of 1 workloads |",
        "| `data/unseen.db`, a machine | 0 of 3 | 0 of 3 | 0 of 3 | 3 of 3 | 0 of 3 |",
        "| conv 1 | 4 | 4 |", "| all | 10800 | 200 | 91.7 | 2.00 | 5.0 | 96.7 |", "| conv | 1 | 1.00 % |",
    ):  # fmt: skip
        assert part in text
    assert text.count("| all | 1 | 1.00 % |") == 2 and "measured by the same script" not in text


def test_the_page_keeps_machines_apart(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "records.db") as store:
        fill(store)
        for second, hardware in enumerate(["hw1", "hw2", "hw2", "hw2"]):
            store.add(record(second, 1e-3 * (1 + second), hardware=hardware))
    held = {"records.db": collect_data.contents(tmp_path / "records.db")}
    text = collection_page.page({"runs": [RUN], "hardware": ["hw1"], "also_per_model": 200}, held)
    mine, theirs = "`data/records.db`, a machine", "`data/records.db`, another machine"
    assert text.index(f"| {mine} | 1 |") < text.index(f"| {theirs} | 3 |")
    assert "Records of another machine were measured by the same script" in text and "at most 200 of each" in text
    assert "| network | store | records, a machine | records, another machine |" in text
    assert "| resnet50 | `records.db` | 1 of 1 workloads | 3 of 1 workloads |" in text
    assert f"{theirs}\n\n| family" in text and f"{mine}\n\n| family" not in text  # of which nothing was repeated


def test_a_run_hands_the_settings_on_and_keeps_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    failures = ["relu (plain/1 a=1 []): crashed: SIGSEGV", "relu (plain/1 a=2 []): timeout: 30 s"]
    said = json.dumps({**RUN, "failures": failures})
    begin = subprocess.Popen

    def run(command: list[str], **how: Any) -> Any:
        asked.append(command)
        return begin([sys.executable, "-c", f"print({said!r})"], **how)

    monkeypatch.setattr(collect_data.subprocess, "Popen", run)
    options = argparse.Namespace(
        configs=3, explore=1, per_model=5, per_unseen=9, again=7, again_unseen=3, threads=0, budget="2h"
    )
    kept = collect_data.collect(Path("x.db"), ["vgg16", "gpt2"], options, evaluation=True)
    (command,) = asked
    text = " ".join(command)
    settings = (
        "--configs 3 --explore 1 --again 3 --per-model 9 --lines 30s --cost-model analytical --budget 2h --evaluation"
    )
    for part in ("collect vgg16 gpt2 --db x.db --json", settings):
        assert part in text
    assert kept["measured"] == 5400 and kept["failures"] == {"crashed": 1, "timeout": 1} and kept["configs"] == 3


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_script_ends_the_collection_which_gives_its_counts(
    ending: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({**RUN, "failures": [], "interrupted": True})
    program = f"""
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: (os.write(1, {said!r}.encode()), os._exit(0)))
os.kill(os.getppid(), {int(ending)})
time.sleep(30)
"""
    begin = subprocess.Popen
    monkeypatch.setattr(
        collect_data.subprocess, "Popen", lambda _, **how: begin([sys.executable, "-c", program], **how)
    )
    options = argparse.Namespace(
        configs=3, explore=1, per_model=5, per_unseen=9, again=7, again_unseen=3, threads=0, budget=None
    )
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert collect_data.collect(Path("x.db"), ["vgg16"], options, evaluation=False)["interrupted"]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_an_interrupt_that_the_script_was_started_without_reaches_the_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shell's background job ignores interrupts; the collection does not."""
    said = json.dumps({**RUN, "failures": []})
    program = f"import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler; print({said!r})"
    begin = subprocess.Popen
    monkeypatch.setattr(
        collect_data.subprocess, "Popen", lambda _, **how: begin([sys.executable, "-c", program], **how)
    )
    options = argparse.Namespace(
        configs=3, explore=1, per_model=5, per_unseen=9, again=7, again_unseen=3, threads=0, budget=None
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert collect_data.collect(Path("x.db"), ["vgg16"], options, evaluation=False)["measured"] == 5400
    finally:
        signal.signal(signal.SIGINT, before)
