"""What runs in a child process that compares kernels: takes jobs of one workload, times them in turns. Needs TVM.

A request is {"jobs": [...], "budget": seconds, "rounds": most rounds, "cold": whether weights come from memory}. The
answer's "kernels" has one entry a job: {"status": "ok", "samples": seconds a round}, or what is wrong with it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from autofuse.codegen.threads import stay_at_home
from autofuse.measure.child import Handler
from autofuse.measure.cold import cold_arguments, in_turn
from autofuse.measure.jobs import ArgumentSpec, MeasureJob
from autofuse.measure.outputs import compare
from autofuse.measure.worker import kernel_arrays

#: Rounds that every kernel is in; then those that take over `HOPELESS` times the best one's time are left out.
LEAST_ROUNDS = 3
HOPELESS = 2.0
#: Rounds that end only with them, whatever the budget.
FEWEST = 7


@dataclass
class Turn:
    """One kernel that takes turns: `run` calls it once."""

    run: Callable[[], object] = lambda: None
    wrong: str = ""
    repeats: int = 1
    samples: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Seconds of its quickest sample; infinite without one."""
        return min(self.samples, default=math.inf)


def factory() -> Handler:
    """The handler of such requests, for the thread that makes it."""
    stay_at_home(int(os.environ["TVM_NUM_THREADS"]))

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        jobs = [MeasureJob.from_dict(job) for job in request["jobs"]]
        turns = opened(jobs, bool(request["cold"]))
        take_turns([t for t in turns if not t.wrong], float(request["budget"]), int(request["rounds"]))
        return {"kernels": [
            {"status": "wrong", "message": t.wrong} if t.wrong else {"status": "ok", "samples": t.samples}
            for t in turns
        ]}  # fmt: skip

    return handle


def opened(jobs: Sequence[MeasureJob], cold: bool) -> list[Turn]:
    """The jobs' kernels, each run once: one whose outputs differ from the first one's is wrong.

    Kernels that take their constants in the same form share their arguments.
    """
    given: dict[tuple[ArgumentSpec, ...], tuple[list[NDArray[Any]], list[Any], list[list[Any]]]] = {}
    expected: list[NDArray[Any]] | None = None
    turns = []
    for job in jobs:
        if job.arguments not in given:
            arrays = kernel_arrays(job.arguments, job.seed)
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            given[job.arguments] = (arrays, tensors, cold_arguments(job, arrays, tensors) if cold else [])
        arrays, tensors, sets = given[job.arguments]
        kernel = tvm.runtime.load_module(job.library)[job.function]
        results = [(a, t) for spec, a, t in zip(job.arguments, arrays, tensors, strict=True) if spec.output]
        for array, tensor in results:
            tensor.copyfrom(array)
        kernel(*tensors)
        outputs = [tensor.numpy().copy() for _, tensor in results]
        if expected is None:
            expected = outputs
        wrong = compare(outputs, expected, job.tolerance, job.loose)
        turns.append(Turn(in_turn(kernel, sets or [tensors]), wrong))
    return turns


def take_turns(
    turns: Sequence[Turn], budget: float, rounds: int, least: float = 3e-4,
    clock: Callable[[], float] = time.perf_counter,
) -> None:  # fmt: skip
    """Time all of `turns` round by round, in an order that rotates, for `budget` seconds and at most `rounds`.

    A sample repeats its kernel until it lasts `least` seconds, after one untimed call that brings its data back into
    the caches. Rounds pair samples: the n-th of each were taken next to each other.
    """

    def timed(turn: Turn, times: int) -> float:
        begin = clock()
        for _ in range(times):
            turn.run()
        return max(clock() - begin, 1e-9) / times

    start = clock()
    for turn in turns:
        once = min(timed(turn, 1) for _ in range(2))
        turn.repeats = max(1, min(math.ceil(least / once), 10_000))
    active = list(turns)
    for number in range(rounds):
        if number >= FEWEST and clock() - start > budget:
            break
        shift = number % max(1, len(active))
        for turn in active[shift:] + active[:shift]:
            turn.run()
            turn.samples.append(timed(turn, turn.repeats))
        if number + 1 == LEAST_ROUNDS:
            limit = HOPELESS * min((t.best for t in active), default=0.0)
            active = [t for t in active if t.best <= limit]


def paired_ratios(samples: Sequence[float], base: Sequence[float]) -> NDArray[np.float64]:
    """samples / base, round by round, of the rounds that both were in."""
    count = min(len(samples), len(base))
    return np.asarray(samples[:count], np.float64) / np.asarray(base[:count], np.float64)
