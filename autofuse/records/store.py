"""The interface of a record store: what collection writes to and what cost models and training read from."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from autofuse.records.record import Form, Identity, Measured, Record, RecordedHardware, StoreStats, Workload

#: Why a store cannot be kept for evaluation.
HOLDS_OTHERS = (
    "what is kept for evaluation goes into a store of its own, this one holds records that may be learned from; give "
    "another file"
)


class RecordStore(abc.ABC):
    """Keeps records. Every method that adds is atomic and idempotent: adding what is there already changes nothing.

    A record can be added only after its hardware and its workload. Several records may have one identity; the newest
    (latest `created`, then largest digest) is the one that counts. A store object belongs to one thread; several
    processes may each open the same file. RecordError, one line, for whatever a user can act on.
    """

    @abc.abstractmethod
    def add_hardware(self, hardware: RecordedHardware) -> None:
        """Make the hardware known."""

    @abc.abstractmethod
    def add_workload(self, workload: Workload, models: Iterable[str] = ()) -> None:
        """Make the workload known, and that `models` contain it. Its first text and label stay."""

    @abc.abstractmethod
    def add_form(self, form: Form) -> None:
        """Keep how a known workload's group is stored; the first text for a workload and layouts stays."""

    @abc.abstractmethod
    def add(self, record: Record) -> bool:
        """Keep the record; False if it was there. RecordError if its hardware or workload is not known."""

    @abc.abstractmethod
    def find(self, identity: Identity) -> Record | None:
        """The newest record of what `identity` names."""

    @abc.abstractmethod
    def lookup(self, identities: Sequence[Identity]) -> list[Measured | None]:
        """For each identity what its newest record says, in one query for all of them."""

    @abc.abstractmethod
    def best(self, workload: str, hardware: str, versions: Mapping[str, int] | None = None) -> Record | None:
        """The fastest kernel known for a workload: least normalised latency among each identity's newest record.

        `versions` (family → version) leaves out records of other families or versions, or of another code generation.
        """

    @abc.abstractmethod
    def records(self, hardware: str | None = None, workload: str | None = None) -> Iterator[Record]:
        """All records, of one hardware or workload if given, ordered by identity, then time, then digest."""

    @abc.abstractmethod
    def workloads(self) -> Iterator[Workload]:
        """All workloads, by key."""

    @abc.abstractmethod
    def form(self, workload: str, layouts: str) -> Form | None:
        """How the group of a workload is stored when its borders have these layouts."""

    @abc.abstractmethod
    def forms(self) -> Iterator[Form]:
        """All forms, by workload and layouts."""

    @abc.abstractmethod
    def hardware(self) -> Iterator[RecordedHardware]:
        """All hardware, by digest."""

    @abc.abstractmethod
    def models(self, workload: str) -> tuple[str, ...]:
        """The models that contain a workload, sorted."""

    @abc.abstractmethod
    def refresh_baseline(self, hardware: str) -> Mapping[str, float]:
        """Take the medians of the references' quiet times over the hardware's records as their usual times, seconds.

        Latencies are normalised with these. Called at the end of a collection and after a merge.
        """

    @abc.abstractmethod
    def baseline(self, hardware: str) -> Mapping[str, float]:
        """The usual times of the reference kernels, in seconds; empty until refresh_baseline found some."""

    @property
    @abc.abstractmethod
    def evaluation_only(self) -> bool:
        """Whether nothing may be learned from the records here: they are kept to evaluate with."""

    @abc.abstractmethod
    def keep_for_evaluation(self) -> None:
        """Make the store `evaluation_only`, for good. RecordError if it holds records already and is not."""

    @abc.abstractmethod
    def stats(self) -> StoreStats:
        """Counts of what is there."""

    @abc.abstractmethod
    def add_all(
        self,
        hardware: Sequence[RecordedHardware],
        workloads: Sequence[tuple[Workload, tuple[str, ...]]],
        forms: Sequence[Form],
        records: Sequence[Record],
    ) -> int:
        """Add everything or, if anything fails, nothing; the number of records that were new."""

    @abc.abstractmethod
    def drop(self, digests: Iterable[str]) -> int:
        """Take out the records with these digests, all or nothing; the number that were there.

        Workloads and forms stay: what a group is does not change with what was measured of it.
        """

    @abc.abstractmethod
    def supersede(self, digest: str, record: Record) -> None:
        """Put the record where the one with this digest is, all or nothing: it holds all that that one holds."""

    @abc.abstractmethod
    def restamp(self, digests: Iterable[str], family_version: int) -> int:
        """Give the records with these digests another version of their family, all or nothing; the number changed.

        For records whose code is known to be the same under that version. All else of them stays.
        """

    @abc.abstractmethod
    def compact(self) -> None:
        """Give back the space of what was dropped."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the file. The store cannot be used afterwards; closing twice does nothing."""

    def merge(self, other: RecordStore) -> int:
        """Take over everything that `other` holds, all or nothing; the number of records that were new.

        What is kept for evaluation stays so: an empty store becomes `evaluation_only` with it, another is refused it.
        """
        if other.evaluation_only and not self.evaluation_only:
            self.keep_for_evaluation()
        hardware = list(other.hardware())
        added = self.add_all(
            hardware, [(w, other.models(w.key)) for w in other.workloads()], list(other.forms()), list(other.records())
        )
        for row in hardware:
            self.refresh_baseline(row.digest)
        return added

    def export_lines(self, path: str | Path) -> int:
        """Write everything as sorted JSON lines (see `jsonlines.py`); the number of records written."""
        from autofuse.records.jsonlines import write

        return write(self, Path(path))

    def import_lines(self, path: str | Path) -> int:
        """Add what a file of JSON lines holds, all or nothing; the number of records that were new."""
        from autofuse.records.jsonlines import read

        return self.merge(read(Path(path)))

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def order(record: Record) -> tuple[str, str, str, int, str, str, int, str, str]:
    """Sort key of `records()`."""
    i = record.identity
    return (
        i.workload, i.hardware, i.family, i.family_version, i.config, i.layouts, i.codegen_version, record.created,
        record.digest,
    )  # fmt: skip
