"""Is a store what it should be? Takes an open store, gives what is wrong with it, one line each. Changes nothing.

Everything that can be computed is computed again: digests and latencies of records, keys of workloads from their text
and from the groups that are kept as forms. A SQLite file is also checked as a file: pages, indexes, foreign keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from autofuse.errors import RecordError
from autofuse.graph.keys import canonical_text, text_key, workload_key
from autofuse.records.groups import group_from_text, group_to_text
from autofuse.records.identity import layouts_text
from autofuse.records.record import Record
from autofuse.records.sqlite import SqliteStore
from autofuse.records.sqlite_rows import COLUMN_COUNT, COLUMNS, JOINED, record_of
from autofuse.records.store import RecordStore

# What the table keeps of a record for look-ups.
_DERIVED = ("latency", "reference_latency", "ratio", "cold_latency", "cold_ratio")
_DIGEST = re.compile(r"([0-9a-f]{16})?")


def verify(store: RecordStore) -> Iterator[str]:
    """What is wrong, one line each; nothing if the store is sound."""
    if isinstance(store, SqliteStore):
        try:
            yield from _file(store)
            yield from _rows(store)
        except RecordError as error:  # too damaged to be read to the end
            yield str(error)
            return
    else:
        for record in store.records():
            yield from _record(record)
    yield from _workloads(store)
    yield from _forms(store)


def _file(store: SqliteStore) -> Iterator[str]:
    for (said,) in store.rows("PRAGMA integrity_check(20)"):
        if said != "ok":
            yield f"file: {said}"
    for table, row, parent, _ in store.rows("PRAGMA foreign_key_check"):
        yield f"{table} {row}: refers to a {parent} that is not there"


def _rows(store: SqliteStore) -> Iterator[str]:
    """Records one by one: what they say, and what the table keeps of it for look-ups."""
    kept = ", ".join(f"r.{name}" for name in _DERIVED)
    with store.cursor(f"SELECT {COLUMNS}, r.id, r.digest, {kept} FROM {JOINED} ORDER BY r.id") as rows:
        for row in rows:
            number, digest, *derived = row[COLUMN_COUNT:]
            try:
                record = record_of(row[:COLUMN_COUNT])
            except (AttributeError, TypeError, ValueError) as error:
                yield f"record {number}: is none ({error})"
                continue
            if record.digest != digest:
                yield f"record {number}: its digest is {record.digest}, the table says {digest}"
            for name, value in zip(_DERIVED, derived, strict=True):
                if not _same(getattr(record, name), value):
                    yield f"record {number}: its {name} is {getattr(record, name)}, the table says {value}"
            yield from _record(record)


def _same(computed: float | None, kept: Any) -> bool:
    if computed is None or kept is None:
        return computed is kept
    return isinstance(kept, float) and math.isclose(computed, kept, rel_tol=1e-12)


def _record(record: Record) -> Iterator[str]:
    name = f"record {record.digest}"
    for samples, references, said in (
        (record.samples, record.reference_samples, "samples"),
        (record.cold_samples, record.cold_reference_samples, "cold samples"),
    ):
        for reference, times in references.items():
            if record.ok and len(times) != len(samples):
                yield f"{name}: {len(samples)} {said} beside {len(times)} of the reference {reference}"
    if not _DIGEST.fullmatch(record.tir_digest):
        yield f"{name}: {record.tir_digest!r} is no digest of code"


def _workloads(store: RecordStore) -> Iterator[str]:
    for workload in store.workloads():
        key = text_key(workload.text)
        if key != workload.key:
            yield f"workload {workload.key}: the key of its text is {key}"


def _forms(store: RecordStore) -> Iterator[str]:
    texts = {w.key: w.text for w in store.workloads()}
    for form in store.forms():
        name = f"form {form.workload} [{form.layouts}]"
        try:
            group = group_from_text(form.text)
            key, layouts = workload_key(group), layouts_text(group)
            said: Sequence[str] = (
                f"the key of its group is {key}" if key != form.workload else "",
                f"the layouts of its group are {layouts!r}" if layouts != form.layouts else "",
                "the text of its group is another" if canonical_text(group) != texts.get(form.workload) else "",
                "its text is not in canonical form" if group_to_text(group) != form.text else "",
            )
        except (IndexError, ValueError) as error:
            said = (str(error),)
        yield from (f"{name}: {what}" for what in said if what)
