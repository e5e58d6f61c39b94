"""What a user gets wrong at the command line is one line, exit code 2 and no file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend_graphs import model, node
from small_network import command, here, image, refused, small_network

import autofuse
from autofuse.codegen.executable import Executable


def test_a_benchmark_that_cannot_be_saved(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ("--strategy", "none", "--against", "", "--rounds", 1, "--threads", 1, "--json")
    line = refused(capfd, tmp_path, "bench", network, *flags, "--save", "/proc/result.json")
    assert "/proc/result.json" in line


@pytest.mark.parametrize(
    "flag",
    [
        ("--target", "foo"),
        ("--cost-model", "learned"),
        ("--predictor", "absent"),
        ("--db", "absent.db"),
        ("--thresholds", "absent.json"),
        ("--plan", "absent.json"),
        ("--max-memory", "-1"),
        ("--budget", "nan"),
        ("--executable", f"a={__file__}"),
        ("--executable", "a=absent.so"),
        ("--save", "."),
    ],
    ids=" ".join,
)
def test_a_benchmark_of_something_else_than_was_asked_for(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], flag: tuple[str, str]
) -> None:
    """Refused before anything runs, rather than a table of failed engines."""
    line = refused(capfd, tmp_path, "bench", network, *flag, "--against", "", "--threads", 1)
    assert any(word in line for word in (flag[1].split("=")[-1], flag[0], flag[0].lstrip("-")))


@pytest.mark.parametrize("budget", ["soon", "m", "", "-5s", "nan", "inf"])
def test_budgets_that_are_no_time(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], budget: str
) -> None:
    assert "--budget" in refused(capfd, tmp_path, "collect", network, "--db", tmp_path / "r.db", "--budget", budget)


def test_collecting_what_cannot_be_read_or_kept_leaves_no_store(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("no store")
    for path, db in (
        (tmp_path / "absent.onnx", tmp_path / "r.db"),
        (network, tmp_path / "folder"),
        (network, tmp_path / "text"),
        (network, tmp_path / "absent" / "r.db"),
        (network, "/proc/r.db"),
    ):
        line = refused(capfd, tmp_path, "collect", path, "--db", db, "--budget", "5s", "--threads", 2)
        assert str(path if "absent.onnx" in str(path) else db) in line


def test_one_output_that_cannot_be_written_leaves_neither(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Found out before compiling: no model without its plan."""
    (tmp_path / "folder").mkdir()
    for plan in (tmp_path / "folder", "/proc/plan.json", tmp_path / "absent" / "plan.json", ""):
        line = refused(capfd, tmp_path, "compile", network, "-o", tmp_path / "o.so", "--save-plan", plan)
        assert "cannot write" in line
    for output in (tmp_path / "folder", "/proc/o.so"):
        assert "cannot write" in refused(capfd, tmp_path, "compile", network, "-o", output)
    assert "cannot write" in refused(capfd, tmp_path, "tune", network, "-o", tmp_path / "folder")
    assert "cannot write" in refused(capfd, tmp_path, "zoo", "export", "shufflenet_v2", "-o", tmp_path / "folder")


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
    # The value is named; so is the flag, where the value is no file, which says by itself what is meant.
    name, value = flag[0].removeprefix("--"), flag[1]
    assert value in line and (name in line or name in ("dump-ir", "db"))


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


def test_a_damaged_plan(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text('{"schema": 1, "groups": ')
    line = refused(capfd, tmp_path, "compile", network, "--plan", tmp_path / "plan.json", "-o", tmp_path / "out.so")
    assert "plan.json" in line


def test_tuning_with_a_predictor_that_is_not_there(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is the predictor, not that thresholds cannot be written beside it."""
    for output in ((), ("-o", tmp_path / "thresholds.json")):
        line = refused(capfd, tmp_path, "tune", network, "--predictor", tmp_path / "absent", *output)
        assert "no predictor in" in line and "autofuse train" in line
