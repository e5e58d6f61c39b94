"""The clock, the inputs and the comparison of outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from autofuse.measure import (
    ArgumentSpec,
    MeasureJob,
    MeasureLimits,
)
from autofuse.measure.cold import LEAST_WEIGHTS, MOST_COPIED, Arena, copies_needed, in_turn, weight_bytes
from autofuse.measure.jobs import fill_inputs
from autofuse.measure.timing import Steadiness, half_width, take_samples


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

        limits = MeasureLimits(warmup=1, min_samples=4, max_samples=4, min_sample=1e-4, least_of=1)
        taken = take_samples(kernel, {}, "memory", limits, clock)
        assert taken.kernel == pytest.approx([1e-6] * 4)
        assert 400 <= runs[0] <= 420

    def test_of_a_few_timings_in_a_row_the_least_counts(self) -> None:
        """Every other timing of the kernel, and two of three of the short reference, are disturbed."""
        clock = Clock()
        kernel = clock.kernel(itertools.cycle([5e-4, 3e-4]))
        short = clock.kernel(itertools.cycle([1.5e-4, 2e-4, 1e-4]))
        long = clock.kernel(itertools.cycle([2e-3, 1e-3]))
        limits = MeasureLimits(warmup=2, min_samples=4, max_samples=4, min_sample=0.0, drift=9.0, least_of=4)
        taken = take_samples(kernel, {"arithmetic": short, "memory": long}, "arithmetic", limits, clock)
        assert taken.kernel == pytest.approx([3e-4] * 4) and taken.references["arithmetic"] == pytest.approx([1e-4] * 4)
        assert sorted(taken.references["memory"]) == pytest.approx([1e-3, 1e-3, 2e-3, 2e-3])  # each a single run

    def test_a_kernel_timed_in_parts_takes_no_more_samples_and_time_than_in_one(self) -> None:
        limits = MeasureLimits(budget=0.9, min_samples=8, max_samples=20, retakes=10, most_cold=7)
        part = limits.part(3)
        assert (part.budget, part.min_samples, part.max_samples, part.retakes, part.most_cold) == (
            pytest.approx(0.3), 7, 7, 4, 3,
        )  # fmt: skip
        assert limits.part(1) == limits

    def test_interval_shrinks_with_samples_and_ignores_outliers(self) -> None:
        assert half_width([1.0, 2.0, 3.0]) == float("inf")
        few, many = [1.0, 1.1, 0.9, 1.0] * 2, [1.0, 1.1, 0.9, 1.0] * 32
        assert 0 < half_width(many) < half_width(few)
        # A normal sample: the interval of the median is 1.96 · 1.2533 · σ / √n.
        normal = np.random.default_rng(0).normal(10.0, 1.0, 4000)
        assert half_width(list(normal)) == pytest.approx(1.96 * 1.2533 / np.sqrt(4000) / 10, rel=0.05)
        assert half_width([*normal, 1e6]) == pytest.approx(half_width(list(normal)), rel=0.01)


class TestColdWeights:
    """Weights that a call does not find in the last cache."""

    def test_copies_are_twice_the_cache_together(self) -> None:
        cache = 32 << 20
        assert copies_needed(1 << 20, cache) == 64 and copies_needed((1 << 20) + 1, cache) == 64
        assert copies_needed(3 << 20, cache) == 22  # 66 MB
        assert copies_needed(LEAST_WEIGHTS, cache) == 1024
        assert copies_needed(cache, cache) == copies_needed(2 * cache - 4, cache) == 2

    def test_there_are_none_where_they_would_make_no_difference(self) -> None:
        cache = 32 << 20
        assert copies_needed(0, cache) == copies_needed(LEAST_WEIGHTS - 4, cache) == 0
        assert copies_needed(2 * cache, cache) == copies_needed(411 << 20, cache) == 0  # cold whenever it is called
        assert copies_needed(1 << 20, 0) == 0  # a cache that is not known

    def test_a_large_cache_gets_as_many_as_memory_allows_and_none_if_that_does_not_exceed_it(self) -> None:
        assert copies_needed(8 << 20, 192 << 20) == (MOST_COPIED >> 20) // 8
        assert copies_needed(1 << 20, MOST_COPIED) == copies_needed(160 << 20, 100 << 20) == 0

    def test_constants_count_in_the_form_in_which_the_kernel_takes_them(self) -> None:
        specs = (
            ArgumentSpec((4, 4)), ArgumentSpec((2, 2), preparation="larger", constant=True),
            ArgumentSpec((3,), "int8", constant=True), ArgumentSpec((9,), output=True),
        )  # fmt: skip
        arrays = [np.zeros(s, d) for s, d in (((4, 4), "f4"), ((5, 5), "f4"), ((3,), "i1"), ((9,), "f4"))]
        assert weight_bytes(specs, arrays) == 100 + 3

    def test_copies_stand_apart_and_aligned_in_memory_that_is_used_again(self) -> None:
        arena = Arena()
        given = [np.arange(30, dtype=np.float32).reshape(5, 6), np.array(7), np.arange(64, dtype=np.int8)[::2]]
        sets = arena.copies(given, 9)
        assert len(sets) == 9
        for arrays in sets:
            for copy, array in zip(arrays, given, strict=True):
                assert np.array_equal(copy, array) and (copy.dtype, copy.shape) == (array.dtype, array.shape)
                assert copy.ctypes.data % 64 == 0 and copy.flags.c_contiguous
        places = sorted((a.ctypes.data, a.nbytes) for arrays in sets for a in arrays)
        assert all(at + size <= following for (at, size), (following, _) in itertools.pairwise(places))
        again = arena.copies(given[:1], 2)
        assert again[0][0].ctypes.data == sets[0][0].ctypes.data and np.array_equal(again[1][0], given[0])

    def test_limits_take_fewer_samples_in_less_time(self) -> None:
        limits = MeasureLimits(budget=2.0, max_samples=60, retakes=30, most_cold=12, min_samples=15)
        cold = limits.cold
        assert (cold.max_samples, cold.min_samples, cold.retakes, cold.budget) == (12, 12, 12, 1.0)
        assert (cold.confidence, cold.drift, cold.timeout) == (limits.confidence, limits.drift, limits.timeout)
        few = MeasureLimits(max_samples=5, min_samples=3, retakes=2).cold
        assert (few.max_samples, few.min_samples, few.retakes) == (5, 3, 2)

    def sampled(self, copies: int, clock: Clock) -> list[float]:
        """Samples of a kernel of 3 MB of weights, on a machine whose cache keeps the 32 MB that were used last."""
        kept: list[int] = []

        def kernel(weights: int) -> None:
            clock.now += 1e-3 if weights in kept else 4e-3
            kept[:] = [*(k for k in kept if k != weights), weights][-10:]

        limits = MeasureLimits(min_samples=6, max_samples=30, min_sample=5e-3, budget=1e9).cold
        reference = {"memory": clock.kernel(itertools.repeat(2e-3))}
        run = in_turn(kernel, [[i] for i in range(copies)])
        return list(take_samples(run, reference, "memory", limits, clock).kernel)

    def test_no_sample_finds_its_weights_in_the_cache(self) -> None:
        cold = self.sampled(copies_needed(3 << 20, 32 << 20), Clock())
        assert len(cold) == 6 and cold == pytest.approx([4e-3] * 6)
        assert self.sampled(1, Clock()) == pytest.approx([1e-3] * 6)

    def test_a_noisy_kernel_is_sampled_up_to_the_smaller_cap(self) -> None:
        clock = Clock()
        noisy = clock.kernel(itertools.cycle([1e-3, 3e-3, 2e-3, 5e-3, 1e-3]))
        limits = MeasureLimits(min_samples=5, max_samples=60, most_cold=11, budget=1e9, min_sample=0.0)
        assert len(take_samples(noisy, {}, "memory", limits.cold, clock).kernel) == 11


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

        arguments = (ArgumentSpec((2, 3)), ArgumentSpec((2, 3), constant=True))
        job = MeasureJob("k", "c", "x.so", "f", arguments, "e.npz", limits=MeasureLimits(timeout=3), last_cache=5)
        assert MeasureJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job


class TestComparison:
    """Of a kernel's outputs with the right ones."""

    def test_tells_right_from_wrong(self) -> None:
        from autofuse.measure.outputs import compare

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
        from autofuse.measure.outputs import compare

        assert compare([np.array([1000, 2])], [np.array([1000, 2])], 1e-3) == ""
        assert "worst at (0,)" in compare([np.array([1001, 2])], [np.array([1000, 2])], 1e-2)
        assert compare([np.full(3, 1e-9, np.float32)], [np.zeros(3, np.float32)], 1e-3) != ""
        assert compare([np.zeros((0, 2), np.float32)], [np.zeros((0, 2), np.float32)], 1e-3) == ""
