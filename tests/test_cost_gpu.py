"""The analytical cost model of GPUs against cases computed by hand, and its ranking of kernels that differ plainly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from gpu_harness import HARDWARE, GpuCase
from isa_harness import _affine, _conv, _depthwise, constant
from test_cost_analytical import one
from tvm.relax import op as R

from autofuse.cost.gpu import GpuCostModel
from autofuse.cost.model import Candidate
from autofuse.graph.model import Group, Work
from autofuse.schedule.family import KernelShape
from autofuse.schedule.gpu.gemm import GpuGemmConfig
from autofuse.schedule.gpu.roof import BARRIER_CYCLES, MEMORY_CYCLES
from autofuse.schedule.gpu.rows import GpuRowsConfig
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.schedule.registry import family
from autofuse.target import GpuHardware

# Round numbers: 10 units of 64 multiply-adds a cycle at 1 GHz.
CARD = GpuHardware(
    cores=10, frequency_hz=1e9, fma_per_second=64e9, simple_per_second=64e9, divide_per_second=6.4e9,
    special_per_second=16e9, l1_bandwidth=64e9, l2_bandwidth=64e9, lds_bandwidth=128e9, memory_bandwidth=400e9,
    l2_bytes=1 << 20, call_overhead=2e-5,
)  # fmt: skip
MODEL = GpuCostModel(CARD)
LATENCY = MEMORY_CYCLES / 1e9


def terms(work: Work, **shape: Any) -> dict[str, float]:
    return MODEL.terms(one(work, 64), GpuShape(**{"tasks": 400, "threads": 256, "registers": 24, **shape}))


def test_arithmetic_is_shared_by_all_units() -> None:
    """64e9 multiply-adds: a second of one unit, a tenth of it of ten."""
    found = terms(Work(fma=64 * 10**9))
    assert found["compute"] == pytest.approx(0.1) and found["occupancy"] == 1.0
    assert found["total"] == pytest.approx(0.1 + LATENCY)


def test_the_last_round_leaves_units_idle() -> None:
    """401 workgroups on 10 units: the busiest has 41, and the others wait for it."""
    assert terms(Work(fma=64 * 10**9), tasks=401)["compute"] == pytest.approx(41 / 401)


def test_few_waves_do_not_fill_a_unit() -> None:
    """One wave a unit is on one of four SIMDs."""
    found = terms(Work(fma=64 * 10**9), tasks=10, threads=64)
    assert found["compute"] == pytest.approx(0.4) and found["occupancy"] == 1 / 40


def test_lanes_without_work_and_repeated_work_count() -> None:
    half = terms(Work(simple=64 * 10**9), vector_fill=0.5)["compute"]
    assert half == pytest.approx(0.2)
    assert terms(Work(simple=64 * 10**9), recompute=3.0)["compute"] == pytest.approx(0.3)
    assert terms(Work(special=16 * 10**9))["compute"] == pytest.approx(0.1)  # a quarter of the rate


def test_traffic_by_level() -> None:
    found = terms(Work(), l1_bytes=64 * 10**9, l2_bytes=32 * 10**9, memory_bytes=40 * 10**9, lds_traffic=128 * 10**9)
    assert found["l1"] == pytest.approx(0.1) and found["l2"] == pytest.approx(0.05)
    assert found["memory"] == pytest.approx(0.1) and found["lds"] == pytest.approx(0.1)
    assert terms(Work(), memory_bytes=1 << 18)["memory"] == 0.0  # stays in L2


def test_too_few_resident_workgroups_wait_for_memory_and_barriers() -> None:
    """200 registers: one wave a SIMD, one workgroup a unit, so 40 rounds of a latency and ten barriers."""
    found = terms(Work(), registers=200, barriers=10)
    assert found["occupancy"] == 0.1
    assert found["waiting"] == pytest.approx(40 * (MEMORY_CYCLES + 10 * BARRIER_CYCLES) / 1e9)
    assert terms(Work(), registers=24, barriers=10)["waiting"] == pytest.approx(found["waiting"] / 10)


def test_waves_hide_each_others_waiting() -> None:
    """A workgroup of four waves a unit is alone on each SIMD and waits for every barrier; ten hide it behind work."""
    work = Work(fma=64 * 10**6)
    alone = terms(work, registers=200, barriers=1)
    assert alone["total"] == pytest.approx(alone["compute"] + alone["waiting"] + LATENCY)
    many = terms(work, registers=24, barriers=1)
    assert many["exposed"] == 0.0 and many["total"] == pytest.approx(many["compute"] + LATENCY)
    idle = terms(Work(), registers=24, barriers=1)
    assert idle["total"] == pytest.approx(idle["waiting"] + LATENCY)


def test_threads_that_stand_apart_move_whole_lines() -> None:
    """Rows of 4096: neighbours that take one element of a row each read a line of 64 bytes for 4; 16 read it once."""
    case = GpuCase(family("gpu_rows", "gpu"), lambda bb, x: R.nn.softmax(x), [(64, 4096)])

    def moved(across: int, vector: int) -> int:
        return case.family.shape(case.group, GpuRowsConfig(256 // across, across, 1, vector, 0), HARDWARE).l1_bytes

    assert moved(1, 1) == 16 * moved(16, 1) == 16 * moved(64, 4) and moved(1, 4) == 4 * moved(4, 4)


def test_what_stands_before_a_product_is_computed_for_each_read() -> None:
    """A 3×3 convolution in tiles of 32 places brings 25 tiles of 32 × 576, each element after its own maximum."""
    case = GpuCase(
        family("gpu_gemm", "gpu"),
        lambda bb, x: R.nn.conv2d(bb(R.nn.relu(x)), constant(64, 64, 3, 3), padding=1),
        [(1, 64, 28, 28)],
    )
    graph, config = case.group.graph, GpuGemmConfig(32, 64, 16, 4, 4, 1)
    product = Group.of(graph, [next(op.index for op in case.group.operators if op.kind == "nn.conv2d")])
    whole, alone = (case.family.shape(group, config, HARDWARE) for group in (case.group, product))
    again = (whole.extra_simple - alone.extra_simple) * whole.recompute
    assert again == pytest.approx(25 * 32 * 576 - 64 * 28 * 28, rel=1e-3)


def test_what_does_not_fit_has_no_cost_and_launches_have() -> None:
    assert terms(Work(), lds_bytes=(64 << 10) + 1)["total"] == float("inf")
    assert terms(Work(), launches=3)["total"] - terms(Work())["total"] == pytest.approx(4e-5)
    assert 0 < MODEL.terms(one(Work(), 64), KernelShape(tasks=1, loops=0))["total"] < 1e-9  # a view
    assert MODEL.call_cost == 2e-5


def best(name: str, case: GpuCase) -> float:
    """Seconds of the family's best configuration, by TVM's rules those of the operators one by one."""
    chosen, model, group = family(name, "gpu"), GpuCostModel(HARDWARE), case.group
    alone = [Group.of(group.graph, [op.index], op.outputs) for op in group.operators]
    total = 0.0
    for each in alone if name == "dlight" else [group]:
        assert chosen.match(each, HARDWARE) is None
        total += min(model.costs([Candidate(each, chosen, c) for c in chosen.configs(each, HARDWARE)]))
    return total


@pytest.mark.parametrize(
    ("name", "emit", "shapes", "behind", "times"),
    [
        # A wave for each result of a depthwise convolution, against a thread for two vectors of them.
        ("gpu_direct", _depthwise(96, 1), [(1, 16, 112, 112)], "nn.conv2d", 5.0),
        # Half a wave for each mean of 49, against several rows a workgroup.
        ("gpu_rows", lambda bb, x: R.mean(x, [-1]), [(12800, 49)], "", 1.0),
        ("gpu_gemm", _conv(64, 64, 3, padding=1), [(1, 64, 56, 56)], "", 1.0),
        ("gpu_gemm", _affine(384, 1536), [(512, 384)], "", 1.0),
    ],
)
def test_kernels_that_are_plainly_better_are_ranked_so(
    name: str, emit: Callable[..., Any], shapes: list[Any], behind: str, times: float
) -> None:
    case = GpuCase(family(name, "gpu"), emit, shapes, behind)
    assert best("dlight", case) > times * best(name, case)


def test_a_wider_card_is_faster() -> None:
    case = GpuCase(family("gpu_gemm", "gpu"), _affine(384, 1536), [(512, 384)])
    config = case.configs()[0]
    candidates = [Candidate(case.group, case.family, config)]
    wide = replace(HARDWARE, cores=120, memory_bandwidth=2 * HARDWARE.memory_bandwidth)
    assert GpuCostModel(wide).costs(candidates)[0] < GpuCostModel(HARDWARE).costs(candidates)[0]
