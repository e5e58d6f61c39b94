"""Collection in several passes with replayed results, and when a pass has found what was known."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from plain_groups import Scale
from replayed_kernels import HERE, ITEMS, ask, replayed, results

from autofuse.measure import (
    BuildRequest,
    CollectItem,
    CollectSettings,
    CollectStats,
    MeasureJob,
    MeasureLimits,
    MeasureResult,
    ReplayBuilder,
    ReplayRunner,
    collect,
)
from autofuse.measure.passes import CAPPED, SETTLED, UNFINISHED, agrees, narrow, with_samples
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
            assert r.message == (CAPPED if r.ok else "there is no record to replay")
            assert r.cold_samples == ((4e-3, 6e-3) * 3 if r.config == "scale=2" else ())
            assert all(len(t) == len(r.samples) for t in r.reference_samples.values())
        assert replayed(store, passes=3).cached == 6

    def test_kernels_that_two_passes_agree_on_are_not_timed_a_third_time(self, store: RecordStore) -> None:
        stats, order, _ = self.in_passes(store, 1.0, 1.02)
        assert order == "1231" + "23" + "121" + "2" and (stats.measured, stats.failed) == (4, 2)
        assert {len(r.samples) for r in store.records()} == {0, 6}

    def failing(self, store: RecordStore, status: str, runs: Sequence[int], passes: int = 3) -> CollectStats:
        """Three kernels in up to `passes` passes; the first one's n-th run fails for each n of `runs`."""
        items = [i for i in ITEMS if i.candidate.config != Scale(3)][:3]
        counts: Counter[tuple[str, str]] = Counter()

        class Failing(ReplayRunner):
            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                for job in jobs:
                    counts[job.key, job.candidate] += 1
                    first = job.key == items[0].key and "scale=1 " in job.candidate
                    failed = first and counts[job.key, job.candidate] in runs
                    yield MeasureResult.failure(job, status, "the end") if failed else next(super().measure([job]))

        settings = CollectSettings(passes=passes)
        return collect(items, store, Failing(results(ITEMS)), ReplayBuilder(), HERE, ask, settings=settings)

    @pytest.mark.parametrize("passes", [3, 2])
    def test_a_kernel_that_fails_once_in_a_later_pass_is_tried_again(self, store: RecordStore, passes: int) -> None:
        """Something else may have taken the memory; the samples that are there stay. After the last pass, too."""
        stats = self.failing(store, "oom", [2], passes)
        assert (stats.measured, stats.failed, stats.failures) == (3, 0, ())
        assert {(r.status, len(r.samples), r.message) for r in store.records()} == {("ok", 6, SETTLED)}

    def test_a_kernel_that_fails_twice_running_has_failed(self, store: RecordStore) -> None:
        stats = self.failing(store, "crashed", [2, 3])
        assert (stats.measured, stats.failed) == (2, 1) and "crashed: the end" in stats.failures[0]
        found = {r.status: (len(r.samples), r.message) for r in store.records()}
        assert found == {"crashed": (0, "the end"), "ok": (6, SETTLED)} and len(list(store.records())) == 3

    def test_a_kernel_that_is_wrong_in_a_later_pass_is_not_tried_again(self, store: RecordStore) -> None:
        stats = self.failing(store, "wrong", [2])
        assert (stats.measured, stats.failed) == (2, 1) and "wrong: the end" in stats.failures[0]

    def test_an_interrupt_ends_the_passes_too(self, store: RecordStore) -> None:
        def stop(stats: CollectStats, what: str) -> None:
            if stats.done == 2:
                os.kill(os.getpid(), signal.SIGINT)

        stats = collect(
            ITEMS, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask, progress=stop,
            settings=CollectSettings(passes=3),
        )  # fmt: skip
        assert stats.done == 2 and stats.again == 2
        assert [(len(r.samples), r.message) for r in store.records()] == [(3, UNFINISHED)] * 2


class TestRunsThatAreCutShort:
    """What they leave passes of is taken up by the next run, in the same records."""

    def cut(self, store: RecordStore, after: int = 2, passes: int = 3) -> None:
        """A run that is interrupted after so many kernels."""

        def stop(stats: CollectStats, what: str) -> None:
            if stats.done == after:
                os.kill(os.getpid(), signal.SIGINT)

        settings = CollectSettings(passes=passes)
        collect(
            ITEMS, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask, progress=stop, settings=settings
        )

    def known(self, store: RecordStore) -> dict[str, tuple[int, str]]:
        """Kernel → samples and message, of those that succeeded; each has one record."""
        found = [r for r in store.records() if r.ok]
        made = {f"{r.workload} {r.config}": (len(r.samples), r.message) for r in found}
        assert len(made) == len(found)
        return made

    def test_the_next_run_makes_the_passes_that_are_left(self, store: RecordStore) -> None:
        self.cut(store)
        assert all(r.ok and r.latency for r in store.records())  # of use meanwhile
        stats = replayed(store, passes=3)
        assert (stats.measured, stats.failed, stats.cached, stats.left, stats.again) == (6, 3, 0, 0, 0)
        assert set(self.known(store).values()) == {(6, SETTLED)} and len(list(store.records())) == 9
        assert replayed(store, passes=3).cached == 9

    def test_a_run_of_single_passes_takes_them_as_they_are(self, store: RecordStore) -> None:
        self.cut(store)
        assert replayed(store).cached == 2
        assert sorted(self.known(store).values()) == [(3, "")] * 4 + [(3, UNFINISHED)] * 2

    def test_no_more_passes_are_made_than_in_one_run(self, store: RecordStore) -> None:
        """Nor fewer: what does not settle has as many samples as if nothing had happened."""
        self.cut(store, passes=4)
        factor = iter(1.1**n for n in range(1, 100))

        class Slower(ReplayRunner):
            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                for job in jobs:
                    for result in super().measure([job]):
                        slower = next(factor)
                        yield replace(result, samples=tuple(slower * s for s in result.samples))

        settings = CollectSettings(passes=4, limits=MeasureLimits(max_samples=12))
        runner = Slower(results(ITEMS))
        collect(ITEMS[:2], store, runner, ReplayBuilder(), HERE, ask, settings=settings)
        assert list(self.known(store).values()) == [(12, CAPPED)] * 2

    def test_code_that_has_changed_meanwhile_is_measured_anew(self, store: RecordStore) -> None:
        self.cut(store)

        def other(i: CollectItem, text: str, library: Path) -> BuildRequest:
            return replace(ask(i, text, library), tir_digest="0123456789abcdef")

        settings = CollectSettings(passes=1)
        collect(ITEMS, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, other, settings=settings)
        settings = CollectSettings(passes=2)
        collect(ITEMS, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, other, settings=settings)
        assert sorted(self.known(store).values()) == [(3, "")] * 4 + [(6, SETTLED)] * 2
        assert {r.tir_digest for r in store.records() if r.ok} == {"0123456789abcdef"}

    def test_what_cannot_be_built_again_stays(self, store: RecordStore) -> None:
        self.cut(store)

        def refuse(i: CollectItem, text: str, library: Path) -> BuildRequest:
            raise ValueError("no memory")

        settings = CollectSettings(passes=3)
        stats = collect(
            ITEMS[:2], store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, refuse, settings=settings
        )
        assert stats.failed == 2 and "no memory" in stats.failures[0]
        assert list(self.known(store).values()) == [(3, UNFINISHED)] * 2

    def test_what_fails_when_it_is_taken_up_again_is_tried_once_more(self, store: RecordStore) -> None:
        self.cut(store)
        runs: Counter[str] = Counter()

        class Tired(ReplayRunner):
            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                for job in jobs:
                    runs[job.candidate] += 1
                    always = "scale=2 " in job.candidate
                    failed = always or runs[job.candidate] == 1
                    yield MeasureResult.failure(job, "oom", "SIGKILL") if failed else next(super().measure([job]))

        settings = CollectSettings(passes=3)
        stats = collect(ITEMS[:2], store, Tired(results(ITEMS)), ReplayBuilder(), HERE, ask, settings=settings)
        assert (stats.measured, stats.failed, stats.left) == (1, 1, 0)
        assert [(r.status, len(r.samples)) for r in store.records()] == [("ok", 6), ("oom", 0)]


class TestPasses:
    """Whether another pass found what those before had."""

    def record(self, **changes: object) -> Record:
        beside = {"arithmetic": (1e-4, 1e-4), "memory": (2e-3, 2e-3)}
        given = {"samples": (1e-3, 2e-3), "reference_samples": beside, **changes}
        return Record("w", "hw", "conv", 1, "a=1", **given)  # type: ignore[arg-type]

    def result(self, least: float, beside: float = 1e-4, **changes: object) -> MeasureResult:
        references = {"arithmetic": (beside, beside), "memory": (5e-3, 5e-3)}
        return MeasureResult("w", "c", "ok", "", (20 * beside, least), references, **changes)  # type: ignore[arg-type]

    def test_the_interval_of_all_ratios_must_be_narrow(self) -> None:
        steady = self.record(samples=(1e-3,) * 4, reference_samples={"arithmetic": (1e-4,) * 4})
        slowed = self.record(
            samples=(1e-3, 2e-3) * 4, reference_samples={"arithmetic": (1e-4, 2e-4) * 4, "memory": (1e-3,) * 8}
        )
        assert narrow(steady, 0.03) and narrow(slowed, 0.03) and not narrow(replace(slowed, reference="memory"), 0.03)
        assert not narrow(self.record(), 0.03)  # too few to tell
        cold = {"cold_samples": (4e-3, 5e-3) * 4, "cold_reference_samples": {"arithmetic": (1e-4,) * 8}}
        assert not narrow(replace(steady, **cold), 0.03)  # type: ignore[arg-type]

    def test_the_times_count_over_those_of_the_reference_that_counts(self) -> None:
        assert agrees(self.record(), self.result(1.02e-3), 0.03) and agrees(self.record(), self.result(0.98e-3), 0.03)
        assert not agrees(self.record(), self.result(1.1e-3), 0.03)
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
