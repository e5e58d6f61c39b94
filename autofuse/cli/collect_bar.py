"""Progress of a collection on a terminal: takes its counts, shows rate, time left and what was measured last."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autofuse.measure import CollectStats


class CollectBar:
    """Progress on stderr: counts, rate, time left, what was measured last; when it is no terminal, nothing.

    `budget` in seconds and `trials` end the run before the last candidate. `lines`: where there is no terminal, a line
    every so many seconds says the same (None: none does).
    """

    def __init__(self, budget: float | None, trials: int | None, lines: float | None = None) -> None:
        self._budget = budget
        self._trials = trials
        self._lines = lines
        self._next = 0.0

    def __enter__(self) -> CollectBar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._bar = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.fields[counts]}"), BarColumn(20), TextColumn("{task.percentage:.0f} %"),
                TextColumn("{task.description}"), console=console, transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=None, counts="")
        return self

    def update(self, stats: CollectStats, text: str) -> None:
        """Show the counts so far and what was just done."""
        remaining, share = left_to_do(stats, self._budget, self._trials)
        if self._bar is None:
            if self._lines is not None and stats.seconds >= self._next:
                self._next = stats.seconds + self._lines
                print(
                    f"{duration(stats.seconds)} {counts_text(stats, remaining)}; {text[:60]}",
                    file=sys.stderr,
                    flush=True,
                )
            return
        self._bar.update(
            self._task, total=1.0, completed=share, description=text[:60], counts=counts_text(stats, remaining)
        )

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def counts_text(stats: CollectStats, remaining: float | None) -> str:
    """measured / failed / cached / left, records a second, and the time left.

    When all was measured, but not in all passes: how many kernels wait for another one. How long that takes depends on
    how calm the machine is.
    """
    skipped = f" skipped {stats.skipped}" if stats.skipped else ""
    counts = f"measured {stats.measured} failed {stats.failed} cached {stats.cached}{skipped} left {stats.left}"
    to_go = f"{'?' if remaining is None else duration(remaining)} to go"
    if remaining == 0 and stats.again:
        to_go = f"timing {stats.again} again"
    return f"{counts}, {stats.rate:.1f}/s, {to_go}"


def left_to_do(stats: CollectStats, budget: float | None, trials: int | None) -> tuple[float | None, float]:
    """Seconds until the run ends at the rate so far (None: there is none yet), and the share (0..1) that is done."""
    reached = stats.done + stats.skipped
    left = stats.left if trials is None else min(stats.left, max(0, trials - reached))
    if not reached or stats.seconds <= 0:
        return budget, 0.0
    remaining = left * stats.seconds / reached
    if budget is not None:
        remaining = min(remaining, max(0.0, budget - stats.seconds))
    return remaining, stats.seconds / (stats.seconds + remaining)


def duration(seconds: float) -> str:
    """1:02:03, or 2:03 within the hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
