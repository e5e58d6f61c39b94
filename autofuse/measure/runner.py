"""The interface of a runner: takes jobs with built kernels, gives one result a job, in order."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from types import TracebackType

from autofuse.measure.jobs import MeasureJob, MeasureResult


class Runner(abc.ABC):
    """Checks and times kernels, one at a time.

    Whatever a kernel does (wrong numbers, an exception, a crash, a hang) is a result with a status and never an
    exception; the jobs after it are measured as if it had not been. MeasureError if nothing can be measured at all.
    """

    #: The reference kernel of what is bound by arithmetic; every runner has "memory" too.
    arithmetic = "product"

    @abc.abstractmethod
    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        """One result for each job, in order, each as soon as it is there; the next job starts when it is asked for."""

    def renew(self) -> None:  # noqa: B027 (nothing to do is an answer)
        """Have the next kernel measured by another process, where the runner has processes of its own.

        Where its memory lies can make a kernel twice as slow as long as a process lives.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End what was started. The runner may be used again: it starts anew."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
