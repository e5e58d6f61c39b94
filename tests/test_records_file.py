"""The SQLite file: what it survives, what is said when it cannot be used, and that it is left as it was then."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from records_samples import fill, record

from autofuse.errors import RecordError
from autofuse.records import SqliteStore
from autofuse.records.migrations import MIGRATIONS
from autofuse.records.schema import SCHEMA_VERSION


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
