"""What a store may do without: takes a store and what is not wanted any more, gives the records to drop, by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.records.record import Record
from autofuse.records.store import RecordStore

OLD, SUPERSEDED, FAILED = "old", "superseded", "failed"


@dataclass(frozen=True)
class Pruning:
    """Records to drop: digest → reason; and how many of each reason and of each family and version."""

    digests: Mapping[str, str]
    reasons: Mapping[str, int]
    families: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"records": len(self.digests), "reasons": dict(self.reasons), "families": dict(self.families)}


def choose(
    store: RecordStore, versions: Mapping[str, int] | None = None, superseded: bool = False, failed: bool = False
) -> Pruning:
    """The records that are to go; each counts for the first reason that fits.

    `versions` (family → present version): records of older versions, of families that are not among them, and of older
    code generations are old.
    `failed`: those whose kernel was not timed. `superseded`: of what is left, all but the newest of an identity.
    """
    digests: dict[str, str] = {}
    families: Counter[str] = Counter()
    previous: Record | None = None

    def take(record: Record, reason: str) -> None:
        digests[record.digest] = reason
        families[f"{record.family} {record.family_version}"] += 1

    for record in store.records():
        if versions is not None and (
            record.family_version < versions.get(record.family, 1 << 31) or record.codegen_version < CODEGEN_VERSION
        ):
            take(record, OLD)
        elif failed and not record.ok:
            take(record, FAILED)
        else:
            # The store gives an identity's records one after another, the newest last.
            if superseded and previous is not None and previous.identity == record.identity:
                take(previous, SUPERSEDED)
            previous = record
    reasons = Counter(digests.values())
    found = {r: reasons[r] for r in (OLD, SUPERSEDED, FAILED) if reasons[r]}
    return Pruning(digests, found, dict(sorted(families.items())))


def prune(store: RecordStore, pruning: Pruning) -> int:
    """Drop the records, take the references' usual times anew, give the space back; the number dropped."""
    dropped = store.drop(pruning.digests)
    for hardware in store.hardware():
        store.refresh_baseline(hardware.digest)
    store.compact()
    return dropped
