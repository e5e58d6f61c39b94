"""The GPU families on NVIDIA's GPUs, as far as nvcc goes: waves of 32, CUDA C, registers and LDS. Nothing is run."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_cases import CASES
from gpu_harness import GpuCase

from autofuse.codegen.nvidia import compile_device, compiled, resources_of
from autofuse.codegen.resources import CodeError
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.schedule.registry import family
from autofuse.target import resolve
from autofuse.target.needs import cuda_compiler

CARD = resolve("nvidia-h200")
CHOSEN = ("softmax of 51", "product, odd", "strided, odd", "average pool")
# What `ptxas -v` says of a kernel that spills, and of one that does not.
SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    24 bytes stack frame, 40 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compile time = 37.001 ms
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 38 registers, used 0 barriers
"""


def test_what_ptxas_says_is_read() -> None:
    first, second = resources_of(SAID, {"first": 128, "second": 64})
    assert (first.name, first.vgprs, first.vgpr_spills, first.lds_bytes, first.scratch_bytes) == (
        "first", 255, 15, 4096, 24,
    )  # fmt: skip
    assert (second.name, second.vgprs, second.vgpr_spills, second.lds_bytes) == ("second", 38, 0, 0)
    assert (first.wave, first.threads, second.threads) == (32, 128, 64)
    assert resources_of("", {}) == ()


@pytest.mark.parametrize("case", [c for c in CASES if c[1] in CHOSEN], ids=lambda c: c[0])
def test_kernels_become_machine_code_that_fits_the_card(case: tuple[str, str, Any, Any, str]) -> None:
    name, _, emit, shapes, behind = case
    made = GpuCase(family(name, "gpu"), emit, shapes, behind, hardware=CARD.gpu_hardware)
    config = made.configs()[0]
    code = compile_device(made.schedule(config), CARD.tvm_target())
    (launch,) = code.launches
    shape = made.family.shape(made.group, config, made.hardware)
    assert isinstance(shape, GpuShape)
    assert f"{launch.kernel}(" in code.assembly and "__global__" in code.assembly
    assert launch.threads == (shape.threads, 1, 1) and launch.workgroups == (shape.tasks, 1, 1)
    if not cuda_compiler():
        assert not code.linked and not code.kernels
        return
    assert code.linked and code.code[:4] == b"\x7fELF"
    (kernel,) = code.kernels
    assert kernel.name == launch.kernel and kernel.vgpr_spills == kernel.scratch_bytes == 0
    assert made.hardware.resident_waves(kernel.vgprs, kernel.lds_bytes, kernel.threads) > 0
    assert (shape.lds_bytes > 0) == (kernel.lds_bytes > 0) and kernel.lds_bytes <= 2 * shape.lds_bytes + 2048
    assert 0.5 * shape.registers <= kernel.vgprs + 8 <= 2 * shape.registers + 16


def test_what_nvcc_refuses_is_one_line() -> None:
    if not cuda_compiler():
        pytest.skip("no nvcc")
    with pytest.raises(CodeError, match=r"^nvcc does not compile a kernel: [^\n]*error[^\n]*$"):
        compiled('extern "C" __global__ void broken(float* x) { x[0] = nothing; }', "sm_90", cuda_compiler())
