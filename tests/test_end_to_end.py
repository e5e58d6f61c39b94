"""The whole way, by Python and by command line: compile, save, load, run; and what happens with bad input."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import onnx
import pytest
from frontend_graphs import model, node, weights

import autofuse
from autofuse.cli import main
from autofuse.codegen.executable import Executable
from autofuse.errors import PlanError

COMPILE_KEYS = {
    "model", "target", "strategy", "cost_model", "operators", "kernels", "fusion_ratio", "seconds", "search",
    "predicted_ms", "peak_memory_mb", "output",
}  # fmt: skip
ENGINE_KEYS = {"engine", "median_ms", "iqr_ms", "kernels", "compile_s", "max_abs_err", "max_rel_err", "error"}


def small_network(size: int = 16) -> onnx.ModelProto:
    """A convolution, a depthwise one, a gate, a pool, a classifier."""
    nodes = [
        node("Conv", ["image", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=16),
        node("Sigmoid", ["c2"], ["s2"]),
        node("Mul", ["c2", "s2"], ["m2"]),
        node("GlobalAveragePool", ["m2"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", "w3", "b3"], ["logits"]),
        node("Softmax", ["logits"], ["y"], axis=-1),
    ]
    constants = {
        "w1": weights(16, 3, 3, 3, seed=1),
        "w2": weights(16, 1, 3, 3, seed=2),
        "w3": weights(16, 10, seed=3, scale=1.0),
        "b3": weights(10, seed=4),
    }
    return model(nodes, {"image": [1, 3, size, size]}, ["y"], constants)


def expected(source: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True))))


def close(mine: Sequence[np.ndarray], theirs: Sequence[np.ndarray], tolerance: float = 1e-5) -> None:
    assert len(mine) == len(theirs)
    for left, right in zip(mine, theirs, strict=True):
        assert left.shape == right.shape and left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * max(1.0, float(np.abs(right).max())))


def image(size: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, size, size), dtype=np.float32)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "net.onnx"
    onnx.save(small_network(), path)
    return path


@pytest.fixture(scope="module")
def executable(network: Path) -> Executable:
    return autofuse.compile(network, strategy="dp", threads=2)


def command(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "autofuse", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def here(*arguments: object) -> int:
    """The command line in this process: its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    return int(ended.value.code or 0)


def refused(capfd: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    """The one line of a command that must fail with exit code 2 and leave no file behind."""
    before = sorted(folder.iterdir())
    capfd.readouterr()
    assert here(*arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("error: ") and "Traceback" not in err
    assert sorted(folder.iterdir()) == before
    return err


# Python


def test_compiled_networks_give_what_onnxruntime_gives(executable: Executable) -> None:
    x = image()
    close(executable(x), expected(small_network(), [x]))
    close(executable(image=x), executable(x), tolerance=0)


def test_outputs_follow_inputs(executable: Executable) -> None:
    first, second = image(seed=1), image(seed=2)
    assert not np.allclose(executable(first)[0], executable(second)[0])
    close(executable(first), expected(small_network(), [first]))


def test_outputs_of_one_call_survive_the_next(executable: Executable) -> None:
    kept = executable(image(seed=1))[0]
    copy = kept.copy()
    executable(image(seed=2))
    np.testing.assert_array_equal(kept, copy)


def test_saved_and_loaded(executable: Executable, tmp_path: Path) -> None:
    executable.save(tmp_path / "net.so")
    loaded = autofuse.load(tmp_path / "net.so")
    assert [p.name for p in tmp_path.iterdir()] == ["net.so"]
    assert loaded.plan == executable.plan
    assert loaded.kernels == executable.kernels
    x = image(seed=3)
    close(loaded(x), executable(x), tolerance=0)


def test_fusion_leaves_fewer_kernels(executable: Executable, network: Path) -> None:
    description = executable.description
    assert description["kernels"] < description["operators"]
    assert description["fusion_ratio"] == pytest.approx(description["operators"] / description["kernels"], abs=1e-3)
    greedy = autofuse.compile(network, strategy="greedy", threads=2)
    assert executable.kernels <= greedy.kernels
    assert description["predicted_ms"] <= greedy.description["predicted_ms"] * (1 + 1e-9)


@pytest.mark.parametrize("bad", [(), (image(8),), (image(), image())])
def test_wrong_inputs_are_named(executable: Executable, bad: tuple[np.ndarray, ...]) -> None:
    with pytest.raises(autofuse.AutofuseError) as caught:
        executable(*bad)
    assert "image" in str(caught.value)


def test_one_thread(network: Path, executable: Executable) -> None:
    single = autofuse.compile(network, strategy="dp", threads=1)
    assert single.description["threads"] == 1
    x = image()
    close(single(x), executable(x))


def test_fuel_bounds_the_groups(network: Path, executable: Executable) -> None:
    """0 fuses nothing, 1 the first group only; what it computes stays the same."""
    x = image()
    for fuel in (0, 1):
        made = autofuse.compile(network, strategy="dp", fuel=fuel, threads=2)
        assert sum(len(group.members) > 1 for group in made.plan.groups) == fuel
        close(made(x), executable(x))


def test_memory_limit_holds(network: Path) -> None:
    free = autofuse.compile(network, strategy="none", threads=2).description["peak_memory_mb"]
    limited = autofuse.compile(network, strategy="dp", max_memory=free, threads=2)
    assert 0 < limited.description["peak_memory_mb"] <= free
    with pytest.raises(autofuse.AutofuseError, match="memory"):
        autofuse.compile(network, strategy="dp", max_memory=1e-5, threads=2)


def test_ir_is_dumped_after_each_phase(network: Path, tmp_path: Path) -> None:
    autofuse.compile(network, strategy="dp", threads=2, dump_ir=tmp_path / "ir")
    written = sorted((tmp_path / "ir").iterdir())
    assert [p.name for p in written] == ["1-prepared.py", "2-lowered.py", "3-scheduled.py"]
    for path in written:
        ast.parse(path.read_text())
    assert "call_tir" not in written[0].read_text()
    assert "T.parallel" in written[2].read_text() or "T.vectorized" in written[2].read_text()


def test_a_network_of_the_zoo_at_another_resolution() -> None:
    from autofuse.frontend import zoo

    source = zoo.build("mobilenet_v1")
    made = autofuse.compile("mobilenet_v1", strategy="dp", threads=2, input_shapes={"input": (1, 3, 64, 64)})
    for extent in source.graph.input[0].type.tensor_type.shape.dim[2:]:
        extent.dim_value = 64
    del source.graph.value_info[:]
    x = image(64)
    close(made(x), expected(source, [x]), tolerance=1e-4)
    assert made.kernels < made.description["operators"] / 2


def test_exported_pytorch_programs() -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 6)

        def forward(self, x: Any) -> Any:
            return torch.softmax(self.linear(x) * 2.0, -1)

    x = torch.randn(4, 8)
    network = Network().eval()
    made = autofuse.compile(torch.export.export(network, (x,)), strategy="dp", threads=2)
    close(made(x.numpy()), [network(x).detach().numpy()])


# Command line


def test_compile_and_run_by_command(network: Path, executable: Executable, tmp_path: Path) -> None:
    done = command("compile", network, "-o", "net.so", "--strategy", "dp", "--threads", 2, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == COMPILE_KEYS
    assert set(report["seconds"]) == {"import", "prepare", "search", "codegen", "total"}
    assert {"states", "transitions", "proved_optimal"} <= set(report["search"])
    assert report["strategy"] == "dp" and report["cost_model"] == "analytical" and report["output"] == "net.so"
    assert report["kernels"] == executable.kernels and report["operators"] == executable.description["operators"]
    assert report["predicted_ms"] > 0 and report["peak_memory_mb"] > 0
    assert sum(report["seconds"].values()) - report["seconds"]["total"] <= report["seconds"]["total"] * 1.01
    x = image(seed=5)
    np.savez(tmp_path / "x.npz", image=x)
    done = command("run", "net.so", "--input", "x.npz", "--output", "y.npz", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "y.npz") as results:
        assert results.files == ["y"]
        close([results["y"]], expected(small_network(), [x]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.so", "x.npz", "y.npz"]


def test_bench_by_command(network: Path, tmp_path: Path) -> None:
    flags = ("--strategy", "dp", "--against", "greedy,onnxruntime", "--rounds", 2, "--threads", 2, "--json")
    done = command("bench", network, *flags, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {"model", "threads", "results", "probe"} <= set(report)
    assert report["threads"] == 2
    assert [row["engine"] for row in report["results"]] == ["autofuse", "greedy", "onnxruntime"]
    for row in report["results"]:
        assert set(row) >= ENGINE_KEYS
        assert row["error"] is None and row["median_ms"] > 0 and row["max_rel_err"] < 1e-4


def test_a_benchmark_that_cannot_be_saved(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ("--strategy", "none", "--against", "", "--rounds", 1, "--threads", 1, "--json")
    line = refused(capfd, tmp_path, "bench", network, *flags, "--save", "/proc/result.json")
    assert "/proc/result.json" in line


def test_bad_input_by_command(tmp_path: Path) -> None:
    done = command("compile", "absent.onnx", "-o", "out.so", "--json", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and "absent.onnx" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    line = refused(capfd, tmp_path, "compile", tmp_path / "text.onnx", "-o", tmp_path / "out.so")
    assert "text.onnx" in line


def test_an_operator_that_nobody_knows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("Relu", ["x"], ["r"])], {"x": [2, 2]}, ["r"])
    source.graph.node.append(onnx.helper.make_node("Frobnicate", ["r"], ["y"], name="odd", domain="com.example"))
    source.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    source.graph.output[0].name = "y"
    onnx.save(source, tmp_path / "odd.onnx")
    line = refused(capfd, tmp_path, "compile", tmp_path / "odd.onnx", "-o", tmp_path / "out.so")
    assert "Frobnicate" in line


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ("picture=1,3,16,16", "picture"),
        ("image=1,5,16,16", "Conv_c1"),
        ("image=16", "image"),
        ("image:1,3", "image:1,3"),
    ],
)
def test_shapes_that_do_not_fit(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], shape: str, named: str
) -> None:
    line = refused(capfd, tmp_path, "compile", network, "-o", tmp_path / "out.so", "--input-shape", shape)
    assert named in line


def test_an_unknown_shape_needs_the_option(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = small_network()
    source.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(source, tmp_path / "free.onnx")
    line = refused(capfd, tmp_path, "compile", tmp_path / "free.onnx", "-o", tmp_path / "out.so")
    assert "image" in line and "--input-shape" in line
    fixed = ("--input-shape", "image=1,3,20,16", "--threads", 2, "--json")
    assert here("compile", tmp_path / "free.onnx", "-o", tmp_path / "out.so", *fixed) == 0
    assert autofuse.load(tmp_path / "out.so").description["inputs"][0]["shape"] == [1, 3, 20, 16]


def test_a_folder_that_is_not_there(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "absent" in refused(capfd, tmp_path, "compile", network, "-o", tmp_path / "absent" / "out.so")


def test_too_little_memory(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = refused(
        capfd, tmp_path, "compile", network, "-o", tmp_path / "out.so", "--strategy", "dp", "--max-memory", "0.00001"
    )
    assert "memory" in line


@pytest.mark.parametrize(
    "flag",
    [
        ("--strategy", "best"),
        ("--threads", "0"),
        ("--fuel", "-1"),
        ("--max-memory", "nan"),
        ("--compile-allowance", "-5"),
        ("--dump-ir", __file__),
        ("--db", "absent.db"),
    ],
)
def test_flags_that_make_no_sense(
    network: Path, tmp_path: Path, flag: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(capfd, tmp_path, "compile", network, "-o", tmp_path / "out.so", *flag)
    assert flag[0].removeprefix("--") in line or flag[1] in line


def test_running_what_is_no_compiled_model(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", image=image())
    line = refused(capfd, tmp_path, "run", network, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz")
    assert "compiled model" in line


def test_running_with_the_wrong_arrays(
    executable: Executable, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    executable.save(tmp_path / "net.so")
    np.savez(tmp_path / "x.npz", picture=image())
    arguments = ("run", tmp_path / "net.so", "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz")
    line = refused(capfd, tmp_path, *arguments)
    assert "picture" in line and "image" in line


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "no archive", "object"])
def test_running_with_a_damaged_archive(
    executable: Executable, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    executable.save(tmp_path / "net.so")
    path = tmp_path / "x.npz"
    np.savez(path, image=image())
    whole = path.read_bytes()
    middle = len(whole) // 2
    if damage == "no archive":
        with path.open("wb") as file:
            np.save(file, image())
    elif damage == "object":
        np.savez(path, image=np.array([{}], dtype=object))
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        path.write_bytes({"cut": whole[:600], "flipped": flipped, "text": b"text"}[damage])
    line = refused(capfd, tmp_path, "run", tmp_path / "net.so", "--input", path, "--output", tmp_path / "y.npz")
    assert "x.npz" in line


def test_results_that_cannot_be_written(
    executable: Executable, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    executable.save(tmp_path / "net.so")
    np.savez(tmp_path / "x.npz", image=image())
    (tmp_path / "folder").mkdir()
    for output in (tmp_path / "folder", Path("/proc/y.npz")):
        line = refused(capfd, tmp_path, "run", tmp_path / "net.so", "--input", tmp_path / "x.npz", "--output", output)
        assert str(output) in line


def test_plans_are_built_again_and_only_for_their_graph(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "net.so"
    assert here("compile", network, "--strategy", "dp", "--threads", 2, "--save-plan", plan, "--json") == 0
    first = json.loads(capfd.readouterr().out)
    assert here("compile", network, "--plan", plan, "-o", out, "--threads", 2, "--json") == 0
    second = json.loads(capfd.readouterr().out)
    assert second["kernels"] == first["kernels"]
    again = autofuse.load(out)
    content = json.loads(plan.read_text())
    assert [list(g.members) for g in again.plan.groups] == [g["members"] for g in content["groups"]]
    assert [g.config for g in again.plan.groups] == [g["config"] for g in content["groups"]]
    x = image()
    close(again(x), expected(small_network(), [x]))
    other = tmp_path / "other.onnx"
    onnx.save(small_network(24), other)
    line = refused(capfd, tmp_path, "compile", other, "--plan", plan, "-o", tmp_path / "other.so")
    assert "plan" in line and "graph" in line


def test_a_damaged_plan(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text('{"schema": 1, "groups": ')
    line = refused(capfd, tmp_path, "compile", network, "--plan", tmp_path / "plan.json", "-o", tmp_path / "out.so")
    assert "plan.json" in line


@pytest.mark.parametrize(
    "change", [{"family": "absent"}, {"family": ""}, {"config": "odd"}, {"seconds": float("nan")}], ids=str
)
def test_a_plan_with_a_damaged_group(network: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    plan = autofuse.compile(network, strategy="dp", threads=2).plan.to_json()
    position = next(i for i, group in enumerate(plan["groups"]) if len(group["members"]) > 1)
    plan["groups"][position].update(change)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(PlanError, match=f"damaged: group {position}"):
        autofuse.compile(network, plan=tmp_path / "plan.json", threads=2)


def test_explanations(network: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert here("explain", network, "--all", "--threads", 2, "--json") == 0
    out, _ = capfd.readouterr()
    assert len(json.loads(out)["edges"]) >= 8


def test_the_zoo_is_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shuffle.onnx"
    assert here("zoo", "export", "shufflenet_v2", "-o", path) == 0
    onnx.checker.check_model(str(path))
    assert "resnet51" in refused(capfd, tmp_path, "zoo", "export", "resnet51", "-o", tmp_path / "n.onnx")


def test_help_loads_no_compiler() -> None:
    code = "import sys, autofuse, autofuse.cli; sys.exit(bool({'tvm', 'onnx', 'xgboost', 'optuna'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
