"""Engines that are ready to run → samples of each, taken in turns so that a disturbance of the machine hits all alike.

A round visits every engine that is due, in an order rotated by one each round, with a pause before each visit, and
times the probes too. An engine whose call is slow gets fewer rounds, spread evenly. Nothing here starts a process
or reads a clock of its own: engines, clock and sleep are given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autofuse.errors import EngineError

Progress = Callable[[str, int, int], None]
"""Called with what is going on, steps done, steps in all."""


class Contestant(Protocol):
    """What takes part: a name, and timed calls. EngineError from `run` ends its part in the run."""

    name: str

    def run(self, calls: int) -> list[float]: ...


@dataclass(frozen=True)
class Pace:
    """How long and how often. Times in seconds.

    Attributes:
        rounds: visits of an engine that is not slow.
        budget: for all rounds together, pauses and probes included; every engine gets at least one visit all the same.
            An engine of which one call takes half of its share or more is heard once, after the rounds.
        visit: timed calls of one visit should take about this long.
        most_calls: timed calls in a visit at most.
        pause: before each visit: threads of the engine before that still spin for work fall asleep.
        wake: calls of about this long in all open a visit untimed: clocks and caches are another engine's.
        slow_call: calls as long as this need no waking.
        disturbed: a visit is disturbed if the guard next to it took this many times its own best time.
        retries: visits that are waited for, or repeated, because they are disturbed.
        patience: how long to wait while the machine is disturbed.
    """

    rounds: int = 15
    budget: float = 90.0
    visit: float = 0.2
    most_calls: int = 30
    pause: float = 0.03
    wake: float = 0.02
    slow_call: float = 0.5
    disturbed: float = 1.5
    retries: int = 4
    patience: float = 0.25

    def wake_calls(self, call: float) -> int:
        """Untimed calls that open a visit of an engine whose call takes `call` seconds."""
        return 0 if call >= self.slow_call else min(10, max(1, math.ceil(self.wake / max(call, 1e-9))))

    def timed_calls(self, call: float) -> int:
        return max(1, min(self.most_calls, int(self.visit / max(call, 1e-9))))

    def glacial(self, call: float, contestants: int) -> bool:
        """Whether one call takes half of an engine's share of the budget: its visits would starve the others."""
        return call >= self.budget / max(1, contestants) / 2

    def visits(self, call: float, contestants: int) -> int:
        """Visits that fit in an equal share of the budget: at least one, at most `rounds`."""
        cost = self.pause + call * (self.wake_calls(call) + self.timed_calls(call))
        return max(1, min(self.rounds, int(self.budget / max(1, contestants) / max(cost, 1e-9))))


@dataclass(frozen=True)
class Visit:
    """The timed calls of one engine in one round, seconds each. `quiet`: the guard was not slowed before or after."""

    round: int
    seconds: tuple[float, ...]
    quiet: bool = True


class Guard:
    """A fixed kernel on all threads that tells whether the machine is disturbed: a neighbour may take half of it."""

    def __init__(self, contestant: Contestant, limit: float) -> None:
        self._contestant = contestant
        self._limit = limit
        self._best = math.inf

    def quiet(self) -> bool:
        """Whether the kernel runs about as fast as it ever did. A guard that fails sees no disturbance."""
        try:
            # The first call wakes its threads; of two more the better one leaves hiccups out.
            seconds = min(self._contestant.run(3)[1:])
        except EngineError:
            return True
        self._best = min(self._best, seconds)
        return seconds <= self._limit * self._best


@dataclass(frozen=True)
class Interleaved:
    """What came out: visits by engine and by probe, and why an engine dropped out (it keeps the visits it had)."""

    visits: dict[str, tuple[Visit, ...]]
    probes: dict[str, tuple[Visit, ...]]
    errors: dict[str, str]


def interleave(
    contestants: Sequence[Contestant],
    call_seconds: dict[str, float],
    *,
    probes: Sequence[Contestant] = (),
    guard: Contestant | None = None,
    pace: Pace | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Interleaved:
    """Runs the rounds. `call_seconds` says, for each contestant and probe, about how long one call takes.

    `guard` runs before and after each visit, those of the probes too, or their times would be worse moments' than those
    of what is compared with them. While it is slowed the visit is put off or repeated, up to a number of times; what
    stays disturbed is kept and marked.
    """
    pace = pace or Pace()
    visitor = _Visitor(pace, sleep, Guard(guard, pace.disturbed) if guard is not None else None)
    last = [c for c in contestants if pace.glacial(call_seconds[c.name], len(contestants))]
    others = [c for c in contestants if c not in last]
    due = {c.name: due_rounds(pace.visits(call_seconds[c.name], len(others)), pace.rounds) for c in others}
    visits: dict[str, list[Visit]] = {c.name: [] for c in contestants}
    probed: dict[str, list[Visit]] = {p.name: [] for p in probes}
    errors: dict[str, str] = {}

    def take(engine: Contestant, into: dict[str, list[Visit]], over: bool) -> None:
        try:
            into[engine.name].append(visitor.visit(engine, call_seconds[engine.name], index, over))
        except EngineError as error:
            errors[engine.name] = str(error)

    start = clock()
    index = 0
    for index in range(pace.rounds):
        # Probes first, last and in between as the rotation has it would cost as much as an engine: once is enough.
        for probe in list(probes):
            if probe.name not in errors:
                take(probe, probed, clock() - start >= pace.budget)
        for contestant in rotated(others, index):
            name = contestant.name
            over = clock() - start >= pace.budget
            # Past the budget only those that were never heard are, whenever they were due.
            wanted = not visits[name] if over else index in due[name]
            if name in errors or not wanted:
                continue
            if progress is not None:
                progress(f"round {index + 1}: {name}", index, pace.rounds)
            take(contestant, visits, over)
        if clock() - start >= pace.budget and all(visits[c.name] or c.name in errors for c in others):
            break
    # Counted to a round that the others were in, so that ratios can be taken.
    heard = [{visit.round for visit in visits[c.name]} for c in others if visits[c.name]]
    index = max(set.intersection(*heard), default=index) if heard else index
    for contestant in last:
        if progress is not None:
            progress(f"after the rounds: {contestant.name}", pace.rounds, pace.rounds)
        take(contestant, visits, True)
    if progress is not None:
        progress("rounds done", pace.rounds, pace.rounds)
    return Interleaved(
        {name: tuple(seen) for name, seen in visits.items()},
        {name: tuple(seen) for name, seen in probed.items()},
        errors,
    )


def rotated(contestants: Sequence[Contestant], by: int) -> list[Contestant]:
    """The same in another order, so that none always follows the same neighbour out of a warm or a cold cache."""
    if not contestants:
        return []
    by %= len(contestants)
    return [*contestants[by:], *contestants[:by]]


def due_rounds(visits: int, rounds: int) -> frozenset[int]:
    """`visits` rounds out of `rounds`, evenly spread, the first always among them."""
    return frozenset(index * rounds // visits for index in range(visits))


@dataclass(frozen=True)
class _Visitor:
    """Times engines at a pace; with a guard it puts off, or repeats, what the machine disturbs."""

    pace: Pace
    sleep: Callable[[float], None]
    watch: Guard | None

    def visit(self, contestant: Contestant, call: float, index: int, over: bool) -> Visit:
        """A visit in the round `index` of an engine whose call takes `call` seconds; `over`: the time is used up.

        EngineError from the engine.
        """
        if self.watch is None:
            return self._once(contestant, call, index)
        # Out of time, or with calls that take seconds, one try has to do.
        left = 0 if over or call > self.pace.slow_call * 4 else self.pace.retries
        while True:
            before = self.watch.quiet()
            if before or not left:
                made = self._once(contestant, call, index)
                quiet = self.watch.quiet() and before
                if quiet or not left:
                    return replace(made, quiet=quiet)
            else:
                self.sleep(self.pace.patience)
            left -= 1

    def _once(self, contestant: Contestant, call: float, index: int) -> Visit:
        self.sleep(self.pace.pause)
        wake = self.pace.wake_calls(call)
        seconds = contestant.run(wake + self.pace.timed_calls(call))
        return Visit(index, tuple(seconds[wake:]))
