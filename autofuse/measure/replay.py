"""A runner and a builder that replay records: collection and tuning with no compiler and no clock."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping

from autofuse.measure.builder import Builder, BuildRequest, BuildResult
from autofuse.measure.jobs import MeasureJob, MeasureResult
from autofuse.measure.runner import Runner
from autofuse.records.record import Identity
from autofuse.records.store import RecordStore


def candidate_text(identity: Identity) -> str:
    """What names a candidate among those of one workload, on one line."""
    return f"{identity.family}/{identity.family_version} {identity.config} [{identity.layouts}]"


class ReplayRunner(Runner):
    """Answers from given results: (workload key, candidate text) → result. What is not among them has failed."""

    def __init__(self, results: Mapping[tuple[str, str], MeasureResult]) -> None:
        self._results = dict(results)

    @classmethod
    def from_store(cls, store: RecordStore, hardware: str) -> ReplayRunner:
        """Replays the newest records of one hardware."""
        results = {}
        for r in store.records(hardware):
            text = candidate_text(r.identity)
            results[r.workload, text] = MeasureResult(
                r.workload,
                text,
                r.status,
                r.message,
                r.samples,
                r.reference_samples,
                r.reference,
                r.cold_samples,
                r.cold_reference_samples,
            )
        return cls(results)

    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        for job in jobs:
            known = self._results.get((job.key, job.candidate))
            yield known or MeasureResult.failure(job, "crashed", "there is no record to replay")

    def close(self) -> None:
        pass


class ReplayBuilder(Builder):
    """Builds nothing and says that it did."""

    def build(self, requests: Iterable[BuildRequest]) -> Generator[BuildResult, None, None]:
        for request in requests:
            yield BuildResult(
                request.key,
                request.candidate,
                "ok",
                "",
                request.library,
                request.function,
                request.arguments,
                request.tir_digest,
            )

    def close(self) -> None:
        pass
