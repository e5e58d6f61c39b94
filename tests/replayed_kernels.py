"""Kernels without TVM or a clock, and what measuring them gave: for tests of collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from plain_groups import FAMILY, Scale, chain, key_of

from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.measure import (
    ArgumentSpec,
    BuildRequest,
    CollectItem,
    CollectSettings,
    CollectStats,
    MeasureJob,
    MeasureResult,
    ReplayBuilder,
    ReplayRunner,
    collect,
)
from autofuse.measure.replay import candidate_text
from autofuse.records import RecordedHardware, RecordStore
from autofuse.records.identity import identity_of

HERE = RecordedHardware("hw", "here")


def item(group: Group, scale: int = 1, model: str = "net", planned: bool = False, used: bool = False) -> CollectItem:
    """A group in a configuration, to be measured."""
    return CollectItem(
        Candidate(group, FAMILY, Scale(scale)), key_of(group), f"text of {key_of(group)}", model, planned or used, used
    )


ITEMS = [item(group, scale) for group in (chain([k, "relu"]) for k in "abc") for scale in (1, 2, 3)]


def results(items: Iterable[CollectItem]) -> dict[tuple[str, str], MeasureResult]:
    """A result for every item but those with scale 3, which crash."""
    made = {}
    for i in items:
        text = candidate_text(identity_of(i.candidate, i.key, HERE.digest))
        if i.candidate.config != Scale(3):
            times = (1e-3, 2e-3, 3e-3)
            cold = (4e-3, 6e-3) if i.candidate.config == Scale(2) else ()
            made[i.key, text] = MeasureResult(
                i.key, text, "ok", "", times, {"memory": times}, "memory", cold, {"memory": cold} if cold else {}
            )
    return made


def ask(i: CollectItem, text: str, library: Path) -> BuildRequest:
    """What would be built of an item."""
    return BuildRequest(i.key, text, str(library), arguments=(ArgumentSpec((64,)), ArgumentSpec((64,), output=True)))


class Instant(ReplayRunner):
    """A runner that gives every kernel one result, with `times` (seconds) as its samples."""

    times: ClassVar[tuple[float, ...]] = (1e-5, 1e-5)

    def __init__(self, threads: int) -> None:
        super().__init__({})

    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        for job in jobs:
            references = {"arithmetic": (1e-4, 1e-4), "memory": (2e-3, 2e-3)}
            yield MeasureResult(job.key, job.candidate, "ok", "", self.times, references)


def replayed(store: RecordStore, items: Iterable[CollectItem] = ITEMS, **settings: object) -> CollectStats:
    """A collection of `items` into `store`."""
    return collect(
        items, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask,
        settings=CollectSettings(**settings),  # type: ignore[arg-type]
    )  # fmt: skip
