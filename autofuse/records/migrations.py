"""Takes a database from the schema version it has to the present one, in one transaction of the caller's.

`MIGRATIONS[v]` turns version v into v + 1; an empty database is version 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from autofuse.errors import RecordError
from autofuse.records.schema import APPLICATION, SCHEMA_VERSION, VERSION_1, VERSION_2

if TYPE_CHECKING:
    from sqlite_utils import Database


def _create(db: Database) -> None:
    for statement in VERSION_1:
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('application', ?)", [APPLICATION])


def _add_cold_samples(db: Database) -> None:
    for statement in VERSION_2:
        db.execute(statement)


MIGRATIONS: tuple[Callable[[Database], None], ...] = (_create, _add_cold_samples)


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
    """Bring an open database, inside a write transaction, to SCHEMA_VERSION."""
    version = version_of(db, where)
    for step in MIGRATIONS[version:SCHEMA_VERSION]:
        step(db)
    db.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", [str(SCHEMA_VERSION)])
