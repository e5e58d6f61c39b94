"""Calibration: from a thread count to a measured `Hardware` in under a minute.

`calibrate` starts a fresh Python process (the size of the pool is read once, before the first parallel kernel) that
builds the probes of calibrate_probes.py, times them in interleaved rounds and prints one JSON object a line.
A probe takes the best of a few short timings each round (a thread that loses its processor only ever looks slower), and
a rate is the median over rounds, so that a neighbour's burst that spoils some rounds does not spoil the result.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autofuse.errors import TargetError
from autofuse.target import Hardware, processors
from autofuse.target.pool import pool_environment

BUDGET_SECONDS = 20.0  # of rounds; building the probes takes a few seconds more
LIMIT_SECONDS = 58.0  # the child is ended after this
MIN_ROUNDS = 5
MAX_ROUNDS = 60

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Probe:
    """A thing to time: `run` executes it and returns seconds per execution; `amount` is what one execution does.

    `amount`: scalar operations for rates, bytes for bandwidths, 1 for overheads, cycles for the clock.
    """

    name: str
    run: Callable[[], float]
    amount: float = 1.0


def measure(
    probes: Sequence[Probe],
    budget: float,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, float]:
    """Median seconds per execution of each probe, over rounds that each run every probe once.

    Rounds go on until `budget` seconds are spent, at least MIN_ROUNDS and at most MAX_ROUNDS. One run of each goes
    before and is not counted (first touch of memory, threads waking up).
    """
    samples: dict[str, list[float]] = {p.name: [] for p in probes}
    start = clock()
    for p in probes:
        p.run()
    for rounds in range(1, MAX_ROUNDS + 1):
        for p in probes:
            samples[p.name].append(p.run())
        spent = (clock() - start) / budget if budget > 0 else 1.0
        if progress:
            progress("measure", min(1.0, max(spent, rounds / MAX_ROUNDS)))
        if spent >= 1.0 and rounds >= MIN_ROUNDS:
            break
    return {name: statistics.median(values) for name, values in samples.items()}


def describe(base: Hardware, seconds: Mapping[str, float], amounts: Mapping[str, float]) -> Hardware:
    """`base` (sizes, registers, names) with rates and overheads from the probes' median `seconds`.

    Rates are amount / seconds. Differences (parallel_overhead: the same trivial tasks in and out of a parallel region;
    call_overhead: long and short chain of kernels in the virtual machine) can drown in noise: they are at least 50 ns.
    A memory level further out is made no faster than the one before it. Probes that are absent keep `base`'s figures.
    """

    def rate(name: str, default: float) -> float:
        return amounts[name] / max(seconds[name], 1e-12) if name in seconds else default

    def difference(more: str, less: str, default: float) -> float:
        if more not in seconds or less not in seconds:
            return default
        return max((seconds[more] - seconds[less]) / amounts[more], 5e-8)

    l1 = rate("l1", base.l1_bandwidth)
    l2 = min(rate("l2", base.l2_bandwidth), l1)
    l3 = min(rate("l3", base.l3_bandwidth), l2)
    return replace(
        base,
        frequency_hz=rate("clock", base.frequency_hz),
        fma_per_second=rate("fma", base.fma_per_second),
        simple_per_second=rate("simple", base.simple_per_second),
        divide_per_second=rate("divide", base.divide_per_second),
        special_per_second=rate("special", base.special_per_second),
        l1_bandwidth=l1,
        l2_bandwidth=l2,
        l3_bandwidth=l3,
        memory_bandwidth=min(rate("memory", base.memory_bandwidth), l3 * base.cores),
        parallel_overhead=difference("parallel", "serial", base.parallel_overhead),
        call_overhead=difference("calls_long", "calls_short", base.call_overhead),
    )


def _environment(threads: int) -> dict[str, str]:
    """The child's environment: pool size, this package importable."""
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **pool_environment(threads), "PYTHONPATH": path}


def _messages(stream: Iterable[str]) -> Iterator[dict[str, object]]:
    """The JSON objects among a stream's lines; other lines (warnings of libraries) are passed over."""
    for line in stream:
        if line.startswith("{"):
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                yield message


def calibrate(
    threads: int | None = None,
    progress: Progress | None = None,
    *,
    budget: float = BUDGET_SECONDS,
    limit: float = LIMIT_SECONDS,
    command: Sequence[str] | None = None,
) -> Hardware:
    """Measure this machine with a pool of `threads` (default: the physical processors available).

    `progress(step, share)` is called as it goes on, share from 0 to 1. `budget`: seconds of timing; `limit`: seconds
    after which the child is ended. `command` replaces the child (tests). Nothing is saved: see `target.save_hardware`.
    Raises TargetError, one line, if the child fails or does not end.
    """
    threads = processors() if threads is None else threads
    if threads < 1:
        raise TargetError(f"the number of threads is {threads}, expected 1 or more")
    module = [sys.executable, "-m", "autofuse.measure.calibrate_probes"]
    argv = [*(command or module), "--threads", str(threads), "--budget", str(budget)]
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(threads),
        stdin=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        stderr: list[str] = []
        source = child.stderr
        reader = threading.Thread(target=lambda: stderr.extend(source), daemon=True)
        reader.start()
        timed_out = threading.Event()

        def end() -> None:
            timed_out.set()
            child.kill()

        timer = threading.Timer(limit, end)
        timer.start()
        result: Hardware | None = None
        try:
            for message in _messages(child.stdout):
                if progress and "step" in message:
                    progress(str(message["step"]), float(str(message.get("share", 0.0))))
                elif isinstance(message.get("hardware"), dict):
                    result = Hardware(**message["hardware"])  # type: ignore[arg-type]
            code = child.wait()
        except BaseException:
            child.kill()
            raise
        finally:
            timer.cancel()
        reader.join(1.0)
    if timed_out.is_set():
        raise TargetError(f"calibration did not end within {limit:g} s; try again when the machine is less busy")
    if result is None or code != 0:
        last = next((line.strip() for line in reversed(stderr) if line.strip()), "no message")
        raise TargetError(f"calibration failed in its child process (exit code {code}): {last}")
    return result
