"""Calibration: rounds and medians under a fake clock, figures from medians, the child process and its failures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from autofuse.errors import TargetError
from autofuse.measure.calibrate import MAX_ROUNDS, MIN_ROUNDS, Probe, _environment, calibrate, describe, measure
from autofuse.target import Hardware, fingerprint, load_hardware, resolve, save_hardware


class Clock:
    """Time that passes only as probes say."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def probe(self, name: str, seconds: Callable[[int], float]) -> Probe:
        """A probe whose n-th run (0 is the one that is not counted) takes `seconds(n)`."""
        count = iter(range(10**6))

        def run() -> float:
            taken = seconds(next(count))
            self.now += taken
            return taken

        return Probe(name, run)


def test_medians_survive_a_burst_that_slows_a_third_of_the_rounds() -> None:
    clock = Clock()
    steady = clock.probe("steady", lambda n: 0.1)
    disturbed = clock.probe("disturbed", lambda n: 5.0 if n % 3 == 0 else 0.2)
    result = measure([steady, disturbed], 60.0, clock=clock)
    assert result == {"steady": 0.1, "disturbed": 0.2}


def test_the_first_run_is_not_counted() -> None:
    clock = Clock()
    assert measure([clock.probe("a", lambda n: 50.0 if n == 0 else 1.0)], 10.0, clock=clock) == {"a": 1.0}


def test_rounds_end_with_the_budget_but_not_before_the_least_number() -> None:
    for budget, seconds, expected in ((10.0, 1.0, 9), (0.0, 1.0, MIN_ROUNDS), (1e9, 1.0, MAX_ROUNDS)):
        clock = Clock()
        runs: list[int] = []
        probe = clock.probe("a", lambda n, runs=runs, seconds=seconds: (runs.append(n), seconds)[1])
        measure([probe], budget, clock=clock)
        assert len(runs) == expected + 1


def test_probes_are_interleaved() -> None:
    order: list[str] = []
    probes = [Probe(name, lambda name=name: (order.append(name), 1.0)[1]) for name in "abc"]
    measure(probes, 0.0)
    assert "".join(order) == "abc" * (MIN_ROUNDS + 1)


def test_progress_grows_to_one() -> None:
    clock = Clock()
    seen: list[float] = []
    measure([clock.probe("a", lambda n: 1.0)], 8.0, lambda step, share: seen.append(share), clock)
    assert seen == sorted(seen) and seen[-1] == 1.0


AMOUNTS = {
    "clock": 8192.0, "fma": 1e6, "simple": 2e6, "divide": 3e6, "special": 4e6, "l1": 1e6, "l2": 1e6, "l3": 1e6,
    "memory": 1e6, "parallel": 1.0, "serial": 1.0, "calls_short": 1.0, "calls_long": 64.0,
}  # fmt: skip


def test_rates_are_amounts_over_seconds_and_overheads_are_differences() -> None:
    seconds = dict.fromkeys(AMOUNTS, 1e-4) | {
        "parallel": 5e-6,
        "serial": 1e-6,
        "calls_short": 2e-6,
        "calls_long": 34e-6,
    }
    h = describe(Hardware(cores=2), seconds, AMOUNTS)
    assert h.frequency_hz == pytest.approx(8.192e7)
    assert (h.fma_per_second, h.simple_per_second) == pytest.approx((1e10, 2e10))
    assert (h.divide_per_second, h.special_per_second) == pytest.approx((3e10, 4e10))
    assert h.l1_bandwidth == h.l2_bandwidth == h.memory_bandwidth == pytest.approx(1e10)
    assert h.parallel_overhead == pytest.approx(4e-6) and h.call_overhead == pytest.approx(5e-7)


def test_noise_makes_no_impossible_machine() -> None:
    seconds = dict.fromkeys(AMOUNTS, 1e-4) | {"l3": 1e-6, "memory": 1e-9, "parallel": 1e-6, "serial": 2e-6}
    h = describe(Hardware(cores=2), seconds, AMOUNTS)
    assert h.l1_bandwidth >= h.l2_bandwidth >= h.l3_bandwidth
    assert h.memory_bandwidth <= 2 * h.l3_bandwidth
    assert h.parallel_overhead > 0 and h.call_overhead > 0


def test_what_was_not_probed_stays_as_it_was() -> None:
    base = Hardware(name="x", cores=3, l2_bytes=12345)
    assert describe(base, {}, {}) == base
    assert describe(base, {"fma": 1.0}, {"fma": 7e9}).fma_per_second == 7e9


def child(tmp_path: Path, code: str) -> list[str]:
    path = tmp_path / "child.py"
    path.write_text("import json, os, sys, time\nthreads = int(sys.argv[sys.argv.index('--threads') + 1])\n" + code)
    return [sys.executable, str(path)]


RESULT = """
from dataclasses import asdict
from autofuse.target import Hardware
print("a library says hello")
print(json.dumps({"step": "build", "share": 0.5}))
print(json.dumps({"hardware": asdict(Hardware(cores=threads, name=os.environ["TVM_NUM_THREADS"]
      + os.environ["TVM_BIND_THREADS"]))}))
"""


def test_the_child_is_told_the_pool_size_before_it_starts(tmp_path: Path) -> None:
    steps: list[tuple[str, float]] = []
    h = calibrate(3, lambda step, share: steps.append((step, share)), command=child(tmp_path, RESULT))
    assert h == Hardware(cores=3, name="30")
    assert steps == [("build", 0.5)]
    before = dict(os.environ)
    told = _environment(5)
    assert (told["TVM_NUM_THREADS"], told["TVM_BIND_THREADS"]) == ("5", "0") and dict(os.environ) == before


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("sys.exit(3)", "exit code 3"),
        ("print('nothing')", "no message"),
        ("raise ValueError('out of order')", "out of order"),
        ("os.kill(os.getpid(), 9)", "exit code -9"),
        ("print('{broken')\nprint('{\"hardware\": 3}')", "exit code 0"),
    ],
)
def test_a_child_that_fails_is_one_clear_line(tmp_path: Path, code: str, says: str) -> None:
    with pytest.raises(TargetError, match=r"^calibration failed[^\n]+$") as caught:
        calibrate(1, command=child(tmp_path, code))
    assert says in str(caught.value)


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"did not end within 0\.5 s"):
        calibrate(1, limit=0.5, command=child(tmp_path, "print('{', flush=True)\ntime.sleep(600)"))


def test_a_child_that_complains_at_length_does_not_block(tmp_path: Path) -> None:
    noisy = "sys.stderr.write('x' * 100 + '\\n')\n" * 2 + "sys.stderr.write(('y' * 99 + '\\n') * 20000)\n"
    assert calibrate(2, command=child(tmp_path, noisy + RESULT)).cores == 2


def test_no_threads_are_refused() -> None:
    with pytest.raises(TargetError, match="1 or more"):
        calibrate(0)


def test_this_machine_is_measured_and_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real probes, the least number of rounds: figures are positive and in the only order that machines have."""
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path))
    steps: list[str] = []
    h = calibrate(2, lambda step, share: steps.append(step), budget=0.0)
    target = resolve("llvm", 2)
    assert (h.cores, h.isa, h.vector_bytes) == (2, target.isa, target.vector_bytes)
    assert all(v > 0 for f in fields(h) if isinstance(v := getattr(h, f.name), int | float))
    assert h.l1_bandwidth >= h.l2_bandwidth >= h.l3_bandwidth and h.memory_bandwidth <= 2 * h.l3_bandwidth
    # Bounds no machine of today leaves, however busy: they catch a probe that was optimised away or a wrong unit.
    assert 1e7 < h.frequency_hz < 2e10 and h.fma_per_second < 2 * 32 * 2e10 and h.l1_bandwidth < 1e13
    assert {"build fma", "build memory", "measure"} <= set(steps)
    save_hardware(h, fingerprint(2))
    assert load_hardware(target) == h
