"""Measuring GPU kernels through OpenCL, PoCL standing in for a card: from candidates to records that say so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from gpu_harness import POCL, TARGET, pocl_missing
from small_network import refused, small_network

from autofuse.cli import cli
from autofuse.device.choose import session as session_with
from autofuse.device.opencl import device_called
from autofuse.device.session import Device
from autofuse.errors import TargetError
from autofuse.learn.dataset import describe
from autofuse.measure import ArgumentSpec, MeasureJob, MeasureLimits
from autofuse.measure.gpu_references import GROUP, LANES, references
from autofuse.measure.gpu_runner import GpuRunner, gpu_row
from autofuse.measure.gpu_worker import reference_programs
from autofuse.measure.jobs import fill_inputs
from autofuse.records import RecordedHardware, SqliteStore
from autofuse.schedule.registry import families
from autofuse.target import GpuHardware, hardware_row, resolve
from autofuse.target.fingerprint import STAND_IN

SIZE = 4096
QUICK = MeasureLimits(timeout=60.0, budget=2.0, min_samples=4, max_samples=6, min_sample=1e-5)
SOURCE = """
__kernel void twice(__global const float* x, __global float* y) { y[get_global_id(0)] = 2.0f * x[get_global_id(0)]; }
__kernel void crash(__global const float* x, __global float* y) { y[(size_t)1 << 40] = x[0]; }
__kernel void hang(__global const float* x, __global volatile float* y) { while (y[0] != 1e30f) y[0] = 0.5f; }
"""


@pytest.fixture(scope="module", autouse=True)
def _pocl() -> None:
    if missing := pocl_missing():
        pytest.skip(missing)


@pytest.fixture(scope="module")
def runner() -> Iterator[GpuRunner]:
    made = GpuRunner(f"opencl:{POCL}")
    yield made
    made.close()


def job(folder: Path, kernel: str, **changes: Any) -> MeasureJob:
    library = folder / f"{kernel}.json"
    launch = {"kernel": kernel, "workgroups": [SIZE // 64, 1, 1], "threads": [64, 1, 1], "arguments": [0, 1]}
    library.write_text(json.dumps({"source": SOURCE, "launches": [launch]}), encoding="utf-8")
    arguments = (ArgumentSpec((SIZE,)), ArgumentSpec((SIZE,), output=True))
    expected = folder / f"{kernel}.npz"
    np.savez(expected, 2 * fill_inputs(arguments, 0)[0])
    made = MeasureJob("key", "candidate", str(library), kernel, arguments, str(expected), limits=QUICK)
    return replace(made, **changes)


def test_a_kernel_is_checked_and_timed_beside_the_references(runner: GpuRunner, tmp_path: Path) -> None:
    (result,) = runner.measure([job(tmp_path, "twice")])
    assert result.status == "ok", result.message
    assert len(result.samples) >= 4 and all(0 < s < 1 for s in result.samples)
    assert {n: len(t) for n, t in result.reference_samples.items()} == dict.fromkeys(
        ("memory", "arithmetic"), len(result.samples)
    )


def test_the_reference_kernels_in_tir_do_what_those_in_opencl_c_do() -> None:
    from dataclasses import asdict

    from autofuse.codegen.amdgpu import compile_device, opencl_source

    session, target = session_with(device_called(POCL)), resolve(TARGET).tvm_target()
    programs = reference_programs(session)
    assert set(programs) == set(references())
    for name, func in references().items():
        source, launches = opencl_source(func, target)
        (theirs,) = [launch for launch in launches if launch.workgroups == (LANES // GROUP, 1, 1)]
        assert theirs.threads == (GROUP, 1, 1) and theirs.arguments == (0, 1)
        data, out = (programs[name].read(i) for i in (0, 1))
        programs[name].launch()
        _, found = session.run(source.encode(), [asdict(theirs)], [data, np.zeros_like(out)])[0]
        np.testing.assert_allclose(found, programs[name].read(1), rtol=1e-5)
        (kernel,) = compile_device(func, target).kernels
        assert kernel.vgpr_spills == kernel.scratch_bytes == kernel.lds_bytes == 0 and kernel.vgprs <= 128
        programs[name].close()


def test_wrong_numbers_crashes_and_hangs_are_results(runner: GpuRunner, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, np.zeros(SIZE, np.float32))
    short = replace(QUICK, timeout=6.0)
    jobs = [
        job(tmp_path, "twice", expected=str(wrong)), job(tmp_path, "crash"), job(tmp_path, "hang", limits=short),
        job(tmp_path, "missing"), job(tmp_path, "twice"),
    ]  # fmt: skip
    found = list(runner.measure(jobs))
    assert [r.status for r in found] == ["wrong", "crashed", "timeout", "crashed", "ok"]
    assert "values are wrong" in found[0].message and "missing" in found[3].message


def test_a_stand_in_is_named_and_never_the_cards_hardware() -> None:
    target, pocl = resolve(TARGET), device_called(POCL)
    assert not pocl.gpu
    row, card = gpu_row(target, pocl), hardware_row(target)
    assert row.architecture == STAND_IN and "in place of" in row.model_name and row.digest != card.digest
    real = gpu_row(target, Device("a platform", "gfx906", (0, 0), gpu=True))
    assert real.architecture == card.architecture and real.digest not in (row.digest, card.digest)
    with pytest.raises(TargetError, match="no OpenCL device 'a card'"):
        GpuRunner("opencl:a card")


def test_learning_takes_a_stand_in_for_other_hardware_than_the_card() -> None:
    target = resolve(TARGET)
    rows = [hardware_row(target), gpu_row(target, device_called(POCL)), hardware_row(resolve("rocm -mcpu=gfx1030"))]
    card, stand_in, other = (describe(RecordedHardware.of(row)) for row in rows)
    assert card == target.gpu_hardware and other == resolve("rocm -mcpu=gfx1030").gpu_hardware
    assert isinstance(stand_in, GpuHardware) and stand_in.isa == "gfx906 stand-in"
    assert stand_in == replace(target.gpu_hardware, name=stand_in.name, isa=stand_in.isa)


@pytest.mark.usefixtures("one_pass")
def test_collect_measures_a_network_through_opencl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "home"))
    onnx.save(small_network(), tmp_path / "small.onnx")
    db = tmp_path / "r.db"
    arguments = [
        "collect", str(tmp_path / "small.onnx"), "--db", str(db), "--target", TARGET, "--opencl", POCL,
        "--configs", "1", "--explore", "0", "--trials", "4", "--json",
    ]  # fmt: skip
    ran = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    counts = json.loads(ran.stdout)
    assert (counts["measured"], counts["failed"]) == (4, 0), counts
    with SqliteStore(db, readonly=True) as store:
        records = list(store.records())
        (hardware,) = {r.hardware for r in records}
        assert hardware == gpu_row(resolve(TARGET), device_called(POCL)).digest
    assert {r.status for r in records} == {"ok"}
    assert {r.family for r in records} <= {f.name for f in families("gpu")} and len({r.family for r in records}) > 1


def test_places_that_do_not_fit_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(small_network(), tmp_path / "small.onnx")
    base = ("collect", tmp_path / "small.onnx", "--db", tmp_path / "r.db")
    monkeypatch.setattr("autofuse.device.opencl.devices", lambda: [])
    monkeypatch.setattr("autofuse.device.modules.devices", lambda *_, **__: [])
    assert "no GPU is found here" in refused(capfd, tmp_path, *base, "--target", TARGET)
    monkeypatch.undo()
    assert "for a GPU" in refused(capfd, tmp_path, *base, "--opencl", POCL)
    on_gpu = (*base, "--target", TARGET, "--opencl", POCL)
    assert "leave out --dask" in refused(capfd, tmp_path, *on_gpu, "--dask", "tcp://127.0.0.1:1")
    assert "give one of them" in refused(capfd, tmp_path, *on_gpu, "--device", "rocm")
    assert "serve" in refused(capfd, tmp_path, *base, "--device", "rocm", "--rpc", "127.0.0.1:1", "--key", "k")
    assert "no OpenCL device" in refused(capfd, tmp_path, *base, "--opencl", "a card", "--target", TARGET)
