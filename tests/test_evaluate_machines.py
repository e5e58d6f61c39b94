"""Evaluation of predictors that learned from several machines: whose figures are whose."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from learn_networks import fill_from
from learn_stores import MACHINE, RECORDED, ROW, family_of, fill, synthetic_store
from small_network import small_network

from autofuse.learn import Dataset, TrainSettings, build_dataset, save_predictor, train_predictor
from autofuse.learn.boosting import TreeSettings
from autofuse.learn.evaluate import evaluate, headline
from autofuse.learn.evaluation import Evaluation, evaluate_splits, machine_of, noise_floor, rows_of
from autofuse.learn.plans import NetworkPlans
from autofuse.records import MemoryStore, RecordedHardware, SqliteStore
from autofuse.records.groups import for_lanes, group_from_text, group_to_text
from autofuse.records.store import RecordStore
from autofuse.report.learning import errors_table, evaluation_page, hardware_note, others_part

QUICK = TrainSettings(members=2, trees=TreeSettings(rounds=8, eta=0.4))
WIDE = replace(ROW, features=("avx512bw", "avx512dq", "avx512f", "avx512vl"), l2_bytes=1 << 20)
ALONE = replace(WIDE, threads=1)
ROWS = {row.digest: row for row in (ROW, WIDE, ALONE)}
BROAD = replace(MACHINE, isa="avx512", vector_bytes=64, vector_registers=32, l2_bytes=1 << 20)
DESCRIPTIONS = {ROW.digest: MACHINE, WIDE.digest: BROAD, ALONE.digest: replace(BROAD, cores=1)}
NAMES = {
    ROW.digest: "A CPU (avx2), 2 threads", WIDE.digest: "A CPU (avx512), 2 threads",
    ALONE.digest: "A CPU (avx512), 1 thread",
}  # fmt: skip


def on_machines(store: RecordStore, source: RecordStore, noise: float = 0.0, share: float = 1.0) -> RecordStore:
    """Put the records of `source` into `store` as measured on all three rows: on the wide machine a noise more.

    The pool of one thread has only that share of them.
    """
    rng = np.random.default_rng(7)
    made = []
    found = list(source.records())
    for digest in ROWS:
        for r in found[: round(share * len(found))] if digest == ALONE.digest else found:
            factor = 1.0 if digest == ROW.digest else 0.5 * float(np.exp(noise * rng.standard_normal()))
            made.append(replace(r, hardware=digest, samples=tuple(factor * s for s in r.samples)))
    rows = [RecordedHardware.of(row) for row in ROWS.values()]
    workloads = [(w, source.models(w.key)) for w in source.workloads()]
    store.add_all(rows, workloads, list(source.forms()), made)
    return store


def dataset(store: RecordStore) -> Dataset:
    return build_dataset(store, descriptions=DESCRIPTIONS, family_of=family_of)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return dataset(on_machines(MemoryStore(), synthetic_store(limit=20), share=0.5))


def test_records_of_each_machine_are_of_groups_as_it_stores_them(tmp_path: Path) -> None:
    """Columns of packed weights are two vectors wide, which layouts do not say: one form stands for both machines."""
    onnx.save(small_network(16), tmp_path / "net.onnx")
    networks = {
        digest: NetworkPlans.of_model(str(tmp_path / "net.onnx"), DESCRIPTIONS[digest])
        for digest in (ROW.digest, WIDE.digest)
    }
    forms: list[dict[tuple[str, str], str]] = []
    alone: list[Dataset] = []
    both = MemoryStore()
    for digest, network in networks.items():
        store = fill_from(MemoryStore(), [network], ROWS[digest], noise=0.0)
        forms.append({(f.workload, f.layouts): f.text for f in store.forms()})
        alone.append(build_dataset(store, descriptions=DESCRIPTIONS))
        both.merge(store)
    narrow, wide = forms
    shared = narrow.keys() & wide.keys()
    assert any(narrow[key] != wide[key] for key in shared)
    for key in shared:
        for there, here, lanes in ((narrow, wide, 16), (wide, narrow, 8)):
            assert group_to_text(for_lanes(group_from_text(there[key]), lanes)) == here[key]
    data = build_dataset(both, descriptions=DESCRIPTIONS)
    assert not data.skipped and len(data) == sum(map(len, alone))
    for part in alone:
        again = rows_of(data, part.hardware[0])
        assert again.digests == part.digests and np.array_equal(again.features, part.features)
        assert np.allclose(again.residual, part.residual)


class TestSplits:
    def test_rows_are_tested_by_hardware_and_every_row_once(self, data: Dataset) -> None:
        found, elsewhere = evaluate_splits(data, QUICK, MACHINE)
        assert set(found) == set(ROWS)
        count = Counter(data.hardware)
        for digest, splits in found.items():
            assert splits["workload"].models["learned"].rows == count[digest]
            assert not any(name.startswith(("hardware/", "machine/")) for name in splits)
        # Of workloads that a network shares with others; a machine's rows alone are counted.
        assert found[ROW.digest]["network/net1"].left_out == found[WIDE.digest]["network/net1"].left_out > 0
        wide = f"machine/{machine_of(BROAD)}"
        assert set(elsewhere) == {*(f"hardware/{digest}" for digest in ROWS), wide, f"machine/{machine_of(MACHINE)}"}
        # A machine that nothing was learned from has vectors of a width that was never seen.
        assert elsewhere[wide].predicted == 0 and elsewhere[f"hardware/{WIDE.digest}"].predicted > 0
        assert elsewhere[wide].models["learned"].rows == count[WIDE.digest] + count[ALONE.digest]

    def test_one_pool_a_machine_is_left_out_once(self, data: Dataset) -> None:
        two = data.select(i for i, digest in enumerate(data.hardware) if digest != ALONE.digest)
        _, elsewhere = evaluate_splits(two, QUICK, MACHINE)
        assert set(elsewhere) == {f"hardware/{ROW.digest}", f"hardware/{WIDE.digest}"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("machines")
    db, unseen, out = folder / "a.db", folder / "b.db", folder / "p"
    with SqliteStore(db) as store:
        on_machines(store, synthetic_store(limit=14, times=2), noise=0.1, share=0.5)
        fill(store, start=14, limit=18, networks="more")  # most records are of the first
        save_predictor(train_predictor(dataset(store), QUICK), out)
    with SqliteStore(unseen) as store:
        store.keep_for_evaluation()
        on_machines(store, fill(MemoryStore(), start=18, limit=26, networks="other"), noise=0.1, share=0.0)
    return db, unseen, out


@pytest.fixture(scope="module")
def found(stores: tuple[Path, Path, Path]) -> Evaluation:
    return evaluate(*stores, networks=[], family_of=family_of)


class TestEvaluation:
    def test_each_row_has_its_own_figures(self, found: Evaluation, stores: tuple[Path, Path, Path]) -> None:
        assert found.hardware == ROW.digest and set(found.others) == {WIDE.digest, ALONE.digest}
        assert dict(found.names) == NAMES
        wide, alone = found.others[WIDE.digest], found.others[ALONE.digest]
        with SqliteStore(stores[0], readonly=True) as store:
            data = dataset(store)
        for digest, one in ((ROW.digest, found), (WIDE.digest, wide)):
            assert one.noise == noise_floor(rows_of(data, digest))
        # What was measured with more noise is predicted and repeated worse, and does not blur the other's figures.
        assert found.noise is not None and wide.noise is not None and wide.noise.mape > 4 * found.noise.mape
        assert found.unseen is not None and wide.unseen is not None and alone.unseen is None
        learned = [one.unseen.models["learned"] for one in (found, wide)]  # type: ignore[union-attr]
        assert learned[0].mape < learned[1].mape and learned[0].rows == learned[1].rows
        # Features are of the row's own hardware: a wider machine's analytical times are other ones.
        scaled = [one.unseen.models["analytical"].mape for one in (found, wide)]  # type: ignore[union-attr]
        assert scaled[0] != pytest.approx(scaled[1], rel=0.01)

    def test_the_summary_keeps_the_first_figures_where_they_are(self, found: Evaluation) -> None:
        report = found.summary()
        alone = replace(found, others={}).summary()
        assert set(alone) == {"noise_floor", "splits", "unseen_networks", "analytical"}
        assert {key: report[key] for key in alone} == alone
        assert report["hardware"] == {"digest": ROW.digest, "names": NAMES}
        other = report["other_hardware"][WIDE.digest]
        assert set(other) == set(alone) and other["unseen_networks"]["mape"] > report["unseen_networks"]["mape"]
        assert not any(name.startswith(("hardware/", "machine/")) for name in other["splits"])

    def test_the_page_has_a_table_for_each(self, found: Evaluation) -> None:
        report = found.summary()
        text = evaluation_page(report)
        first, others = text.split("## Other hardware in the stores")
        assert f"Figures are of records of {NAMES[ROW.digest]};" in first
        assert f"| other hardware ({NAMES[WIDE.digest]}) | learned |" in first and WIDE.digest not in text
        assert f"| another machine ({machine_of(BROAD)}) | learned |" in first
        assert f"another machine ({machine_of(BROAD)})" in hardware_note(report)
        assert others.index(f"**{NAMES[WIDE.digest]}**") < others.index(f"**{NAMES[ALONE.digest]}**")
        assert others.count("| random, by workload |") == 2 and others.count("| **unseen networks** |") == 1
        assert "network" not in errors_table(report["other_hardware"][ALONE.digest], ("workload",))
        assert others_part(replace(found, others={}).summary()) == []

    def test_this_machines_figures_come_first_where_there_are_some(
        self, data: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert headline(data, None) == max(ROW.digest, WIDE.digest)  # as many rows of either
        for own in ROWS.values():
            monkeypatch.setattr("autofuse.target.registry.hardware_row", lambda _, own=own: own)
            assert headline(data, None) == own.digest
            unseen = rows_of(data, WIDE.digest)
            assert headline(data, unseen) == WIDE.digest


def test_networks_are_planned_for_each_hardware_and_run_on_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    db, unseen, out = (tmp_path / name for name in ("a.db", "b.db", "p"))
    with SqliteStore(db) as store:
        on_machines(store, synthetic_store(limit=12))
        save_predictor(train_predictor(dataset(store), QUICK), out)
    with SqliteStore(unseen) as store:
        store.keep_for_evaluation()
        on_machines(store, fill(MemoryStore(), start=12, limit=16, networks="other"), share=0.0)
    planned: list[tuple[str, str]] = []
    run: list[str] = []

    def result(network: Any, _: object, __: object, digest: str, *rest: object) -> Any:
        planned.append((network, digest))
        return f"{network} on {digest}"

    def latencies(results: Any, plans: Any, _: object, digest: str, *rest: object) -> Any:
        run.append(digest)
        return [f"{r}, run" for r in results]

    monkeypatch.setattr("autofuse.learn.evaluate.NetworkPlans.of_model", lambda name, hardware: (name, hardware.isa))
    monkeypatch.setattr("autofuse.learn.evaluate.plan_result", result)
    monkeypatch.setattr("autofuse.learn.evaluate._with_latencies", latencies)
    monkeypatch.setattr("autofuse.target.registry.hardware_row", lambda _: WIDE)
    found = evaluate(db, unseen, out, networks=["net"], splits=False, family_of=family_of)
    assert planned == [(("net", "avx512"), WIDE.digest), (("net", "avx2"), ROW.digest)] and run == [WIDE.digest]
    assert [n[-3:] for n in found.networks] == ["run"]  # type: ignore[comparison-overlap,index]
    assert found.others[ROW.digest].networks == (f"('net', 'avx2') on {ROW.digest}",)
    assert found.others[ALONE.digest].networks == ()
    assert RECORDED.digest == ROW.digest
