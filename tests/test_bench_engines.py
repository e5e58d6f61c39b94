"""Every engine on a tiny network, in processes of their own; engines that are missing, fail, crash or hang."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import autofuse
from autofuse import bench
from autofuse.bench.child import Child
from autofuse.bench.engines import ONNXRUNTIME, EngineSpec, engine_specs
from autofuse.bench.interleave import Pace
from autofuse.bench.peer import Peer, Workload, aligned_copy, missing_packages
from autofuse.bench.runner import BenchCase, measure
from autofuse.bench.worker import Worker, load_peer
from autofuse.errors import EngineError, InputError, ModelError

# Nothing waits for a calm machine: what is timed is not looked at.
QUICK = Pace(rounds=2, budget=10, visit=0.01, most_calls=3, pause=0.001, wake=0.001, retries=0)
REAL = ["onnxruntime", "openvino", "tvm-default", "tvm-greedy"]
if hasattr(autofuse, "compile"):
    REAL += ["autofuse", "greedy", "none"]


def tiny_model(batch: int | str = 1) -> onnx.ModelProto:
    """Conv 3→8 with bias, relu, flatten, gemm to 10 classes, on 6×6 images."""
    random = np.random.default_rng(1)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 4, name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "d"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 10])],
        [weight("w", 8, 3, 3, 3), weight("b", 8), weight("v", 10, 8 * 36), weight("d", 10)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tiny_output(x: np.ndarray) -> np.ndarray:
    """What the network computes, by numpy alone."""
    w, b, v, d = (numpy_helper.to_array(tensor).astype(np.float64) for tensor in tiny_model().graph.initializer)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    convolved = np.einsum("nchwij,ocij->nohw", windows, w) + b[None, :, None, None]
    return np.maximum(convolved, 0).reshape(len(x), -1) @ v.T + d


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> BenchCase:
    folder = tmp_path_factory.mktemp("bench")
    onnx.save_model(tiny_model(), str(folder / "tiny.onnx"))
    np.savez(folder / "inputs.npz", x=np.random.default_rng(2).standard_normal((1, 3, 6, 6)).astype(np.float32))
    return BenchCase("tiny", folder / "tiny.onnx", folder / "inputs.npz", ("x",), ("y",))


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the engines' processes import tests/bench_fakes.py."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def workload(case: BenchCase, **options: object) -> Workload:
    return Workload(str(case.model_path), str(case.inputs_path), case.input_names, case.output_names, 1, options)


def fake(name: str) -> EngineSpec:
    return EngineSpec(name.lower(), f"bench_fakes:{name}")


@pytest.mark.parametrize("name", REAL)
def test_an_engine_gives_the_right_result_and_sane_times(case: BenchCase, name: str) -> None:
    (spec,) = engine_specs([name], compile_options={}, executables={}, extra_peers={})
    with Child(name, spec.peer, 1) as child:
        compiling = child.prepare(workload(case, **spec.options), timeout=120)
        first = child.first_run(timeout=60)
        seconds = child.run(4)
        (output,), kernels = child.outputs()
    assert compiling > 0 and first > 0
    assert len(seconds) == 4 and all(0 < value < 1 for value in seconds)
    expected = tiny_output(np.load(case.inputs_path)["x"])
    np.testing.assert_allclose(output, expected, atol=1e-4 * np.abs(expected).max())
    assert kernels is not None and 1 <= kernels <= 8


def test_a_side_by_side_run_of_a_model_in_memory_compares_outputs_with_onnxruntime() -> None:
    seen: list[str] = []
    result = bench.run(
        tiny_model("n"),
        engines=["openvino", "torch-compile", "onnxruntime"],
        threads=1,
        batch=2,
        pace=QUICK,
        progress=lambda text, done, total: seen.append(text),
    )
    assert [row.engine for row in result.results] == ["openvino", "torch-compile", "onnxruntime"]
    assert (result.threads, result.batch, result.reference) == (1, 2, "onnxruntime")
    openvino, _, onnxruntime = result.results
    assert openvino.error is None and openvino.max_rel_err is not None and openvino.max_rel_err < 1e-4
    assert onnxruntime.max_abs_err == 0.0
    assert openvino.ratio == 1.0 and onnxruntime.ratio is not None and onnxruntime.ratio > 0
    for row in (openvino, onnxruntime):
        assert row.rounds == 2 and row.calls >= 2
        assert row.min_ms is not None and row.median_ms is not None and 0 < row.min_ms <= row.median_ms
    assert set(result.probe) == {"arithmetic", "memory"}
    assert all(len(probe.rounds_ms) == 2 and probe.min_ms > 0 for probe in result.probe.values())
    assert any("openvino" in text for text in seen)


@pytest.mark.usefixtures("fakes")
def test_missing_failing_and_crashing_engines_are_rows_beside_the_good_one(case: BenchCase) -> None:
    names = ["Missing", "RaisesInPrepare", "Segfaults", "DiesLater", "WrongShape", "NotAPeer", "Exact"]
    result = measure(case, [fake(name) for name in names], threads=1, pace=replace(QUICK, rounds=8))
    rows = {row.engine: row for row in result.results}
    assert rows["missing"].error == "libnothing is not installed: pip install nothing"
    assert rows["raisesinprepare"].error == "RuntimeError: operator Foo is not supported"
    assert rows["segfaults"].error is not None
    assert "SIGSEGV" in rows["segfaults"].error and "last words" in rows["segfaults"].error
    died = rows["dieslater"]
    assert died.error is not None and "exited with code 3" in died.error
    assert died.median_ms is not None and 0 < died.rounds < 8
    assert rows["wrongshape"].error is not None and "shape" in rows["wrongshape"].error
    assert rows["wrongshape"].max_abs_err is None
    assert rows["notapeer"].error is not None and "not a Peer" in rows["notapeer"].error
    good = rows["exact"]
    assert good.error is None and good.rounds == 8 and good.kernels == 3 and good.compile_s == 0.25
    assert good.max_rel_err is not None and good.max_rel_err > 0.1, "a wrong result shows as a large error"
    for name in ("missing", "raisesinprepare", "segfaults", "notapeer"):
        assert rows[name].median_ms is None and "\n" not in str(rows[name].error)


@pytest.mark.usefixtures("fakes")
def test_an_engine_that_hangs_is_ended_and_becomes_an_error(case: BenchCase) -> None:
    with Child("hangs", "bench_fakes:Hangs", 1) as child:
        with pytest.raises(EngineError, match=r"no answer to 'prepare' within 1 s"):
            child.prepare(workload(case), timeout=1.0)
        assert child._process.poll() is not None
        with pytest.raises(EngineError):
            child.run(1)


@pytest.mark.usefixtures("fakes")
def test_what_an_engine_prints_does_not_reach_the_replies(case: BenchCase) -> None:
    with Child("chatty", "bench_fakes:Chatty", 1) as child:
        child.prepare(workload(case), timeout=60)
        assert len(child.run(5)) == 5


def test_a_package_that_does_not_import_is_an_error_row(
    case: BenchCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libonnx.so is damaged')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parent)]))
    specs = engine_specs(
        [ONNXRUNTIME, "exact"], compile_options={}, executables={}, extra_peers={"exact": "bench_fakes:Exact"}
    )
    # The unfused build is asked for as a reference then: a fake stands for it, since none of it is tested here.
    specs.append(EngineSpec("none", "bench_fakes:Exact"))
    result = measure(case, specs, threads=1, pace=QUICK)
    assert result.of(ONNXRUNTIME).error == "ImportError: libonnx.so is damaged"
    assert result.reference == "none"
    assert result.of("exact").max_abs_err == 0.0


def test_bad_arguments_are_refused_before_anything_starts() -> None:
    with pytest.raises(EngineError, match="no engine named 'tensorrt'"):
        bench.run(tiny_model(), engines=["tensorrt"])
    with pytest.raises(EngineError, match="threads must be"):
        bench.run(tiny_model(), engines=["onnxruntime"], threads=0)
    with pytest.raises(EngineError, match="no engine to run"):
        bench.run(tiny_model(), engines=[])
    with pytest.raises(EngineError, match="rounds must be"):
        bench.run(tiny_model(), engines=["onnxruntime"], rounds=0)
    with pytest.raises(EngineError, match="option 'cost_model' is a object"):
        bench.run(tiny_model(), engines=["autofuse"], compile_options={"cost_model": object()})
    with pytest.raises(InputError, match=r"'x' must have shape \[1, 3, 6, 6\]"):
        bench.run(tiny_model(), engines=["onnxruntime"], inputs={"x": np.zeros((1, 3), np.float32)})
    with pytest.raises(InputError, match="no input 'z'"):
        bench.run(tiny_model(), engines=["onnxruntime"], inputs={"z": np.zeros(1, np.float32)})
    with pytest.raises(ModelError):
        bench.run("no/such/model.onnx", engines=["onnxruntime"])


def test_the_package_loads_no_engine_and_no_compiler() -> None:
    code = "import autofuse.bench as b, sys; b.known_engines(); b.run; print([m for m in HEAVY if m in sys.modules])"
    heavy = "HEAVY = ['tvm', 'onnx', 'torch', 'onnxruntime', 'openvino', 'rich']\n"
    done = subprocess.run([sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class _Executable:
    """What autofuse.compile returns, as far as a benchmark uses it."""

    kernels = 2

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def save(self, path: str) -> None:
        Path(path).write_text(str(self.scale))

    def __call__(self, x: np.ndarray) -> list[np.ndarray]:
        return [x * self.scale]


def test_autofuse_is_compiled_with_the_options_saved_and_timed_as_read_back(
    case: BenchCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def compile_model(model: object, **options: object) -> _Executable:
        asked.update(options, model=model)
        return _Executable(3.0)

    monkeypatch.setattr(autofuse, "compile", compile_model, raising=False)
    monkeypatch.setattr(autofuse, "load", lambda path: _Executable(float(Path(path).read_text())), raising=False)
    (spec,) = engine_specs(["greedy"], compile_options={"cost_model": "learned"}, executables={}, extra_peers={})
    peer = load_peer(spec.peer)()
    peer.prepare(workload(case, **spec.options))
    peer.run(2)
    x = np.load(case.inputs_path)["x"]
    np.testing.assert_array_equal(peer.outputs()[0], 3.0 * x)
    assert peer.kernels() == 2
    assert asked == {
        "model": str(case.model_path),
        "strategy": "greedy",
        "cost_model": "learned",
        "threads": 1,
    }


def test_a_saved_executable_is_loaded_and_not_compiled(
    case: BenchCase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(autofuse, "load", lambda path: _Executable(float(Path(path).read_text())), raising=False)
    _Executable(5.0).save(str(tmp_path / "saved.so"))
    peer = load_peer("autofuse.bench.peers.autofuse_engine:AutofusePeer")()
    peer.prepare(workload(case, executable=str(tmp_path / "saved.so")))
    peer.run(1)
    np.testing.assert_array_equal(peer.outputs()[0], 5.0 * np.load(case.inputs_path)["x"])


def test_engines_other_than_autofuse_refuse_a_model_that_is_not_onnx(case: BenchCase) -> None:
    relax = Workload("model.relax.txt", str(case.inputs_path), ("x",), ("y",), 1)
    for name in ("onnxruntime", "openvino"):
        (spec,) = engine_specs([name], compile_options={}, executables={}, extra_peers={})
        reply = Worker().answer({"op": "prepare", "peer": spec.peer, "workload": relax.to_json()})
        assert not reply["ok"] and "needs an ONNX model" in reply["error"]


def test_a_worker_refuses_requests_out_of_order_and_unknown_ones(case: BenchCase, tmp_path: Path) -> None:
    worker = Worker()
    assert "before prepare" in worker.answer({"op": "run", "calls": 1})["error"]
    probe = {"op": "prepare", "peer": "autofuse.bench.peers.probe:ProbePeer"}
    assert "no probe named" in worker.answer({**probe, "workload": workload(case, kind="disk").to_json()})["error"]
    assert worker.answer({**probe, "workload": workload(case, kind="arithmetic").to_json()})["ok"]
    assert "unknown request" in worker.answer({"op": "dance"})["error"]
    assert worker.answer({"op": "outputs", "path": str(tmp_path / "o.npz")})["ok"], "one call is made where none was"
    assert [path.name for path in tmp_path.iterdir()] == ["o.npz"]


def test_a_workload_survives_its_journey_as_json(case: BenchCase) -> None:
    sent = workload(case, compile={"strategy": "dp"})
    assert Workload.from_json(sent.to_json()) == sent


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4)])
def test_inputs_are_aligned_copies(shape: tuple[int, ...]) -> None:
    source = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    copy = aligned_copy(source)
    # Nothing is ever loaded from an empty array, and numpy puts a slice of no elements where it likes.
    assert copy.ctypes.data % 64 == 0 or not source.size
    assert copy.flags.c_contiguous and copy.shape == source.shape
    np.testing.assert_array_equal(copy, source)


def test_missing_packages_are_named_with_what_to_do() -> None:
    assert missing_packages({"numpy": "numpy"}, "x") is None
    reason = missing_packages({"numpy": "numpy", "no_such_a": "a", "no_such_b": "b"}, "pip install a b")
    assert reason == "a and b are not installed: pip install a b"


def test_a_peer_must_say_how_to_prepare_and_run() -> None:
    with pytest.raises(TypeError):
        Peer()  # type: ignore[abstract]


def test_a_relax_module_runs_in_the_engines_that_take_one_and_the_others_say_that_they_do_not() -> None:
    from autofuse.frontend import prepare

    x = np.random.default_rng(3).standard_normal((1, 3, 6, 6)).astype(np.float32)
    prepared = prepare(tiny_model())
    result = bench.run(
        prepared.module,
        engines=["tvm-default", "openvino"],
        executables={},
        inputs={prepared.input_names[0]: x},
        threads=1,
        pace=QUICK,
    )
    assert result.of("tvm-default").error is None
    assert result.of("tvm-default").median_ms is not None
    assert "needs an ONNX model" in str(result.of("openvino").error)
