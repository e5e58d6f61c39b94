"""ROCm's and CUDA's drivers without a card: a library with their calls stands in, its code objects are the CPU's."""

from __future__ import annotations

import base64
import ctypes
import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autofuse.device.choose import device_of, first_device, session
from autofuse.device.modules import devices
from autofuse.errors import TargetError
from autofuse.measure import ArgumentSpec, MeasureJob, MeasureLimits
from autofuse.measure.gpu_runner import GpuRunner, devices_here, form_of, forms_of, gpu_row
from autofuse.measure.jobs import fill_inputs
from autofuse.target import hardware_row, resolve
from autofuse.target.fingerprint import STAND_IN

SIZE = 256
QUICK = MeasureLimits(timeout=60.0, budget=0.5, min_samples=4, max_samples=6, min_sample=1e-5)
KERNELS = """
void twice(void **at, unsigned block, unsigned thread) {
  ((float *)at[1])[block * 64 + thread] = 2.0f * ((float *)at[0])[block * 64 + thread];
}
void crash(void **at, unsigned block, unsigned thread) { *(volatile float *)((long)block + thread) = 1.0f; }
void hang(void **at, unsigned block, unsigned thread) { for (volatile float *x = at[0];;) *x = 0.5f; }
"""
VARIABLES = {"rocm": "AUTOFUSE_HIP", "cuda": "AUTOFUSE_CUDA"}
TARGETS = {"rocm": "dcu-z100", "cuda": "nvidia-h200"}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The driver, and the code of KERNELS."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "kernels.c").write_text(KERNELS)
    driver, code = folder / "driver.so", folder / "kernels.so"
    source = Path(__file__).with_name("driver_stand_in.c")
    command = [compiler, "-O1", "-shared", "-fPIC"]
    subprocess.run([*command, "-Wall", "-Werror", str(source), "-o", str(driver), "-ldl"], check=True)
    subprocess.run([*command, str(folder / "kernels.c"), "-o", str(code)], check=True)
    return driver, code.read_bytes()


@pytest.fixture(params=["rocm", "cuda"])
def driver(request: pytest.FixtureRequest, libraries: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    monkeypatch.setenv(VARIABLES[name], str(libraries[0]))
    monkeypatch.setattr("autofuse.device.choose.gpus_here", lambda: ())
    monkeypatch.setattr("autofuse.device.choose.nvidia_here", lambda: ())
    return name


def launch(kernel: str) -> dict[str, Any]:
    return {"kernel": kernel, "workgroups": [SIZE // 64, 1, 1], "threads": [64, 1, 1], "arguments": [0, 1]}


def test_kernels_run_and_everything_is_given_back(driver: str, libraries: tuple[Path, bytes]) -> None:
    living = ctypes.CDLL(str(libraries[0])).stand_in_living
    with_device = session(device_of(f"{driver}:1"))
    assert with_device.form == {"rocm": "amdgcn", "cuda": "cuda"}[driver]
    x = np.arange(SIZE, dtype=np.float32)
    before = living()
    (same, twice), (seconds,) = with_device.run(libraries[1], [launch("twice")], [x, np.zeros_like(x)])
    assert (same == x).all() and (twice == 2 * x).all() and 0 <= seconds < 1
    with pytest.raises(TargetError, match="failed with error 500"):
        with_device.run(libraries[1], [launch("missing")], [x, x])
    with pytest.raises(TargetError, match="failed with error 209"):
        with_device.run(b"no code object", [launch("twice")], [x, x])
    with pytest.raises(TargetError, match="failed with error 2"):
        with_device.allocate(1 << 40)
    assert living() == before
    with ThreadPoolExecutor(1) as pool:  # another thread, where nothing is chosen yet
        (_, again), _ = pool.submit(with_device.run, libraries[1], [launch("twice")], [x, np.zeros_like(x)]).result()
    assert (again == 2 * x).all()


def test_what_no_tool_lists_is_a_stand_in(driver: str) -> None:
    found = devices(driver, gpu=False)
    assert [d.name for d in found] == ["stand-in 0", "stand-in 1"]
    device = device_of(driver)
    assert not device.gpu and "stand-in: no GPU" in device.title and device_of(device.text) == device
    with pytest.raises(TargetError, match=r"^no GPU is found here[^\n]+$"):
        first_device(driver)
    with pytest.raises(TargetError, match="has 2 devices"):
        device_of(f"{driver}:2")
    with pytest.raises(TargetError, match="is unknown"):
        device_of(f"{driver}:first")


def test_a_stand_in_has_a_hardware_row_of_its_own_and_a_card_its_own(driver: str) -> None:
    target = resolve(TARGETS[driver])
    card, device = hardware_row(target), device_of(driver)
    stand_in = gpu_row(target, device)
    assert stand_in.architecture == STAND_IN and "in place of" in stand_in.model_name
    real = gpu_row(target, replace(device, gpu=True))
    through = gpu_row(target, replace(device, gpu=True, driver="opencl"))
    assert real.digest == card.digest and len({card.digest, stand_in.digest, through.digest}) == 3
    form = {"rocm": "amdgcn", "cuda": "cuda"}[driver]
    assert [form_of(row) for row in (real, stand_in, through)] == [form, form, "opencl"]


def test_devices_are_listed_by_a_process_of_its_own(driver: str) -> None:
    listed = dict(devices_here(driver))
    assert "stand-in: no GPU" in listed[f"{driver}:1"]


def test_a_real_card_is_first(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofuse.device.choose.gpus_here", lambda: ("gfx906",))
    monkeypatch.setattr("autofuse.device.choose.nvidia_here", lambda: (("sm_90", "NVIDIA H200"),))
    device = first_device(driver)
    assert device.gpu and device.driver == driver and device.text == f"{driver}:0"


def test_code_for_an_older_relative_is_not_given_to_a_card(driver: str) -> None:
    with pytest.raises(TargetError, match="takes DTK's own compiler"):
        GpuRunner("rocm", resolve("dcu-bw1000"))
    assert forms_of(resolve("dcu-bw1000")) == ("opencl",)
    assert forms_of(resolve(TARGETS[driver])) == ("opencl", {"rocm": "amdgcn", "cuda": "cuda"}[driver])


@pytest.mark.parametrize(
    ("path", "says"), [("/none", "no .* driver is installed: install"), (__file__, "is no .* driver")]
)
def test_a_missing_driver_is_one_line(driver: str, path: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLES[driver], path)
    with pytest.raises(TargetError, match=says) as raised:
        device_of(driver)
    assert "\n" not in str(raised.value)


def test_the_runner_checks_times_and_survives(driver: str, libraries: tuple[Path, bytes], tmp_path: Path) -> None:
    code = base64.b64encode(libraries[1]).decode()
    references = tmp_path / "references.json"
    content = {"code": code, "launches": [launch("twice")]}
    references.write_text(json.dumps({"memory": content, "arithmetic": content}))
    arguments = (ArgumentSpec((SIZE,)), ArgumentSpec((SIZE,), output=True))
    np.savez(tmp_path / "right.npz", 2 * fill_inputs(arguments, 0)[0])
    np.savez(tmp_path / "wrong.npz", np.zeros(SIZE, np.float32))

    def job(kernel: str, expected: str = "right", **limits: float) -> MeasureJob:
        library = tmp_path / f"{kernel}.json"
        library.write_text(json.dumps({"code": code, "launches": [launch(kernel)]}))
        return MeasureJob("key", kernel, str(library), kernel, arguments, str(tmp_path / f"{expected}.npz"),
                          reference="arithmetic", limits=replace(QUICK, **limits))  # fmt: skip

    jobs = [job("twice"), job("twice", "wrong"), job("crash"), job("hang", timeout=1.0), job("missing"), job("twice")]
    with GpuRunner(driver, references=references) as runner:
        found = list(runner.measure(jobs))
    assert [r.status for r in found] == ["ok", "wrong", "crashed", "timeout", "crashed", "ok"]
    assert len(found[0].samples) >= 4 and set(found[0].reference_samples) == {"memory", "arithmetic"}
