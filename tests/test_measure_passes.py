"""Collection in several passes with replayed results, and when a pass has found what was known."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from plain_groups import Scale
from replayed_kernels import HERE, ITEMS, ask, replayed, results

from autofuse.measure import (
    CollectSettings,
    CollectStats,
    MeasureJob,
    MeasureResult,
    ReplayBuilder,
    ReplayRunner,
    collect,
)
from autofuse.measure.passes import agrees, with_samples
from autofuse.records import Record, RecordStore


class TestCollectionInPasses:
    def in_passes(self, store: RecordStore, *pace: float) -> tuple[CollectStats, str, list[int]]:
        """Two batches in three passes, of which the n-th takes pace[n] times as long; what was timed, records then."""
        order: list[str] = []
        kept: list[int] = []
        runs: Counter[tuple[str, str]] = Counter()

        class Timed(ReplayRunner):
            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                for job in jobs:
                    order.append(job.candidate.split()[1].removeprefix("scale="))
                    kept.append(len(list(store.records())))
                    factor = pace[runs[job.key, job.candidate]]
                    runs[job.key, job.candidate] += 1
                    for result in super().measure([job]):
                        yield replace(result, samples=tuple(factor * s for s in result.samples))

        settings = CollectSettings(passes=3, batch=4, trials=6)
        stats = collect(ITEMS, store, Timed(results(ITEMS)), ReplayBuilder(), HERE, ask, settings=settings)
        return stats, "".join(order), kept

    def test_a_batch_is_timed_in_several_passes_that_make_one_record_each(self, store: RecordStore) -> None:
        stats, order, kept = self.in_passes(store, 1.0, 1.5, 1.0)
        # What failed is not timed again; the first batch is after the second one, and all are at the end.
        assert order == "1231" + "23" + "121" + "121" + "2" + "2"
        assert (stats.measured, stats.failed, stats.left) == (4, 2, 3)
        # A record is there from the first pass on, and the later ones make it longer.
        assert kept[:6] == [0, 1, 2, 3, 4, 5] and set(kept[6:]) == {6} and len(list(store.records())) == 6
        times = (1e-3, 2e-3, 3e-3)
        for r in store.records():
            assert r.samples == pytest.approx((*times, *(1.5 * t for t in times), *times) if r.ok else ())
            assert r.cold_samples == ((4e-3, 6e-3) * 3 if r.config == "scale=2" else ())
            assert all(len(t) == len(r.samples) for t in r.reference_samples.values())
        assert replayed(store, passes=3).cached == 6

    def test_kernels_that_two_passes_agree_on_are_not_timed_a_third_time(self, store: RecordStore) -> None:
        stats, order, _ = self.in_passes(store, 1.0, 1.02)
        assert order == "1231" + "23" + "121" + "2" and (stats.measured, stats.failed) == (4, 2)
        assert {len(r.samples) for r in store.records()} == {0, 6}

    def test_a_kernel_that_fails_in_a_later_pass_has_failed(self, store: RecordStore) -> None:
        class Tired(ReplayRunner):
            runs = 0

            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                for job in jobs:
                    self.runs += 1
                    failed = self.runs == 4
                    yield MeasureResult.failure(job, "crashed", "SIGSEGV") if failed else next(super().measure([job]))

        items = [i for i in ITEMS if i.candidate.config != Scale(3)][:3]
        settings = CollectSettings(passes=3)
        stats = collect(items, store, Tired(results(ITEMS)), ReplayBuilder(), HERE, ask, settings=settings)
        assert (stats.measured, stats.failed) == (2, 1) and "SIGSEGV" in stats.failures[0]
        found = {r.status: len(r.samples) for r in store.records()}
        assert found == {"crashed": 0, "ok": 6} and len(list(store.records())) == 3

    def test_an_interrupt_ends_the_passes_too(self, store: RecordStore) -> None:
        def stop(stats: CollectStats, what: str) -> None:
            if stats.done == 2:
                os.kill(os.getpid(), signal.SIGINT)

        stats = collect(
            ITEMS, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask, progress=stop,
            settings=CollectSettings(passes=3),
        )  # fmt: skip
        assert stats.done == 2 and [len(r.samples) for r in store.records()] == [3, 3]


class TestPasses:
    """Whether another pass found what those before had."""

    def record(self, **changes: object) -> Record:
        beside = {"arithmetic": (1e-4, 1e-4), "memory": (2e-3, 2e-3)}
        given = {"samples": (1e-3, 2e-3), "reference_samples": beside, **changes}
        return Record("w", "hw", "conv", 1, "a=1", **given)  # type: ignore[arg-type]

    def result(self, least: float, beside: float = 1e-4, **changes: object) -> MeasureResult:
        references = {"arithmetic": (beside, beside), "memory": (5e-3, 5e-3)}
        return MeasureResult("w", "c", "ok", "", (2e-3, least), references, **changes)  # type: ignore[arg-type]

    def test_the_least_times_count_over_those_of_the_reference_that_counts(self) -> None:
        assert agrees(self.record(), self.result(1.02e-3), 0.03) and agrees(self.record(), self.result(0.98e-3), 0.03)
        assert not agrees(self.record(), self.result(1.04e-3), 0.03)
        assert agrees(self.record(), self.result(1.5e-3, 1.5e-4), 0.03)
        assert not agrees(self.record(), self.result(1e-3, 1.5e-4), 0.03)
        assert not agrees(self.record(reference="memory"), self.result(1e-3), 0.03)

    def test_without_references_the_times_themselves_do(self) -> None:
        bare = self.record(reference_samples={})
        assert agrees(bare, self.result(1.01e-3, 9e-4), 0.03) and not agrees(bare, self.result(2e-3), 0.03)

    def test_cold_times_must_agree_too(self) -> None:
        cold = {"cold_samples": (4e-3,), "cold_reference_samples": {"arithmetic": (1e-4,)}}
        record = self.record(**cold)
        assert agrees(record, self.result(1e-3, **cold), 0.03)
        assert not agrees(record, self.result(1e-3, **{**cold, "cold_samples": (5e-3,)}), 0.03)
        assert not agrees(record, self.result(1e-3), 0.03) and not agrees(
            self.record(), self.result(1e-3, **cold), 0.03
        )
        longer = with_samples(record, self.result(1e-3, **cold))
        assert longer.samples == (1e-3, 2e-3, 2e-3, 1e-3) and longer.cold_samples == (4e-3, 4e-3)
