"""Records of other machines in data/: which are taken over, and that each store takes what is its own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from records_samples import cold

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import collect_data
import other_machines

from autofuse.records import Form, RecordedHardware, RecordStore, SqliteStore, Workload
from autofuse.records.machines import row_names
from autofuse.schedule.registry import any_family
from autofuse.target.fingerprint import HardwareRow, fingerprint

FAMILY = "elementwise"
VERSION = any_family(FAMILY).version
HERE = fingerprint(2)
THERE = replace(HERE, model=HERE.model + 1, model_name="A CPU")
ALONE = replace(THERE, threads=1)


def row(known: HardwareRow) -> RecordedHardware:
    return RecordedHardware.of(known)


def add(store: RecordStore, key: str, models: list[str], known: HardwareRow, count: int, **changes: object) -> None:
    """A workload with `count` configurations, the first measured twice."""
    store.add_hardware(row(known))
    store.add_workload(Workload(key, key), models)
    store.add_form(Form(key, "", f"form of {key}"))
    made = {"workload": key, "hardware": known.digest, "family": FAMILY, "family_version": VERSION, **changes}
    for n in range(count):
        store.add(cold(n, 1e-3 * (1 + n), config=f"a={n}", **made))
    store.add(cold(30, 1e-3, config="a=0", **made))


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """20 workloads of two networks on another machine, some with a pool of one thread and some of this machine."""
    path = tmp_path / "other.db"
    with SqliteStore(path) as store:
        for n in range(20):
            add(store, f"w{n:02d}", ["a"] if n % 3 else ["a", "b"], THERE, 4)
        add(store, "w03", ["a"], ALONE, 2)
        add(store, "w04", ["a"], HERE, 2)
        add(store, "old", ["a"], THERE, 3, family_version=VERSION + 1)
        store.refresh_baseline(THERE.digest)
    return path


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    """This machine's two stores."""
    records, unseen = tmp_path / "records.db", tmp_path / "unseen.db"
    with SqliteStore(records) as store:
        add(store, "w00", ["a"], HERE, 3)
    with SqliteStore(unseen) as store:
        store.keep_for_evaluation()
        add(store, "v", ["c"], HERE, 3)
    return records, unseen


class TestSpread:
    def test_takes_as_many_as_fit_at_even_distances(self) -> None:
        counts = {f"{n:02d}": 5 for n in range(20)}
        assert other_machines.spread(counts, 25) == ["02", "06", "10", "14", "18"]
        assert other_machines.spread(counts, 24) == ["02", "07", "12", "17"]
        assert other_machines.spread(counts, 100) == sorted(counts) and other_machines.spread(counts, 4) == []

    def test_workloads_come_whole_whatever_their_sizes(self) -> None:
        counts = {f"{n:02d}": 1 + n % 7 for n in range(50)}
        for most in (1, 10, 60, 150):
            found = other_machines.spread(counts, most)
            assert sum(counts[key] for key in found) <= most
            more = [(2 * i + 1) * 50 // (2 * (len(found) + 1)) for i in range(len(found) + 1)]
            assert sum(counts[f"{n:02d}"] for n in more) > most


class TestTakingOver:
    def test_a_part_of_each_network_with_all_configurations_and_repeats(
        self, other: Path, stores: tuple[Path, Path]
    ) -> None:
        records, unseen = stores
        assert other_machines.take_over([other], records, unseen, 25) == {str(other): 40 + 3}
        with SqliteStore(records) as store, SqliteStore(other) as source:
            mine = list(store.records(THERE.digest))
            # Five workloads of each network; two of them are the same.
            assert len(mine) == 40 and all(r in list(source.records()) for r in mine)
            for key in {r.workload for r in mine}:
                assert list(store.records(THERE.digest, key)) == list(source.records(THERE.digest, key))
                assert store.models(key) == source.models(key) and store.form(key, "") == source.form(key, "")
            assert len(list(store.records(ALONE.digest))) == 3
            assert len(list(store.records(HERE.digest))) == 4  # those of this machine in the other store stay there
            assert "old" not in {w.key for w in store.workloads()}
            assert store.baseline(THERE.digest) == source.baseline(THERE.digest)
            assert len({w.key for w in store.workloads()}) == len({r.workload for r in store.records()})

    def test_twice_is_once_and_the_same_every_time(
        self, other: Path, stores: tuple[Path, Path], tmp_path: Path
    ) -> None:
        records, unseen = stores
        other_machines.take_over([other], records, unseen, 25)
        assert other_machines.take_over([other], records, unseen, 25) == {str(other): 0}
        again = tmp_path / "again.db"
        other_machines.take_over([other], again, unseen, 25)
        with SqliteStore(records) as a, SqliteStore(again) as b:
            assert [r.digest for r in a.records(THERE.digest)] == [r.digest for r in b.records(THERE.digest)]

    def test_all_of_a_store_for_evaluation_goes_into_the_second(
        self, stores: tuple[Path, Path], tmp_path: Path
    ) -> None:
        records, unseen = stores
        kept = tmp_path / "kept.db"
        with SqliteStore(kept) as store:
            store.keep_for_evaluation()
            for n in range(10):
                add(store, f"v{n}", ["c"], THERE, 4)
            add(store, "v", ["c"], HERE, 5)
        with SqliteStore(records) as store:
            before = store.stats()
        assert other_machines.take_over([kept], records, unseen, 10) == {str(kept): 50}
        with SqliteStore(records) as a, SqliteStore(unseen) as b:
            assert a.stats() == before
            assert b.evaluation_only and len(list(b.records(THERE.digest))) == 50
            assert len(list(b.records(HERE.digest))) == 4

    def test_what_is_learned_from_there_and_kept_back_here_is_refused(self, other: Path, tmp_path: Path) -> None:
        assert other_machines.fault_of(other, ["a", "b"], ["c"]) is None
        said = other_machines.fault_of(other, ["a"], ["b", "c"])
        assert said is not None and said.endswith("what is learned from there is the opposite here: b")
        missing = other_machines.fault_of(tmp_path / "no.db", [], [])
        assert missing is not None and "no such file" in missing


class TestTheScript:
    @pytest.fixture
    def data(self, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        records, unseen = stores
        for name, path in (("RECORDS", records), ("UNSEEN", unseen), ("LOG", tmp_path / "collection.json"),
                           ("PAGE", tmp_path / "collection.md")):  # fmt: skip
            monkeypatch.setattr(collect_data, name, path)
        monkeypatch.setattr(collect_data, "own_rows", lambda threads: [HERE.digest])
        return tmp_path

    def run(self, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
        networks = ["--networks", "a,b", "--unseen", "c"]
        monkeypatch.setattr(sys, "argv", ["collect_data.py", *networks, *arguments])
        return collect_data.main()

    def test_takes_over_without_measuring_and_tells_machines_apart(
        self, data: Path, other: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (data / "collection.json").write_text(json.dumps({"runs": []}))
        assert self.run(monkeypatch, "--also", str(other), "--also-per-model", "25", "--merge-only") == 1
        said = capsys.readouterr().err
        assert "records.db: 4 records of this machine, at least 5000" in said and "43 records were new" in said
        log = json.loads((data / "collection.json").read_text())
        assert log == {"runs": [], "hardware": [HERE.digest], "also_per_model": 25}
        text = (data / "collection.md").read_text()
        names = row_names(map(row, (HERE, THERE, ALONE)))
        assert f"| `data/records.db`, {names[HERE.digest]} | 4 |" in text
        assert f"| `data/records.db`, {names[THERE.digest]} | 40 |" in text
        assert f"Records of {names[THERE.digest]}, {names[ALONE.digest]} were measured" in text

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["--merge-only"], "--merge-only is about --also"),
            (["--also", "no.db", "--fresh"], "no such file"),
            (["--also", "records.db"], "--also is about stores of other machines"),
        ],
    )
    def test_refuses_before_anything_is_thrown_away(
        self, arguments: list[str], why: str, data: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        monkeypatch.chdir(data)
        with pytest.raises(SystemExit):
            self.run(monkeypatch, *arguments)
        assert why in capsys.readouterr().err and (data / "records.db").exists()


class TestNames:
    def test_tell_instruction_sets_and_pools(self) -> None:
        avx512 = replace(THERE, features=("avx512bw", "avx512dq", "avx512f", "avx512vl"), model_name="AMD EPYC")
        avx2 = replace(avx512, features=("avx2", "fma"), threads=1)
        names = row_names([row(avx512), row(avx2), RecordedHardware("x", "a card", {})])
        assert list(names.values()) == ["AMD EPYC (avx512), 2 threads", "AMD EPYC (avx2), 1 thread", "a card"]

    def test_tell_rows_that_would_have_one_name_by_their_digest(self) -> None:
        twins = [replace(THERE, stepping=n) for n in (1, 2)]
        assert [name.split(", ")[-1] for name in row_names(map(row, twins)).values()] == [t.digest for t in twins]


def test_this_machine_is_itself_with_any_pool() -> None:
    assert other_machines.of_this_machine(row(HERE)) and other_machines.of_this_machine(row(replace(HERE, threads=7)))
    assert not other_machines.of_this_machine(row(THERE))
    assert not other_machines.of_this_machine(RecordedHardware("x", "a card", {"wave": 64}))
    assert not HERE.beside(replace(HERE, tvm_version="0"))
