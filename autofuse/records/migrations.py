"""Takes a database from the schema version it has to the present one, in one transaction of the caller's.

`MIGRATIONS[v]` turns version v into v + 1; an empty database is version 0.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from autofuse.errors import RecordError
from autofuse.records.record import REFERENCES, quiet
from autofuse.records.schema import APPLICATION, SCHEMA_VERSION, VERSION_1, VERSION_2, VERSION_4

if TYPE_CHECKING:
    from sqlite_utils import Database


def _create(db: Database) -> None:
    for statement in VERSION_1:
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('application', ?)", [APPLICATION])


def _add_cold_samples(db: Database) -> None:
    for statement in VERSION_2:
        db.execute(statement)


def _take_least_times(db: Database) -> None:
    """Ratios of the least samples instead of lower quartiles; the references' usual times follow."""
    last = 0
    while True:
        rows = db.execute(
            """SELECT id, samples, reference_samples, reference, cold_samples, cold_reference_samples FROM record
            WHERE id > ? AND status = 'ok' ORDER BY id LIMIT 10000""",
            [last],
        ).fetchall()
        if not rows:
            break
        for number, samples, references, reference, cold, cold_references in rows:
            least = _least(json.loads(references).get(reference))
            cold_least = _least(json.loads(cold_references).get(reference))
            whole, cold_whole = _least(json.loads(samples)), _least(json.loads(cold))
            ratio = whole / least if whole and least else None
            cold_ratio = cold_whole / cold_least if cold_whole and cold_least else None
            db.execute(
                "UPDATE record SET reference_latency = ?, ratio = ?, cold_ratio = ? WHERE id = ?",
                [least, ratio, cold_ratio, number],
            )
        last = rows[-1][0]
    for (digest,) in db.execute("SELECT digest FROM hardware").fetchall():
        set_usual_times(db, digest)


def _add_code_generation(db: Database) -> None:
    for statement in VERSION_4:
        db.execute(statement)


def _least(times: list[float] | None) -> float | None:
    return quiet(times) if times else None


def set_usual_times(db: Database, hardware: str) -> None:
    """The medians of the references' quiet times over a hardware's records become their usual times."""
    for name in REFERENCES:
        times = db.execute(
            """SELECT r.reference_latency FROM record AS r JOIN hardware AS h ON h.id = r.hardware
            WHERE h.digest = ? AND r.status = 'ok' AND r.reference = ? AND r.reference_latency IS NOT NULL""",
            [hardware, name],
        ).fetchall()
        usual = statistics.median(row[0] for row in times) if times else None
        db.execute(f"UPDATE hardware SET {name}_baseline = ? WHERE digest = ?", [usual, hardware])


MIGRATIONS: tuple[Callable[[Database], None], ...] = (
    _create,
    _add_cold_samples,
    _take_least_times,
    _add_code_generation,
)


def version_of(db: Database, where: str) -> int:
    """Schema version of an open database, 0 if it is empty. RecordError if it holds something else; changes nothing."""
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return 0
    marks: dict[str, str] = {}
    if "meta" in tables:
        columns = [row[1] for row in db.execute("PRAGMA table_info(meta)")]
        if columns == ["name", "value"]:
            marks = dict(db.execute("SELECT name, value FROM meta").fetchall())
    if marks.get("application") != APPLICATION or not marks.get("schema_version", "").isdigit():
        raise RecordError(f"{where}: a SQLite database, but not one of autofuse's records; give another file")
    version = int(marks["schema_version"])
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{where}: records of schema version {version}, this autofuse knows up to {SCHEMA_VERSION}; "
            "use a newer autofuse"
        )
    return version


def migrate(db: Database, where: str) -> None:
    """Bring an open database, inside a write transaction without foreign keys, to SCHEMA_VERSION."""
    version = version_of(db, where)
    for step in MIGRATIONS[version:SCHEMA_VERSION]:
        step(db)
    db.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", [str(SCHEMA_VERSION)])
