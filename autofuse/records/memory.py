"""A record store in memory: for tests, imports and replays. Nothing is written anywhere."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.errors import RecordError
from autofuse.records.record import REFERENCES, Form, Identity, Measured, Record, RecordedHardware, StoreStats, Workload
from autofuse.records.store import HOLDS_OTHERS, RecordStore, order


class MemoryStore(RecordStore):
    """Holds everything in dictionaries."""

    def __init__(self) -> None:
        self._hardware: dict[str, RecordedHardware] = {}
        self._workloads: dict[str, Workload] = {}
        self._models: dict[str, set[str]] = {}
        self._forms: dict[tuple[str, str], Form] = {}
        self._records: dict[str, Record] = {}
        self._newest: dict[Identity, Record] = {}
        self._baselines: dict[str, dict[str, float]] = {}
        self._evaluation_only = False

    def add_hardware(self, hardware: RecordedHardware) -> None:
        self._hardware.setdefault(hardware.digest, hardware)

    def add_workload(self, workload: Workload, models: Iterable[str] = ()) -> None:
        self._workloads.setdefault(workload.key, workload)
        self._models.setdefault(workload.key, set()).update(models)

    def add_form(self, form: Form) -> None:
        if form.workload not in self._workloads:
            raise RecordError(f"form of unknown workload {form.workload}: add the workload first")
        self._forms.setdefault((form.workload, form.layouts), form)

    def add(self, record: Record) -> bool:
        if record.hardware not in self._hardware:
            raise RecordError(f"record of unknown hardware {record.hardware}: add the hardware first")
        if record.workload not in self._workloads:
            raise RecordError(f"record of unknown workload {record.workload}: add the workload first")
        if record.digest in self._records:
            return False
        record = replace(record, normalised=None, cold_normalised=None)
        self._records[record.digest] = record
        self._remember(record)
        return True

    def _remember(self, record: Record) -> None:
        newest = self._newest.get(record.identity)
        if newest is None or order(record) > order(newest):
            self._newest[record.identity] = record

    def _read(self, record: Record) -> Record:
        baseline = self._baselines.get(record.hardware, {}).get(record.reference)
        return replace(record, normalised=record.normalise(baseline), cold_normalised=record.normalise_cold(baseline))

    def find(self, identity: Identity) -> Record | None:
        record = self._newest.get(identity)
        return None if record is None else self._read(record)

    def lookup(self, identities: Sequence[Identity]) -> list[Measured | None]:
        found = [self.find(identity) for identity in identities]
        return [
            None
            if r is None
            else Measured(r.status, r.latency, r.normalised, r.cold_latency or r.latency, r.cold_normalised)
            for r in found
        ]

    def best(self, workload: str, hardware: str, versions: Mapping[str, int] | None = None) -> Record | None:
        fitting = [
            self._read(record)
            for identity, record in self._newest.items()
            if (identity.workload, identity.hardware) == (workload, hardware)
            and record.ok
            and (
                versions is None
                or (versions.get(identity.family), CODEGEN_VERSION)
                == (identity.family_version, identity.codegen_version)
            )
        ]
        return min(fitting, key=lambda r: (r.normalised or 0.0, order(r)), default=None)

    def records(self, hardware: str | None = None, workload: str | None = None) -> Iterator[Record]:
        chosen = [
            r for r in self._records.values() if hardware in (None, r.hardware) and workload in (None, r.workload)
        ]
        yield from (self._read(record) for record in sorted(chosen, key=order))

    def workloads(self) -> Iterator[Workload]:
        yield from (self._workloads[key] for key in sorted(self._workloads))

    def form(self, workload: str, layouts: str) -> Form | None:
        return self._forms.get((workload, layouts))

    def forms(self) -> Iterator[Form]:
        yield from (self._forms[key] for key in sorted(self._forms))

    def hardware(self) -> Iterator[RecordedHardware]:
        yield from (self._hardware[digest] for digest in sorted(self._hardware))

    def models(self, workload: str) -> tuple[str, ...]:
        return tuple(sorted(self._models.get(workload, ())))

    def refresh_baseline(self, hardware: str) -> Mapping[str, float]:
        if hardware in self._hardware:
            times: dict[str, list[float]] = {}
            for record in self._records.values():
                if record.hardware == hardware and record.reference_latency is not None:
                    times.setdefault(record.reference, []).append(record.reference_latency)
            self._baselines[hardware] = {n: statistics.median(times[n]) for n in REFERENCES if n in times}
        return self.baseline(hardware)

    def baseline(self, hardware: str) -> Mapping[str, float]:
        return dict(self._baselines.get(hardware, {}))

    @property
    def evaluation_only(self) -> bool:
        return self._evaluation_only

    def keep_for_evaluation(self) -> None:
        if self._records and not self._evaluation_only:
            raise RecordError(HOLDS_OTHERS)
        self._evaluation_only = True

    def stats(self) -> StoreStats:
        statuses = Counter(record.status for record in self._records.values())
        ok = statuses.pop("ok", 0)
        families = Counter(f"{r.family} {r.family_version}" for r in self._records.values())
        models = sorted({model for models in self._models.values() for model in models})
        return StoreStats(
            ok,
            dict(statuses),
            len(self._workloads),
            tuple(models),
            tuple(sorted(self._hardware)),
            dict(families),
            self._evaluation_only,
        )

    def add_all(
        self,
        hardware: Sequence[RecordedHardware],
        workloads: Sequence[tuple[Workload, tuple[str, ...]]],
        forms: Sequence[Form],
        records: Sequence[Record],
    ) -> int:
        known = set(self._hardware) | {h.digest for h in hardware}
        keys = set(self._workloads) | {w.key for w, _ in workloads}
        for record in records:
            if record.hardware not in known or record.workload not in keys:
                raise RecordError(f"record of unknown hardware {record.hardware} or workload {record.workload}")
        for form in forms:
            if form.workload not in keys:
                raise RecordError(f"form of unknown workload {form.workload}")
        for row in hardware:
            self.add_hardware(row)
        for workload, models in workloads:
            self.add_workload(workload, models)
        for form in forms:
            self.add_form(form)
        return sum(self.add(record) for record in records)

    def drop(self, digests: Iterable[str]) -> int:
        dropped = [self._records.pop(digest) for digest in dict.fromkeys(digests) if digest in self._records]
        if dropped:
            self._newest = {}
            for record in self._records.values():
                self._remember(record)
        return len(dropped)

    def supersede(self, digest: str, record: Record) -> None:
        self.add(record)
        if record.digest != digest:
            self.drop([digest])

    def restamp(self, digests: Iterable[str], family_version: int) -> int:
        old = [self._records[digest] for digest in dict.fromkeys(digests) if digest in self._records]
        changed = [record for record in old if record.family_version != family_version]
        self.drop(record.digest for record in changed)
        for record in changed:
            self.add(replace(record, family_version=family_version))
        return len(changed)

    def compact(self) -> None:
        pass

    def close(self) -> None:
        pass
