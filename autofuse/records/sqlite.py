"""The record store on SQLite (through sqlite-utils): a file that many processes may write at once.

Write-ahead log, so that readers never wait; each addition is one IMMEDIATE transaction, so that a process killed at
any moment loses at most what it had not added yet. The file is checked before anything in it is changed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.errors import RecordError
from autofuse.records.migrations import migrate, set_usual_times, version_of
from autofuse.records.record import (
    REFERENCES,
    Form,
    Identity,
    Measured,
    Record,
    RecordedHardware,
    StoreStats,
    Workload,
)
from autofuse.records.schema import EVALUATION_ONLY, SCHEMA_VERSION
from autofuse.records.sqlite_errors import explain
from autofuse.records.sqlite_rows import (
    COLD_NORMALISED,
    COLUMN_COUNT,
    COLUMNS,
    IDENTITY,
    JOINED,
    NORMALISED,
    record_of,
)
from autofuse.records.sqlite_writing import (
    delete_records,
    insert_form,
    insert_hardware,
    insert_record,
    insert_workload,
)
from autofuse.records.store import HOLDS_OTHERS, RecordStore

if TYPE_CHECKING:
    from sqlite_utils import Database


class SqliteStore(RecordStore):
    """Records in the SQLite file `path`, created if it is not there (unless `readonly`).

    `wait`: seconds to wait for another process that is writing. RecordError for a file that is locked, damaged,
    read-only, no record store, or of a newer schema; such a file is left as it was.
    """

    def __init__(self, path: str | Path, *, readonly: bool = False, wait: float = 60.0) -> None:
        from sqlite_utils import Database

        self.path = Path(path)
        self.wait = wait
        self._closed = False
        if readonly and not self.path.is_file():
            raise RecordError(f"{self.path}: no such file; collect records first, or give another file")
        if self.path.is_dir():
            raise RecordError(f"{self.path}: is a folder; give a file")
        mode = "ro" if readonly else "rwc"
        if readonly and not os.access(self.path.absolute().parent, os.W_OK) and not self._log_holds_anything():
            mode += "&immutable=1"  # readers, too, would write the log's index into the folder
        with self._errors():
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, timeout=wait, isolation_level=None
            )
            try:
                self._db: Database = Database(connection, recursive_triggers=False, execute_plugins=False)
                self._open(readonly)
            except BaseException:
                connection.close()
                raise

    def _open(self, readonly: bool) -> None:
        version = version_of(self._db, str(self.path))
        if readonly:
            if version < SCHEMA_VERSION:
                raise RecordError(
                    f"{self.path}: records of schema version {version}; open it for writing once to bring it to "
                    f"{SCHEMA_VERSION}, as `autofuse records merge {self.path} {self.path}` does"
                )
            return
        if version < SCHEMA_VERSION:
            self._write_ahead()
            self._db.execute("PRAGMA foreign_keys = OFF")
            with self._transaction():
                migrate(self._db, str(self.path))
        self._db.execute("PRAGMA foreign_keys = ON")
        # A killed process loses nothing with NORMAL; only a power cut may lose the last additions, never the file.
        self._db.execute("PRAGMA synchronous = NORMAL")

    def _log_holds_anything(self) -> bool:
        """Whether a killed writer has left additions that are not in the file itself yet."""
        log = self.path.with_name(f"{self.path.name}-wal")
        return log.is_file() and log.stat().st_size > 0

    def _write_ahead(self) -> None:
        """Switch to the write-ahead log; SQLite does not wait for other processes here, so this does."""
        end = time.monotonic() + self.wait
        while True:
            try:
                self._db.enable_wal()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explain(self.path, error, self.wait) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.conn.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What a query gives; for questions that the interface does not have. Changes nothing."""
        with self._errors():
            return list(self._db.execute(sql, parameters).fetchall())

    @contextmanager
    def cursor(self, sql: str) -> Iterator[Iterator[tuple[Any, ...]]]:
        """The rows of a query that is too large to be held in memory."""
        with self._errors():
            yield self._db.execute(sql)

    def add_hardware(self, hardware: RecordedHardware) -> None:
        with self._transaction():
            insert_hardware(self._db, hardware)

    def add_workload(self, workload: Workload, models: Iterable[str] = ()) -> None:
        with self._transaction():
            insert_workload(self._db, workload, models)

    def add_form(self, form: Form) -> None:
        with self._transaction():
            insert_form(self._db, form)

    def add(self, record: Record) -> bool:
        with self._transaction():
            return insert_record(self._db, record)

    def find(self, identity: Identity) -> Record | None:
        rows = self.rows(
            f"""SELECT {COLUMNS} FROM {JOINED} WHERE w.key = ? AND h.digest = ? AND s.family = ?
            AND s.family_version = ? AND r.config = ? AND r.layouts = ? AND s.codegen_version = ?
            ORDER BY r.created DESC, r.digest DESC LIMIT 1""",
            [
                identity.workload,
                identity.hardware,
                identity.family,
                identity.family_version,
                identity.config,
                identity.layouts,
                identity.codegen_version,
            ],
        )
        return record_of(rows[0]) if rows else None

    def lookup(self, identities: Sequence[Identity]) -> list[Measured | None]:
        wanted = [
            [i.workload, i.hardware, i.family, i.family_version, i.config, i.layouts, i.codegen_version]
            for i in identities
        ]
        # CROSS JOIN fixes the order of the joins: from each wanted row straight into the look-up index.
        rows = self.rows(
            f"""SELECT wanted.key, r.status, r.latency, {NORMALISED}, coalesce(r.cold_latency, r.latency),
                {COLD_NORMALISED}
            FROM json_each(?) AS wanted
            CROSS JOIN workload AS w ON w.key = json_extract(wanted.value, '$[0]')
            CROSS JOIN hardware AS h ON h.digest = json_extract(wanted.value, '$[1]')
            CROSS JOIN record AS r ON r.workload = w.id AND r.hardware = h.id
                AND r.config = json_extract(wanted.value, '$[4]') AND r.layouts = json_extract(wanted.value, '$[5]')
            CROSS JOIN software AS s ON s.id = r.software AND s.family = json_extract(wanted.value, '$[2]')
                AND s.family_version = json_extract(wanted.value, '$[3]')
                AND s.codegen_version = json_extract(wanted.value, '$[6]')
            ORDER BY r.created, r.digest""",
            [json.dumps(wanted)],
        )
        found: list[Measured | None] = [None] * len(wanted)
        for position, *measured in rows:
            found[position] = Measured(*measured)
        return found

    def best(self, workload: str, hardware: str, versions: Mapping[str, int] | None = None) -> Record | None:
        wanted = None if versions is None else json.dumps(dict(versions))
        rows = self.rows(
            f"""SELECT * FROM (
                SELECT {COLUMNS}, r.digest AS mark, row_number() OVER (
                    PARTITION BY {IDENTITY} ORDER BY r.created DESC, r.digest DESC) AS age
                FROM {JOINED} WHERE w.key = ? AND h.digest = ?
                AND (? IS NULL OR s.codegen_version = ? AND (s.family, s.family_version) IN (
                    SELECT key, value FROM json_each(coalesce(?, '{{}}'))))
            ) WHERE age = 1 AND status = 'ok'
            ORDER BY normalised, family, family_version, config, layouts, codegen_version, created, mark LIMIT 1""",
            [workload, hardware, wanted, CODEGEN_VERSION, wanted],
        )
        return record_of(rows[0][:COLUMN_COUNT]) if rows else None

    def records(self, hardware: str | None = None, workload: str | None = None) -> Iterator[Record]:
        given = {"h.digest": hardware, "w.key": workload}
        wanted = [f"{column} = ?" for column, value in given.items() if value is not None]
        sql = f"""SELECT {COLUMNS} FROM {JOINED} WHERE {" AND ".join(wanted) or "true"}
            ORDER BY {IDENTITY}, r.created, r.digest"""
        with self._errors():
            yield from (record_of(row) for row in self._db.execute(sql, [v for v in given.values() if v is not None]))

    def workloads(self) -> Iterator[Workload]:
        yield from (Workload(*row) for row in self.rows("SELECT key, text, label FROM workload ORDER BY key"))

    def form(self, workload: str, layouts: str) -> Form | None:
        rows = self.rows(
            "SELECT f.text FROM form AS f JOIN workload AS w ON w.id = f.workload WHERE w.key = ? AND f.layouts = ?",
            [workload, layouts],
        )
        return Form(workload, layouts, rows[0][0]) if rows else None

    def forms(self) -> Iterator[Form]:
        rows = self.rows(
            "SELECT w.key, f.layouts, f.text FROM form AS f JOIN workload AS w ON w.id = f.workload ORDER BY 1, 2"
        )
        yield from (Form(*row) for row in rows)

    def hardware(self) -> Iterator[RecordedHardware]:
        for digest, name, detail in self.rows("SELECT digest, name, detail FROM hardware ORDER BY digest"):
            yield RecordedHardware(digest, name, json.loads(detail))

    def models(self, workload: str) -> tuple[str, ...]:
        rows = self.rows(
            "SELECT m.model FROM membership AS m JOIN workload AS w ON w.id = m.workload WHERE w.key = ? ORDER BY 1",
            [workload],
        )
        return tuple(row[0] for row in rows)

    def refresh_baseline(self, hardware: str) -> Mapping[str, float]:
        with self._transaction():
            set_usual_times(self._db, hardware)
        return self.baseline(hardware)

    def baseline(self, hardware: str) -> Mapping[str, float]:
        columns = ", ".join(f"{name}_baseline" for name in REFERENCES)
        rows = self.rows(f"SELECT {columns} FROM hardware WHERE digest = ?", [hardware])
        return {name: row[i] for row in rows for i, name in enumerate(REFERENCES) if row[i] is not None}

    @property
    def evaluation_only(self) -> bool:
        return bool(self.rows("SELECT 1 FROM meta WHERE name = ? AND value = '1'", [EVALUATION_ONLY]))

    def keep_for_evaluation(self) -> None:
        if self.evaluation_only:
            return
        with self._transaction():
            if self._db.execute("SELECT 1 FROM record LIMIT 1").fetchone():
                raise RecordError(f"{self.path}: {HOLDS_OTHERS}")
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, '1')", [EVALUATION_ONLY])

    def stats(self) -> StoreStats:
        statuses = dict(self.rows("SELECT status, count(*) FROM record GROUP BY status"))
        ok = statuses.pop("ok", 0)
        families = self.rows(
            """SELECT s.family || ' ' || s.family_version, count(*) FROM record AS r
            JOIN software AS s ON s.id = r.software GROUP BY 1"""
        )
        return StoreStats(
            ok,
            statuses,
            self.rows("SELECT count(*) FROM workload")[0][0],
            tuple(row[0] for row in self.rows("SELECT DISTINCT model FROM membership ORDER BY 1")),
            tuple(row[0] for row in self.rows("SELECT digest FROM hardware ORDER BY 1")),
            dict(families),
            self.evaluation_only,
        )

    def add_all(
        self,
        hardware: Sequence[RecordedHardware],
        workloads: Sequence[tuple[Workload, tuple[str, ...]]],
        forms: Sequence[Form],
        records: Sequence[Record],
    ) -> int:
        with self._transaction():
            for row in hardware:
                insert_hardware(self._db, row)
            for workload, models in workloads:
                insert_workload(self._db, workload, models)
            for form in forms:
                insert_form(self._db, form)
            return sum(insert_record(self._db, record) for record in records)

    def drop(self, digests: Iterable[str]) -> int:
        with self._transaction():
            return delete_records(self._db, digests)

    def supersede(self, digest: str, record: Record) -> None:
        with self._transaction():
            insert_record(self._db, record)
            if record.digest != digest:
                delete_records(self._db, [digest])

    def restamp(self, digests: Iterable[str], family_version: int) -> int:
        with self._transaction():
            rows = self._db.execute(
                f"""SELECT {COLUMNS} FROM {JOINED} WHERE r.digest IN (SELECT value FROM json_each(?))
                AND s.family_version != ?""",
                [json.dumps(list(digests)), family_version],
            ).fetchall()
            records = [record_of(row) for row in rows]
            delete_records(self._db, (record.digest for record in records))
            for record in records:
                insert_record(self._db, replace(record, family_version=family_version))
            return len(records)

    def compact(self) -> None:
        with self._errors():
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._db.conn.close()
