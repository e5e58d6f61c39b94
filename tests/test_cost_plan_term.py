"""What a plan takes beyond its kernels, and the page that compares it with measured plans."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_graphs import chain
from records_samples import group
from test_cost_analytical import FULL, FakeConfiguration, FakeFamily

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import bench_plans
import raw_results

from autofuse.cost.model import Candidate
from autofuse.cost.plan_term import refill, refills
from autofuse.graph.model import Group
from autofuse.search.problem import Choice, SearchProblem
from autofuse.search.strategies import strategy
from autofuse.target import GpuHardware, Hardware

MACHINE = Hardware(
    cores=2, l2_bytes=1 << 19, l2_bandwidth=8e10, l3_bandwidth=4e10, call_overhead=5e-7
)  # a byte from L3 takes 12.5 ps longer than one from L2


def once(activations: float, constants: float = 0.0, cores: int = 2, machine: Hardware = MACHINE) -> float:
    (found,) = refill(np.array([activations]), np.array([constants]), np.array([cores]), machine)
    return float(found)


def test_operands_come_from_l3_again_at_half_the_rate_for_one_core() -> None:
    assert once(0) == 0
    assert once(100_000) == pytest.approx(1e5 * 12.5e-12 / 2)
    assert once(100_000, cores=1) == pytest.approx(1e5 * 12.5e-12)


def test_activations_count_whole_and_constants_as_far_as_l2_held_them() -> None:
    assert once(1 << 30) == pytest.approx((1 << 30) * 12.5e-12 / 2)
    for cores in (1, 2):
        assert once(0, 1 << 30, cores) == pytest.approx((1 << 19) * 12.5e-12) == once(0, cores << 19, cores)
    assert once(1000, 500) == pytest.approx(once(1500))


def test_a_calibration_whose_l3_is_faster_than_its_l2_gives_no_negative_term() -> None:
    assert once(100_000, machine=replace(MACHINE, l3_bandwidth=9e10)) == 0


def test_constants_are_operands_where_weights_stay_in_the_cache() -> None:
    shape = [replace(FULL, tasks=8), replace(FULL, tasks=1)]
    family = FakeFamily(shape)
    parallel, serial = (Candidate(group(), family, FakeConfiguration(i)) for i in (0, 1))
    hot, cold = (refills([parallel, serial], MACHINE, c) for c in (False, True))
    tensors = group().graph.tensors
    activations = sum(tensors[t].bytes for t in (1, 3, 4))
    assert cold == pytest.approx([once(activations), once(activations, cores=1)])
    assert hot == pytest.approx([once(activations, tensors[2].bytes), once(activations, tensors[2].bytes, cores=1)])
    # A form that is larger than the constant is read instead of it.
    larger = FakeFamily([replace(FULL, tasks=8, memory_bytes=activations + 2 * tensors[2].bytes)])
    (found,) = refills([Candidate(group(), larger, FakeConfiguration(0))], MACHINE, False)
    assert found == pytest.approx(once(activations, 2 * tensors[2].bytes))


def test_views_and_kernels_of_gpus_have_none() -> None:
    view = FakeFamily([replace(FULL, loops=0)])
    candidate = Candidate(group(), view, FakeConfiguration(0))
    assert refills([candidate], MACHINE, False) == [0] == refills([candidate], GpuHardware(), False)
    assert refills([], MACHINE, False).size == 0


def test_the_search_weighs_what_a_plan_adds() -> None:
    """Two kernels that are as quick as one by themselves hand on a tensor: the one is the better plan."""
    graph = chain(3)
    singles = [Choice(Group.of(graph, [i]), 1.0, refill=0.25) for i in range(3)]
    problem = SearchProblem(graph, (*singles, Choice(Group.of(graph, [0, 1, 2]), 3.0, refill=0.25)))
    for name in ("dp", "exhaustive", "interval"):
        result = strategy(name).search(problem)
        assert len(result.choices) == 1 and result.cost == 3.25
    assert strategy("none").search(problem).cost == 3.75


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
