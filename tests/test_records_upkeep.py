"""Noise, pruning, verifying and revalidating: on every store, and from the command line."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from plain_groups import PlainFamily, Scale, chain
from records_samples import HERE, cold, failure, fill, record, stamp

from autofuse.cli import main
from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.graph.keys import canonical_text, workload_key
from autofuse.graph.model import Group
from autofuse.graph.reasons import Refusal
from autofuse.records import Form, MemoryStore, Record, RecordStore, SqliteStore, Workload
from autofuse.records.groups import group_to_text
from autofuse.records.noise import noise
from autofuse.records.prune import choose, prune
from autofuse.records.revalidate import revalidate
from autofuse.records.verify import verify
from autofuse.target import Hardware


@pytest.fixture
def store(store: RecordStore) -> RecordStore:
    return fill(store)


def drifted(second: int, latency: float, drift: float = 1.0, **changes: object) -> Record:
    """A record of a moment in which the machine was `drift` times slower."""
    beside = {"arithmetic": (2e-4 * drift,) * 3, "memory": (1e-3 * drift,) * 3}
    return record(second, samples=(latency * drift,) * 3, reference_samples=beside, **changes)


class TestNoise:
    def test_pairs_of_one_kernel_are_compared_by_family(self, store: RecordStore) -> None:
        conv = [drifted(0, 1e-3), drifted(1, 1.1e-3), drifted(2, 1e-3, config="a=2"), drifted(3, 9e-3, config="a=3")]
        pool = [drifted(second, 2e-3, family="pool") for second in (4, 5, 6)]
        for r in conv + pool:
            store.add(r)
        store.refresh_baseline("hw1")
        report = noise(store)
        assert (report.overall.kernels, report.overall.pairs) == (2, 4)
        assert report.families["conv"].pairs == 1 and report.families["pool"].pairs == 3
        assert report.families["conv"].normalised == pytest.approx((0.1 / 1.05, 0.1 / 1.05))
        assert report.families["pool"].normalised == (0.0, 0.0)
        assert report.overall.normalised is not None and report.overall.normalised[0] == 0.0
        assert json.loads(json.dumps(report.as_dict()))["families"]["conv"]["kernels"] == 1

    def test_drift_of_the_machine_is_no_noise_of_normalised_latency(self, store: RecordStore) -> None:
        for n in range(4):
            store.add(drifted(n, 1e-3, drift=1.0 + n))
        store.refresh_baseline("hw1")
        spread = noise(store).overall
        assert spread.pairs == 6 and spread.normalised == pytest.approx((0.0, 0.0), abs=1e-9)
        assert spread.latency is not None and spread.latency[0] > 0.3

    def test_cold_latencies_are_compared_where_both_were_taken(self, store: RecordStore) -> None:
        store.add(cold(0, times=2.0))
        store.add(cold(1, times=2.2))
        store.add(record(2))
        store.add(record(3, config="a=2"))
        store.add(record(4, config="a=2"))
        store.refresh_baseline("hw1")
        spread = noise(store).overall
        assert (spread.kernels, spread.pairs, spread.cold_pairs) == (2, 4, 1)
        assert spread.normalised == pytest.approx((0.0, 0.0), abs=1e-9)
        assert spread.cold == pytest.approx((0.2 / 2.1, 0.2 / 2.1))
        told = json.loads(json.dumps(noise(store).as_dict()))
        assert told["cold"]["median"] == pytest.approx(0.2 / 2.1) and told["families"]["conv"]["cold_pairs"] == 1
        assert noise(MemoryStore()).overall.cold is None

    def test_other_hardware_is_another_kernel(self, store: RecordStore) -> None:
        store.add(drifted(0, 1e-3))
        store.add(drifted(1, 2e-3, hardware="hw2"))
        assert noise(store).overall.pairs == 0 and noise(store).as_dict()["normalised"]["median"] is None

    def test_failures_are_no_measurements_and_are_told(self, store: RecordStore) -> None:
        store.add(record(0))
        store.add(failure(1))
        store.add(failure(2, config="a=2"))
        store.add(failure(3, config="a=2"))
        report = noise(store)
        assert report.overall.pairs == 0 and report.changed == 1


class TestPrune:
    def test_drops_what_is_asked_for_and_nothing_else(self, store: RecordStore) -> None:
        old, gone = record(0, family_version=1), record(1, family="gone")
        first, second, newest = (cold(s, family_version=2) for s in (2, 3, 4))
        failed = failure(5, config="a=2", family_version=2)
        unknown = cold(6, family_version=2, codegen_version=0)
        everything = [old, gone, unknown, first, second, newest, failed]
        for r in everything:
            store.add(r)
        versions = {"conv": 2, "pool": 1}
        for options, expected in (
            ((versions, False, False), dict.fromkeys((old.digest, gone.digest, unknown.digest), "old")),
            ((None, True, False), {first.digest: "superseded", second.digest: "superseded"}),
            ((None, False, True), {failed.digest: "failed"}),
            ((None, False, False), {}),
        ):
            assert choose(store, *options).digests == expected
        chosen = choose(store, versions, True, True)
        assert chosen.reasons == {"old": 3, "superseded": 2, "failed": 1}
        assert chosen.families == {"conv 1": 1, "conv 2": 4, "gone 1": 1}
        assert len(list(store.records())) == len(everything)  # choosing changes nothing
        assert prune(store, chosen) == 6
        assert list(store.records()) == [newest]
        assert store.find(newest.identity) == newest and store.find(old.identity) is None
        assert prune(store, chosen) == 0

    def test_a_dropped_failure_supersedes_nothing(self, store: RecordStore) -> None:
        store.add(record(0))
        store.add(failure(1))
        prune(store, choose(store, None, True, True))
        assert [r.status for r in store.records()] == ["ok"]

    def test_records_of_newer_versions_stay(self, store: RecordStore) -> None:
        store.add(record(0, family_version=3))
        assert not choose(store, {"conv": 2}).digests

    def test_usual_times_of_the_references_are_taken_anew(self, store: RecordStore) -> None:
        store.add(drifted(0, 1e-3, drift=9.0))
        store.add(drifted(1, 1e-3))
        store.refresh_baseline("hw1")
        prune(store, choose(store, None, True))
        assert store.baseline("hw1") == {"arithmetic": 2e-4}

    def test_gives_the_space_back(self, tmp_path: Path) -> None:
        path = tmp_path / "r.db"
        with SqliteStore(path) as s:
            fill(s)
            for second in range(50):
                s.add(record(second, message="x" * 4000))
        before = path.stat().st_size
        with SqliteStore(path) as s:
            prune(s, choose(s, None, True))
        assert path.stat().st_size < before / 2
        with SqliteStore(path, readonly=True) as s:
            assert [r.created for r in s.records()] == [stamp(49)]


GROUP = chain(("negative", "exp"))
KEY = workload_key(GROUP)


def sound(store: RecordStore) -> RecordStore:
    """A store in which everything is as it should be."""
    store.add_hardware(HERE)
    store.add_workload(Workload(KEY, canonical_text(GROUP), GROUP.label), ["net"])
    store.add_form(Form(KEY, "", group_to_text(GROUP)))
    for second in range(3):
        store.add(record(second, workload=KEY, config=f"a={second}", tir_digest="0123456789abcdef"))
    store.add(failure(4, workload=KEY))
    store.add(cold(5, workload=KEY, config="a=5"))
    store.refresh_baseline("hw1")
    return store


class TestVerify:
    def test_a_sound_store_has_no_problems(self, tmp_path: Path) -> None:
        assert list(verify(sound(MemoryStore()))) == []
        with SqliteStore(tmp_path / "r.db") as s:
            assert list(verify(sound(s))) == []

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ("UPDATE record SET samples = '[0.5,0.5,0.5]' WHERE id = 1", "its digest is"),
            ("UPDATE record SET latency = 7.0 WHERE id = 1", "its latency is 0.001, the table says 7.0"),
            ("UPDATE record SET ratio = NULL WHERE id = 1", "its ratio is"),
            ("UPDATE record SET samples = 'import os' WHERE id = 2", "record 2: is none"),
            ("UPDATE record SET samples = '[\"a\"]' WHERE id = 2", "record 2: is none"),
            ("UPDATE record SET samples = '7' WHERE id = 2", "record 2: is none"),
            ("UPDATE record SET tir_digest = 'rm -rf' WHERE id = 3", "no digest of code"),
            ("UPDATE record SET reference_samples = '{\"memory\":[1.0]}' WHERE id = 3", "3 samples beside 1"),
            ("UPDATE record SET cold_samples = '[0.5,0.5,0.5]' WHERE id = 5", "its digest is"),
            (
                "UPDATE record SET cold_samples = '[0.5,0.5,0.5]' WHERE id = 1",
                "its cold_latency is 0.5, the table says",
            ),
            ("UPDATE record SET cold_latency = NULL WHERE id = 5", "its cold_latency is 0.003, the table says None"),
            ("UPDATE record SET cold_ratio = 7.0 WHERE id = 5", "its cold_ratio is"),
            ("UPDATE record SET cold_samples = '7' WHERE id = 5", "record 5: is none"),
            ("UPDATE record SET cold_reference_samples = '[1]' WHERE id = 5", "record 5: is none"),
            (
                "UPDATE record SET cold_reference_samples = '{\"arithmetic\":[1.0]}' WHERE id = 5",
                "3 cold samples beside 1",
            ),
            ("UPDATE record SET workload = 99 WHERE id = 1", "record 1: refers to a workload that is not there"),
            ("UPDATE workload SET text = 'another'", "the key of its text is"),
            ("UPDATE workload SET key = 'deadbeef'", "the key of its group is"),
            ("UPDATE form SET text = replace(text, 'float32', 'float64')", "the key of its group is"),
            ("UPDATE form SET text = replace(text, ',', ', ')", "not in canonical form"),
            ("UPDATE form SET text = '{}'", "no text of a group"),
            ("UPDATE form SET layouts = 'NCHW8c->'", "the layouts of its group are ''"),
        ],
    )
    def test_whatever_is_changed_by_hand_is_found(self, tmp_path: Path, change: str, says: str) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            sound(s)
        with sqlite3.connect(tmp_path / "r.db") as db:
            db.execute(change)
        db.close()
        with SqliteStore(tmp_path / "r.db", readonly=True) as s:
            found = list(verify(s))
        assert any(says in problem for problem in found), found
        assert all("\n" not in problem for problem in found)

    def test_damaged_pages_are_found(self, tmp_path: Path) -> None:
        path = tmp_path / "r.db"
        with SqliteStore(path) as s:
            sound(s)
            for second in range(50):
                s.add(record(second, workload=KEY, config=f"b={second}", message="x" * 500))
            s._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = bytearray(path.read_bytes())
        content[-3 * 4096 : -4096] = b"\xff" * 8192
        path.write_bytes(content)
        with SqliteStore(path, readonly=True) as s:
            found = list(verify(s))
        assert found and all("\n" not in problem for problem in found)


class Version2(PlainFamily):
    """The family of the records, of a later version."""

    name: ClassVar[str] = "conv"
    version: ClassVar[int] = 2
    configuration: ClassVar[Any] = Scale

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        return Refusal("kind", "no longer") if group.operators[0].kind == "tanh" else None


def code(group: Group, family: object, config: Any) -> str:
    """Scheduled code that depends on the configuration; a scale of 9 cannot be scheduled."""
    if config.scale == 9:
        raise RuntimeError("no such tile\nat line 3")
    return f"{config.scale:016x}"


class TestRevalidate:
    def run(self, store: RecordStore, **how: Any) -> Any:
        groups = [GROUP, chain(("tanh",))]
        return revalidate(store, "hw1", groups, [Version2()], Hardware(), code, **how)

    @pytest.fixture
    def filled(self, store: RecordStore) -> RecordStore:
        for group in (GROUP, chain(("tanh",))):
            store.add_workload(Workload(workload_key(group), canonical_text(group)))

        def one(second: int, scale: int, made: int | None, **changes: object) -> None:
            digest = "" if made is None else f"{made:016x}"
            store.add(record(second, **{"workload": KEY, "config": f"scale={scale}", "tir_digest": digest, **changes}))

        store.add(cold(0, workload=KEY, config="scale=1", tir_digest=f"{1:016x}"))  # the same code
        one(1, 1, 1)  # measured again
        one(2, 2, 7)  # other code
        one(3, 3, 3, family_version=2)  # of the present version already
        one(4, 4, 8, family_version=2)  # of the present version, and other code
        one(5, 5, None)
        one(6, 9, 9)
        one(7, 1, 1, workload=workload_key(chain(("tanh",))))
        one(8, 1, 1, workload="w1")
        one(9, 1, 1, layouts="NCHW8c->")
        one(10, 1, 1, hardware="hw2")
        one(11, 1, 1, family="gone")
        store.add(record(12, workload=KEY, config="other=1", tir_digest="1" * 16))
        for made_by in (0, CODEGEN_VERSION + 1):  # machine code of equal scheduled code
            one(13 + made_by, 1, 1, family_version=2, codegen_version=made_by)
        return store

    def test_keeps_identical_code_and_reports_the_rest(self, filled: RecordStore) -> None:
        before = {r.digest: r for r in filled.records()}
        found = self.run(filled)
        assert (found.same, found.restamped, found.unknown, found.unseen) == (3, 2, 1, 2)
        reasons = {c.record.created: c.reason for c in found.changed}
        generations = (13, 14 + CODEGEN_VERSION)
        assert {stamp(s) for s in (2, 4, 6, 7, 11, 12, *generations)} == set(reasons)
        assert all("code generation" in reasons[stamp(s)] for s in generations)
        assert "its code is 0000000000000002 now" in reasons[stamp(2)]
        assert "cannot be scheduled" in reasons[stamp(6)] and "\n" not in reasons[stamp(6)]
        assert "does not take" in reasons[stamp(7)] and "no more" in reasons[stamp(11)]
        assert [c.record.created for c in found.unversioned] == [stamp(4)]
        after = {r.created: r for r in filled.records()}
        assert len(after) == len(before)
        for r in before.values():
            restamped = r.created in (stamp(0), stamp(1))
            assert after[r.created] == (replace(r, family_version=2) if restamped else r)

    def test_what_was_restamped_is_found_by_look_ups_and_a_second_time_nothing_changes(
        self, filled: RecordStore
    ) -> None:
        self.run(filled)
        wanted = record(workload=KEY, config="scale=1", family_version=2).identity
        (answer,) = filled.lookup([wanted])
        assert answer is not None and answer.status == "ok"
        again = self.run(filled)
        assert (again.same, again.restamped) == (3, 0)

    def test_looking_alone_changes_nothing(self, filled: RecordStore) -> None:
        before = list(filled.records())
        assert self.run(filled, write=False).restamped == 2
        assert list(filled.records()) == before

    def test_report_is_plain_json(self, filled: RecordStore) -> None:
        report = json.loads(json.dumps(self.run(filled).as_dict()))
        assert report["changed"] == len(report["records"]) == 8 and report["unversioned"] == 1


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["records", *map(str, arguments)])
    return int(end.value.code or 0)


class TestCommands:
    @pytest.fixture
    def db(self, tmp_path: Path) -> Path:
        with SqliteStore(tmp_path / "r.db") as s:
            sound(s)
        return tmp_path / "r.db"

    def test_noise_across_two_collections(self, db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("noise", db) == 0
        assert "no kernel was measured twice" in capsys.readouterr().out
        with SqliteStore(tmp_path / "again.db") as s:
            sound(s).add(record(9, 1.1e-3, workload=KEY, config="a=1"))
            s.add(cold(9, 1.1e-3, workload=KEY, config="a=5"))
        assert call("noise", db, tmp_path / "again.db", "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert (
            report["pairs"] == 2
            and report["cold_pairs"] == 1
            and report["families"]["conv"]["normalised"]["median"] == pytest.approx(0.0952, 0.01)
        )
        assert call("noise", db, tmp_path / "again.db") == 0
        out = capsys.readouterr().out
        assert "conv" in out and "9.52 %" in out

    def test_noise_of_one_hardware(self, db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with SqliteStore(db) as s:
            fill(s)
            for second, latency in enumerate((1e-3, 1.5e-3)):
                s.add(drifted(second, latency, hardware="hw2"))
            s.add(drifted(20, 1e-3))
            s.add(drifted(21, 1.1e-3))
        for start, error in (("hw1", 0.1 / 1.05), ("hw2", 0.4)):
            assert call("noise", db, "--hardware", start, "--json") == 0
            report = json.loads(capsys.readouterr().out)
            assert report["pairs"] == 1 and report["latency"]["median"] == pytest.approx(error)
        assert call("noise", db, "--json") == 0
        assert json.loads(capsys.readouterr().out)["pairs"] == 2
        for start, why in (("hw", "2 hardware rows start with 'hw'"), ("x", "no hardware row starts with 'x'")):
            assert call("noise", db, "--hardware", start) == 2
            said = capsys.readouterr().err
            assert why in said and "hw2 (another machine)" in said

    def test_a_store_for_evaluation_says_so_and_its_noise_may_be_looked_at(
        self, db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with SqliteStore(tmp_path / "kept.db") as s:
            s.keep_for_evaluation()
            sound(s)
        assert call("stats", tmp_path / "kept.db") == 0
        assert "kept for evaluation" in capsys.readouterr().out
        assert call("noise", db, tmp_path / "kept.db", "--json") == 0
        assert call("merge", db, tmp_path / "kept.db") == 2
        assert "store of its own" in capsys.readouterr().err
        with SqliteStore(tmp_path / "kept.db", readonly=True) as s:
            assert s.evaluation_only and list(verify(s)) == []

    def test_prune_says_first_and_drops_when_told(self, db: Path, capsys: pytest.CaptureFixture[str]) -> None:
        before = db.read_bytes()
        assert call("prune", db, "--failed") == 0
        assert "would drop 1 records: 1 failed" in capsys.readouterr().out and db.read_bytes() == before
        assert call("prune", db, "--failed", "--yes", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {
            "records": 1, "reasons": {"failed": 1}, "families": {"conv 1": 1}, "dropped": True,
        }  # fmt: skip
        assert call("prune", db, "--old") == 0  # the family "conv" is none of those that exist
        assert "4 old" in capsys.readouterr().out
        assert call("prune", db) == 2
        assert "--superseded" in capsys.readouterr().err

    def test_verify_tells_by_its_exit_code(self, db: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("verify", db) == 0
        assert "sound" in capsys.readouterr().out
        with sqlite3.connect(db) as other:
            other.execute("UPDATE record SET latency = 7.0 WHERE id = 1")
        other.close()
        assert call("verify", db, "--json") == 1
        report = json.loads(capsys.readouterr().out)
        assert not report["sound"] and len(report["problems"]) == 1
        assert call("verify", db.with_name("missing.db")) == 2

    def test_listing_showing_and_counting(self, db: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert call("ls", db, "--status", "ok", "--json") == 0
        assert len(json.loads(capsys.readouterr().out)) == 4
        assert call("show", db, KEY[:6], "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["models"] == ["net"] and len(shown["records"]) == 5
        assert [r["cold_samples"] for r in shown["records"] if r["cold_samples"]] == [[0.003, 0.003, 0.006]]
        assert call("show", db, KEY[:6]) == 0
        assert capsys.readouterr().out.count("3000.00 µs with cold weights") == 1
        assert call("show", db, "zzz") == 2
        assert "no workload starts" in capsys.readouterr().err
        assert call("stats", db, "--json") == 0
        counts = json.loads(capsys.readouterr().out)
        assert counts == {
            "ok": 4, "failed": 1, "failures": {"crashed": 1}, "workloads": 1, "models": ["net"],
            "hardware": ["hw1"], "families": {"conv 1": 5}, "evaluation_only": False,
        }  # fmt: skip
        assert call("stats", db) == 0
        assert "evaluation" not in capsys.readouterr().out

    def test_exporting_importing_and_merging(
        self, db: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert call("export", db, "-o", tmp_path / "a.jsonl") == 0
        for new in ("5 records were new", "0 records were new"):
            assert call("import", tmp_path / "b.db", tmp_path / "a.jsonl") == 0
            assert new in capsys.readouterr().out
        assert call("merge", tmp_path / "b.db", db, db) == 0
        assert capsys.readouterr().out.count("0 records were new") == 2
        assert call("export", tmp_path / "b.db", "-o", tmp_path / "b.jsonl") == 0
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
