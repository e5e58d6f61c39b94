"""The runner of this machine: one long-lived child process loads, checks and times kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autofuse.measure.jobs import MeasureJob, MeasureResult, samples_from
from autofuse.measure.process import ChildProcess, Outcome
from autofuse.measure.runner import Runner
from autofuse.target.pool import pool_environment

_BLAS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


def thread_environment(threads: int) -> dict[str, str]:
    """What a process that times kernels is started with: TVM's pool has `threads`, a BLAS one.

    The threads of a BLAS, with which weights are brought into the form that a kernel reads, spin on after that.
    """
    return {**pool_environment(threads), **dict.fromkeys(_BLAS, "1")}


class LocalRunner(Runner):
    """Measures with a pool of `threads`. A kernel that crashes or hangs takes the child with it; another is started."""

    def __init__(self, threads: int) -> None:
        self._child = ChildProcess("autofuse.measure.worker:factory", environment=thread_environment(threads))

    @property
    def pid(self) -> int | None:
        """The child's process number while it runs."""
        return self._child.pid

    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        for job in jobs:
            yield result_of(job, self._child.request(job.to_dict(), job.limits.timeout))

    def renew(self) -> None:
        self._child.close()

    def close(self) -> None:
        self._child.close()


def result_of(job: MeasureJob, outcome: Outcome) -> MeasureResult:
    """What a worker's answer says of a job."""
    if outcome.status != "ok":
        status = "crashed" if outcome.status == "failed" else outcome.status
        return MeasureResult.failure(job, status, outcome.message)
    value = outcome.value
    if value["status"] != "ok":
        return MeasureResult.failure(job, value["status"], value["message"])
    return MeasureResult(
        job.key,
        job.candidate,
        "ok",
        "",
        samples_from(value["samples"]),
        {name: samples_from(times) for name, times in value["references"].items()},
        job.reference,
        samples_from(value.get("cold_samples", ())),
        {name: samples_from(times) for name, times in value.get("cold_references", {}).items()},
    )
