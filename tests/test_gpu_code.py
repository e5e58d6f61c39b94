"""Code for GPUs that are not here: resources read from real assembly, children that survive what TVM does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_harness import GpuCase
from isa_harness import _affine
from tvm import tirx
from tvm.relax import op as R

from autofuse.codegen.resources import CodeError, InstructionMix, KernelResources, kernels_of
from autofuse.measure.cross import CrossCompiler
from autofuse.schedule.gpu.elementwise import GpuElementwiseConfig
from autofuse.schedule.gpu.gemm import GpuGemmConfig
from autofuse.schedule.registry import family
from autofuse.target import resolve

SAMPLE = Path(__file__).with_name("gpu_code") / "mean_rows.s"


@pytest.fixture(scope="module")
def cross() -> Iterator[CrossCompiler]:
    with CrossCompiler(resolve("dcu-z100")) as made:
        yield made


def test_resources_of_a_stored_assembly() -> None:
    """Means of rows of 40,000 on one wave each; LLVM unrolled the loop over the row four times."""
    (kernel,) = kernels_of(SAMPLE.read_text())
    assert kernel.name == "main_kernel" and kernel.wave == 64 and kernel.threads == 256
    assert (kernel.vgprs, kernel.sgprs, kernel.vgpr_spills, kernel.sgpr_spills) == (16, 13, 0, 0)
    assert (kernel.lds_bytes, kernel.scratch_bytes) == (272, 0)
    assert (kernel.inner.loads, kernel.inner.load_bytes, kernel.inner.lds_reads, kernel.inner.stores) == (4, 64, 0, 0)
    assert (kernel.mix.barriers, kernel.mix.lds_writes, kernel.mix.stores, kernel.mix.loads) == (2, 2, 1, 4)
    assert kernel.inner.valu < kernel.mix.valu and kernel.mix.scratch == 0
    assert KernelResources.from_json(kernel.to_json()) == kernel


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("v_fma_f32 v1, v2, v3, v4", {"fma": 1}),
        ("v_fmac_f32_e32 v1, v2, v3", {"fma": 1}),
        ("v_exp_f32_e32 v1, v2", {"transcendental": 1}),
        ("v_add_u32_e32 v1, v2, v3", {"valu": 1}),
        ("global_load_dwordx4 v[0:3], v4, s[0:1]", {"loads": 1, "load_bytes": 16}),
        ("global_load_dword v0, v4, s[0:1]", {"loads": 1, "load_bytes": 4}),
        ("global_store_dwordx2 v4, v[0:1], s[0:1]", {"stores": 1}),
        ("buffer_store_dword v6, off, s[0:3], 0 offset:4 ; 4-byte Folded Spill", {"scratch": 1}),
        ("ds_read_b128 v[0:3], v4", {"lds_reads": 1}),
        ("ds_write2_b32 v1, v2, v3 offset1:4", {"lds_writes": 1}),
        ("s_barrier", {"barriers": 1}),
        ("s_cbranch_scc1 .LBB0_2", {"branches": 1}),
        ("s_waitcnt vmcnt(0)", {}),
        ("s_load_dwordx4 s[0:3], s[4:5], 0x0", {"scalar": 1}),
    ],
)
def test_instructions_are_counted_by_class(line: str, counts: dict[str, int]) -> None:
    text = SAMPLE.read_text()
    head, _, rest = text.partition("\ts_endpgm")
    (before,), (after,) = kernels_of(text), kernels_of(f"{head}\t{line}\n\ts_endpgm{rest}")
    changed = {
        name: getattr(after.mix, name) - getattr(before.mix, name)
        for name in InstructionMix.__dataclass_fields__
        if getattr(after.mix, name) != getattr(before.mix, name)
    }
    assert changed == counts


def test_text_that_is_no_assembly_is_refused() -> None:
    with pytest.raises(CodeError, match="no metadata"):
        kernels_of("nothing here")
    with pytest.raises(CodeError, match="lacks sgpr"):
        kernels_of(SAMPLE.read_text().replace(".sgpr_spill_count:", ".other:"))
    with pytest.raises(CodeError, match="no code of kernel"):
        kernels_of(SAMPLE.read_text().replace("main_kernel:", "other_kernel:"))


def add_rows() -> GpuCase:
    return GpuCase(family("gpu_elementwise", "gpu"), lambda bb, x, y: R.nn.relu(bb(R.add(x, y))), [(48, 64), (64,)])


def test_a_kernel_is_compiled_for_a_card_that_is_not_here(cross: CrossCompiler) -> None:
    case = add_rows()
    result = cross.code(case.schedule(GpuElementwiseConfig(64, 4, 1)))
    assert result.ok, result.message
    (kernel,), (launch,) = result.kernels, result.launches
    assert (launch["workgroups"], launch["threads"]) == ([12, 1, 1], [64, 1, 1])
    assert sorted(launch["arguments"]) == [0, 1, 2] and launch["kernel"] == kernel.name
    # A vector a thread: two loads and a store of 16 bytes, no scratch, no LDS.
    assert (kernel.mix.loads, kernel.mix.load_bytes, kernel.mix.stores) == (2, 32, 1)
    assert kernel.lds_bytes == kernel.scratch_bytes == kernel.vgpr_spills == 0
    assert (
        "gfx906" in result.source
        and kernel.vgprs <= case.family.shape(case.group, GpuElementwiseConfig(64, 4, 1), case.hardware).registers
    )  # type: ignore[attr-defined]


def test_the_same_schedule_is_opencl_c(cross: CrossCompiler) -> None:
    result = cross.opencl(add_rows().schedule(GpuElementwiseConfig(64, 4, 1)))
    assert result.ok and "__kernel void" in result.source and result.kernels == ()
    assert result.launches[0]["workgroups"] == [12, 1, 1]


def test_what_ends_the_process_costs_a_child_and_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM ends the process for a GPU that it does not know: that is why names are checked, and children compile."""
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    func = add_rows().schedule(GpuElementwiseConfig(64, 4, 1))
    with CrossCompiler(resolve("dcu-z100"), factory="gpu_children:unknown_gpu") as broken:
        result = broken.code(func)
    assert result.status == "crashed" and "SIGABRT" in result.message and not result.ok


def test_a_function_without_threads_is_refused_by_name(cross: CrossCompiler) -> None:
    buffer: Any = tirx.decl_buffer((4,), "float32", "x")
    func = tirx.PrimFunc([buffer], tirx.BufferStore(buffer, tirx.const(1.0, "float32"), [tirx.const(0, "int64")]))
    result = cross.code(func)
    assert result.status == "failed" and result.message


@pytest.mark.parametrize("buffers", [1, 2])
def test_loops_that_stay_loops_do_not_make_buffers_larger(cross: CrossCompiler, buffers: int) -> None:
    """TVM sizes buffers by what loops may reach, and 112 workgroups once took the tile of one to 119,808 bytes."""
    case = GpuCase(family("gpu_gemm", "gpu"), _affine(256, 1024), [(196, 256)])
    config = GpuGemmConfig(32, 64, 16, 2, 4, buffers)
    result = cross.code(case.schedule(config))
    assert result.ok, result.message
    (kernel,) = result.kernels
    assert kernel.lds_bytes == config.lds_bytes == buffers * 4 * 16 * (32 + 64) and kernel.vgpr_spills == 0
    # The loop over the tile's depth is there: it is not written out.
    assert kernel.mix.fma < 16 * 2 * 4 * 2
