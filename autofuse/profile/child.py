"""What runs in the profile's own process: a compiled model and its inputs → times of runs and of their kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from autofuse.codegen.executable import Executable, load

_WARM_UP = 3


class Observer:
    """Notes when each function of a run starts and ends; what the virtual machine does itself counts as overhead."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = 0.0
        self.calls: list[tuple[str, float]] = []

    def __call__(self, name: str, before: bool) -> None:
        """The end is read first and the start last, so that this function's own time is left out."""
        now = self._clock()
        if before:
            self._start = self._clock()
        else:
            self.calls.append((name, now - self._start))

    def take(self) -> list[tuple[str, float]]:
        """The calls since the last time that they were taken."""
        calls, self.calls = self.calls, []
        return calls


def split_calls(runs: list[list[tuple[str, float]]]) -> dict[str, list[list[float]]]:
    """Seconds of the kernels' calls, by name and run, less what observing a function costs.

    That is what the quickest of the machine's own functions took: they do next to nothing.
    """
    own = [seconds for run in runs for name, seconds in run if name.startswith("vm.")]
    overhead = min(own, default=0.0)
    names = dict.fromkeys(name for run in runs for name, _ in run if not name.startswith("vm."))
    return {name: [[max(s - overhead, 0.0) for n, s in run if n == name] for run in runs] for name in names}


class Handler:
    """Serves `{"runs": N}` with `{"latencies": [...], "times": {name: [[seconds of each call] of each run]}}`."""

    def __init__(self, model: str, inputs: str) -> None:
        with np.load(inputs, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        plain = load(model)
        self._run = plain.timer(**arrays)
        # A machine that is observed is slower: whole runs are timed on another one.
        observed = Executable(plain.library, plain.weights, plain.description)
        self._observed_run = observed.timer(**arrays)
        self._observer = Observer()
        observed.instrument(self._observer)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """Whole runs and observed runs take turns."""
        for _ in range(_WARM_UP):
            self._run()
            self._observed_run()
        self._observer.take()
        latencies, runs = [], []
        for _ in range(int(request["runs"])):
            self._run()
            start = time.perf_counter()
            self._run()
            latencies.append(time.perf_counter() - start)
            self._observed_run()
            self._observer.take()
            self._observed_run()
            runs.append(self._observer.take())
        return {"latencies": latencies, "times": split_calls(runs)}
