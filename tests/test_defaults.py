"""How kernels are compared in turns, and what is said of the default configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autofuse.measure.turns import FEWEST, LEAST_ROUNDS, Turn, paired_ratios, take_turns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import bench_defaults
import kernels_page


class Clock:
    """A clock that kernels move; it remembers in which order they ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    def kernel(self, name: str, seconds: Callable[[], float]) -> Turn:
        def run() -> None:
            self.ran.append(name)
            self.now += seconds()

        return Turn(run)


def test_a_slower_machine_in_between_leaves_the_ratios_alone() -> None:
    clock = Clock()

    def pace() -> float:
        return 3.0 if int(clock.now * 10) % 2 else 1.0

    quick, slow = clock.kernel("quick", lambda: 1e-3 * pace()), clock.kernel("slow", lambda: 1.25e-3 * pace())
    take_turns([quick, slow], budget=10.0, rounds=31, clock=clock)
    ratios = sorted(paired_ratios(slow.samples, quick.samples))
    assert len(quick.samples) == len(slow.samples) == 31
    assert ratios[15] == pytest.approx(1.25)


def test_what_is_hopeless_is_left_out_early() -> None:
    clock = Clock()
    turns = [clock.kernel(str(ms), lambda ms=ms: 1e-3 * ms) for ms in (2.0, 1.0, 2.5)]
    take_turns(turns, budget=1.0, rounds=10, clock=clock)
    assert [len(t.samples) for t in turns] == [10, 10, LEAST_ROUNDS]


def test_short_kernels_are_repeated_and_the_order_rotates() -> None:
    clock = Clock()
    turns = [clock.kernel(name, lambda: 1e-5) for name in "ab"]
    take_turns(turns, budget=1.0, rounds=2, least=3e-4, clock=clock)
    assert all(t.repeats == 30 for t in turns)
    assert "".join(dict.fromkeys(clock.ran[4:66])) == "ab" and clock.ran[66] == "b"


def test_the_budget_ends_the_rounds_but_not_before_the_fewest() -> None:
    clock = Clock()
    turn = clock.kernel("a", lambda: 1.0)
    take_turns([turn], budget=0.5, rounds=100, clock=clock)
    assert len(turn.samples) == FEWEST


def raw(chosen: str, ratios: dict[str, float], **more: Any) -> dict[str, Any]:
    configurations = {n: {"rounds": 9, "median_us": 10 * r, "ratio": r, "quartiles": [r, r]} for n, r in ratios.items()}
    base = {"network": "net", "share": 0.25, "family": "conv2d", "label": "conv2d+relu", "chosen": chosen}
    return {**base, "listed": list(ratios), "configurations": configurations, **more}


def test_the_loss_is_against_the_best_of_those_that_stayed_in() -> None:
    found = raw("b", {"a": 2.0, "b": 1.0, "c": 0.8})
    assert bench_defaults.best(found) == "c" and bench_defaults.loss(found) == pytest.approx(1.25)
    assert bench_defaults.loss(found, "a") == pytest.approx(2.5)
    found["configurations"]["c"]["rounds"] = 3
    assert bench_defaults.best(found) == "b" and bench_defaults.loss(found) == 1.0
    assert bench_defaults.loss(found, "missing") is None


def test_the_page_keeps_the_section_and_names_what_is_beyond_the_limit() -> None:
    raws = [raw("b", {"a": 1.0, "b": 1.0}), raw("d", {"c": 0.5, "d": 1.0}, network="other")]
    text = kernels_page.page({}, bench_defaults.section(raws))
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert [cell.strip() for cell in rows[1][1:7]] == ["conv2d", "2", "2", "1.50", "2.00", "1 of 2"]
    assert rows[-1][1].strip() == "other" and "`c`" in rows[-1][6]
    assert "net" not in [row[1].strip() for row in rows[3:]]
    assert bench_defaults.section([]) == ""


def test_a_kernel_is_due_again_when_its_configurations_change() -> None:
    items = [type("I", (), {"candidate": _candidate(config)})() for config in ("a", "b")]
    target = bench_defaults.Target("net", 0.1, "key", "conv2d", "conv2d", "conv2d@1[a]", tuple(items), None)
    found = {bench_defaults.place(target): {"chosen": "conv2d@1[a]", "listed": ["conv2d@1[a]", "conv2d@1[b]"]}}
    assert not bench_defaults.due(target, found, False) and bench_defaults.due(target, found, True)
    found[bench_defaults.place(target)]["listed"] = ["conv2d@0[a]", "conv2d@0[b]"]
    assert bench_defaults.due(target, found, False)


def _candidate(config: str) -> Any:
    family = type("F", (), {"name": "conv2d", "version": 1})()
    return type("C", (), {"family": family, "config": type("G", (), {"text": config})()})()
