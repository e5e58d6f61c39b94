"""A collection that replays measurements: what the tests of killed processes start, and kill. No TVM, no clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from plain_groups import FAMILY, Scale, chain

from autofuse.cost.model import Candidate
from autofuse.graph.keys import canonical_text, workload_key
from autofuse.measure import (
    BuildRequest,
    CollectItem,
    CollectStats,
    MeasureJob,
    MeasureResult,
    ReplayBuilder,
    ReplayRunner,
    collect,
)
from autofuse.records import RecordedHardware, SqliteStore

KINDS = ("negative", "exp", "tanh", "relu")
SCALES = range(1, 301)
ITEMS = len(KINDS) * len(SCALES)


@cache
def items() -> tuple[CollectItem, ...]:
    """The same kernels each time."""
    found = []
    for kind in KINDS:
        group = chain((kind,))
        key, text = workload_key(group), canonical_text(group)
        found += [CollectItem(Candidate(group, FAMILY, Scale(s)), key, text, f"net of {kind}") for s in SCALES]
    return tuple(found)


def prepare() -> None:
    """Load, before processes are forked, all that each would load by itself."""
    import sqlite_utils  # noqa: F401

    items()


class Anything(ReplayRunner):
    """Replays one result for every kernel, a tenth of a millisecond each; after `most` of them it hangs."""

    def __init__(self, most: int) -> None:
        super().__init__({})
        self.left = most

    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        for job in jobs:
            time.sleep(1e-4 if self.left else 60)
            self.left -= 1
            references = {"arithmetic": (1e-4,) * 3, "memory": (1e-3,) * 3}
            yield MeasureResult(job.key, job.candidate, "ok", "", (1e-5, 2e-5, 3e-5), references)


def request(item: CollectItem, text: str, library: Path) -> BuildRequest:
    """A request that is never built."""
    return BuildRequest(item.key, text, str(library), tir_digest="0123456789abcdef")


def collect_into(path: str, added: Callable[[], object], most: int = 20 * ITEMS) -> int:
    """Collect what the store does not hold yet, `added` called after each record; the number of records added.

    The measurement after the first `most` hangs.
    """
    known = 0

    def told(stats: CollectStats, text: str) -> None:
        nonlocal known
        for _ in range(known, stats.done):
            added()
        known = stats.done

    with SqliteStore(path) as store:
        hardware = RecordedHardware("hw1", "a machine")
        return collect(items(), store, Anything(most), ReplayBuilder(), hardware, request, progress=told).done


def sleeper() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A worker whose every request takes a minute."""

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        time.sleep(60)
        return {}

    return handle
