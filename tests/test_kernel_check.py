"""`check`: kernels that give other numbers than numpy, or crash, are found before they are used, and replaced."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from codegen_cases import two_branches
from frontend_graphs import model, node, weights
from tvm import tirx

import autofuse
from autofuse.errors import TargetError
from autofuse.schedule.cpu.conv2d import Conv2dFamily
from autofuse.schedule.cpu.elementwise import ElementwiseFamily


def image() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((1, 8, 6, 6)).astype("float32")


@pytest.fixture(scope="module")
def right() -> list[np.ndarray]:
    return autofuse.compile(two_branches(), threads=2)(image())  # type: ignore[no-any-return]


def nothing(func: Any, *_: Any) -> Any:
    """A schedule that leaves out everything."""
    return func.with_body(tirx.Evaluate(tirx.const(0, "int32")))


def trap(func: Any, *_: Any) -> Any:
    """A schedule that crashes."""
    return func.with_body(tirx.Evaluate(tirx.call_llvm_intrin("void", "llvm.trap")))


def test_right_kernels_are_kept(right: list[np.ndarray], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "autofuse"):
        made = autofuse.compile(two_branches(), threads=2, check=True)
    names = {entry["name"] for entry in made.description["kernel_list"]}
    assert made.description["checked"] == {"right": len(names), "wrong": 0, "unchecked": 0}
    assert not caplog.records
    np.testing.assert_array_equal(made(image())[0], right[0])


@pytest.mark.parametrize("schedule", [nothing, trap], ids=["wrong", "crashed"])
def test_what_is_wrong_is_replaced_with_a_warning(
    schedule: Any, right: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The convolutions' family fails: they are taken apart, then other families take them."""
    monkeypatch.setattr(Conv2dFamily, "apply", lambda self, func, *more: schedule(func))
    with caplog.at_level(logging.WARNING, "autofuse"):
        made = autofuse.compile(two_branches(), threads=2, check=True)
    assert not {e["family"] for e in made.description["kernel_list"]} & {"conv2d", "conv2d_pool"}
    assert made.description["checked"]["wrong"] > 0
    assert ("are wrong" if schedule is nothing else "crashed") in caplog.text
    np.testing.assert_allclose(made(image())[0], right[0], atol=1e-5)


def test_where_everything_is_wrong_the_loops_are_tvm_s(
    right: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from autofuse.codegen import kernels

    monkeypatch.setattr(ElementwiseFamily, "apply", lambda self, func, *more: nothing(func))
    monkeypatch.setattr(kernels, "families", lambda kind: (ElementwiseFamily(),))
    with caplog.at_level(logging.WARNING, "autofuse"):
        made = autofuse.compile(two_branches(), threads=2, strategy="none", check=True)
    assert "plain loops" in caplog.text
    assert "elementwise" not in {e["family"] for e in made.description["kernel_list"]}
    np.testing.assert_allclose(made(image())[0], right[0], atol=1e-5)


def test_operators_that_numpy_does_not_know_are_compared_with_plain_loops() -> None:
    source = model([node("Softplus", ["x"], ["y"])], {"x": [3, 7]}, ["y"])
    cubic = model(
        [node("Resize", ["x", "", "", "size"], ["y"], mode="cubic")],
        {"x": [1, 2, 5, 6]},
        ["y"],
        {"size": np.array([1, 2, 9, 11])},
    )
    for each in (source, cubic):
        made = autofuse.compile(each, threads=2, check=True)
        assert made.description["checked"] == {"right": made.kernels, "wrong": 0, "unchecked": 0}


def test_code_for_another_machine_is_refused_before_the_work() -> None:
    source = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 9, 7]}, ["y"], {"w": weights(8, 3, 3, 3)})
    with pytest.raises(TargetError, match=r"^kernels for [^\n]+ do not run on this machine[^\n]+$"):
        autofuse.compile(source, target="llvm -mcpu=cortex-a72 -mtriple=aarch64-linux-gnu", check=True)
