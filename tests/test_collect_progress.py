"""What a terminal shows of a collection."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replayed_kernels import HERE, ITEMS, ask, results

from autofuse.cli.collect_bar import CollectBar, counts_text, duration, left_to_do
from autofuse.measure import CollectSettings, CollectStats, ReplayBuilder, ReplayRunner, collect
from autofuse.records import MemoryStore


class TestProgress:
    def test_tells_counts_rate_and_the_time_left(self) -> None:
        stats = CollectStats(measured=30, failed=10, cached=5, skipped=0, left=80, seconds=20.0)
        remaining, share = left_to_do(stats, None, None)
        assert remaining == pytest.approx(40.0) and share == pytest.approx(1 / 3)
        text = counts_text(stats, remaining)
        for part in ("measured 30", "failed 10", "cached 5", "left 80", "2.0/s", "0:40 to go"):
            assert part in text

    def test_tells_how_many_kernels_the_last_passes_are_over(self) -> None:
        stats = CollectStats(measured=30, failed=10, skipped=3, left=0, seconds=20.0, again=17)
        text = counts_text(stats, left_to_do(stats, None, None)[0])
        assert "timing 17 again" in text and "to go" not in text and "skipped 3 left 0" in text
        before = replace(stats, left=5)
        assert "0:02 to go" in counts_text(before, left_to_do(before, None, None)[0])
        done = replace(stats, again=0, skipped=0)
        text = counts_text(done, left_to_do(done, None, None)[0])
        assert "0:00 to go" in text and "skipped" not in text

    def test_counts_the_kernels_that_wait_for_another_pass(self) -> None:
        waiting: list[int] = []
        collect(
            ITEMS[:2], MemoryStore(), ReplayRunner(results(ITEMS)), ReplayBuilder(), HERE, ask,
            settings=CollectSettings(passes=2),
            progress=lambda stats, what: waiting.append(stats.again) if what.startswith("timed again") else None,
        )  # fmt: skip
        assert waiting == [2, 1]

    def test_a_run_that_ends_earlier_ends_when_it_is_told(self) -> None:
        stats = CollectStats(measured=40, left=80, seconds=20.0)
        assert left_to_do(stats, 30.0, None)[0] == pytest.approx(10.0)
        assert left_to_do(stats, 1000.0, 60)[0] == pytest.approx(10.0)
        assert left_to_do(stats, 15.0, None) == (0.0, 1.0)
        assert left_to_do(CollectStats(left=80), 30.0, None) == (30.0, 0.0)
        assert "? to go" in counts_text(CollectStats(left=80), None)
        assert duration(3723) == "1:02:03"

    def test_a_terminal_shows_a_bar_and_a_file_lines(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def shown(lines: float | None) -> str:
            with CollectBar(None, None, lines) as bar:
                for done in (10, 30):
                    bar.update(CollectStats(measured=done, left=80, seconds=20.0), f"{done} µs, best 9.5 µs: conv2d")
            return capsys.readouterr().err

        assert shown(None) == ""
        assert (
            shown(30.0) == "0:20 measured 10 failed 0 cached 0 left 80, 0.5/s, 2:40 to go; 10 µs, best 9.5 µs: conv2d\n"
        )
        for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "200")):
            monkeypatch.setenv(name, value)
        text = shown(None)
        for part in ("measured 30 failed 0 cached 0 left 80, 1.5/s, 0:53 to go", "27 %", "30 µs, best 9.5 µs: conv2d"):
            assert part in text

    def test_shows_what_a_kernel_took_beside_the_best_of_its_workload(self) -> None:
        store, told = MemoryStore(), []
        made = results(ITEMS)
        for number, key in enumerate(made):
            made[key] = replace(made[key], samples=((number + 1) * 1e-4,), reference_samples={})
        collect(
            ITEMS, store, ReplayRunner(made), ReplayBuilder(), HERE, ask,
            progress=lambda stats, what: None if what.startswith("built") else told.append(what),
        )  # fmt: skip
        assert told[:2] == ["100.0 µs, best 100.0 µs: a+relu", "200.0 µs, best 100.0 µs: a+relu"]
