"""What runs in the profile's own process: a compiled model and its inputs → times of runs and of their kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from autofuse.codegen.executable import Executable, load
from autofuse.codegen.threads import stay_at_home
from autofuse.records.record import NETWORK_REFERENCE

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
    """Serves `{"runs": N}` with `{"latencies": [...], "times": {name: [[seconds of each call] of each run]}}`.

    With `"beside": true` the answer has `references` too: what the reference kernel of records takes beside each run,
    the mean of its times before and after. The thread that makes it is the one to call it.
    """

    def __init__(self, model: str, inputs: str) -> None:
        with np.load(inputs, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        plain = load(model)
        assert isinstance(plain, Executable), "models for a GPU have a handler of their own"
        # The reference too has a processor for each thread of the pool.
        stay_at_home(int(plain.description["threads"]))
        self._run = plain.timer(**arrays)
        # A machine that is observed is slower: whole runs are timed on another one.
        observed = Executable(plain.library, plain.weights, plain.description)
        self._observed_run = observed.timer(**arrays)
        self._observer = Observer()
        observed.instrument(self._observer)
        self._reference: Callable[[], object] | None = None

    def _beside(self) -> float:
        """Seconds of the reference, the least of three: the first brings its data back into the caches."""
        if self._reference is None:
            from autofuse.measure.references import build_references

            self._reference = build_references()[NETWORK_REFERENCE]
        return min(_seconds(self._reference) for _ in range(3))

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """Whole runs and observed runs take turns."""
        for _ in range(_WARM_UP):
            self._run()
            self._observed_run()
        self._observer.take()
        latencies, references, runs = [], [], []
        for _ in range(int(request["runs"])):
            before = self._beside() if request.get("beside") else 0.0
            self._run()
            latencies.append(_seconds(self._run))
            if request.get("beside"):
                references.append((before + self._beside()) / 2)
            self._observed_run()
            self._observer.take()
            self._observed_run()
            runs.append(self._observer.take())
        return {"latencies": latencies, "references": references, "times": split_calls(runs)}


class GpuHandler:
    """The same for a model of a GPU on the device that `device` names; kernels are timed by the device's own clock."""

    def __init__(self, model: str, inputs: str, device: str) -> None:
        with np.load(inputs, allow_pickle=False) as stored:
            self._arrays = {name: stored[name] for name in stored.files}
        loaded = load(model)
        assert not isinstance(loaded, Executable), "models for a CPU have a handler of their own"
        self._model = loaded.on(device)
        self._run = self._model.timer(**self._arrays)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        """Whole runs and runs kernel by kernel take turns."""
        for _ in range(_WARM_UP):
            self._run()
        latencies, runs = [], []
        for _ in range(int(request["runs"])):
            latencies.append(_seconds(self._run))
            runs.append(self._model.seconds(**self._arrays))
        names = dict.fromkeys(name for run in runs for name, _ in run)
        times = {name: [[s for n, s in run if n == name] for run in runs] for name in names}
        return {"latencies": latencies, "times": times, "device": self._model.device.title}


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
