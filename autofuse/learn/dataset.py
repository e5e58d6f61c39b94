"""What training works on: takes a record store, gives a Dataset of features and residuals.

Each record's group is rebuilt from its form, its configuration read by its family, and its features computed anew, so
that a store serves every feature version. The base of the residual is the analytical model with the description of
the hardware that the record was measured on.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.cost.features import FEATURES
from autofuse.cost.model import Candidate
from autofuse.cost.schema import FeatureSchema, schema_of
from autofuse.errors import RecordError
from autofuse.graph.model import Group
from autofuse.records.groups import for_lanes, group_from_text
from autofuse.records.record import Record, RecordedHardware
from autofuse.records.store import RecordStore
from autofuse.schedule.family import ScheduleFamily
from autofuse.target import Hardware

FamilyOf = Callable[[str], ScheduleFamily]


@dataclass(frozen=True)
class Failures:
    """Candidates that did not build, run or give the right numbers: features, and what each is about."""

    features: NDArray[np.float32]
    workloads: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.workloads)


def no_failures() -> Failures:
    """None at all."""
    return Failures(np.empty((0, len(FEATURES)), np.float32))


@dataclass(frozen=True)
class Dataset:
    """One row for each latency that was measured. `residual` = ln(measured seconds) - ln(analytical seconds).

    A candidate that was timed with hot and with cold weights gives two rows (`cold` tells which). `again`: ln of the
    seconds of an earlier measurement of the same, NaN where there is none. `workloads`, `models`, `hardware` (digests)
    and `families` say what a row is about, `layouts` how its borders are stored; `weights` count in training. `digests`
    identify the records; `descriptions` are the hardware's, by digest. `failures` are what could not be timed.
    `skipped` counts records that give no row, by reason. `evaluation_only`: they come from a store that nothing may be
    learned from. kind: whose features they are, a CPU's or a GPU's (`cost/schema.py`).
    """

    features: NDArray[np.float32]
    residual: NDArray[np.float64]
    weights: NDArray[np.float64]
    cold: NDArray[np.bool_]
    again: NDArray[np.float64]
    workloads: tuple[str, ...]
    models: tuple[tuple[str, ...], ...]
    hardware: tuple[str, ...]
    families: tuple[str, ...]
    layouts: tuple[str, ...]
    digests: tuple[str, ...]
    descriptions: Mapping[str, Hardware]
    family_versions: Mapping[str, int]
    failures: Failures = field(default_factory=no_failures)
    skipped: Mapping[str, int] = field(default_factory=dict)
    evaluation_only: bool = False
    kind: str = "cpu"

    def __len__(self) -> int:
        return len(self.residual)

    @property
    def schema(self) -> FeatureSchema:
        """What the columns of `features` are."""
        return schema_of(self.kind)

    @property
    def base(self) -> NDArray[np.float64]:
        """ln of the analytical model's seconds."""
        return self.features[:, self.schema.base].astype(np.float64)

    @property
    def measured(self) -> NDArray[np.float64]:
        """ln of the measured seconds."""
        return self.base + self.residual

    @property
    def records(self) -> int:
        """Records that give a row."""
        return len(set(self.digests))

    @property
    def comparable(self) -> tuple[str, ...]:
        """What a search compares: rows with one text differ in their configuration alone."""
        rows = zip(self.workloads, self.hardware, self.layouts, self.cold, strict=True)
        return tuple(f"{key} {hardware} {layouts} {'cold' if cold else 'hot'}" for key, hardware, layouts, cold in rows)

    @property
    def hash(self) -> str:
        """Identifies what was measured, whatever the order of the rows."""
        return hashlib.sha256("\n".join(sorted(set(self.digests))).encode()).hexdigest()[:32]

    def select(self, rows: Iterable[int]) -> Dataset:
        """Some of the rows, with the failures of their workloads and of those that have no row."""
        index = np.asarray(list(rows), np.intp)

        def pick(values: Sequence[str]) -> tuple[str, ...]:
            return tuple(values[i] for i in index)

        families, hardware, workloads = pick(self.families), pick(self.hardware), pick(self.workloads)
        gone = set(self.workloads) - set(workloads)
        failed = [i for i, key in enumerate(self.failures.workloads) if key not in gone]
        return replace(
            self,
            features=self.features[index],
            residual=self.residual[index],
            weights=self.weights[index],
            cold=self.cold[index],
            again=self.again[index],
            workloads=workloads,
            models=tuple(self.models[i] for i in index),
            hardware=hardware,
            families=families,
            layouts=pick(self.layouts),
            digests=pick(self.digests),
            descriptions={k: v for k, v in self.descriptions.items() if k in set(hardware)},
            family_versions={k: v for k, v in self.family_versions.items() if k in set(families)},
            failures=Failures(
                self.failures.features[failed],
                tuple(self.failures.workloads[i] for i in failed),
                tuple(self.failures.statuses[i] for i in failed),
            ),
        )


def describe(row: RecordedHardware) -> Hardware | None:
    """The description of hardware that records name: this machine's calibration if it is that of the row, else what
    follows from instruction set, caches and threads; of a GPU its card's. None for hardware of another kind.

    What stood in for a card has its description under another instruction set: nothing learned from it is the card's.
    """
    from autofuse.target.fingerprint import GPU_ARCHITECTURES, STAND_IN, HardwareRow, fingerprint
    from autofuse.target.hardware_file import default_hardware, hardware_path, read_hardware
    from autofuse.target.host import HostCpu, isa_of, read_host
    from autofuse.target.registry import Target, gpu_of_row

    try:
        known = HardwareRow.from_json(row.detail)
    except RecordError:
        return None
    if known.architecture in GPU_ARCHITECTURES:
        gpu = gpu_of_row(known).gpu_hardware
        return replace(gpu, name=row.name, isa=f"{gpu.isa} {STAND_IN}") if known.architecture == STAND_IN else gpu
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


def repeated(records: Iterable[Record]) -> Iterator[tuple[Record, Record | None]]:
    """The last record of each identity, and the last good one before it, from records in a store's order."""
    for _, run in groupby(records, key=lambda r: r.identity):
        *earlier, last = run
        yield last, next((r for r in reversed(earlier) if r.ok), None)


def build_dataset(
    store: RecordStore,
    *,
    hardware: Collection[str] | None = None,
    descriptions: Mapping[str, Hardware] | None = None,
    family_of: FamilyOf | None = None,
    progress: Callable[[str], None] | None = None,
    usual_of: RecordStore | None = None,
) -> Dataset:
    """Rows for the newest record of each identity that was measured with the present version of its family.

    hardware: digests to keep, by default all whose description is known. descriptions: of hardware by digest, before
    what `describe` says. family_of: family by name, KeyError if there is none. usual_of: the store whose usual times of
    the reference kernels latencies are normalised with, where it has the hardware: two stores are then comparable.
    """
    if family_of is None:
        from autofuse.schedule.registry import any_family

        family_of = any_family
    known = dict(descriptions or {})
    for row in store.hardware():
        if row.digest not in known and (hardware is None or row.digest in hardware):
            found = describe(row)
            if found is not None:
                known[row.digest] = found
    skipped: Counter[str] = Counter()
    kept: list[_Kept] = []
    failed: list[_Kept] = []
    groups: dict[tuple[str, str, int], Group | None] = {}
    usual: dict[str, Mapping[str, float]] = {}

    def normalised(record: Record) -> Record:
        if usual_of is None:
            return record
        if record.hardware not in usual:
            usual[record.hardware] = usual_of.baseline(record.hardware)
        time = usual[record.hardware].get(record.reference)
        if time is None:
            return record
        return replace(record, normalised=record.normalise(time), cold_normalised=record.normalise_cold(time))

    for record, before in repeated(map(normalised, store.records())):
        if hardware is not None and record.hardware not in hardware:
            skipped["other hardware"] += 1
            continue
        if record.hardware not in known:
            skipped["hardware unknown"] += 1
            continue
        found_or_reason = _candidate(store, record, groups, family_of, known[record.hardware].lanes)
        good = record.ok and record.normalised is not None
        if not good:
            skipped["failed"] += 1
        if not isinstance(found_or_reason, str):
            (kept if good else failed).append(_Kept(record, found_or_reason, before))
        elif good:
            skipped[found_or_reason] += 1
    return _assemble(store, kept, failed, known, dict(sorted(skipped.items())), progress or (lambda _: None))


def _candidate(
    store: RecordStore,
    record: Record,
    groups: dict[tuple[str, str, int], Group | None],
    family_of: FamilyOf,
    lanes: int,
) -> Candidate | str:
    """The candidate that a record measured, or why there is none. lanes: of the hardware that it is of."""
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
    place = (record.workload, record.layouts, lanes)
    if place not in groups:
        form = store.form(record.workload, record.layouts)
        try:
            groups[place] = None if form is None else for_lanes(group_from_text(form.text), lanes)
        except ValueError:
            groups[place] = None
    group = groups[place]
    return "form missing or unreadable" if group is None else Candidate(group, family, config)


@dataclass(frozen=True)
class _Kept:
    """A record with its candidate, and an earlier measurement of the same."""

    record: Record
    candidate: Candidate
    before: Record | None


def _assemble(
    store: RecordStore,
    kept: Sequence[_Kept],
    failed: Sequence[_Kept],
    known: Mapping[str, Hardware],
    skipped: Mapping[str, int],
    tell: Callable[[str], None],
) -> Dataset:
    # Record, whether with cold weights, ln of its seconds, ln of those of the measurement before.
    rows: list[tuple[Record, bool, float, float]] = []
    # Nothing is trained on a mixture of CPUs and GPUs, which has a CPU's features.
    kind = "gpu" if {known[k.record.hardware].kind for k in kept} == {"gpu"} else "cpu"
    if kind == "gpu":
        failed = [k for k in failed if known[k.record.hardware].kind == kind]
    schema = schema_of(kind)
    present = {k.record.hardware for k in (*kept, *failed)}
    parts = [np.empty((0, len(schema.features)), np.float32)]
    lost = [np.empty((0, len(schema.features)), np.float32)]
    broken: list[Record] = []
    for digest in sorted(present):
        here = [k for k in kept if k.record.hardware == digest]
        tell(f"features of {len(here)} records")
        for cold in (False, True):
            chosen = [k for k in here if not cold or (k.record.cold_samples and k.record.cold_normalised)]
            parts.append(schema.extract([k.candidate for k in chosen], known[digest], cold))
            rows += [(k.record, cold, _ln(k.record, cold), _ln(k.before, cold)) for k in chosen]
        lost_here = [k for k in failed if k.record.hardware == digest]
        lost.append(schema.extract([k.candidate for k in lost_here], known[digest], False))
        broken += [k.record for k in lost_here]
    features = np.concatenate(parts)
    records = [record for record, *_ in rows]
    models = {key: store.models(key) for key in dict.fromkeys(r.workload for r in records)}
    versions = {k.candidate.family.name: k.candidate.family.version for k in kept}
    return Dataset(
        features=features,
        residual=np.array([ln for _, _, ln, _ in rows], np.float64) - features[:, schema.base].astype(np.float64),
        weights=np.ones(len(rows)),
        cold=np.array([cold for _, cold, _, _ in rows], np.bool_),
        again=np.array([ln for *_, ln in rows], np.float64),
        workloads=tuple(r.workload for r in records),
        models=tuple(models[r.workload] for r in records),
        hardware=tuple(r.hardware for r in records),
        families=tuple(r.family for r in records),
        layouts=tuple(r.layouts for r in records),
        digests=tuple(r.digest for r in records),
        descriptions={digest: known[digest] for digest in sorted({r.hardware for r in records})},
        family_versions=dict(sorted(versions.items())),
        failures=Failures(np.concatenate(lost), tuple(r.workload for r in broken), tuple(r.status for r in broken)),
        skipped=skipped,
        evaluation_only=store.evaluation_only,
        kind=kind,
    )


def _ln(record: Record | None, cold: bool) -> float:
    """ln of a record's normalised seconds, NaN if it has none."""
    if record is None or (cold and not record.cold_samples):
        return math.nan
    seconds = record.cold_normalised if cold else record.normalised
    return math.nan if not seconds else math.log(seconds)
