"""The SQLite file: what it survives, what is said when it cannot be used, and that it is left as it was then."""

from __future__ import annotations

import os
import resource
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records_samples import cold, fill, record

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.errors import RecordError
from autofuse.records import Measured, SqliteStore, migrations, sqlite
from autofuse.records.schema import SCHEMA_VERSION
from autofuse.records.verify import verify


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

    def test_a_file_of_a_newer_version_is_not_read_either(self, tmp_path: Path) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            s._db.execute("UPDATE meta SET value = '99' WHERE name = 'schema_version'")
        with pytest.raises(RecordError, match="newer autofuse"):
            SqliteStore(tmp_path / "r.db", readonly=True)

    def test_a_file_locked_for_good_cannot_be_opened(self, tmp_path: Path) -> None:
        path = tmp_path / "r.db"
        with SqliteStore(path) as s:
            fill(s)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        before = path.read_bytes()
        with pytest.raises(RecordError, match="locked") as caught:
            SqliteStore(path, wait=0.1)
        assert "\n" not in str(caught.value) and path.read_bytes() == before
        other.close()
        with SqliteStore(path) as s:
            assert s.stats().workloads == 2

    @pytest.mark.parametrize("how", ["overwritten", "cut"])
    def test_a_file_damaged_inside_says_so_and_is_left_as_it_was(self, tmp_path: Path, how: str) -> None:
        path = tmp_path / "r.db"
        with SqliteStore(path) as s:
            fill(s)
            for second in range(50):
                s.add(record(second, message="x" * 500))
        content = bytearray(path.read_bytes())
        if how == "cut":
            content = content[: len(content) // 2]
        else:
            content[8192:] = b"\xff" * (len(content) - 8192)
        path.write_bytes(content)
        with pytest.raises(RecordError, match="damaged") as caught, SqliteStore(path) as s:
            list(s.records())
        assert "\n" not in str(caught.value) and path.read_bytes() == content

    def test_what_a_killed_writer_left_in_the_log_is_read_from_a_folder_that_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = SqliteStore(tmp_path / "r.db")
        fill(writer).add(record())
        for name in ("r.db", "r.db-wal"):
            (tmp_path / f"copy-{name}").write_bytes((tmp_path / name).read_bytes())
            (tmp_path / f"copy-{name}").rename(tmp_path / name.replace("r.db", "left.db"))
        writer.close()
        monkeypatch.setattr("os.access", lambda path, mode: False)
        with SqliteStore(tmp_path / "left.db", readonly=True) as s:
            assert s.find(record().identity) == record()


def in_a_child(work: Callable[[], str]) -> str:
    """What `work` gives, or the error that it raises, in a forked process, whose limits and user are its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except RecordError as error:
            said = f"RecordError: {error}"
        except BaseException as error:
            said = repr(error)
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def files_limited_to(size: int) -> None:
    """No file of this process may grow beyond `size` bytes: as a full disk does, writing fails half-way."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class TestFullDisk:
    def test_additions_fail_with_one_line_and_all_before_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "r.db"
        with SqliteStore(path) as s:
            fill(s)
        added = 0

        def work() -> str:
            nonlocal added
            with SqliteStore(path) as s:
                files_limited_to(path.stat().st_size + 200_000)
                try:
                    for added in range(60):
                        s.add(record(added, message="x" * 9000))
                except RecordError as error:
                    return f"{added} {error}"
            return "no error"

        count, said = in_a_child(work).split(" ", 1)
        assert "cannot be read or written" in said and "full" in said and str(path) in said and "\n" not in said
        assert int(count) > 3
        with SqliteStore(path) as s:
            assert s.stats().ok == int(count)
            assert s._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            assert s.add(record(59))

    def test_a_new_file_cannot_be_made_and_can_be_made_later(self, tmp_path: Path) -> None:
        path = tmp_path / "r.db"

        def work() -> str:
            files_limited_to(1000)
            SqliteStore(path).close()
            return "no error"

        said = in_a_child(work)
        assert said.startswith("RecordError: ") and "\n" not in said
        with SqliteStore(path) as s:
            assert fill(s).add(record())

    def test_an_export_that_does_not_fit_leaves_the_old_one(self, tmp_path: Path) -> None:
        path = tmp_path / "r.db"
        with SqliteStore(path) as s:
            fill(s)
            s.export_lines(tmp_path / "out.jsonl")
            before = (tmp_path / "out.jsonl").read_bytes()
            for second in range(50):
                s.add(record(second, message="x" * 5000))
        names = sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("r.db"))

        def work() -> str:
            with SqliteStore(path, readonly=True) as s:
                files_limited_to(40_000)
                s.export_lines(tmp_path / "out.jsonl")
            return "no error"

        said = in_a_child(work)
        assert "out.jsonl: cannot be written" in said and "\n" not in said
        assert (tmp_path / "out.jsonl").read_bytes() == before
        assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("r.db")) == names == ["out.jsonl"]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_may_not_be_written_says_so_and_is_left_as_it_was(what: str) -> None:
    """Also when root runs the tests: the child is nobody."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "r.db"
        with SqliteStore(path) as s:
            fill(s).add(record())
        before = path.read_bytes()
        path.chmod(0o444 if what == "file" else 0o666)
        Path(name).chmod(0o777 if what == "file" else 0o555)

        def work() -> str:
            if os.getuid() == 0:
                os.setuid(65534)
            with SqliteStore(path, readonly=True) as s:
                assert s.find(record().identity) == record()
            with SqliteStore(path) as s:
                s.add(record(1))
            return "no error"

        said = in_a_child(work)
        assert said.startswith("RecordError: ") and str(path) in said and "\n" not in said
        assert "read-only" in said or "cannot be opened" in said
        assert path.read_bytes() == before
        Path(name).chmod(0o755)


KERNEL = "(workload=? AND hardware=? AND config=? AND layouts=?)"


class TestQueries:
    def plans(self, store: SqliteStore, ask: Callable[[], object]) -> list[list[str]]:
        """The steps of each query that `ask` makes."""
        asked: list[str] = []
        store._db.conn.set_trace_callback(asked.append)
        ask()
        store._db.conn.set_trace_callback(None)
        queries = [sql for sql in asked if sql.lstrip().startswith("SELECT")]
        return [[row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()] for sql in queries]

    @pytest.mark.parametrize(
        ("question", "index"),
        [
            (lambda s: s.lookup([record().identity]), f"record_lookup {KERNEL}"),
            (lambda s: s.find(record().identity), f"record_lookup {KERNEL}"),
            (lambda s: s.best("w1", "hw1"), "record_lookup (workload=? AND hardware=?)"),
            (lambda s: s.best("w1", "hw1", {"conv": 1}), "record_lookup (workload=? AND hardware=?)"),
            (lambda s: list(s.records(workload="w1")), "record_lookup (workload=?"),
            (lambda s: s.models("w1"), "sqlite_autoindex_workload_1 (key=?)"),
            (lambda s: s.form("w1", ""), "sqlite_autoindex_workload_1 (key=?)"),
            (lambda s: s.baseline("hw1"), "sqlite_autoindex_hardware_1 (digest=?)"),
            (lambda s: s.refresh_baseline("hw1"), "record_hardware (hardware=? AND status=?)"),
        ],
    )  # fmt: skip
    def test_go_through_an_index(self, tmp_path: Path, question: Callable[[SqliteStore], object], index: str) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s).add(record())
            plans = self.plans(s, lambda: question(s))
            steps = [step for plan in plans for step in plan]
            assert any(index in step for step in steps), steps
            tables = ("SCAN r", "SCAN w", "SCAN h", "SCAN s", "SCAN m", "SCAN f")
            assert not any(step.startswith(tables) and "wanted" not in step for step in steps), steps


DUMPS = Path(__file__).with_name("stores")


def schema(path: Path) -> dict[str, str]:
    """Name of a table or index → how it was made."""
    with sqlite3.connect(path) as db:
        found = dict(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    db.close()
    return found


class TestMigrations:
    @pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
    def test_a_store_of_every_version_is_read_with_all_that_it_holds(self, tmp_path: Path, version: int) -> None:
        """The dumps were written by autofuse of those versions. A new version of the schema needs one of its own."""
        with sqlite3.connect(tmp_path / "old.db") as db:
            db.executescript((DUMPS / f"version_{version}.sql").read_text(encoding="utf-8"))
        db.close()
        with SqliteStore(tmp_path / "old.db") as s:
            assert [(r.config, r.status, r.layouts) for r in s.records()] == [
                ("a=1", "ok", ""), ("a=1", "ok", ""), ("a=2", "crashed", ""), ("a=3", "ok", "NCHW8c->"),
            ]  # fmt: skip
            made_by = {"codegen_version": CODEGEN_VERSION if version > 3 else 0}
            assert next(s.records()) == record(**made_by) and s.models("w1") == ("resnet50",)
            assert s.baseline("hw1") == {"arithmetic": 2e-4} and s.form("w1", "NCHW8c->") is not None
            *_, last = s.records()
            assert last == (cold if version > 1 else record)(
                3, config="a=3", layouts="NCHW8c->", tir_digest="0123456789abcdef", **made_by
            )
            assert (s.find(record().identity) is None) == (version <= 3)
            assert s.lookup([last.identity])[0] == Measured(
                "ok", last.latency, last.normalised, last.cold_latency or last.latency, last.cold_normalised
            )
            assert not [problem for problem in verify(s) if problem.startswith("record ")]
            assert s.add(record(50)) and len(s.lookup([record().identity, last.identity])) == 2
            assert not s.rows("PRAGMA foreign_key_check")
        SqliteStore(tmp_path / "fresh.db").close()
        assert schema(tmp_path / "old.db") == schema(tmp_path / "fresh.db")

    def test_ratios_of_lower_quartiles_become_those_of_today(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "old.db") as db:
            db.executescript((DUMPS / "version_2.sql").read_text(encoding="utf-8"))
            db.execute("""UPDATE record SET samples = '[0.004,0.001,0.002,0.003]', cold_samples = '[0.006,0.005]',
                reference_samples = '{"arithmetic":[0.0003,0.0001,0.0002,0.0003]}', ratio = 1.75,
                cold_reference_samples = '{"arithmetic":[0.0002,0.0002]}' WHERE config = 'a=3'""")
        db.close()
        with SqliteStore(tmp_path / "old.db") as s:
            said = s.rows("SELECT reference_latency, ratio, cold_ratio FROM record WHERE config = 'a=3'")
            assert said == [(pytest.approx(1e-4), pytest.approx(11.1921, rel=1e-5), pytest.approx(26.2202, rel=1e-5))]
            assert not [problem for problem in verify(s) if "ratio" in problem or "reference_latency" in problem]
            assert s.baseline("hw1") == {"arithmetic": pytest.approx(2e-4)}  # of 2e-4, 2e-4 and 1e-4

    def test_there_is_a_step_for_every_version(self) -> None:
        assert len(migrations.MIGRATIONS) == SCHEMA_VERSION

    @pytest.fixture
    def next_version(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
        """Makes the schema one version newer, with this step to it."""

        def make(step: Callable[[Any], None]) -> None:
            monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, step))
            for module in (migrations, sqlite):
                monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)

        return make

    def test_a_later_step_is_taken_once_and_keeps_everything(self, tmp_path: Path, next_version: Any) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s).add(record())
        taken: list[int] = []
        next_version(lambda db: (taken.append(1), db.execute("ALTER TABLE record ADD COLUMN note TEXT")))
        with pytest.raises(RecordError, match="open it for writing once"):
            SqliteStore(tmp_path / "r.db", readonly=True)
        for _ in range(2):
            with SqliteStore(tmp_path / "r.db") as s:
                assert s.find(record().identity) == record()
        assert taken == [1]

    def test_a_step_that_fails_leaves_the_file_as_it_was(self, tmp_path: Path, next_version: Any) -> None:
        with SqliteStore(tmp_path / "r.db") as s:
            fill(s).add(record())
        before = schema(tmp_path / "r.db")

        def broken(db: Any) -> None:
            db.execute("ALTER TABLE record ADD COLUMN note TEXT")
            db.execute("DELETE FROM record")
            db.execute("UPDATE missing SET a = 1")

        next_version(broken)
        with pytest.raises(RecordError, match="no such table"):
            SqliteStore(tmp_path / "r.db")
        assert schema(tmp_path / "r.db") == before
        with sqlite3.connect(tmp_path / "r.db") as db:
            assert db.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() == (
                str(SCHEMA_VERSION),
            )
            assert db.execute("SELECT count(*) FROM record").fetchone() == (1,)
        db.close()
