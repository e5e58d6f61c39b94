"""`BenchResult`: what a benchmark found, as frozen dataclasses, and as the JSON object of `autofuse bench --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class EngineResult:
    """One row. Whatever was not measured is None; `error` is one line, and None when all went well.

    Attributes:
        engine: its name.
        median_ms, iqr_ms, min_ms: of the timed calls of one inference.
        calls, rounds: how many calls count, and in how many rounds there were any.
        disturbed: rounds in which the machine stayed disturbed; they count only where there are no others.
        ratio, ratio_iqr: time over that of the first row that has times, median over the rounds that both were in;
            above 1 is slower than it.
        kernels: launched by one inference.
        compile_s: from model file to runnable.
        max_abs_err: largest difference of an output element from the reference's.
        max_rel_err: the same over the largest element of that output.
        error: why there are no, or fewer, figures.
    """

    engine: str
    median_ms: float | None = None
    iqr_ms: float | None = None
    min_ms: float | None = None
    calls: int = 0
    rounds: int = 0
    ratio: float | None = None
    ratio_iqr: float | None = None
    kernels: int | None = None
    compile_s: float | None = None
    max_abs_err: float | None = None
    max_rel_err: float | None = None
    error: str | None = None
    disturbed: int = 0


@dataclass(frozen=True)
class ProbeResult:
    """A fixed kernel timed once a round beside the engines: a large `iqr_ms` says that the machine was disturbed."""

    median_ms: float
    iqr_ms: float
    min_ms: float
    rounds_ms: tuple[float, ...]


@dataclass(frozen=True)
class BenchResult:
    """One model, all engines, in the order asked for.

    Attributes:
        model: its name.
        threads: that every engine was given.
        batch: leading dimension of the inputs where it was asked for.
        results: one row an engine.
        reference: the engine whose outputs the others were compared with; None where there was none.
        probe: by kind, "arithmetic" and "memory".
        seconds: the whole run.
    """

    model: str
    threads: int
    results: tuple[EngineResult, ...]
    probe: Mapping[str, ProbeResult] = field(default_factory=dict)
    reference: str | None = None
    batch: int | None = None
    seconds: float = 0.0

    def of(self, engine: str) -> EngineResult:
        """The row of an engine; KeyError without one."""
        for row in self.results:
            if row.engine == engine:
                return row
        raise KeyError(engine)

    def to_json(self) -> dict[str, Any]:
        """The object that `autofuse bench --json` prints: plain values only, numbers finite."""
        return {
            "model": self.model,
            "threads": self.threads,
            "batch": self.batch,
            "reference": self.reference,
            "seconds": self.seconds,
            "results": [asdict(row) for row in self.results],
            "probe": {
                kind: {**asdict(probe), "rounds_ms": list(probe.rounds_ms)} for kind, probe in self.probe.items()
            },
        }
