"""What training works on: takes a record store, gives a Dataset of features and residuals.

Each record's group is rebuilt from its form, its configuration read by its family, and its features computed anew, so
that a store serves every feature version. The base of the residual is the analytical model with the description of
the hardware that the record was measured on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.cost.features import FEATURES, extract, feature_names
from autofuse.cost.model import Candidate
from autofuse.errors import RecordError
from autofuse.graph.model import Group
from autofuse.records.groups import group_from_text
from autofuse.records.record import Record, RecordedHardware
from autofuse.records.store import RecordStore
from autofuse.schedule.family import ScheduleFamily
from autofuse.target import Hardware

#: The column that holds ln(analytical seconds).
BASE = feature_names().index("log_total")

FamilyOf = Callable[[str], ScheduleFamily]


@dataclass(frozen=True)
class Dataset:
    """One row for each candidate that was measured. `residual` = ln(measured seconds) - ln(analytical seconds).

    `workloads`, `models`, `hardware` (digests) and `families` say what a row is about; `weights` count in training.
    `digests` identify the records; `descriptions` are the hardware's, by digest. `skipped` counts records that give no
    row, by reason. `evaluation_only`: they come from a store that nothing may be learned from.
    """

    features: NDArray[np.float32]
    residual: NDArray[np.float64]
    weights: NDArray[np.float64]
    workloads: tuple[str, ...]
    models: tuple[tuple[str, ...], ...]
    hardware: tuple[str, ...]
    families: tuple[str, ...]
    digests: tuple[str, ...]
    descriptions: Mapping[str, Hardware]
    family_versions: Mapping[str, int]
    skipped: Mapping[str, int] = field(default_factory=dict)
    evaluation_only: bool = False

    def __len__(self) -> int:
        return len(self.residual)

    @property
    def base(self) -> NDArray[np.float64]:
        """ln of the analytical model's seconds."""
        return self.features[:, BASE].astype(np.float64)

    @property
    def measured(self) -> NDArray[np.float64]:
        """ln of the measured seconds."""
        return self.base + self.residual

    @property
    def hash(self) -> str:
        """Identifies what was measured, whatever the order of the rows."""
        return hashlib.sha256("\n".join(sorted(self.digests)).encode()).hexdigest()[:32]

    def select(self, rows: Iterable[int]) -> Dataset:
        """Some of the rows."""
        index = np.asarray(list(rows), np.intp)

        def pick(values: Sequence[str]) -> tuple[str, ...]:
            return tuple(values[i] for i in index)

        families, hardware = pick(self.families), pick(self.hardware)
        return replace(
            self,
            features=self.features[index],
            residual=self.residual[index],
            weights=self.weights[index],
            workloads=pick(self.workloads),
            models=tuple(self.models[i] for i in index),
            hardware=hardware,
            families=families,
            digests=pick(self.digests),
            descriptions={k: v for k, v in self.descriptions.items() if k in set(hardware)},
            family_versions={k: v for k, v in self.family_versions.items() if k in set(families)},
        )


def describe(row: RecordedHardware) -> Hardware | None:
    """The description of hardware that records name: this machine's calibration if it is that of the row, else what
    follows from instruction set, caches and threads. None for hardware that is no CPU."""
    from autofuse.target.fingerprint import HardwareRow, fingerprint
    from autofuse.target.hardware_file import default_hardware, hardware_path, read_hardware
    from autofuse.target.host import HostCpu, isa_of, read_host
    from autofuse.target.registry import Target

    try:
        known = HardwareRow.from_json(row.detail)
    except RecordError:
        return None
    path = hardware_path(known)
    if path.exists():
        hardware = read_hardware(path)
        if hardware.isa == isa_of(known.features):
            return hardware
    target = Target(features=known.features, threads=known.threads)
    if known.digest == fingerprint(known.threads).digest:
        return default_hardware(target, read_host())  # it also knows the frequency
    host = HostCpu(
        architecture=known.architecture,
        model_name=known.model_name,
        features=known.features,
        l1_bytes=known.l1_bytes,
        l2_bytes=known.l2_bytes,
        l3_bytes=known.l3_bytes,
    )
    return default_hardware(target, host)


def newest(records: Iterable[Record]) -> Iterable[Record]:
    """The last record of each identity, from records in a store's order."""
    last: Record | None = None
    for record in records:
        if last is not None and record.identity != last.identity:
            yield last
        last = record
    if last is not None:
        yield last


def build_dataset(
    store: RecordStore,
    *,
    hardware: Collection[str] | None = None,
    descriptions: Mapping[str, Hardware] | None = None,
    family_of: FamilyOf | None = None,
    progress: Callable[[str], None] | None = None,
) -> Dataset:
    """A row for the newest record of each identity that was measured with the present version of its family.

    hardware: digests to keep, by default all whose description is known. descriptions: of hardware by digest, before
    what `describe` says. family_of: family by name, KeyError if there is none.
    """
    if family_of is None:
        from autofuse.schedule.registry import family

        family_of = family
    known = dict(descriptions or {})
    for row in store.hardware():
        if row.digest not in known and (hardware is None or row.digest in hardware):
            found = describe(row)
            if found is not None:
                known[row.digest] = found
    skipped: Counter[str] = Counter()
    kept: dict[str, list[tuple[Record, Candidate]]] = {}
    groups: dict[tuple[str, str], Group | None] = {}
    for record in newest(store.records()):
        if hardware is not None and record.hardware not in hardware:
            skipped["other hardware"] += 1
        elif record.hardware not in known:
            skipped["hardware unknown"] += 1
        elif not record.ok or record.normalised is None:
            skipped["failed"] += 1
        else:
            found_or_reason = _candidate(store, record, groups, family_of)
            if isinstance(found_or_reason, str):
                skipped[found_or_reason] += 1
            else:
                kept.setdefault(record.hardware, []).append((record, found_or_reason))
    return _assemble(store, kept, known, dict(sorted(skipped.items())), progress or (lambda _: None))


def _candidate(
    store: RecordStore, record: Record, groups: dict[tuple[str, str], Group | None], family_of: FamilyOf
) -> Candidate | str:
    """The candidate that a record measured, or why there is none."""
    try:
        family = family_of(record.family)
    except KeyError:
        return "family unknown"
    if family.version != record.family_version:
        return "other version of the family"
    if record.codegen_version != CODEGEN_VERSION:
        return "other version of the code generation"
    try:
        config = family.configuration.parse(record.config)
    except ValueError:
        return "configuration unreadable"
    place = (record.workload, record.layouts)
    if place not in groups:
        form = store.form(*place)
        try:
            groups[place] = None if form is None else group_from_text(form.text)
        except ValueError:
            groups[place] = None
    group = groups[place]
    return "form missing or unreadable" if group is None else Candidate(group, family, config)


def _assemble(
    store: RecordStore,
    kept: Mapping[str, Sequence[tuple[Record, Candidate]]],
    known: Mapping[str, Hardware],
    skipped: Mapping[str, int],
    tell: Callable[[str], None],
) -> Dataset:
    parts: list[NDArray[np.float32]] = []
    records: list[Record] = []
    versions: dict[str, int] = {}
    for digest, pairs in sorted(kept.items()):
        tell(f"features of {len(pairs)} records")
        parts.append(extract([candidate for _, candidate in pairs], known[digest]))
        for record, candidate in pairs:
            records.append(record)
            versions[candidate.family.name] = candidate.family.version
    features = np.concatenate(parts) if parts else np.empty((0, len(FEATURES)), np.float32)
    measured = np.array([np.log(record.normalised or np.nan) for record in records], np.float64)
    models = {key: store.models(key) for key in dict.fromkeys(r.workload for r in records)}
    return Dataset(
        features,
        measured - features[:, BASE].astype(np.float64),
        np.ones(len(records)),
        tuple(r.workload for r in records),
        tuple(models[r.workload] for r in records),
        tuple(r.hardware for r in records),
        tuple(r.family for r in records),
        tuple(r.digest for r in records),
        {digest: known[digest] for digest in sorted(kept)},
        dict(sorted(versions.items())),
        skipped,
        store.evaluation_only,
    )
