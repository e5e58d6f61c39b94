"""What a collection is told, and what it tells: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field

from autofuse.measure.jobs import MeasureLimits


@dataclass(frozen=True)
class CollectStats:
    """How a collection went so far. `cached`: the store held them already; `skipped`: there are no right outputs.

    `seconds` of wall time; `left`: candidates not reached yet; `again`: kernels that wait for another pass; `skips`:
    what was skipped, and why, once each.
    """

    measured: int = 0
    failed: int = 0
    cached: int = 0
    skipped: int = 0
    left: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    failures: tuple[str, ...] = field(default=())
    skips: tuple[str, ...] = field(default=())
    again: int = 0

    @property
    def done(self) -> int:
        """Records added."""
        return self.measured + self.failed

    @property
    def rate(self) -> float:
        """Records added a second, builds and checks included; 0 before the first."""
        return self.done / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class CollectSettings:
    """`budget` in seconds and `trials` in candidates end a run (None: no end); `seed` fills the kernels' inputs.

    The kernels of a `batch` are built, then timed one after another; after the next batch they are timed again, then
    1, 2, 4 … batches later, `passes` times at most: until a pass has found what was known and the interval of all
    samples is narrow, each time in another process (`Runner.renew`). Other work has part of the machine for seconds,
    or a minute: samples that are that far apart seldom stand in the same disturbance. A record
    is there from the first pass on, the others make it longer; what is left of them when a run is cut short is made by
    the next one. `again`: so many kernels of those that succeeded are measured a second time, at the end, so that the
    noise can be known.
    """

    budget: float | None = None
    trials: int | None = None
    batch: int = 16
    limits: MeasureLimits = field(default_factory=MeasureLimits)
    tolerance: float = 1e-3
    seed: int = 0
    again: int = 0
    passes: int = 1


#: Kernels of a batch, and passes over it at most, where measurements are to be compared.
BATCH, PASSES = 48, 5
