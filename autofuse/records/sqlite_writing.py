"""What the SQLite store writes: rows into its tables, inside a transaction of the caller's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from autofuse.errors import RecordError
from autofuse.records.record import Form, Record, RecordedHardware, Workload, canonical

if TYPE_CHECKING:
    from sqlite_utils import Database


def insert_hardware(db: Database, row: RecordedHardware) -> None:
    """The hardware, unless it is known."""
    db.execute(
        "INSERT OR IGNORE INTO hardware (digest, name, detail) VALUES (?, ?, ?)",
        [row.digest, row.name, canonical(dict(row.detail))],
    )


def insert_workload(db: Database, workload: Workload, models: Iterable[str]) -> None:
    """The workload, unless it is known, and that `models` contain it."""
    db.execute(
        "INSERT OR IGNORE INTO workload (key, text, label) VALUES (?, ?, ?)",
        [workload.key, workload.text, workload.label],
    )
    for model in models:
        db.execute("INSERT OR IGNORE INTO membership SELECT id, ? FROM workload WHERE key = ?", [model, workload.key])


def insert_form(db: Database, form: Form) -> None:
    """The form, unless there is one for its workload and layouts. RecordError without the workload."""
    found = db.execute("SELECT id FROM workload WHERE key = ?", [form.workload]).fetchone()
    if found is None:
        raise RecordError(f"form of unknown workload {form.workload}: add the workload first")
    db.execute("INSERT OR IGNORE INTO form VALUES (?, ?, ?)", [found[0], form.layouts, form.text])


def insert_record(db: Database, record: Record) -> bool:
    """The record; False if it was there. RecordError without its workload or hardware."""
    software = [
        record.tvm_version, record.autofuse_version, record.family, record.family_version, record.codegen_version
    ]  # fmt: skip
    db.execute(
        """INSERT OR IGNORE INTO software (tvm, autofuse, family, family_version, codegen_version)
        VALUES (?, ?, ?, ?, ?)""",
        software,
    )
    found = db.execute(
        """SELECT (SELECT id FROM workload WHERE key = ?), (SELECT id FROM hardware WHERE digest = ?),
        (SELECT id FROM software WHERE tvm = ? AND autofuse = ? AND family = ? AND family_version = ?
        AND codegen_version = ?)""",
        [record.workload, record.hardware, *software],
    ).fetchone()
    if found[0] is None:
        raise RecordError(f"record of unknown workload {record.workload}: add the workload first")
    if found[1] is None:
        raise RecordError(f"record of unknown hardware {record.hardware}: add the hardware first")
    cursor = db.execute(
        """INSERT INTO record (digest, workload, hardware, software, config, layouts, status, message, samples,
        reference_samples, reference, latency, reference_latency, ratio, tir_digest, created, cold_latency,
        cold_ratio, cold_samples, cold_reference_samples)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING""",
        [
            record.digest,
            *found,
            record.config,
            record.layouts,
            record.status,
            record.message,
            canonical(list(record.samples)),
            canonical({name: list(times) for name, times in record.reference_samples.items()}),
            record.reference,
            record.latency,
            record.reference_latency,
            record.ratio,
            record.tir_digest,
            record.created,
            record.cold_latency,
            record.cold_ratio,
            canonical(list(record.cold_samples)),
            canonical({name: list(times) for name, times in record.cold_reference_samples.items()}),
        ],
    )
    return bool(cursor.rowcount > 0)


def delete_records(db: Database, digests: Iterable[str]) -> int:
    """Take out the records with these digests, and software that nothing names any more; how many there were."""
    wanted = json.dumps(list(digests))
    cursor = db.execute("DELETE FROM record WHERE digest IN (SELECT value FROM json_each(?))", [wanted])
    db.execute("DELETE FROM software WHERE NOT EXISTS (SELECT 1 FROM record WHERE software = software.id)")
    return int(cursor.rowcount)
