"""GPU schedule families: what they take and offer, and their numbers on PoCL, where it is installed.

PoCL checks indices and arithmetic of the schedules; code for the card, races and times are not checked here.
"""

from __future__ import annotations

from typing import Any

import pytest
from gpu_cases import CASES, Emit, Shapes
from gpu_harness import HARDWARE, WAVE32, GpuCase, Pocl
from isa_harness import _affine
from tvm.relax import op as R

from autofuse.schedule.gpu.elementwise import GpuElementwiseConfig
from autofuse.schedule.gpu.gemm import GpuGemmConfig
from autofuse.schedule.gpu.rows import GpuRowsConfig
from autofuse.schedule.registry import families, family


@pytest.mark.parametrize(("name", "what", "emit", "shapes", "behind"), CASES, ids=[f"{c[0]}: {c[1]}" for c in CASES])
def test_numbers_on_pocl(pocl: Pocl, name: str, what: str, emit: Emit, shapes: Shapes, behind: str) -> None:
    case = GpuCase(family(name, "gpu"), emit, shapes, behind)
    offered = case.configs()
    # Another configuration in each case: the first, the last, and what lies between.
    config = offered[len(what) * 7 % len(offered)]
    assert case.error(pocl, config) < 2e-5, config.text


@pytest.mark.parametrize("name", [f.name for f in families("gpu")])
def test_gpu_families_have_names_of_their_own(name: str) -> None:
    """Records of both kinds of targets share a store, which tells schedules apart by name."""
    cpu = {f.name: f for f in families("cpu")}
    assert name not in cpu or (cpu[name].version == family(name, "gpu").version and name == "view")
    assert family(name, "gpu") in families("gpu")


@pytest.mark.parametrize("hardware", [HARDWARE, WAVE32], ids=["wave 64", "wave 32"])
@pytest.mark.parametrize("rows", [(6, 51), (4096, 64), (3, 100_000), (1, 7)])
def test_threads_follow_the_length_of_rows(hardware: Any, rows: tuple[int, int]) -> None:
    case = GpuCase(family("gpu_rows", "gpu"), lambda bb, x: R.nn.softmax(x), [rows], hardware=hardware)
    first = case.configs()[0]
    assert isinstance(first, GpuRowsConfig) and first.threads <= 256
    assert first.across * first.vector <= 2 * max(rows[1], 1) and first.rows <= 2 * rows[0]
    if rows[1] >= 100_000:
        assert first.across == 256  # all threads of a workgroup share a long row
    if rows == (4096, 64):
        assert first.across <= 64 and first.rows > 1  # short rows share a workgroup


def test_a_product_is_tiled_to_fit_the_card() -> None:
    case = GpuCase(family("gpu_gemm", "gpu"), _affine(256, 512), [(512, 256)])
    for config in case.configs():
        assert isinstance(config, GpuGemmConfig)
        assert config.threads % HARDWARE.wave == 0 and config.lds_bytes <= HARDWARE.lds_bytes
        assert HARDWARE.resident_waves(config.registers, config.lds_bytes, config.threads) > 0
    first = case.configs()[0]
    assert isinstance(first, GpuGemmConfig) and first.rows * first.columns >= 32 * 32


def test_vectors_stay_within_rows() -> None:
    for length, widest in ((64, 4), (42, 2), (41, 1)):
        case = GpuCase(family("gpu_elementwise", "gpu"), lambda bb, x: R.nn.relu(x), [(3, length)])
        first = case.configs()[0]
        assert isinstance(first, GpuElementwiseConfig) and first.vector == widest


@pytest.mark.parametrize(
    ("name", "emit", "shapes", "says"),
    [
        ("gpu_elementwise", lambda bb, x: R.nn.softmax(x), [(3, 5)], "reduces"),
        ("gpu_rows", _affine(8, 8), [(4, 8)], "no reduction of rows"),
        ("gpu_rows", lambda bb, x: R.nn.max_pool2d(x, (2, 2), (2, 2)), [(1, 3, 8, 8)], "parts of its rows"),
        ("gpu_gemm", lambda bb, x: R.nn.softmax(x), [(3, 5)], "no product"),
        ("gpu_gemm", lambda bb, x, y: R.nn.softmax(bb(R.matmul(x, y))), [(3, 5), (5, 4)], "not one product"),
        ("gpu_direct", lambda bb, x: R.nn.softmax(x), [(3, 5)], "more than one reduction"),
        ("gpu_direct", lambda bb, x: R.image.resize2d(x, (9, 9), method="linear"), [(1, 3, 5, 5)], "reduces nothing"),
        ("dlight", lambda bb, x: R.nn.relu(bb(R.exp(x))), [(3, 5)], "one"),
    ],
)
def test_groups_of_another_form_are_refused_with_a_reason(name: str, emit: Emit, shapes: Shapes, says: str) -> None:
    case = GpuCase(family(name, "gpu"), emit, shapes)
    refusal = case.family.match(case.group, HARDWARE)
    assert refusal is not None and says in str(refusal)


def test_tvm_s_rules_take_any_single_operator() -> None:
    case = GpuCase(
        family("dlight", "gpu"), lambda bb, x: R.image.resize2d(x, (21, 27), method="linear"), [(1, 3, 9, 8)]
    )
    (config,) = case.configs()
    assert "threadIdx.x" in case.schedule(config).script()
