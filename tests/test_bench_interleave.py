"""Rounds, summaries and results of a benchmark, without an engine, a process or a clock."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofuse.bench.engines import engine_specs, known_engines
from autofuse.bench.interleave import Contestant, Interleaved, Pace, Visit, due_rounds, interleave, rotated
from autofuse.bench.result import BenchResult, EngineResult, ProbeResult
from autofuse.bench.statistics import compare, paired_ratio, summarise
from autofuse.bench.table import bench_table
from autofuse.errors import EngineError


class Time:
    """A clock that moves when something sleeps or runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


class FakeEngine:
    """Takes `call` seconds of a `Time` for each call; may fail at its n-th visit."""

    def __init__(self, name: str, call: float, time: Time, log: list[str], fails_at: int | None = None) -> None:
        self.name, self._call, self._time, self._log, self._fails_at = name, call, time, log, fails_at
        self._seen = 0

    def run(self, calls: int) -> list[float]:
        self._seen += 1
        if self._fails_at == self._seen:
            raise EngineError(f"{self.name}: it fell over")
        self._log.append(self.name)
        self._time.now += calls * self._call
        return [self._call] * calls


def play(
    calls: dict[str, float], pace: Pace, fails: dict[str, int] | None = None, probes: dict[str, float] | None = None
):
    time, log = Time(), []
    engines = [FakeEngine(n, c, time, log, (fails or {}).get(n)) for n, c in calls.items()]
    probing = [FakeEngine(n, c, time, log) for n, c in (probes or {}).items()]
    done = interleave(
        engines, {**calls, **(probes or {})}, probes=probing, pace=pace, clock=time.clock, sleep=time.sleep
    )
    return done, time, log


def test_every_engine_is_visited_in_every_round_in_a_rotating_order():
    done, _, log = play({"a": 0.01, "b": 0.02, "c": 0.03}, Pace(rounds=3, budget=100))
    assert log == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert [visit.round for visit in done.visits["b"]] == [0, 1, 2]


def test_a_slow_engine_gets_fewer_rounds_spread_over_the_run():
    done, _, _ = play({"quick": 0.01, "slow": 2.0}, Pace(rounds=12, budget=20))
    assert len(done.visits["quick"]) == 12
    rounds = [visit.round for visit in done.visits["slow"]]
    assert 2 <= len(rounds) <= 5
    assert rounds[0] == 0 and rounds[-1] >= 8
    assert all(len(visit.seconds) == 1 for visit in done.visits["slow"])


def test_an_engine_slower_than_the_whole_budget_is_still_timed_once():
    done, time, log = play({"a": 0.01, "glacial": 50.0, "b": 0.01}, Pace(rounds=10, budget=5))
    assert len(done.visits["glacial"]) == 1
    # It comes last and starves nobody; its round is one that the others were in.
    assert len(done.visits["a"]) == len(done.visits["b"]) == 10 and log[-1] == "glacial"
    assert done.visits["glacial"][0].round in {visit.round for visit in done.visits["a"]}
    assert time.now < 60


def test_a_glacial_engine_counts_to_a_round_that_all_others_were_in():
    # Slower engines are not in every round.
    done, *_ = play({"a": 0.4, "glacial": 50.0, "b": 0.1}, Pace(rounds=50, budget=10))
    rounds = [{visit.round for visit in done.visits[name]} for name in ("a", "b")]
    assert rounds[0] != rounds[1]
    assert done.visits["glacial"][0].round == max(rounds[0] & rounds[1])


def test_engines_that_are_all_glacial_are_heard_once_each():
    done, _, log = play({"a": 50.0, "b": 60.0}, Pace(rounds=3, budget=5))
    assert log == ["a", "b"] and all(len(done.visits[name]) == 1 for name in "ab")


def test_waking_calls_are_not_timed():
    pace = Pace(rounds=1, wake=0.05, visit=0.2)
    done, time, _ = play({"a": 0.01}, pace)
    assert len(done.visits["a"][0].seconds) == 20
    assert time.now == pytest.approx(pace.pause + 0.25)


def test_there_is_a_pause_before_every_visit():
    _, time, log = play({"a": 0.01, "b": 0.01}, Pace(rounds=4, pause=0.5, budget=100), probes={"p": 0.001})
    assert time.slept == pytest.approx(0.5 * len(log)) and len(log) == 12


def test_an_engine_that_fails_midway_keeps_its_samples_and_leaves_the_others_alone():
    done, _, log = play({"a": 0.01, "b": 0.01}, Pace(rounds=5), fails={"a": 3})
    assert done.errors == {"a": "a: it fell over"}
    assert len(done.visits["a"]) == 2 and len(done.visits["b"]) == 5
    assert log.count("a") == 2


def test_probes_run_once_a_round():
    done, _, _ = play({"a": 0.01}, Pace(rounds=6), probes={"arithmetic": 0.002, "memory": 0.004})
    assert [len(done.probes[kind]) for kind in ("arithmetic", "memory")] == [6, 6]


@given(visits=st.integers(1, 40), rounds=st.integers(1, 40))
def test_due_rounds_are_as_many_as_asked_and_evenly_spread(visits, rounds):
    visits = min(visits, rounds)
    due = sorted(due_rounds(visits, rounds))
    assert len(due) == visits and due[0] == 0 and due[-1] < rounds
    gaps = np.diff([*due, rounds])
    assert gaps.max() - gaps.min() <= 1


@given(call=st.floats(1e-6, 1e3), contestants=st.integers(1, 12))
def test_visits_of_one_engine_stay_within_its_share_unless_one_visit_does_not_fit(call, contestants):
    pace = Pace()
    visits = pace.visits(call, contestants)
    cost = pace.pause + call * (pace.wake_calls(call) + pace.timed_calls(call))
    assert 1 <= visits <= pace.rounds
    assert visits == 1 or visits * cost <= pace.budget / contestants * (1 + 1e-9)


def test_rotation_of_nothing_is_nothing():
    assert rotated([], 3) == []


def test_summary_is_over_all_calls_of_all_visits_in_milliseconds():
    summary = summarise([Visit(0, (0.001, 0.002)), Visit(3, (0.003, 0.004, 0.005))])
    assert summary is not None
    assert (summary.median_ms, summary.iqr_ms, summary.min_ms, summary.calls) == pytest.approx((3.0, 2.0, 1.0, 5))
    assert summarise([]) is None


def test_a_slow_spell_that_hits_both_engines_does_not_move_their_ratio():
    spells = [1.0, 1.0, 3.0, 2.0, 1.0]
    base = [Visit(i, (0.01 * s,)) for i, s in enumerate(spells)]
    other = [Visit(i, (0.02 * s,)) for i, s in enumerate(spells) if i != 1]
    assert paired_ratio(other, base) == pytest.approx((2.0, 0.0))
    assert paired_ratio([Visit(9, (1.0,))], base) is None


def test_relative_error_is_against_the_largest_element_of_its_output():
    found = compare([np.array([1.0, 0.2]), np.array([100.0])], [np.array([1.0, 0.1]), np.array([101.0])])
    assert (found.max_abs, found.max_rel) == pytest.approx((1.0, 0.1))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([np.zeros(3)], "gives 1 outputs"),
        ([np.zeros(3), np.zeros((2, 1))], "output 1 has shape"),
        ([np.array([0.0, np.nan, 0.0]), np.zeros(2)], "output 0 is not finite"),
        ([np.array([0.0, np.inf, 0.0]), np.zeros(2)], "output 0 is not finite"),
    ],
)
def test_outputs_that_cannot_be_compared_say_why(outputs, message):
    assert message in compare(outputs, [np.zeros(3), np.zeros(2)])


def test_infinities_in_both_places_are_equal():
    both = [np.array([np.inf, -np.inf, np.nan, 2.0])]
    found = compare([both[0].copy()], both)
    assert (found.max_abs, found.max_rel) == (0.0, 0.0)
    assert isinstance(compare([-both[0]], both), str)


def test_an_unknown_engine_is_an_error_that_names_the_known_ones():
    with pytest.raises(EngineError) as caught:
        engine_specs(["onnxruntime", "tensorrt"], compile_options={}, executables={}, extra_peers={"mine": "m:C"})
    assert "'tensorrt'" in str(caught.value)
    assert all(name in str(caught.value) for name in (*known_engines(), "mine"))
    assert "\n" not in str(caught.value)


def test_strategy_engines_change_the_strategy_and_nothing_else():
    options = {"strategy": "dp", "cost_model": "learned"}
    specs = engine_specs(
        ["autofuse", "greedy", "autofuse", "none"],
        compile_options=options,
        executables={"none": "/tmp/none.so"},
        extra_peers={},
    )
    assert [spec.name for spec in specs] == ["autofuse", "greedy", "none"]
    assert specs[0].options == {"compile": options}
    assert specs[1].options == {"compile": {"strategy": "greedy", "cost_model": "learned"}}
    assert specs[2].options == {"executable": "/tmp/none.so"}


@pytest.fixture
def result() -> BenchResult:
    return BenchResult(
        model="tiny [v1]",
        threads=2,
        results=(
            EngineResult("autofuse", 1.0, 0.1, 0.9, 30, 3, 1.0, 0.0, 4, 2.5, 1e-7, 2e-7),
            EngineResult("wrong", 2.0, 0.1, 1.9, 30, 3, 2.0, 0.1, 7, 2.5, 1.0, 0.5),
            EngineResult("torch-compile", error="torch is not installed [really]"),
        ),
        probe={"arithmetic": ProbeResult(3.0, 0.2, 2.9, (3.0, 3.1))},
        reference="onnxruntime",
    )


def test_json_has_the_keys_of_the_command_line(result):
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert {"model", "threads", "results", "probe"} <= data.keys()
    wanted = {"engine", "median_ms", "iqr_ms", "kernels", "compile_s", "max_abs_err", "max_rel_err", "error"}
    assert all(wanted <= row.keys() for row in data["results"])
    assert data["results"][2]["error"] and data["results"][2]["median_ms"] is None
    assert data["probe"]["arithmetic"]["rounds_ms"] == [3.0, 3.1]
    assert result.of("wrong").kernels == 7
    with pytest.raises(KeyError):
        result.of("absent")


def test_table_shows_figures_errors_and_names_with_brackets(result):
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(bench_table(result))
    text = console.export_text()
    assert "1.000" in text and "2.00" in text and "5.0e-01" in text
    assert "torch is not installed [really]" in text
    assert "tiny [v1]" in text
    assert "arithmetic 3.00" in text


class Disturbance:
    """A machine on which calls take `factor` times as long while `slow(now)`; its clock is that of the calls."""

    def __init__(self, slow: Callable[[float], bool], factor: float = 2.0) -> None:
        self.now = 0.0
        self.slow = slow
        self.factor = factor

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def engine(self, name: str, call: float) -> Contestant:
        machine = self

        class Engine:
            def __init__(self) -> None:
                self.name = name

            def run(self, calls: int) -> list[float]:
                taken = []
                for _ in range(calls):
                    seconds = call * (machine.factor if machine.slow(machine.now) else 1.0)
                    machine.now += seconds
                    taken.append(seconds)
                return taken

        return Engine()


def watched(machine: Disturbance, pace: Pace) -> Interleaved:
    engines = [machine.engine("a", 0.01), machine.engine("b", 0.02)]
    guard, probe = machine.engine("guard", 0.003), machine.engine("probe", 0.004)
    calls = {"a": 0.01, "b": 0.02, "guard": 0.003, "probe": 0.004}
    return interleave(
        engines, calls, probes=[probe], guard=guard, pace=pace, clock=lambda: machine.now, sleep=machine.sleep
    )


def test_visits_wait_for_a_disturbance_to_end() -> None:
    machine = Disturbance(lambda now: now > 1 and now % 3 < 0.8)  # shorter than what is waited
    taken = watched(machine, Pace(rounds=10, budget=1000.0))
    found = {**taken.visits, **taken.probes}
    for visits in found.values():
        assert len(visits) == 10 and all(visit.quiet for visit in visits)
    for name, call in (("a", 0.01), ("b", 0.02), ("probe", 0.004)):
        summary = summarise(found[name])
        assert summary is not None and summary.median_ms == pytest.approx(call * 1e3)


def test_what_stays_disturbed_is_marked_and_counts_only_where_nothing_else_does() -> None:
    machine = Disturbance(lambda now: now > 2)
    taken = watched(machine, Pace(rounds=8, budget=1000.0, retries=2))
    visits = taken.visits["a"]
    assert len(visits) == 8 and visits[0].quiet and not visits[-1].quiet
    summary = summarise(visits)
    assert summary is not None and summary.median_ms == pytest.approx(10.0)
    disturbed = [visit for visit in visits if not visit.quiet]
    late = summarise(disturbed)
    assert late is not None and late.median_ms == pytest.approx(20.0)
