"""How the SQLite store is read: the joined tables and their columns in SQL, and a record from such a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from autofuse.records.record import REFERENCES, Record

JOINED = """record AS r
    JOIN workload AS w ON w.id = r.workload
    JOIN hardware AS h ON h.id = r.hardware
    JOIN software AS s ON s.id = r.software"""

# NULL when the record has no ratio or the hardware no baseline yet: then the plain latency stands.
_USUAL = "CASE r.reference " + " ".join(f"WHEN '{name}' THEN h.{name}_baseline" for name in REFERENCES) + " END"
NORMALISED = f"coalesce(r.ratio * {_USUAL}, r.latency)"

# The hot one again when there are no cold samples.
COLD_NORMALISED = f"coalesce(r.cold_ratio * {_USUAL}, r.cold_latency, {NORMALISED})"

COLUMNS = f"""w.key, h.digest, s.family, s.family_version, r.config, r.layouts, r.status, r.message, r.samples,
    r.reference_samples, r.reference, s.tvm, s.autofuse, r.tir_digest, r.created, {NORMALISED} AS normalised,
    r.cold_samples, r.cold_reference_samples, {COLD_NORMALISED} AS cold_normalised, s.codegen_version"""
COLUMN_COUNT = 20

IDENTITY = "w.key, h.digest, s.family, s.family_version, r.config, r.layouts, s.codegen_version"


def record_of(row: Sequence[Any]) -> Record:
    """The record of a row of COLUMNS. ValueError or TypeError if it is none."""
    workload, hardware, family, version, config, layouts, status, message, samples, references, *rest = row
    reference, tvm, autofuse, tir_digest, created, normalised, cold, cold_references, *last = rest
    return Record(
        workload,
        hardware,
        family,
        version,
        config,
        layouts,
        status,
        message,
        tuple(json.loads(samples)),
        _times(references),
        reference,
        tvm,
        autofuse,
        tir_digest,
        created,
        normalised,
        tuple(json.loads(cold)),
        _times(cold_references),
        *last,
    )


def _times(text: str) -> dict[str, tuple[float, ...]]:
    """Samples of references from their JSON text."""
    return {name: tuple(times) for name, times in json.loads(text).items()}
