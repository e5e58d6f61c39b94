"""Whole models for a GPU: compiled into a folder, read back, and run on PoCL in the place of a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from gpu_harness import POCL, TARGET, pocl_missing
from small_network import refused

import autofuse
from autofuse.cli import cli
from autofuse.codegen.gpu_executable import GpuExecutable
from autofuse.codegen.gpu_program import GpuProgram
from autofuse.cost.model import Candidate
from autofuse.device.opencl import device_called
from autofuse.errors import InputError, ModelError, TargetError
from autofuse.measure.gpu_runner import gpu_row
from autofuse.measure.kernels import KernelSource
from autofuse.profile import profile
from autofuse.records import open_store
from autofuse.target import resolve

ON = f"opencl:{POCL}"


def network(products: int = 3) -> onnx.ModelProto:
    """Products with an activation behind each: as many kernels."""
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights, name = [], [], "x"
    for i in range(products):
        weights.append(numpy_helper.from_array(random.standard_normal((24, 24)).astype(np.float32), f"w{i}"))
        nodes += [helper.make_node("MatMul", [name, f"w{i}"], [f"p{i}"])]
        nodes += [helper.make_node("Relu", [f"p{i}"], [f"r{i}"])]
        name = f"r{i}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "products", [value("x", TensorProto.FLOAT, [12, 24])],
                              [value(name, TensorProto.FLOAT, [12, 24])], weights)  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="module")
def compiled() -> GpuExecutable:
    made = autofuse.compile(network(), target=TARGET)
    assert isinstance(made, GpuExecutable)
    return made


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(3).standard_normal((12, 24)).astype(np.float32)}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "pocl"))


def right(arrays: dict[str, np.ndarray], products: int = 3) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(network(products).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, arrays)


def test_a_folder_can_be_read_by_people(compiled: GpuExecutable, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model")
    content = json.loads((tmp_path / "model" / "program.json").read_text())
    kernels = {path.name for path in (tmp_path / "model" / "kernels").iterdir()}
    for name in content["program"]["launches"]:
        assert {f"{name}.cl", f"{name}.s"} <= kernels
        assert "__kernel" in (tmp_path / "model" / "kernels" / f"{name}.cl").read_text()
        assert all(k["vgprs"] > 0 for k in content["program"]["resources"][name])
    assert content["description"]["kernels"] == len(content["program"]["steps"]) == compiled.kernels
    assert content["description"]["kind"] == "rocm" and "opencl" in content["description"]["forms"]


def test_code_objects_are_of_a_version_that_dtk_has(compiled: GpuExecutable) -> None:
    if "amdgcn" not in compiled.package.forms:
        pytest.skip("no LLD that links AMDGPU code")
    for code in compiled.package.code("amdgcn").values():
        assert code[:4] == b"\x7fELF" and code[7] == 64 and code[8] == 3


def test_it_runs_on_a_stand_in_and_is_right(
    compiled: GpuExecutable, arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    if missing := pocl_missing():
        pytest.skip(missing)
    compiled.save(tmp_path / "model")
    model = autofuse.load(tmp_path / "model")
    assert isinstance(model, GpuExecutable) and model.plan == compiled.plan
    here = model.on(ON)
    assert not here.device.gpu and "stand-in" in here.device.title
    wanted = right(arrays)
    for _ in range(2):
        for found, want in zip(here(**arrays), wanted, strict=True):
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))
    here.timer(**arrays)()
    seconds = here.seconds(**arrays)
    assert [name for name, _ in seconds] == [step.kernel for step in model.package.program.steps]
    assert all(s >= 0 for _, s in seconds)
    with pytest.raises(InputError, match="takes"):
        here()
    here.close()
    assert len(here(**arrays)) == len(wanted)


def test_nothing_stands_in_for_a_card_unasked(compiled: GpuExecutable, arrays: dict[str, np.ndarray]) -> None:
    from autofuse.device.choose import first_device

    try:
        first_device("rocm")
    except TargetError as error:
        assert "no GPU is found here" in str(error) and "\n" not in str(error)
        with pytest.raises(TargetError, match="no GPU is found here"):
            compiled(**arrays)
    else:
        pytest.skip("this machine has a GPU")


def test_buffers_are_used_again_and_never_while_they_are_read(compiled: GpuExecutable) -> None:
    program = compiled.package.program
    assert GpuProgram.from_json(json.loads(json.dumps(program.to_json()))) == program
    fixed = {*program.inputs, *program.weights}
    written = [step.arguments[-1] for step in program.steps]
    assert not fixed.intersection(written)
    assert len(set(written)) < len(written), "a chain of kernels needs no buffer for each"
    for step in program.steps:
        assert step.arguments[-1] not in step.arguments[:-1]


def test_damaged_folders_are_refused_in_one_line(compiled: GpuExecutable, tmp_path: Path) -> None:
    path = tmp_path / "model"
    compiled.save(path)
    compiled.save(path)  # in the place of the older one
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    content = json.loads((path / "program.json").read_text())

    def refused_with(text: str, says: str) -> None:
        (path / "program.json").write_text(text)
        with pytest.raises(ModelError, match=says) as raised:
            autofuse.load(path)
        assert "\n" not in str(raised.value)

    refused_with("{}", "is no compiled model for a GPU")
    refused_with("[", "is damaged")
    refused_with(json.dumps({**content, "version": 9}), "has version 9")
    refused_with(json.dumps({**content, "weights": []}), "is damaged")
    steps = {**content["program"], "steps": [["nothing", 0]]}
    refused_with(json.dumps({**content, "program": steps}), "is damaged")
    (path / "program.json").write_text(json.dumps(content))
    (path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"weights\.bin"):
        autofuse.load(path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ModelError, match="no compiled model for a GPU"):
        compiled.save(tmp_path / "other")


def test_the_commands_compile_check_and_run(
    arrays: dict[str, np.ndarray], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numpy is made to disagree with a group: its operators take its place, and the store knows of it."""
    if missing := pocl_missing():
        pytest.skip(missing)
    reference = KernelSource.reference

    def disagreeing(self: KernelSource, candidate: Candidate, inputs: Any) -> Any:
        found = reference(self, candidate, inputs)
        return [array + 1 for array in found] if len(candidate.group.members) > 1 else found

    monkeypatch.setattr(KernelSource, "reference", disagreeing)
    onnx.save(network(1), tmp_path / "small.onnx")
    np.savez(tmp_path / "x.npz", **arrays)
    model, out, db = tmp_path / "model", tmp_path / "y.npz", tmp_path / "r.db"
    with open_store(db):
        pass
    base = ("compile", str(tmp_path / "small.onnx"), "--target", TARGET)
    check = ("--check", "--device", ON, "--db", str(db))
    said = CliRunner().invoke(cli, [*base, "-o", str(model), *check], catch_exceptions=False)
    assert "launches" in said.output and "opencl" in said.output and "1 wrong and replaced" in said.output
    compiled = autofuse.load(model)
    families = {entry["family"] for entry in compiled.description["kernel_list"]}
    assert families == {"gpu_gemm", "gpu_elementwise"} and compiled.description["checked"]["right"] == 2
    with open_store(db) as store:
        (record,) = store.records()
    assert (record.status, record.family) == ("wrong", "gpu_gemm")
    assert record.hardware == gpu_row(resolve(TARGET), device_called(POCL)).digest

    run = ["run", str(model), "--input", str(tmp_path / "x.npz"), "--output", str(out)]
    said = CliRunner().invoke(cli, [*run, "--device", ON], catch_exceptions=False)
    assert "stand-in" in said.stderr
    (want,) = right(arrays, 1)
    with np.load(out) as found:
        (array,) = (found[name] for name in found.files)
    np.testing.assert_allclose(array, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))
    assert "device 'fast' is unknown" in refused(capfd, tmp_path, *run, "--device", "fast")
    assert "does not exist" in refused(capfd, tmp_path, *base, "-o", tmp_path / "none" / "model")
    assert "collect" in refused(capfd, tmp_path, *base, "--measure", "1s", "--db", db)
    assert "no OpenCL device" in refused(capfd, tmp_path, *base, "--check", "--device", "opencl:a card")
    assert "is a CPU" in refused(capfd, tmp_path, "compile", tmp_path / "small.onnx", "--device", ON)


def test_a_profile_has_the_times_of_every_kernel(compiled: GpuExecutable, arrays: dict[str, np.ndarray]) -> None:
    if missing := pocl_missing():
        pytest.skip(missing)
    found = profile(compiled, inputs=arrays, runs=2, device=ON)
    assert sum(k.calls for k in found.kernels) == compiled.kernels and found.kernels_ms > 0
    assert found.hardware == "Hygon DCU Z100 / Z100L" and all(k.family.startswith("gpu_") for k in found.kernels)
    assert all(k.predicted_ms is not None and k.gflops > 0 for k in found.kernels)


def test_operators_that_are_no_tensor_programs_are_named() -> None:
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"])]
    graph = helper.make_graph(nodes, "sorts", [value("x", TensorProto.FLOAT, [4, 9])],
                              [value("y", TensorProto.FLOAT, [4, 3])],
                              [numpy_helper.from_array(np.array([3], np.int64), "k")])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(TargetError, match=r"^operators that are no tensor programs do not run on a GPU: [^\n]+$"):
        autofuse.compile(model, target=TARGET)
