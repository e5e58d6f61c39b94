"""Takes a database from the schema version it has to the present one, in one transaction of the caller's.

`MIGRATIONS[v]` turns version v into v + 1; an empty database is version 0.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autofuse.errors import RecordError
from autofuse.records.record import REFERENCES, quiet, ratio_of
from autofuse.records.schema import APPLICATION, SCHEMA_VERSION, VERSION_1, VERSION_2, VERSION_4, VERSION_5

if TYPE_CHECKING:
    from sqlite_utils import Database


Ratio = Callable[[Sequence[float], Sequence[float]], float]


def _create(db: Database) -> None:
    for statement in VERSION_1:
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('application', ?)", [APPLICATION])


def _add_cold_samples(db: Database) -> None:
    for statement in VERSION_2:
        db.execute(statement)


def _take_least_times(db: Database) -> None:
    """Ratios of the least samples instead of lower quartiles; the references' usual times follow."""
    _compute_ratios(db, lambda times, beside: quiet(times) / quiet(beside), ("arithmetic", "memory"))


def _compute_ratios(db: Database, ratio: Ratio, names: Sequence[str]) -> None:
    """Of all records, with the usual times of the references `names`, which follow from the same samples."""

    def of(samples: str, references: str, name: str) -> float | None:
        times, beside = json.loads(samples), json.loads(references).get(name)
        return ratio(times, beside) if times and beside else None

    last = 0
    while True:
        rows = db.execute(
            """SELECT id, samples, reference_samples, reference, cold_samples, cold_reference_samples FROM record
            WHERE id > ? AND status = 'ok' ORDER BY id LIMIT 10000""",
            [last],
        ).fetchall()
        if not rows:
            break
        for number, samples, references, name, cold, cold_references in rows:
            beside = json.loads(references).get(name)
            db.execute(
                "UPDATE record SET reference_latency = ?, ratio = ?, cold_ratio = ? WHERE id = ?",
                [
                    quiet(beside) if beside else None, of(samples, references, name), of(cold, cold_references, name),
                    number,
                ],
            )  # fmt: skip
        last = rows[-1][0]
    for (digest,) in db.execute("SELECT digest FROM hardware").fetchall():
        set_usual_times(db, digest, names)


def _add_code_generation(db: Database) -> None:
    for statement in VERSION_4:
        db.execute(statement)


def _add_product(db: Database) -> None:
    for statement in VERSION_5:
        db.execute(statement)
    _compute_ratios(db, ratio_of, REFERENCES)


def set_usual_times(db: Database, hardware: str, names: Sequence[str] = REFERENCES) -> None:
    """The medians of the references' quiet times over a hardware's records become their usual times."""
    for name in names:
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
    _add_product,
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
