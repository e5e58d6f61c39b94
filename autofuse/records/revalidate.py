"""Which records still hold: takes a store and groups that were lowered anew, compares the code that each record names.

A record's code is made again by the present family under the record's configuration. Where it is the same (equal
digests), the record holds whatever the family's version was, and gets the present one. What another version of the code
generation made machine code of does not hold: equal scheduled code may be other machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.graph.keys import workload_key
from autofuse.graph.model import Group
from autofuse.records.identity import KeyOf, layouts_text
from autofuse.records.record import Record
from autofuse.records.store import RecordStore
from autofuse.schedule.family import ScheduleFamily
from autofuse.target import Hardware

CodeOf = Callable[[Group, ScheduleFamily, Any], str]
"""The digest of a group's code as a family schedules it under a configuration."""


@dataclass(frozen=True)
class Changed:
    """A record whose code is another now, and why."""

    record: Record
    reason: str


@dataclass(frozen=True)
class Revalidation:
    """What was found. `same`: identical code; `restamped`: those of them that had another version of their family.

    `unknown`: records without a digest (their kernel was never made); `unseen`: records of workloads, or layouts, that
    the given groups do not have.
    """

    same: int = 0
    restamped: int = 0
    changed: tuple[Changed, ...] = ()
    unknown: int = 0
    unseen: int = 0
    versions: Mapping[str, int] = field(default_factory=dict)

    @property
    def unversioned(self) -> tuple[Changed, ...]:
        """Of the changed ones, those of the present version: the family's version should have been raised."""
        return tuple(
            c
            for c in self.changed
            if (self.versions.get(c.record.family), CODEGEN_VERSION)
            == (c.record.family_version, c.record.codegen_version)
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "same": self.same,
            "restamped": self.restamped,
            "changed": len(self.changed),
            "unversioned": len(self.unversioned),
            "unknown": self.unknown,
            "unseen": self.unseen,
            "records": [
                {
                    "digest": c.record.digest,
                    "workload": c.record.workload,
                    "family": c.record.family,
                    "family_version": c.record.family_version,
                    "codegen_version": c.record.codegen_version,
                    "config": c.record.config,
                    "reason": c.reason,
                }
                for c in self.changed
            ],
        }


def revalidate(
    store: RecordStore,
    row: str,
    groups: Iterable[Group],
    families: Iterable[ScheduleFamily],
    hardware: Hardware,
    code: CodeOf,
    *,
    write: bool = True,
    key_of: KeyOf = workload_key,
) -> Revalidation:
    """Compare the records of the hardware with the digest `row`; `write`: give those that hold the present version."""
    known = {f.name: f for f in families}
    places: dict[tuple[str, str], Group] = {}
    for group in groups:
        places.setdefault((key_of(group), layouts_text(group)), group)
    made: dict[tuple[str, str, str, str], tuple[str, str]] = {}
    outdated: dict[str, list[str]] = {}
    changed: list[Changed] = []
    same = unknown = unseen = 0
    for record in store.records(row):
        place = places.get((record.workload, record.layouts))
        if place is None:
            unseen += 1
            continue
        if not record.tir_digest:
            unknown += 1
            continue
        if record.codegen_version != CODEGEN_VERSION:
            made_by = record.codegen_version or "that is not known"
            changed.append(Changed(record, f"code generation {made_by} made it, this one is {CODEGEN_VERSION}"))
            continue
        kernel = (record.workload, record.layouts, record.family, record.config)
        if kernel not in made:
            made[kernel] = _make(place, known.get(record.family), record.config, hardware, code)
        digest, problem = made[kernel]
        if digest != record.tir_digest:
            changed.append(Changed(record, problem or f"its code is {digest} now, was {record.tir_digest}"))
            continue
        same += 1
        if record.family_version != known[record.family].version:
            outdated.setdefault(record.family, []).append(record.digest)
    if write:
        for name, digests in outdated.items():
            store.restamp(digests, known[name].version)
    versions = {name: f.version for name, f in known.items()}
    return Revalidation(same, sum(map(len, outdated.values())), tuple(changed), unknown, unseen, versions)


def _make(
    group: Group, family: ScheduleFamily | None, config: str, hardware: Hardware, code: CodeOf
) -> tuple[str, str]:
    """Digest of the code and "", or "" and why there is none."""
    if family is None:
        return "", "its family is no more"
    refusal = family.match(group, hardware)
    if refusal is not None:
        return "", f"{family.name} does not take the group any more ({refusal})"
    try:
        return code(group, family, family.configuration.parse(config)), ""
    except Exception as error:  # whatever a schedule raises, TVM's errors too, the record does not hold
        first = str(error).strip().splitlines() or [""]
        return "", f"cannot be scheduled any more ({type(error).__name__}: {first[0]})"
