"""A compiled model: called by position and by name, from several threads, saved and loaded elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from frontend_graphs import model, node, weights
from onnx import TensorProto

import autofuse
from autofuse.codegen import executable as executable_module
from autofuse.codegen import threads as threads_module
from autofuse.codegen.executable import Executable
from autofuse.errors import AutofuseError, InputError, ModelError, TargetError
from autofuse.target.host import places


def source() -> Any:
    """An image, token numbers and a scalar; two outputs, a matrix and a scalar."""
    return model(
        [
            node("Conv", ["image.1", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("GlobalAveragePool", ["b"], ["c"]),
            node("Flatten", ["c"], ["d"]),
            node("Gather", ["table", "ids"], ["e"], axis=0),
            node("MatMul", ["e", "w2"], ["f"]),
            node("Add", ["d", "f"], ["g"]),
            node("Mul", ["g", "scale"], ["matrix"]),
            node("ReduceSum", ["matrix"], ["total"], keepdims=0),
        ],
        {"image.1": [1, 3, 8, 8], "ids": ([4], TensorProto.INT64), "scale": []},
        ["matrix", "total"],
        {"w": weights(12, 3, 3, 3), "table": weights(9, 6), "w2": weights(6, 12)},
    )


@pytest.fixture(scope="module")
def compiled() -> Executable:
    return autofuse.compile(source(), strategy="dp", threads=2)


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image.1": rng.standard_normal((1, 3, 8, 8)).astype("float32"),
        "ids": np.int64([3, 0, 8, 3]),
        "scale": np.array(1.5, "float32"),
    }


@pytest.fixture(scope="module")
def expected(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(source().SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


@pytest.fixture(scope="module")
def saved(compiled: Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.so"
    compiled.save(path)
    return path


def close(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, atol=1e-4)


def test_positions_names_and_both(
    compiled: Executable, inputs: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    assert compiled.input_names == tuple(inputs)
    assert compiled.output_names == ("matrix", "total")
    close(compiled(*inputs.values()), expected)
    close(compiled(**dict(reversed(inputs.items()))), expected)
    close(compiled(inputs["image.1"], scale=inputs["scale"], ids=inputs["ids"]), expected)


def test_arrays_may_be_unaligned_strided_or_of_another_width(
    compiled: Executable, inputs: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    image = inputs["image.1"]
    raw = np.empty(image.nbytes + 1, "uint8")
    unaligned = raw[1:].view("float32").reshape(image.shape)
    unaligned[...] = image
    assert unaligned.ctypes.data % 4
    strided = np.zeros((1, 3, 8, 16), "float32")[..., ::2]
    strided[...] = image
    for array in (unaligned, strided, image.astype("float64"), np.asfortranarray(image)):
        close(compiled(array, inputs["ids"].astype("int32"), 1.5), expected)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + 64, "uint8")
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_aligned_arrays_are_read_in_place_and_left_as_they_were(
    compiled: Executable, inputs: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    given = {name: aligned(array) for name, array in inputs.items()}
    close(compiled(**given), expected)
    for name, array in inputs.items():
        np.testing.assert_array_equal(given[name], array)
        given[name].flags.writeable = False
    close(compiled(**given), expected)


def test_what_is_handed_through_is_never_the_caller_s_array_or_a_weight() -> None:
    table = np.arange(16, dtype="float32").reshape(4, 4)
    through = model(
        [
            node("Identity", ["x"], ["same"]),
            node("Identity", ["table"], ["constant"]),
            node("Relu", ["x"], ["y"]),
            node("Identity", ["y"], ["z"]),
        ],
        {"x": [4, 4]},
        {name: [4, 4] for name in ("same", "constant", "y", "z")},
        {"table": table},
    )
    exe = autofuse.compile(through, threads=2)
    x = aligned(np.ones((4, 4), "float32"))
    results = exe(x)
    for result, value in zip(results, (x, table, x, x), strict=True):
        np.testing.assert_array_equal(result, value)
    for result in results:
        result[...] = -5
        np.testing.assert_array_equal(x, np.ones((4, 4)))
    for result, value in zip(exe(x), (x, table, x, x), strict=True):
        np.testing.assert_array_equal(result, value)
    for i, one in enumerate(results):
        assert not any(np.shares_memory(one, other) for other in results[i + 1 :])


def test_results_are_the_caller_s_own(compiled: Executable, inputs: dict[str, np.ndarray]) -> None:
    first = compiled(**inputs)
    kept = [r.copy() for r in first]
    compiled(**{**inputs, "scale": np.float32(-7)})
    close(first, kept)
    first[0][...] = 0
    close(compiled(**inputs), kept)


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        ([], ["image.1", "ids"], "input 'scale' is missing"),
        (["image.1"], ["image.1", "ids", "scale"], "'image.1' was given twice"),
        ([], ["image.1", "ids", "scale", "other"], "has no input 'other'"),
        (["image.1", "ids", "scale", "scale"], [], "takes 3 inputs .* 4 were given"),
        (["ids", "ids", "scale"], [], r"'image.1' has shape \(4,\).*--input-shape image.1=4"),
        (["image.1", "scale", "scale"], [], r"'ids' has shape \(\)"),
        (["image.1", "halves", "scale"], [], "'ids' has dtype float32, small takes int64"),
        (["words", "ids", "scale"], [], "'image.1' has dtype"),
        (["nothing", "ids", "scale"], [], "'image.1' has dtype object, small takes float32"),
        (["text", "ids", "scale"], [], "'image.1' has dtype <U5, small takes float32"),
        (["scale", "ids", "scale"], [], r"'image.1' has shape \(\), small was compiled for \(1, 3, 8, 8\)$"),
        (["empty", "ids", "scale"], [], r"'image.1' has shape \(0, 3, 8, 8\), small was compiled for \(1, 3, 8, 8\)$"),
        (["ragged", "ids", "scale"], [], "'image.1' is no array"),
    ],
)
def test_inputs_that_do_not_fit_are_one_clear_line(
    compiled: Executable, inputs: dict[str, np.ndarray], positional: list[str], named: list[str], message: str
) -> None:
    more = {**inputs, "other": np.zeros(1), "halves": np.zeros(4, "float32"), "words": np.full((1, 3, 8, 8), "a")}
    more |= {"nothing": None, "text": "image", "empty": np.zeros((0, 3, 8, 8), "float32")}  # type: ignore[dict-item]
    more["ragged"] = [[1.0], [1.0, 2.0]]  # type: ignore[assignment]
    with pytest.raises(InputError, match=message) as caught:
        compiled(*(more[n] for n in positional), **{n: more[n] for n in named})
    assert "\n" not in str(caught.value)


def test_an_input_may_be_called_self() -> None:
    made = autofuse.compile(model([node("Relu", ["self"], ["y"])], {"self": [3]}, ["y"]), strategy="none")
    np.testing.assert_array_equal(made(**{"self": np.float32([-1, 0, 2])})[0], [0, 0, 2])


def test_several_threads_call_one_executable(
    compiled: Executable, inputs: dict[str, np.ndarray], expected: list[np.ndarray]
) -> None:
    barrier = threading.Barrier(4)

    def work(number: int) -> bool:
        barrier.wait()
        scale = np.float32(number + 1)
        for _ in range(10):
            matrix, _ = compiled(inputs["image.1"], inputs["ids"], scale)
            np.testing.assert_allclose(matrix, expected[0] / 1.5 * scale, atol=1e-4)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_a_saved_model_gives_identical_results_in_another_process(
    compiled: Executable, saved: Path, inputs: dict[str, np.ndarray], tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", **inputs)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "autofuse", "run", str(saved), "--input", "x.npz", "--output", "y.npz"]
    # The process decides by itself how many threads it takes.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TVM_")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "matrix [4, 12]" in done.stdout
    with np.load(tmp_path / "y.npz") as results:
        for name, mine in zip(compiled.output_names, compiled(**inputs), strict=True):
            np.testing.assert_array_equal(results[name], mine)


def test_a_loaded_model_is_the_same_and_can_be_saved_again(
    compiled: Executable, saved: Path, inputs: dict[str, np.ndarray], tmp_path: Path
) -> None:
    loaded = autofuse.load(saved)
    assert {**loaded.description, "weights": 0, "format": 0} == {
        **json.loads(json.dumps(compiled.description)), "weights": 0, "format": 0,
    }  # fmt: skip
    assert loaded.kernels == compiled.kernels == len(loaded.description["kernel_list"])
    assert loaded.plan == compiled.plan
    loaded.save(tmp_path / "a model without ending")
    again = autofuse.load(tmp_path / "a model without ending")
    for mine, other in zip(again(**inputs), compiled(**inputs), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_saving_where_nothing_can_be_written_is_one_clear_line(compiled: Executable, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot write"):
        compiled.save(tmp_path / "no such folder" / "model.so")


def test_a_cpu_without_the_instructions_is_refused_before_the_code_is_loaded(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm_ffi

    path = tmp_path / "model.so"
    path.write_bytes(saved.read_bytes())
    monkeypatch.setattr(executable_module, "missing_features", lambda features: ("avx1024", "amx9"))
    monkeypatch.setattr(tvm_ffi, "load_module", lambda path: pytest.fail("the code was loaded"))
    with pytest.raises(TargetError, match="this CPU lacks avx1024, amx9; compile the model again"):
        autofuse.load(path)


def test_a_library_that_does_not_load_is_one_clear_line(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"no library" + saved.read_bytes()[10:])
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        autofuse.load(path)
    assert isinstance(caught.value, AutofuseError)
    assert "\n" not in str(caught.value)


def test_the_functions_of_a_call_can_be_observed(compiled: Executable, inputs: dict[str, np.ndarray]) -> None:
    seen: list[tuple[str, bool]] = []
    observed = Executable(compiled.library, compiled.weights, compiled.description)
    observed.instrument(lambda name, before: seen.append((name, before)))
    observed(**inputs)
    names = {e["name"] for e in compiled.description["kernel_list"]}
    order = [(n, b) for n, b in seen if n in names]
    assert len(order) == 2 * compiled.kernels
    assert order[::2] == [(n, True) for n, _ in order[::2]]
    assert order[1::2] == [(n, False) for n, _ in order[::2]]


def in_new_thread(work: Any) -> Any:
    """The result of `work` on a thread that has run no kernel yet."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_a_thread_s_pool_shrinks_and_grows_up_to_its_first_size(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm

    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(tvm, "get_global_func", lambda name: lambda mode, count: asked.append((mode, count)))
    monkeypatch.setattr(threads_module.os, "environ", {})
    monkeypatch.setattr(threads_module, "places", lambda: (0, 1, 2))

    def work() -> dict[str, str]:
        threads_module.configure_threads(2)
        threads_module.configure_threads(2)
        threads_module.configure_threads(1)
        threads_module.configure_threads(2)
        with pytest.warns(UserWarning, match="2 threads already: 4 need a new process"):
            threads_module.configure_threads(4)
        return dict(threads_module.os.environ)

    set_to = in_new_thread(work)
    assert (set_to["TVM_NUM_THREADS"], set_to["TVM_BIND_THREADS"]) == ("2", "0")
    assert int(set_to["TVM_THREAD_POOL_SPIN_COUNT"]) < 100_000
    assert [count for _, count in asked] == [1, 2]


def _allowed() -> dict[int, set[int]]:
    """The processors that each thread of this process may run on."""
    return {int(task): os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}


bound = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(places()) < 2, reason="binding needs Linux and two processors"
)


@bound
def test_in_a_process_that_only_times_each_thread_of_a_pool_of_all_processors_has_one() -> None:
    def work() -> tuple[list[set[int]], set[int]]:
        there = set(_allowed())
        threads_module.stay_at_home(len(places()))
        return [cpus for task, cpus in _allowed().items() if task not in there], os.sched_getaffinity(0)

    before = os.sched_getaffinity(0)
    workers, caller = in_new_thread(work)
    assert caller == {places()[0]} and os.sched_getaffinity(0) == before
    # Whatever TVM starts beside its pool is bound to nothing of this.
    assert [{cpu} for cpu in places()[1:]] == sorted(cpus for cpus in workers if len(cpus) == 1 and cpus != caller)


@bound
def test_other_pools_are_left_to_the_scheduler() -> None:
    def timing_on_one() -> set[int]:
        threads_module.stay_at_home(1)
        return os.sched_getaffinity(0)

    def running_on_all() -> set[int]:
        threads_module.configure_threads(len(places()))
        return os.sched_getaffinity(0)

    assert in_new_thread(timing_on_one) == in_new_thread(running_on_all) == os.sched_getaffinity(0)


def test_every_thread_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module.os, "environ", {})
    in_new_thread(lambda: threads_module.configure_threads(1))

    def work() -> str:
        threads_module.configure_threads(3)
        return str(threads_module.os.environ["TVM_NUM_THREADS"])

    assert in_new_thread(work) == "3"
