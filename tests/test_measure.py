"""The clock, the inputs, the comparison of outputs, the order of measuring, and collection with replayed results."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_groups import FAMILY, PlainCosts, Scale, chain, graph, key_of

from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.measure import (
    ArgumentSpec,
    BuildRequest,
    CollectItem,
    CollectSettings,
    CollectStats,
    MeasureJob,
    MeasureLimits,
    MeasureResult,
    ReplayBuilder,
    ReplayRunner,
    Runner,
    collect,
    in_order,
)
from autofuse.measure.collection import nearer_reference
from autofuse.measure.jobs import fill_inputs
from autofuse.measure.replay import candidate_text
from autofuse.measure.timing import Steadiness, half_width, take_samples
from autofuse.records import MemoryStore, Record, RecordedHardware, RecordStore, SqliteStore, Workload
from autofuse.records.groups import group_from_text
from autofuse.records.identity import identity_of, layouts_text
from autofuse.records.model import RecordedCostModel

HERE = RecordedHardware("hw", "here")


class Clock:
    """A clock that kernels move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def kernel(self, times: Iterable[float]) -> Callable[[], None]:
        source = iter(times)

        def run() -> None:
            self.now += next(source)

        return run


class TestTiming:
    def test_a_steady_kernel_is_done_after_the_fewest_samples(self) -> None:
        clock = Clock()
        limits = MeasureLimits(min_samples=5, max_samples=50, min_sample=0.0)
        taken = take_samples(
            clock.kernel(itertools.repeat(1e-3)),
            {"memory": clock.kernel(itertools.repeat(2e-3))},
            "memory",
            limits,
            clock,
        )
        assert taken.kernel == pytest.approx([1e-3] * 5) and taken.references["memory"] == pytest.approx([2e-3] * 5)

    def test_drift_that_the_reference_shares_does_not_count_as_noise(self) -> None:
        """The machine slows down throughout; the ratio stands still, so few samples do."""
        clock = Clock()
        drift = [1.02**i for i in range(400)]
        steps = iter(drift)
        pace = [1.0]

        def reference() -> None:
            pace[0] = next(steps)
            clock.now += 1e-3 * pace[0]

        def kernel() -> None:
            clock.now += 3e-3 * pace[0]

        limits = MeasureLimits(min_samples=6, max_samples=60, budget=1e9, min_sample=0.0)
        taken = take_samples(kernel, {"arithmetic": reference}, "arithmetic", limits, clock)
        assert len(taken.kernel) == 6
        without = take_samples(clock.kernel(3e-3 * d for d in drift), {}, "arithmetic", limits, clock)
        assert len(without.kernel) > 30

    def test_samples_next_to_a_disturbed_reference_are_taken_again(self) -> None:
        """A neighbour halves the machine now and then; what was measured meanwhile is not kept."""
        clock = Clock()
        pace = itertools.cycle([1.0, 1.0, 2.0, 1.0, 1.0, 1.9])
        now = [1.0]

        def reference() -> None:
            now[0] = next(pace)
            clock.now += 1e-3 * now[0]

        def kernel() -> None:
            clock.now += 5e-3 * now[0] ** 2

        limits = MeasureLimits(min_samples=8, max_samples=40, budget=1e9, min_sample=0.0)
        taken = take_samples(kernel, {"memory": reference}, "memory", limits, clock)
        assert taken.kernel == pytest.approx([5e-3] * 8) and taken.references["memory"] == pytest.approx([1e-3] * 8)

    def test_retakes_are_capped_and_a_job_that_is_disturbed_throughout_keeps_what_it_has(self) -> None:
        clock = Clock()
        steady = Steadiness()
        for _ in range(200):
            steady.add("memory", 1e-3)
        assert steady.usual("memory") == pytest.approx(1e-3) and steady.usual("arithmetic") is None
        slow = clock.kernel(itertools.repeat(3e-3))
        limits = MeasureLimits(min_samples=4, max_samples=10, retakes=5, budget=1e9, min_sample=0.0)
        taken = take_samples(clock.kernel(itertools.repeat(1e-3)), {"memory": slow}, "memory", limits, clock, steady)
        assert len(taken.kernel) == len(taken.references["memory"]) == 15

    def test_a_noisy_kernel_is_sampled_up_to_the_cap_or_the_budget(self) -> None:
        clock = Clock()
        noisy = itertools.cycle([1e-3, 3e-3, 2e-3, 5e-3, 1e-3])
        limits = MeasureLimits(min_samples=5, max_samples=20, budget=1e9, min_sample=0.0)
        assert len(take_samples(clock.kernel(noisy), {}, "memory", limits, clock).kernel) == 20
        short = replace(limits, budget=1e-2)
        assert 3 <= len(take_samples(clock.kernel(noisy), {}, "memory", short, clock).kernel) < 10

    def test_a_short_kernel_is_repeated_within_a_sample(self) -> None:
        clock = Clock()
        runs = [0]

        def kernel() -> None:
            runs[0] += 1
            clock.now += 1e-6

        limits = MeasureLimits(warmup=1, min_samples=4, max_samples=4, min_sample=1e-4)
        taken = take_samples(kernel, {}, "memory", limits, clock)
        assert taken.kernel == pytest.approx([1e-6] * 4)
        assert 400 <= runs[0] <= 420

    def test_interval_shrinks_with_samples_and_ignores_outliers(self) -> None:
        assert half_width([1.0, 2.0, 3.0]) == float("inf")
        few, many = [1.0, 1.1, 0.9, 1.0] * 2, [1.0, 1.1, 0.9, 1.0] * 32
        assert 0 < half_width(many) < half_width(few)
        # A normal sample: the interval of the median is 1.96 · 1.2533 · σ / √n.
        normal = np.random.default_rng(0).normal(10.0, 1.0, 4000)
        assert half_width(list(normal)) == pytest.approx(1.96 * 1.2533 / np.sqrt(4000) / 10, rel=0.05)
        assert half_width([*normal, 1e6]) == pytest.approx(half_width(list(normal)), rel=0.01)


class TestInputs:
    def test_are_the_same_for_the_same_seed_and_keep_to_their_ranges(self) -> None:
        specs = (
            ArgumentSpec((100,), low=2.0, high=3.0),
            ArgumentSpec((7,), output=True),
            ArgumentSpec((200,), "int64", low=0, high=4),
            ArgumentSpec((50,), "bool"),
            ArgumentSpec((50,), "uint8"),
            ArgumentSpec((3, 0), "float16"),
        )
        first, second, other = (fill_inputs(specs, seed) for seed in (1, 1, 2))
        assert [a.dtype.name for a in first] == ["float32", "int64", "bool", "uint8", "float16"]
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
        assert not np.array_equal(first[0], other[0])
        assert 2.0 <= first[0].min() < first[0].max() <= 3.0 and set(first[1]) == {0, 1, 2, 3, 4}
        assert first[4].shape == (3, 0)

    def test_a_job_survives_the_way_to_another_process(self) -> None:
        import json

        job = MeasureJob("k", "c", "x.so", "f", (ArgumentSpec((2, 3)),), "e.npz", limits=MeasureLimits(timeout=3))
        assert MeasureJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job


class TestComparison:
    """Of a kernel's outputs with the right ones."""

    def test_tells_right_from_wrong(self) -> None:
        from autofuse.measure.worker import compare

        want = np.array([1.0, -100.0, np.nan, np.inf], np.float32)
        assert compare([want], [want], 1e-3) == ""
        assert compare([want + np.float32(0.05)], [want], 1e-3) == ""  # within 1e-3 of 100
        assert "2 of 4" in compare([want + np.float32(0.2)], [want], 1e-3)
        for wrong in (
            np.array([np.nan, -100, np.nan, np.inf], np.float32),
            np.array([1, -100, 5, np.inf], np.float32),
            np.array([1, -100, np.nan, -np.inf], np.float32),
        ):
            assert "1 of 4" in compare([wrong], [want], 1e-3)
        assert "shape" in compare([want[:2]], [want], 1e-3)

    def test_integers_must_be_equal_and_zero_has_no_tolerance(self) -> None:
        from autofuse.measure.worker import compare

        assert compare([np.array([1000, 2])], [np.array([1000, 2])], 1e-3) == ""
        assert "worst at (0,)" in compare([np.array([1001, 2])], [np.array([1000, 2])], 1e-2)
        assert compare([np.full(3, 1e-9, np.float32)], [np.zeros(3, np.float32)], 1e-3) != ""
        assert compare([np.zeros((0, 2), np.float32)], [np.zeros((0, 2), np.float32)], 1e-3) == ""


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
            made[i.key, text] = MeasureResult(i.key, text, "ok", "", times, {"memory": times}, "memory")
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
        assert store.baseline("hw") == {"memory": 1.5e-3}  # the lower quartile of 1, 2, 3 ms
        assert all(r.family == "plain" and r.reference == "memory" for r in store.records() if r.ok)

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
            progress=lambda stats, what: left.append(stats.left),
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

    def test_a_second_interrupt_does_not_wait(self, store: RecordStore) -> None:
        def stop_twice(stats: CollectStats, what: str) -> None:
            for _ in range(2):
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

    def test_replaying_a_collection_gives_its_records_again(self, store: RecordStore) -> None:
        self.run(store)
        other = MemoryStore()
        collect(ITEMS, other, ReplayRunner.from_store(store, "hw"), ReplayBuilder(), HERE, ask)
        assert [(r.identity, r.status, r.samples) for r in other.records()] == [
            (r.identity, r.status, r.samples) for r in store.records()
        ]


def test_the_nearer_reference_follows_the_operations_per_byte() -> None:
    group = chain(["a"])
    assert nearer_reference(Candidate(group, FAMILY, Scale())) == "memory"
    busy = replace(group.graph.operators[0], work=replace(group.work, fma=64 * 100))
    heavy = replace(group.graph, operators=(busy,))
    assert nearer_reference(Candidate(Group.of(heavy, [0]), FAMILY, Scale())) == "arithmetic"


class TestRecordedCosts:
    def record(self, group: Group, scale: int, seconds: float | None, version: int = 1, hardware: str = "hw") -> Record:
        status = "ok" if seconds else "crashed"
        return Record(
            key_of(group), hardware, "plain", version, f"scale={scale}", status=status,
            samples=(seconds,) if seconds else (),
        )  # fmt: skip

    def test_a_record_counts_before_the_fallback_and_a_failure_costs_infinity(self, store: RecordStore) -> None:
        group, other = chain(["a"]), chain(["b"])
        store.add_hardware(HERE)
        store.add_hardware(RecordedHardware("there", "there"))
        for g in (group, other):
            store.add_workload(Workload(key_of(g), ""))
        store.add(self.record(group, 1, 7e-3))
        store.add(self.record(group, 2, None))
        store.add(self.record(group, 3, 9e-3, version=2))  # of another version of the family
        store.add(self.record(other, 1, 9e-3, hardware="there"))
        fallback = PlainCosts()
        model = RecordedCostModel(store, "hw", fallback, key_of)
        candidates = [Candidate(g, FAMILY, Scale(s)) for g in (other, group) for s in (1, 2, 3)]
        costs = model.costs(candidates)
        expected = [1e-3, 5e-4, 1e-3 / 3, 7e-3, np.inf, 1e-3 / 3]
        assert costs == pytest.approx(expected)
        assert model.sources(candidates) == ["analytical"] * 3 + ["record", "record", "analytical"]
        assert fallback.asked == [4]
        assert model.costs(candidates[::-1]) == pytest.approx(expected[::-1])
        assert model.costs([]).shape == (0,) and model.sources([]) == []

    def test_one_query_answers_a_batch(self) -> None:
        class Counting(MemoryStore):
            queries = 0

            def lookup(self, identities):  # type: ignore[no-untyped-def]
                self.queries += 1
                return super().lookup(identities)

        store = Counting()
        model = RecordedCostModel(store, "hw", PlainCosts(), key_of)
        candidates = [Candidate(chain([k]), FAMILY, Scale(s)) for k in "abc" for s in (1, 2, 3)]
        model.costs(candidates)
        model.sources(candidates)
        assert store.queries == 1

    def test_layouts_at_the_borders_tell_records_apart(self) -> None:
        group = chain(["a"])
        assert layouts_text(group) == ""
        tensors = tuple(replace(t, layout="NCHW8c" if t.index else "") for t in group.graph.tensors)
        blocked = Group.of(replace(group.graph, tensors=tensors), [0])
        assert layouts_text(blocked) == "->NCHW8c"
        identity = identity_of(Candidate(blocked, FAMILY, Scale(2)), "k", "hw")
        assert (identity.layouts, identity.config, identity.family_version) == ("->NCHW8c", "scale=2", 1)

    def test_the_usual_key_is_that_of_the_graph(self) -> None:
        from autofuse.graph.keys import workload_key

        group = chain(["a"])
        store = MemoryStore()
        store.add_hardware(HERE)
        store.add_workload(Workload(workload_key(group), ""))
        store.add(replace(self.record(group, 1, 7e-3), workload=workload_key(group)))
        model = RecordedCostModel(store, "hw", PlainCosts())
        assert model.sources([Candidate(group, FAMILY, Scale(1))]) == ["record"]
