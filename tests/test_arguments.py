"""Arguments of the wrong kind, from Python: one line that names the argument, before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_network import image

import autofuse
from autofuse.arguments import check_arguments
from autofuse.codegen.executable import Executable
from autofuse.errors import AutofuseError, InputError, ModelError

WRONG: list[tuple[str, Any, str]] = [
    ("target", 3, "'llvm'"),
    ("strategy", 3, "'dp'"),
    ("strategy", ["dp"], "'dp'"),
    ("strategy", None, "'dp'"),
    ("strategy", "best", "dp"),
    ("cost_model", 42, "learned"),
    ("cost_model", "guess", "analytical"),
    ("predictor", 1.5, "directory"),
    ("db", b"records.db", "record store"),
    ("input_shapes", [1, 3, 16, 16], "input's name"),
    ("input_shapes", {"image": 16}, "image"),
    ("input_shapes", {"image": "1,3,16,16"}, "image"),
    ("input_shapes", {"image": (1, 3, "16", 16)}, "'16'"),
    ("input_shapes", {"image": (1, 3, 0, 16)}, "1 or more"),
    ("input_shapes", {3: (1, 3, 16, 16)}, "3 (int)"),
    ("batch", 1.5, "1.5"),
    ("batch", 0, "1 or more"),
    ("threads", "x", "'x'"),
    ("threads", True, "True"),
    ("threads", 0, "1 or more"),
    ("plan", {"groups": []}, "Plan"),
    ("thresholds", 3, "Thresholds"),
    ("max_memory", "much", "'much'"),
    ("compile_allowance", float("inf"), "inf"),
    ("fuel", -1, "0 or more"),
    ("fuel", 2.0, "2.0"),
    ("check", 1, "True or False"),
    ("device", 3, "opencl:gfx906"),
    ("dump_ir", 3, "folder"),
    ("progress", "loud", "function"),
]


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text and "\n" not in text and len(text) < 300
    return text


@pytest.mark.parametrize(("name", "value", "word"), WRONG, ids=lambda v: str(v)[:20])
def test_a_wrong_argument_is_named(network: Path, name: str, value: Any, word: str) -> None:
    with pytest.raises(AutofuseError) as caught:
        autofuse.compile(network, **{name: value})
    line = one_line(caught.value)
    assert name.replace("_", " ").split()[-1] in line.replace("-", " ") and word in line


def test_right_arguments_of_every_kind_pass() -> None:
    check_arguments(
        {
            "target": "llvm", "strategy": "dp", "cost_model": None, "predictor": Path("p"), "db": "none",
            "input_shapes": {"x": np.zeros((2, 3)).shape, "y": [np.int64(4)]}, "batch": np.int32(2), "threads": None,
            "plan": "plan.json", "thresholds": None, "max_memory": np.float32(2), "compile_allowance": 10, "fuel": 0,
            "check": True, "device": "rocm", "dump_ir": None, "progress": print,
        }
    )  # fmt: skip


@pytest.mark.parametrize("model", [42, None, [], {"graph": 1}, b"net.onnx"], ids=str)
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(ModelError) as caught:
        autofuse.compile(model)
    assert type(model).__name__ in one_line(caught.value)


class Grown:
    """Looks like a tensor that gives no array."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("cannot call numpy() on a tensor\nthat requires grad")


@pytest.mark.parametrize(
    "bad",
    [
        (),
        (image(8),),
        (image(), image()),
        (None,),
        ("picture",),
        (object(),),
        (Grown(),),
        ([[1.0, 2.0], [3.0]],),
        (image().astype("int32"),),
        (image().astype("complex64"),),
        (image() > 0,),
        (image().astype(object),),
        (np.datetime64("2020-01-01"),),
        ({"image": image()},),
    ],
    ids=lambda arrays: ", ".join(type(a).__name__ for a in arrays) or "nothing",
)
def test_wrong_inputs_are_named(executable: Executable, bad: tuple[Any, ...]) -> None:
    with pytest.raises(InputError) as caught:
        executable(*bad)
    assert "image" in one_line(caught.value)


def test_inputs_by_a_wrong_name_or_twice(executable: Executable) -> None:
    for positional, named in (((), {"picture": image()}), ((image(),), {"image": image()})):
        with pytest.raises(InputError) as caught:
            executable(*positional, **named)
        assert "image" in one_line(caught.value)


def test_wider_floats_and_nested_lists_are_taken(executable: Executable) -> None:
    x = image()
    wanted = executable(x)[0]
    for same in (x.astype("float64"), x.tolist(), np.asfortranarray(x), x[::1]):
        np.testing.assert_array_equal(executable(same)[0], wanted)


@pytest.mark.parametrize("path", [3, None, b"net.so"])
def test_paths_that_are_none(executable: Executable, path: Any) -> None:
    for use in (autofuse.load, executable.save):
        with pytest.raises(ModelError) as caught:
            use(path)
        assert "path" in one_line(caught.value)


def test_a_plan_of_another_kind_of_json(network: Path, tmp_path: Path) -> None:
    for content in ([], {"schema": 99}, {"schema": 1, "groups": 3}):
        (tmp_path / "plan.json").write_text(json.dumps(content))
        with pytest.raises(AutofuseError) as caught:
            autofuse.compile(network, plan=tmp_path / "plan.json", threads=2)
        assert "plan" in one_line(caught.value)
