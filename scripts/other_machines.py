"""Takes over a part of what other machines measured (scripts/collect_data.py --also): which records, and the merge.

Of a store that is kept for evaluation everything is taken over, of another one a part of each network, so that
data/records.db stays small. A predictor learns from a workload by comparing its configurations: all records of a
workload that is chosen come along, repeated ones too.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from autofuse.records import Record, RecordedHardware, RecordStore


def of_this_machine(row: RecordedHardware) -> bool:
    """Whether hardware that a store names is this machine, with whatever pool of threads."""
    from autofuse.errors import RecordError
    from autofuse.target.fingerprint import HardwareRow, fingerprint

    try:
        known = HardwareRow.from_json(row.detail)
    except RecordError:
        return False
    return known.beside(fingerprint())


def fault_of(file: Path, seen: Collection[str], unseen: Collection[str]) -> str | None:
    """Why a store cannot be taken over beside these networks of the two stores here, None if it can."""
    from autofuse.errors import RecordError
    from autofuse.records import open_store

    try:
        with open_store(file, readonly=True) as other:
            wrong = set(other.stats().models) & set(seen if other.evaluation_only else unseen)
            kind = "what is kept for evaluation" if other.evaluation_only else "what is learned from"
    except RecordError as error:
        return str(error)
    return f"{file}: {kind} there is the opposite here: {', '.join(sorted(wrong))}" if wrong else None


def take_over(
    files: Sequence[Path],
    records: Path,
    unseen: Path,
    per_model: int,
    own: Callable[[RecordedHardware], bool] = of_this_machine,
) -> dict[str, int]:
    """Merge the stores `files` into `records`, or `unseen` where they are kept for evaluation; new records of each.

    At most `per_model` records of a network and a hardware row go into `records`. Rows that are `own` stay out. Doing
    it twice changes nothing.
    """
    from autofuse.records import open_store

    added = {}
    for file in files:
        with ExitStack() as stack:
            other = stack.enter_context(open_store(file, readonly=True))
            store = stack.enter_context(open_store(unseen if other.evaluation_only else records))
            if other.evaluation_only:
                store.keep_for_evaluation()
            rows = [row for row in other.hardware() if not own(row)]
            chosen = [record for row in rows for record in part(other, row.digest, per_model)]
            added[str(file)] = merge(store, other, chosen)
            store.compact()
    return added


def part(other: RecordStore, hardware: str, per_model: int) -> Iterator[Record]:
    """The records of one hardware row that are taken over: all of a store that is kept for evaluation.

    Of another store those made by the present code, of workloads spread evenly over each network's in key order.
    """
    if other.evaluation_only:
        yield from other.records(hardware)
        return
    usable = [record for record in other.records(hardware) if present(record)]
    counts = Counter(record.workload for record in usable)
    networks: dict[str, dict[str, int]] = defaultdict(dict)
    for key, count in counts.items():
        for model in other.models(key):
            networks[model][key] = count
    chosen = {key for found in networks.values() for key in spread(found, per_model)}
    yield from (record for record in usable if record.workload in chosen)


def present(record: Record) -> bool:
    """Whether what a record measured is what its family and the code generation make today."""
    from autofuse.codegen.version import CODEGEN_VERSION
    from autofuse.schedule.registry import any_family

    try:
        version = any_family(record.family).version
    except KeyError:
        return False
    return (version, CODEGEN_VERSION) == (record.family_version, record.codegen_version)


def spread(counts: Mapping[str, int], most: int) -> list[str]:
    """As many of the keys as count `most` together or less, at even distances in their order."""
    keys = sorted(counts)
    for size in range(len(keys), 0, -1):
        found = [keys[(2 * i + 1) * len(keys) // (2 * size)] for i in range(size)]
        if sum(counts[key] for key in found) <= most:
            return found
    return []


def merge(store: RecordStore, other: RecordStore, records: Sequence[Record]) -> int:
    """Take over these records of another store with what they refer to, all or nothing; the number of new ones."""
    digests = {record.hardware for record in records}
    keys = {record.workload for record in records}
    forms = {(record.workload, record.layouts) for record in records}
    added = store.add_all(
        [row for row in other.hardware() if row.digest in digests],
        [(w, other.models(w.key)) for w in other.workloads() if w.key in keys],
        [form for form in other.forms() if (form.workload, form.layouts) in forms],
        records,
    )
    for digest in sorted(digests):
        store.refresh_baseline(digest)
    return added
