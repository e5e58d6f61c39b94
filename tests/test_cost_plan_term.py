"""What a plan takes beyond its kernels, and the page that compares it with measured plans."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records_samples import group
from test_cost_analytical import FULL, FakeConfiguration, FakeFamily

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import bench_plans
import raw_results

from autofuse.cost.model import Candidate
from autofuse.cost.plan_term import PlanKernel, plan_kernel, plan_term
from autofuse.target import Hardware

MACHINE = Hardware(
    cores=2, l2_bytes=1 << 19, l2_bandwidth=8e10, l3_bandwidth=4e10, call_overhead=5e-7
)  # a byte from L3 takes 12.5 ps longer than one from L2


def test_every_launch_costs_a_call_and_its_operands_come_from_l3_again() -> None:
    none = plan_term([], MACHINE)
    assert none.calls == none.refill == none.seconds == 0
    small = PlanKernel(100_000, True)
    term = plan_term([small, small, PlanKernel(0, True)], MACHINE)
    assert term.calls == pytest.approx(1.5e-6) and term.refill == pytest.approx(2 * 1e5 * 12.5e-12 / 2)
    assert term.seconds == term.calls + term.refill
    # One core fetches at half the rate of two.
    assert plan_term([PlanKernel(100_000, False)], MACHINE).refill == pytest.approx(1e5 * 12.5e-12)


def test_what_no_l2_holds_was_no_faster_when_the_kernel_was_timed() -> None:
    for parallel, cores in ((True, 2), (False, 1)):
        full, larger = (plan_term([PlanKernel(b, parallel)], MACHINE).refill for b in (cores << 19, 1 << 30))
        assert full == pytest.approx((1 << 19) * 12.5e-12) == larger


def test_a_calibration_whose_l3_is_faster_than_its_l2_gives_no_negative_term() -> None:
    odd = replace(MACHINE, l3_bandwidth=9e10)
    assert plan_term([PlanKernel(100_000, True)], odd).refill == 0


def test_constants_are_operands_where_weights_stay_in_the_cache() -> None:
    shape = [replace(FULL, tasks=8), replace(FULL, tasks=1)]
    hot, cold, serial = (
        plan_kernel(Candidate(group(), FakeFamily(shape), FakeConfiguration(i)), MACHINE, cold)
        for i, cold in ((0, False), (0, True), (1, True))
    )
    tensors = group().graph.tensors
    assert hot.operands - cold.operands == tensors[2].bytes
    assert cold.operands == sum(tensors[t].bytes for t in (1, 3, 4))
    assert hot.parallel and not serial.parallel


MACHINE_ROW = {
    "cpu": "a CPU", "isa": "avx2", "cores": 2, "processors": 2, "l1_bytes": 1, "l2_bytes": 1, "l3_bytes": 1,
    "memory_bytes": 1, "system": "s", "python": "p", "calibrated": True, "fma_per_second": 1.0, "memory_bandwidth": 1.0,
    "packages": {},
}  # fmt: skip


def raw(network: str, cold: bool) -> dict[str, Any]:
    kernel = {"read": 50_000, "written": 50_000, "weights": 100_000, "parallel": 1, "hot": 1e-4, "cold": 3e-4}
    return {
        "network": network, "cold": cold, "latency": 2.1e-4 if not cold else 9e-4, "quiet": 2e-4, "median": 1e-3,
        "kernels": [{**kernel, "calls": 2, "inside": [1.05e-4, 1.05e-4]}],
        "term": bench_plans.term_of([{**kernel, "calls": 2}], cold, MACHINE), "machine": MACHINE_ROW,
    }  # fmt: skip


def test_the_page_says_what_is_left_over() -> None:
    hot, cold = (bench_plans.row(raw("a", c)) for c in (False, True))
    assert hot["kernels"] == pytest.approx(2e-4) and cold["kernels"] == pytest.approx(6e-4)
    assert hot["refill"] == pytest.approx(2.5e-6) and cold["refill"] == pytest.approx(1.25e-6)
    assert hot["predicted"] == pytest.approx(2e-4 + 1e-6 + 2.5e-6) and hot["inside"] == pytest.approx(2.1e-4)
    assert hot["left"] == pytest.approx(2.1e-4 / 2.035e-4 - 1)
    text = bench_plans.page([raw("hot_one", False), raw("cold_one", True)])
    assert "| hot_one | hot | 2 | 0.200 |" in text and "| +3.2 % |" in text
    assert "| cold_one | cold | 2 | 0.600 |" in text and "Within 5 %: 1 of 2." in text
    assert "of the others:\n\n- cold_one: +49.4 %, +0.298 ms; the least tenths of its kernels" in text
    assert bench_plans.page([])


def test_a_network_that_is_further_off_than_is_wanted_fails_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is told with what its kernels take within it."""
    monkeypatch.setattr(raw_results, "DOCS", tmp_path)
    (tmp_path / "results" / "plans").mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", ["bench_plans.py", "--page-only"])
    for latency, code in ((2.1e-4, 0), (2.3e-4, 1)):
        content = {**raw("vgg16", False), "latency": latency}
        (tmp_path / "results" / "plans" / "vgg16.json").write_text(json.dumps(content))
        assert bench_plans.main() == code
        said = capsys.readouterr().err
        told = re.search(r"vgg16: \+13.0 %, \+0.02\d ms; .* within the plan add up to 0.210 ms", said)
        assert bool(told) == bool(code)
    assert "vgg16: +13.0 %" in (tmp_path / "plans.md").read_text(encoding="utf-8")
