"""The order of measuring, and collection with replayed results."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_groups import FAMILY, PlainCosts, Scale, chain, graph, key_of

from autofuse.cli.collect_bar import counts_text, duration, left_to_do
from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.measure import (
    ArgumentSpec,
    BuildRequest,
    BuildResult,
    CollectItem,
    CollectSettings,
    CollectStats,
    MeasureJob,
    MeasureResult,
    ReplayBuilder,
    ReplayRunner,
    Runner,
    collect,
    in_order,
)
from autofuse.measure.collection import nearer_reference
from autofuse.measure.jobs import fill_inputs
from autofuse.measure.order import most_useful
from autofuse.measure.passes import agrees, with_samples
from autofuse.measure.replay import candidate_text
from autofuse.records import Identity, MemoryStore, Record, RecordedHardware, RecordStore, SqliteStore
from autofuse.records.groups import group_from_text
from autofuse.records.identity import identity_of

HERE = RecordedHardware("hw", "here")


def item(group: Group, scale: int = 1, model: str = "net", planned: bool = False) -> CollectItem:
    return CollectItem(
        Candidate(group, FAMILY, Scale(scale)), key_of(group), f"text of {key_of(group)}", model, planned
    )


class TestOrder:
    def test_planned_groups_come_first_then_what_saves_most(self) -> None:
        g = graph(["a", "b", "c"])
        singles = [Group.of(g, [i]) for i in range(3)]
        pair, triple = Group.of(g, [0, 1]), Group.of(g, [0, 1, 2])

        class Costs(PlainCosts):
            def costs(self, candidates):  # type: ignore[no-untyped-def]
                table = {(0,): 5e-3, (1,): 1e-3, (2,): 2e-3, (0, 1): 5.5e-3, (0, 1, 2): 4e-3}
                return np.array([table[c.group.members] for c in candidates])

        given = [item(pair), item(triple), *(item(s, planned=i == 2) for i, s in enumerate(singles))]
        ordered = [i.candidate.group.members for i in in_order(given, Costs())]
        assert ordered == [(2,), (0, 1, 2), (0, 1), (0,), (1,)]

    def test_other_groups_come_before_a_groups_last_configurations(self) -> None:
        groups = [chain(["a", "b"]), chain(["c", "d"])]
        given = [item(g, scale, planned=True) for g in groups for scale in (1, 1, 1)]
        ordered = [i.key for i in in_order(given, PlainCosts())]
        assert ordered == ["a-b", "c-d", "a-b", "c-d", "a-b", "c-d"]

    def test_the_most_useful_are_the_first_different_ones(self) -> None:
        groups = [chain(["a", "b"]), chain(["c", "d"])]
        given = [item(g, scale, planned=g is groups[1]) for g in groups for scale in (1, 2, 3)]
        ordered = in_order([*given, given[3]], PlainCosts())  # one of them twice
        first = most_useful([*given, given[3]], PlainCosts(), 2, lambda asked: [False] * len(asked))
        assert first == ordered[: len(first)] and {i.key for i in first} == {"c-d"}
        assert len({i.candidate.config for i in first}) == 2
        assert most_useful(given, PlainCosts(), 6, lambda asked: [False] * len(asked)) == in_order(given, PlainCosts())

    def test_what_is_measured_already_counts_among_the_most_useful(self) -> None:
        groups = [chain(["a", "b"]), chain(["c", "d"])]
        given = [item(g, scale, planned=g is groups[1]) for g in groups for scale in (1, 2, 3)]

        def known(asked: Sequence[Identity]) -> list[bool]:
            return [i.workload == "a-b" and i.config != "scale=3" for i in asked]

        for most, keys in ((1, ["a-b"] * 2), (2, ["a-b"] * 2), (4, ["a-b"] * 2 + ["c-d"] * 2)):
            assert sorted(i.key for i in most_useful(given, PlainCosts(), most, known)) == keys

    def test_asks_for_all_costs_at_once_and_loses_nothing(self) -> None:
        costs = PlainCosts()
        given = [item(chain(["a"]), s) for s in (1, 2, 3)]
        assert sorted(i.candidate.config.text for i in in_order(given, costs)) == ["scale=1", "scale=2", "scale=3"]
        assert costs.asked == [3]


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
    return BuildRequest(i.key, text, str(library), arguments=(ArgumentSpec((64,)), ArgumentSpec((64,), output=True)))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "r.db") as made:
        yield made


ITEMS = [item(group, scale) for group in (chain([k, "relu"]) for k in "abc") for scale in (1, 2, 3)]


class TestCollection:
    def run(self, store: RecordStore, items: Iterable[CollectItem] = ITEMS, **settings: object) -> CollectStats:
        return collect(
            items, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask,
            settings=CollectSettings(**settings),  # type: ignore[arg-type]
        )  # fmt: skip

    def test_keeps_successes_and_failures_with_all_that_training_needs(self, store: RecordStore) -> None:
        stats = self.run(store)
        assert (stats.measured, stats.failed, stats.cached, stats.left) == (6, 3, 0, 0)
        assert len(stats.failures) == 3 and "no record to replay" in stats.failures[0] and not stats.interrupted
        counted = store.stats().as_dict()
        assert (counted["ok"], counted["failures"], counted["models"]) == (6, {"crashed": 3}, ["net"])
        assert [w.text for w in store.workloads()] == [f"text of {k}-relu" for k in "abc"]
        form = store.form("b-relu", "")
        assert form is not None and key_of(group_from_text(form.text)) == "b-relu"
        assert store.baseline("hw") == {"memory": 1e-3}  # the least of 1, 2, 3 ms
        assert all(r.family == "plain" and r.reference == "memory" for r in store.records() if r.ok)
        assert {(r.config, r.cold_samples, r.cold_latency) for r in store.records() if r.ok} == {
            ("scale=1", (), None), ("scale=2", (4e-3, 6e-3), 5e-3)
        }  # fmt: skip

    def test_goes_on_where_it_stopped(self, store: RecordStore) -> None:
        first = self.run(store, trials=4, batch=3)
        assert (first.done, first.left) == (4, 5)
        second = self.run(store)
        assert (second.done, second.cached, second.left) == (5, 4, 0)
        assert self.run(store).cached == 9 and len(list(store.records())) == 9

    def test_a_kernel_of_two_models_is_measured_once(self, store: RecordStore) -> None:
        group = chain(["a", "relu"])
        stats = self.run(store, [item(group, model="one"), item(chain(["a", "relu"]), model="two")])
        assert stats.done == 1 and store.models("a-relu") == ("one", "two")
        self.run(store, [item(group, model="three")])
        assert store.models("a-relu") == ("one", "three", "two")

    def test_a_budget_ends_the_run_but_never_without_progress(self, store: RecordStore) -> None:
        assert self.run(store, budget=0.0).left == 9

        class Slow(ReplayRunner):
            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                import time

                for job in jobs:
                    time.sleep(0.05)
                    yield from super().measure([job])

        stats = collect(
            ITEMS, store, Slow(results(ITEMS)), ReplayBuilder(), HERE, ask, settings=CollectSettings(budget=0.12)
        )
        assert 1 <= stats.done <= 5 and stats.done + stats.left == 9 and stats.seconds >= 0.12

    def test_building_and_timing_never_overlap(self, store: RecordStore) -> None:
        events: list[str] = []

        class Watched(ReplayBuilder):
            def build(self, requests):  # type: ignore[no-untyped-def]
                for result in super().build(requests):
                    events.append("build")
                    yield result

        class Timed(ReplayRunner):
            def measure(self, jobs):  # type: ignore[no-untyped-def]
                for job in jobs:
                    events.append("time")
                    yield from super().measure([job])

        left: list[int] = []
        collect(
            ITEMS, store, Timed(results(ITEMS)), Watched(), HERE, ask, settings=CollectSettings(batch=4),
            progress=lambda stats, what: None if what.startswith("built") else left.append(stats.left),
        )  # fmt: skip
        assert left == list(range(8, -1, -1))
        assert "".join(e[0] for e in events) == "bbbb" + "tttt" + "bbbb" + "tttt" + "b" + "t"

    def test_an_interrupt_keeps_everything_and_ends_the_run(self, store: RecordStore) -> None:
        before = signal.getsignal(signal.SIGINT)

        def stop_at_three(stats: CollectStats, what: str) -> None:
            if stats.done == 3:
                os.kill(os.getpid(), signal.SIGINT)

        stats = collect(ITEMS, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask, progress=stop_at_three)
        assert stats.interrupted and (stats.done, stats.left) == (3, 6)
        assert len(list(store.records())) == 3 and signal.getsignal(signal.SIGINT) is before
        assert self.run(store).done == 6

    def test_an_interrupt_while_kernels_are_built_ends_the_building(self, store: RecordStore) -> None:
        made: list[int] = []

        class Interrupted(ReplayBuilder):
            def build(self, requests: Iterable[BuildRequest]) -> Generator[BuildResult, None, None]:
                for number, result in enumerate(super().build(requests)):
                    if number == 2:
                        os.kill(os.getpid(), signal.SIGINT)
                    made.append(number)
                    yield result

        stats = collect(ITEMS, store, ReplayRunner(results(ITEMS)), Interrupted(), HERE, ask)
        assert stats.interrupted and made == [0, 1, 2]
        assert (stats.done, stats.left, len(list(store.records()))) == (0, 9, 0)
        assert self.run(store).done == 9

    def test_a_second_interrupt_does_not_wait(self, store: RecordStore) -> None:
        def stop_twice(stats: CollectStats, what: str) -> None:
            for _ in range(2 * stats.done):
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            collect(ITEMS, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask, progress=stop_twice)
        assert len(list(store.records())) == 1

    def test_a_reference_is_computed_once_a_group_and_its_failure_measures_nothing(self, store: RecordStore) -> None:
        asked: list[str] = []
        seen: list[list[float]] = []

        def reference(candidate: Candidate, inputs):  # type: ignore[no-untyped-def]
            asked.append(key_of(candidate.group))
            if asked[-1].startswith("b"):
                raise RuntimeError("no such operator")
            return [np.maximum(inputs[0], 0)]

        class Looking(ReplayRunner):
            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                for job in jobs:
                    assert job.expected is not None and job.reference == "memory"
                    with np.load(job.expected) as file:
                        (x,) = fill_inputs(job.arguments, job.seed)
                        assert np.array_equal(file["arr_0"], np.maximum(x, 0))
                        seen.append(list(file["arr_0"]))
                    yield from super().measure([job])

        told: list[str] = []
        stats = collect(
            ITEMS, store, Looking(results(ITEMS)), ReplayBuilder(), HERE, ask, reference,
            progress=lambda s, what: told.append(what),
        )  # fmt: skip
        assert (stats.done, stats.skipped, stats.left) == (6, 3, 0) and len(seen) == 6
        assert asked.count("a-relu") == asked.count("c-relu") == 1
        assert any("no such operator" in line for line in told)

    def test_a_request_that_cannot_be_made_is_a_failure_to_build(self, store: RecordStore) -> None:
        def refuse(i: CollectItem, text: str, library: Path) -> BuildRequest:
            if i.candidate.config == Scale(2):
                raise ValueError("this\ncannot be scheduled")
            return ask(i, text, library)

        runner: Runner = ReplayRunner(results(ITEMS))
        stats = collect(ITEMS, store, runner, ReplayBuilder(), HERE, refuse)
        assert (stats.measured, stats.failed) == (3, 6)
        messages = {r.message for r in store.records() if r.status == "build_failed"}
        assert messages == {"ValueError: this cannot be scheduled"}

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
        assert self.run(store, passes=3).cached == 6

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

    def test_kernels_are_measured_twice_until_so_many_were(self, store: RecordStore) -> None:
        """The same ones in every run, and none of those that failed."""
        first = self.run(store, again=2, trials=7)
        assert first.done == 7 and len(list(store.records())) == 7
        second = self.run(store, again=2)
        assert (second.measured, second.failed, second.left) == (3, 1, 0)
        counts = Counter(r.identity for r in store.records() if r.ok)
        assert sorted(counts.values()) == [1, 1, 1, 1, 2, 2]
        assert self.run(store, again=2).done == 0
        assert self.run(store, again=3).done == 1 and self.run(store, again=100).done == 3
        assert set(Counter(r.identity for r in store.records() if r.ok).values()) == {2}

    def test_replaying_a_collection_gives_its_records_again(self, store: RecordStore) -> None:
        self.run(store)
        other = MemoryStore()
        collect(ITEMS, other, ReplayRunner.from_store(store, "hw"), ReplayBuilder(), HERE, ask)
        assert [(r.identity, r.status, r.samples, r.cold_reference_samples) for r in other.records()] == [
            (r.identity, r.status, r.samples, r.cold_reference_samples) for r in store.records()
        ]

    def test_jobs_name_the_last_cache_of_the_hardware_that_they_are_for(self, store: RecordStore) -> None:
        asked: list[int] = []

        class Looking(ReplayRunner):
            def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
                for job in jobs:
                    asked.append(job.last_cache)
                    yield from super().measure([job])

        caches = ({"l2_bytes": 4, "l3_bytes": 9}, {"l2_bytes": 4, "l3_bytes": 0}, {"threads": 2})
        for number, detail in enumerate(caches):
            row = RecordedHardware(f"hw{number}", "a machine", detail)
            collect(ITEMS[:1], store, Looking(results(ITEMS)), ReplayBuilder(), row, ask)
        assert asked == [9, 4, 0]


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


def test_the_nearer_reference_follows_the_operations_per_byte() -> None:
    group = chain(["a"])
    assert nearer_reference(Candidate(group, FAMILY, Scale())) == "memory"
    # What stays in a cache does not wait for memory.
    assert nearer_reference(Candidate(group, FAMILY, Scale()), 2 * 512) == "arithmetic"
    assert nearer_reference(Candidate(group, FAMILY, Scale()), 2 * 512 - 1) == "memory"
    busy = replace(group.graph.operators[0], work=replace(group.work, fma=64 * 100))
    heavy = replace(group.graph, operators=(busy,))
    assert nearer_reference(Candidate(Group.of(heavy, [0]), FAMILY, Scale())) == "arithmetic"


class TestProgress:
    """What a terminal shows of a collection."""

    def test_tells_counts_rate_and_the_time_left(self) -> None:
        stats = CollectStats(measured=30, failed=10, cached=5, skipped=0, left=80, seconds=20.0)
        remaining, share = left_to_do(stats, None, None)
        assert remaining == pytest.approx(40.0) and share == pytest.approx(1 / 3)
        text = counts_text(stats, remaining)
        for part in ("measured 30", "failed 10", "cached 5", "left 80", "2.0/s", "0:40 to go"):
            assert part in text

    def test_a_run_that_ends_earlier_ends_when_it_is_told(self) -> None:
        stats = CollectStats(measured=40, left=80, seconds=20.0)
        assert left_to_do(stats, 30.0, None)[0] == pytest.approx(10.0)
        assert left_to_do(stats, 1000.0, 60)[0] == pytest.approx(10.0)
        assert left_to_do(stats, 15.0, None) == (0.0, 1.0)
        assert left_to_do(CollectStats(left=80), 30.0, None) == (30.0, 0.0)
        assert "? to go" in counts_text(CollectStats(left=80), None)
        assert duration(3723) == "1:02:03"

    def test_shows_what_a_kernel_took_beside_the_best_of_its_workload(self) -> None:
        store, told = MemoryStore(), []
        made = results(ITEMS)
        for number, key in enumerate(made):
            made[key] = replace(made[key], samples=((number + 1) * 1e-4,), reference_samples={})
        collect(
            ITEMS, store, ReplayRunner(made), ReplayBuilder(), HERE, ask,
            progress=lambda stats, what: None if what.startswith("built") else told.append(what),
        )  # fmt: skip
        assert told[:2] == ["100.0 µs, best 100.0 µs: a+relu", "200.0 µs, best 100.0 µs: a+relu"]
