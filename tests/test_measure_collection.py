"""Collection with replayed results: what is kept, what is done once, how a run ends."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_groups import FAMILY, Scale, chain, key_of
from replayed_kernels import HERE, ITEMS, ask, item, replayed, results

from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.measure import (
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
)
from autofuse.measure.jobs import fill_inputs
from autofuse.measure.nearer import nearer_reference
from autofuse.records import MemoryStore, RecordedHardware, RecordStore
from autofuse.records.groups import group_from_text


class TestCollection:
    def test_keeps_successes_and_failures_with_all_that_training_needs(self, store: RecordStore) -> None:
        stats = replayed(store)
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
        first = replayed(store, trials=4, batch=3)
        assert (first.done, first.left) == (4, 5)
        second = replayed(store)
        assert (second.done, second.cached, second.left) == (5, 4, 0)
        assert replayed(store).cached == 9 and len(list(store.records())) == 9

    def test_a_kernel_of_two_models_is_measured_once(self, store: RecordStore) -> None:
        group = chain(["a", "relu"])
        stats = replayed(store, [item(group, model="one"), item(chain(["a", "relu"]), model="two")])
        assert stats.done == 1 and store.models("a-relu") == ("one", "two")
        replayed(store, [item(group, model="three")])
        assert store.models("a-relu") == ("one", "three", "two")

    def test_the_models_of_a_workload_are_all_that_contain_it_chosen_there_or_not(self, store: RecordStore) -> None:
        replayed(store, [item(chain(["b", "relu"]), model="before")])
        chosen = [item(chain(["a", "relu"]), model="one")]
        found = [*chosen, *(item(chain([k, "relu"]), model="two") for k in "abc")]
        collect(chosen, store, ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask, found=found)
        assert {w.key: store.models(w.key) for w in store.workloads()} == {
            "a-relu": ("one", "two"), "b-relu": ("before", "two"),  # nothing is known of c
        }  # fmt: skip

    def test_a_budget_ends_the_run_but_never_without_progress(self, store: RecordStore) -> None:
        assert replayed(store, budget=0.0).left == 9

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
        assert replayed(store).done == 6

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
        assert replayed(store).done == 9

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
        assert stats.skips == ("b+relu: not measured, nothing to compare with: no such operator",)

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

    def test_kernels_are_measured_twice_until_so_many_were(self, store: RecordStore) -> None:
        """The same ones in every run, and none of those that failed."""
        first = replayed(store, again=2, trials=7)
        assert first.done == 7 and len(list(store.records())) == 7
        second = replayed(store, again=2)
        assert (second.measured, second.failed, second.left) == (3, 1, 0)
        counts = Counter(r.identity for r in store.records() if r.ok)
        assert sorted(counts.values()) == [1, 1, 1, 1, 2, 2]
        assert replayed(store, again=2).done == 0
        assert replayed(store, again=3).done == 1 and replayed(store, again=100).done == 3
        assert set(Counter(r.identity for r in store.records() if r.ok).values()) == {2}

    def test_replaying_a_collection_gives_its_records_again(self, store: RecordStore) -> None:
        replayed(store)
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


def test_the_nearer_reference_follows_the_operations_per_byte() -> None:
    group = chain(["a"])
    assert nearer_reference(Candidate(group, FAMILY, Scale())) == "memory"
    # What stays in a cache does not wait for memory.
    assert nearer_reference(Candidate(group, FAMILY, Scale()), 2 * 512) == "product"
    assert nearer_reference(Candidate(group, FAMILY, Scale()), 2 * 512 - 1) == "memory"
    busy = replace(group.graph.operators[0], work=replace(group.work, fma=64 * 100))
    heavy = replace(group.graph, operators=(busy,))
    assert nearer_reference(Candidate(Group.of(heavy, [0]), FAMILY, Scale())) == "product"
    assert nearer_reference(Candidate(Group.of(heavy, [0]), FAMILY, Scale()), 0, "arithmetic") == "arithmetic"
