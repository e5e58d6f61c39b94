"""What every record store promises, checked on each implementation; then what is peculiar to the SQLite one."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autofuse.errors import RecordError
from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.records import Form, MemoryStore, Record, RecordedHardware, RecordStore, SqliteStore, Workload
from autofuse.records.groups import group_from_text, group_to_text
from autofuse.records.migrations import MIGRATIONS
from autofuse.records.record import quiet
from autofuse.records.schema import SCHEMA_VERSION
from autofuse.records.software import software_versions

HERE = RecordedHardware("hw1", "a machine", {"threads": 2, "isa": ["avx2"]})
THERE = RecordedHardware("hw2", "another machine", {"threads": 4})


def stamp(second: int) -> str:
    return f"2025-01-01T00:00:{second:02d}.000000Z"


def record(second: int = 0, latency: float = 1e-3, **changes: object) -> Record:
    base = Record(
        workload="w1",
        hardware="hw1",
        family="conv",
        family_version=1,
        config="a=1",
        samples=(latency, latency, latency * 1.5),
        reference_samples={"arithmetic": (2e-4, 2e-4, 3e-4), "memory": (1e-3, 1e-3, 1e-3)},
        tvm_version="0.27",
        created=stamp(second),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def failure(second: int = 0, status: str = "crashed", **changes: object) -> Record:
    return record(second, status=status, message="SIGSEGV", samples=(), reference_samples={}, **changes)


def group() -> Group:
    """relu(conv) out of a graph in which other operators come first and use the convolution's result."""
    tensors = (
        Tensor(0, "x", (1, 2, 4, 4, 8), layout="NCHW8c", logical_shape=(1, 16, 4, 4)),
        Tensor(1, "y", (1, 2, 4, 4, 8), role=Role.INPUT),
        Tensor(2, "weight", (2, 2, 3, 3, 8, 8), role=Role.CONSTANT),
        Tensor(3, "c", (1, 2, 4, 4, 8), layout="NCHW8c"),
        Tensor(4, "r", (1, 2, 4, 4, 8), "float16"),
    )
    data = Access(0, 1, MappingType.MANY_TO_MANY, 144, 9, -1)
    operators = (
        Operator(0, "before", "negative", "n", (0,), (1,), (Access(0, 0, MappingType.ONE_TO_ONE),)),
        Operator(1, "conv", "nn.conv2d", "f", (1, 2), (3,), (data, Access(1, 2, MappingType.MANY_TO_MANY)),
                 Work(fma=36864), {"strides": [1, 1], "variant": "blocked"}, (1, 2, 4, 4, 8), (2, 3, 3, 8), 2),
        Operator(2, "relu", "nn.relu", "r", (3,), (4,), (Access(0, 3, MappingType.ONE_TO_ONE),), Work(compare=256)),
    )  # fmt: skip
    return Group(Graph("g", tensors, operators, (0,), (3, 4)), (1, 2), (3, 4))


def fill(store: RecordStore) -> RecordStore:
    store.add_hardware(HERE)
    store.add_hardware(THERE)
    store.add_workload(Workload("w1", "conv 1", "conv"), ["resnet50"])
    store.add_workload(Workload("w2", "matmul 1"))
    return store


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    made: RecordStore = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "records.db")
    with made:
        yield fill(made)


class TestEveryStore:
    def test_gives_back_what_was_added(self, store: RecordStore) -> None:
        for given_record in (record(), failure(1, "oom", config="a=2"), record(2, layouts="NCHW8c->NCHW8c")):
            assert store.add(given_record)
            assert store.find(given_record.identity) == given_record

    def test_adding_again_changes_nothing(self, store: RecordStore) -> None:
        assert store.add(record())
        assert not store.add(record())
        assert len(list(store.records())) == 1

    def test_repeated_measurements_are_kept_and_the_newest_counts(self, store: RecordStore) -> None:
        store.add(record(5, 2e-3))
        store.add(record(1, 1e-3))
        assert len(list(store.records())) == 2
        found = store.find(record().identity)
        assert found is not None and found.latency == 2e-3

    @pytest.mark.parametrize(
        "change",
        [{"workload": "w2"}, {"hardware": "hw2"}, {"family": "x"}, {"family_version": 2}, {"config": "a=2"},
         {"layouts": "NCHW8c->"}],
    )  # fmt: skip
    def test_a_record_answers_for_exactly_its_identity(self, store: RecordStore, change: dict[str, object]) -> None:
        store.add(record())
        other = record(**change).identity
        assert store.find(other) is None
        assert store.lookup([other, record().identity])[0] is None
        assert store.lookup([other, record().identity])[1] is not None

    def test_lookup_answers_in_order_with_repeats_and_failures(self, store: RecordStore) -> None:
        store.add(record())
        store.add(failure(1, config="a=2"))
        good, bad, unknown = record().identity, record(config="a=2").identity, record(config="a=3").identity
        answers = store.lookup([unknown, bad, good, bad])
        assert answers[0] is None
        assert [a.status for a in answers[1:] if a] == ["crashed", "ok", "crashed"]
        assert answers[1] is not None and answers[1].normalised is None and answers[1].latency is None
        assert store.lookup([]) == []

    def test_normalised_latency_takes_the_drift_out(self, store: RecordStore) -> None:
        """A machine twice as slow for one record doubles kernel and reference alike."""
        slow = {name: tuple(2 * t for t in times) for name, times in record().reference_samples.items()}
        store.add(record(0, 1e-3))
        store.add(record(1, 1e-3, config="a=2"))
        store.add(record(2, 2e-3, config="a=3", reference_samples=slow))
        before = store.find(record(config="a=3").identity)
        assert before is not None and before.normalised == before.latency == 2e-3
        assert store.refresh_baseline("hw1") == {"arithmetic": 2e-4} == store.baseline("hw1")
        answers = store.lookup([record().identity, record(config="a=3").identity])
        assert [round(a.normalised or 0, 9) for a in answers if a] == [1e-3, 1e-3]
        assert store.baseline("hw2") == {} and store.baseline("nowhere") == {}

    def test_best_is_the_fastest_of_the_newest(self, store: RecordStore) -> None:
        store.add(record(0, 1e-4))  # superseded by the next
        store.add(record(1, 9e-3))
        store.add(record(2, 3e-3, config="a=2"))
        store.add(failure(3, config="a=3"))
        store.add(record(4, 1e-3, family="other", family_version=7))
        store.add(record(5, 1e-5, hardware="hw2"))
        best = store.best("w1", "hw1")
        assert best is not None and best.family == "other"
        best = store.best("w1", "hw1", {"conv": 1, "other": 8})
        assert best is not None and best.config == "a=2"
        assert store.best("w1", "hw1", {}) is None
        assert store.best("w2", "hw1") is None

    def test_needs_hardware_and_workload_first(self, store: RecordStore) -> None:
        for orphan in (record(hardware="nowhere"), record(workload="nothing")):
            with pytest.raises(RecordError, match="unknown"):
                store.add(orphan)
        assert list(store.records()) == []

    def test_keeps_the_first_form_of_a_workload(self, store: RecordStore) -> None:
        store.add_form(Form("w1", "NCHW8c->", group_to_text(group())))
        store.add_form(Form("w1", "NCHW8c->", "another"))
        found = store.form("w1", "NCHW8c->")
        assert found is not None and group_from_text(found.text).members == (0, 1)
        assert store.form("w1", "") is None and store.form("w2", "NCHW8c->") is None
        assert [f.workload for f in store.forms()] == ["w1"]
        with pytest.raises(RecordError, match="unknown"):
            store.add_form(Form("nothing", "", "text"))

    def test_counts(self, store: RecordStore) -> None:
        store.add(record())
        store.add(failure(1, "timeout"))
        store.add(failure(2, "timeout", config="a=2"))
        store.add_workload(Workload("w1", "ignored: the first text stays"), ["vgg16", "resnet50"])
        stats = store.stats().as_dict()
        assert stats["ok"] == 1 and stats["failed"] == 2 and stats["failures"] == {"timeout": 2}
        assert stats["workloads"] == 2 and stats["models"] == ["resnet50", "vgg16"]
        assert stats["hardware"] == ["hw1", "hw2"] and stats["families"] == {"conv 1": 3}
        assert next(iter(store.workloads())).text == "conv 1" and store.models("w1") == ("resnet50", "vgg16")

    def test_records_come_sorted_and_by_hardware(self, store: RecordStore) -> None:
        given_records = [record(s, config=f"a={s % 3}", hardware=f"hw{1 + s % 2}") for s in range(8)]
        for r in reversed(given_records):
            store.add(r)
        listed = list(store.records())
        keys = [(r.hardware, r.config, r.created) for r in listed]
        assert keys == sorted(keys) and len(keys) == 8
        assert {r.hardware for r in store.records("hw2")} == {"hw2"}

    def test_export_and_import_round_trip(self, store: RecordStore, tmp_path: Path) -> None:
        for r in (record(3), failure(2, config="ü=1"), record(1, hardware="hw2")):
            store.add(r)
        store.add_form(Form("w1", "NCHW8c->", group_to_text(group())))
        store.refresh_baseline("hw1")
        store.refresh_baseline("hw2")
        assert store.export_lines(tmp_path / "a.jsonl") == 3
        other = MemoryStore()
        assert other.import_lines(tmp_path / "a.jsonl") == 3
        assert other.import_lines(tmp_path / "a.jsonl") == 0
        assert list(other.records()) == list(store.records()) and list(other.forms()) == list(store.forms())
        assert [r.normalised for r in other.records()] == [r.normalised for r in store.records()]
        other.export_lines(tmp_path / "b.jsonl")
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
        assert sorted(p.name for p in tmp_path.glob("*.jsonl*")) == ["a.jsonl", "b.jsonl"]

    def test_merge_takes_what_is_new_and_only_that(self, store: RecordStore) -> None:
        other = fill(MemoryStore())
        other.add_workload(Workload("w3", "pool"), ["vgg16"])
        other.add(record())
        other.add(record(1, workload="w3"))
        store.add(record())
        assert store.merge(other) == 1
        assert store.merge(other) == 0
        assert store.models("w3") == ("vgg16",)

    def test_a_failed_import_leaves_nothing(self, store: RecordStore, tmp_path: Path) -> None:
        store.add(record())
        store.export_lines(tmp_path / "a.jsonl")
        good = (tmp_path / "a.jsonl").read_text()
        extra = good.splitlines()[-1].replace('"a=1"', '"a=9"')
        for bad in (
            "{broken",
            '{"type": "program"}',
            '{"type": "form", "workload": "w1", "layouts": "", "text": "import os"}',
            extra.replace('"family":"conv"', '"family":7'),
            extra.replace('"samples":[0.001', '"samples":[NaN'),
            extra.replace('"samples":[0.001', '"samples":[-1'),
            extra.replace('"status":"ok"', '"status":"fine"'),
            extra.replace('"hw1"', '"hw7"'),
            extra.replace('"created":"2025-', '"created":"now-'),
            extra.replace('"message"', '"comment"'),
            extra.replace('"family_version":1', '"family_version":true'),
        ):
            assert bad != extra
            path = tmp_path / "bad.jsonl"
            path.write_text(good + extra + "\n" + bad + "\n")
            with pytest.raises(RecordError, match=r"bad.jsonl:\d+: .*nothing was imported") as caught:
                store.import_lines(path)
            assert "\n" not in str(caught.value)
            assert len(list(store.records())) == 1

    def test_an_import_of_another_kind_of_file_is_refused(self, store: RecordStore, tmp_path: Path) -> None:
        for name, text in (("empty", ""), ("text", "hello\n"), ("new", '{"type":"autofuse-records","schema":99}\n')):
            (tmp_path / name).write_text(text)
            with pytest.raises(RecordError, match=name):
                store.import_lines(tmp_path / name)
        with pytest.raises(RecordError, match="cannot be read"):
            store.import_lines(tmp_path / "missing")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            record,
            st.integers(0, 59),
            st.floats(1e-6, 1.0),
            workload=st.sampled_from(["w1", "w2"]),
            hardware=st.sampled_from(["hw1", "hw2"]),
            config=st.sampled_from(["a=1", "a=2"]),
            reference=st.sampled_from(["arithmetic", "memory"]),
        )
    )
)
def test_the_stores_agree(records: list[Record]) -> None:
    """The two implementations give the same answers whatever is added, in whatever order."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "r.db") as sqlite:
        memory = fill(MemoryStore())
        fill(sqlite)
        assert [memory.add(r) for r in records] == [sqlite.add(r) for r in records]
        for hardware in ("hw1", "hw2"):
            assert memory.refresh_baseline(hardware) == sqlite.refresh_baseline(hardware)
        assert [(r, r.normalised) for r in memory.records()] == [(r, r.normalised) for r in sqlite.records()]
        identities = [r.identity for r in records]
        assert memory.lookup(identities) == sqlite.lookup(identities)
        for workload in ("w1", "w2"):
            assert memory.best(workload, "hw1") == sqlite.best(workload, "hw1")


class TestGroupText:
    def test_a_group_survives_the_round_trip(self) -> None:
        text = group_to_text(group())
        back = group_from_text(text)
        assert group_to_text(back) == text
        first, second = back.operators
        assert (first.work, first.attrs, first.reduction, first.blocks) == (
            Work(fma=36864), {"strides": [1, 1], "variant": "blocked"}, (2, 3, 3, 8), 2)  # fmt: skip
        assert first.mapping is MappingType.MANY_TO_MANY and second.kind == "nn.relu"
        shapes = [back.graph.tensors[t] for t in back.inputs]
        assert [(t.shape, t.role) for t in shapes] == [
            ((1, 2, 4, 4, 8), Role.INPUT),
            ((2, 2, 3, 3, 8, 8), Role.CONSTANT),
        ]
        assert [back.graph.tensors[t].layout for t in back.outputs] == ["NCHW8c", ""]
        assert back.internal == () and back.label == group().label

    def test_refuses_other_text(self) -> None:
        good = group_to_text(group())
        changes = [('"version":1', '"version":2'), ('"inputs":[0,1]', '"inputs":[0,9]'), ("Many-to-Many", "Some")]
        for bad in ("", "{}", "[1]", *(good.replace(a, b) for a, b in changes)):
            assert bad != good
            with pytest.raises(ValueError, match="no text of a group"):
                group_from_text(bad)


class TestRecord:
    def test_refuses_what_cannot_be(self) -> None:
        for change in ({"status": "fine"}, {"reference": "sun"}, {"samples": ()}, {"samples": (0.0,)}):
            with pytest.raises(ValueError):
                record(**change)

    def test_disturbed_samples_do_not_move_the_ratio(self) -> None:
        """Half of the samples of kernel and reference are hit, in different places."""
        samples = tuple(1e-3 if i % 2 else 9e-3 for i in range(12))
        beside = tuple(8e-3 if i % 4 < 2 else 2e-3 for i in range(12))
        assert record(samples=samples, reference_samples={"arithmetic": beside}).ratio == pytest.approx(0.5)
        assert quiet([3.0]) == 3.0 and quiet([4.0, 1.0, 3.0, 2.0, 5.0]) == 2.0

    def test_median_and_ratio(self) -> None:
        r = record(samples=(2.0, 4.0, 9.0), reference_samples={"arithmetic": (1.0, 1.0, 3.0)})
        assert r.latency == 4.0 and r.ratio == 3.0 and r.reference_latency == 1.0
        assert r.normalise(2.0) == 6.0 and r.normalise(None) == 4.0
        assert failure().latency is None and failure().normalise(2.0) is None

    def test_hardware_comes_from_the_fingerprint_and_survives_json(self) -> None:
        from autofuse.target import HardwareRow, fingerprint

        row = fingerprint(3)
        kept = RecordedHardware.of(row)
        assert kept.digest == row.digest and "3 threads" in kept.name
        assert HardwareRow.from_json(json.loads(json.dumps(kept.detail))) == row

    def test_versions_of_what_made_a_record(self) -> None:
        assert software_versions()["tvm"].startswith("0.27") and software_versions()["autofuse"]


class TestSqliteFile:
    def test_survives_closing_and_holds_foreign_keys(self, tmp_path: Path) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s).add(record())
        with SqliteStore(tmp_path / "r.db") as s:
            assert s.find(record().identity) == record()
            assert s._db.journal_mode == "wal"
            with pytest.raises(sqlite3.IntegrityError):
                s._db.execute("DELETE FROM hardware")

    def test_opening_readonly_reads_and_refuses_to_write(self, tmp_path: Path) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s).add(record())
        with SqliteStore(tmp_path / "r.db", readonly=True) as s:
            assert s.find(record().identity) == record()
            with pytest.raises(RecordError, match="read-only"):
                s.add(record(1))
        with pytest.raises(RecordError, match="no such file"):
            SqliteStore(tmp_path / "missing.db", readonly=True)
        assert not (tmp_path / "missing.db").exists()

    def test_reads_from_a_folder_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s).add(record())
        monkeypatch.setattr("os.access", lambda path, mode: False)
        with SqliteStore(tmp_path / "r.db", readonly=True) as s:
            assert s.find(record().identity) == record()
            assert [p.name for p in tmp_path.iterdir()] == ["r.db"]

    def test_damaged_foreign_and_newer_files_are_left_as_they_were(self, tmp_path: Path) -> None:
        (tmp_path / "text.db").write_bytes(b"this is no database, whatever its name says" * 40)
        with sqlite3.connect(tmp_path / "foreign.db") as other:
            other.execute("CREATE TABLE meta (a)")
        other.close()
        with SqliteStore(tmp_path / "newer.db") as s:
            s._db.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", [str(SCHEMA_VERSION + 1)])
        for name, says in (("text.db", "damaged"), ("foreign.db", "not one of autofuse"), ("newer.db", "newer")):
            before = (tmp_path / name).read_bytes()
            with pytest.raises(RecordError, match=says) as caught:
                SqliteStore(tmp_path / name)
            assert "\n" not in str(caught.value) and name in str(caught.value)
            assert (tmp_path / name).read_bytes() == before
        with pytest.raises(RecordError, match="folder"):
            SqliteStore(tmp_path)
        with pytest.raises(RecordError, match="cannot be opened"):
            SqliteStore(tmp_path / "no" / "where.db")

    def test_a_locked_file_says_so(self, tmp_path: Path) -> None:
        with SqliteStore(tmp_path / "r.db", wait=0.1) as s:
            fill(s)
            other = sqlite3.connect(tmp_path / "r.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(RecordError, match="locked"):
                s.add(record())
            other.execute("ROLLBACK")
            other.close()
            assert s.add(record())

    def test_a_full_disk_says_so_and_keeps_the_rest(self, tmp_path: Path) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s).add(record())
            pages = s._db.execute("PRAGMA page_count").fetchone()[0]
            s._db.execute(f"PRAGMA max_page_count = {pages}")
            with pytest.raises(RecordError, match="disk is full"):
                for second in range(60):
                    s.add(record(second, message="x" * 4000))
            assert s.find(record().identity) is not None

    def test_every_earlier_version_migrates(self, tmp_path: Path) -> None:
        from sqlite_utils import Database

        fresh = SqliteStore(tmp_path / "fresh.db")
        schema = fresh._db.schema
        fresh.close()
        for version in range(SCHEMA_VERSION):
            db = Database(tmp_path / f"{version}.db")
            with db.conn:
                for step in MIGRATIONS[:version]:
                    step(db)
                if version:
                    db.execute("INSERT INTO meta VALUES ('schema_version', ?)", [str(version)])
            db.conn.close()
            with SqliteStore(tmp_path / f"{version}.db") as s:
                assert s._db.schema == schema
                assert fill(s).add(record())
        assert len(MIGRATIONS) == SCHEMA_VERSION

    def test_lookups_use_the_index(self, tmp_path: Path) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s)
            s._db.conn.set_trace_callback(None)
            plans: list[str] = []
            s._db.conn.set_trace_callback(plans.append)
            s.lookup([record().identity])
            s.find(record().identity)
            s._db.conn.set_trace_callback(None)
            queries = [sql for sql in plans if sql.lstrip().startswith("SELECT")]
            assert len(queries) == 2
            for sql in queries:
                steps = [row[3] for row in s._db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]
                assert any("record_lookup" in step for step in steps), steps
                assert not any(step.startswith("SCAN r") for step in steps), steps


WRITER = """
import sys
from autofuse.records import SqliteStore, Record, Workload, RecordedHardware
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with SqliteStore(path) as store:
    store.add_hardware(RecordedHardware("hw1", "a machine"))
    for i in range(count):
        store.add_workload(Workload(f"w{i % 7}", "text"), [name])
        store.add(Record(f"w{i % 7}", "hw1", "conv", 1, f"{name}={i}", samples=(1e-3,)))
        print(i, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_four_processes_write_at_once(tmp_path: Path) -> None:
    """They even create the file together; nothing is lost."""
    writers = [writer(tmp_path / "r.db", f"p{n}", 40) for n in range(4)]
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with SqliteStore(tmp_path / "r.db") as s:
        assert s.stats().ok == 160 and s.stats().models == ("p0", "p1", "p2", "p3")


def test_a_killed_writer_loses_nothing_that_it_had_added(tmp_path: Path) -> None:
    """Killed three times in the midst of writing; each time everything acknowledged is there and the file is sound."""
    acknowledged = 0
    for kill in range(3):
        process = writer(tmp_path / "r.db", f"k{kill}", 100_000)
        assert process.stdout is not None
        for _ in range(5 + 20 * kill):
            process.stdout.readline()
        time.sleep(0.01 * kill)
        process.kill()
        acknowledged += 5 + 20 * kill + len(process.stdout.read().splitlines())
        process.wait()
        process.stdout.close()
        with SqliteStore(tmp_path / "r.db") as s:
            count = s.stats().ok
            assert s._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert acknowledged <= count <= acknowledged + kill + 1
