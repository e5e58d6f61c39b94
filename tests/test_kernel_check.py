"""`check`: kernels that give other numbers than numpy, or crash, are found before they are used, and replaced."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from codegen_cases import two_branches
from frontend_graphs import model, node, weights
from small_network import expected
from tvm import tirx

import autofuse
from autofuse.codegen.executable import Executable
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


def test_kernels_of_scalars_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    source = model([node("Exp", ["x"], ["a"]), node("Add", ["a", "x"], ["y"])], {"x": []}, ["y"])
    with caplog.at_level(logging.WARNING):
        made = autofuse.compile(source, threads=1, check=True)
    assert not caplog.messages
    x = np.array(0.5, "float32")
    (y,) = made(x)
    assert y.shape == () and abs(y - (np.exp(x) + x)) < 1e-6


def test_what_is_wrong_is_replaced_with_a_warning(
    right: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The convolutions' family fails: they are taken apart, then other families take them."""
    monkeypatch.setattr(Conv2dFamily, "apply", lambda self, func, *more: nothing(func))
    with caplog.at_level(logging.WARNING, "autofuse"):
        made = autofuse.compile(two_branches(), threads=2, check=True)
    checked, names = without_convolutions(made)
    assert checked["wrong"] > 2 and checked["right"] == len(names) and checked["unchecked"] == 0
    assert "are wrong" in caplog.text
    np.testing.assert_allclose(made(image())[0], right[0], atol=1e-5)


def test_what_crashes_is_replaced_and_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A convolution crashes and goes to another family; what stands behind it is checked all the same.

    It stands alone, in one configuration: each kernel that crashes takes a process with it, and a start takes seconds.
    """
    nodes = [node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), node("Softmax", ["a"], ["y"], axis=-1)]
    source = model(nodes, {"x": [1, 8, 6, 6]}, ["y"], {"w": weights(8, 8, 3, 3)})
    every = Conv2dFamily.configs
    monkeypatch.setattr(Conv2dFamily, "configs", lambda self, *given: every(self, *given)[:1])
    monkeypatch.setattr(Conv2dFamily, "apply", lambda self, func, *more: trap(func))
    with caplog.at_level(logging.WARNING, "autofuse"):
        made = autofuse.compile(source, threads=2, strategy="none", check=True)
    checked, names = without_convolutions(made)
    assert checked == {"right": len(names), "wrong": 1, "unchecked": 0} and len(names) > 2
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "crashed: the process died of" in warning and "instead" in warning
    np.testing.assert_allclose(made(image())[0], expected(source, [image()])[0], atol=1e-5)


def without_convolutions(made: Executable) -> tuple[dict[str, int], set[str]]:
    """What the check counted, and the kernels' names; none of them is of the convolutions' families."""
    kernels = made.description["kernel_list"]
    assert not {kernel["family"] for kernel in kernels} & {"conv2d", "conv2d_pool"}
    return made.description["checked"], {kernel["name"] for kernel in kernels}


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
    """A cubic resize. And a convolution rounded to bytes: sums in another order are another byte now and then."""
    source = model(
        [
            node("Softplus", ["x"], ["y"]),
            node("Resize", ["u", "", "", "size"], ["v"], mode="cubic"),
            node("Conv", ["a", "w"], ["b"], pads=[1, 1, 1, 1]),
            node("QuantizeLinear", ["b", "scale", "zero"], ["c"]),
        ],
        {"x": [3, 7], "u": [1, 2, 5, 6], "a": [1, 16, 28, 28]},
        ["y", "v", "c"],
        {
            "size": np.array([1, 2, 9, 11]),
            "w": weights(16, 16, 3, 3),
            "scale": np.float32(0.04),
            "zero": np.uint8(100),
        },
    )
    made = autofuse.compile(source, threads=2, check=True)
    assert made.description["checked"] == {"right": made.kernels, "wrong": 0, "unchecked": 0} and made.kernels > 1


def test_code_for_another_machine_is_refused_before_the_work() -> None:
    source = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 9, 7]}, ["y"], {"w": weights(8, 3, 3, 3)})
    with pytest.raises(TargetError, match=r"^kernels for [^\n]+ do not run on this machine[^\n]+$"):
        autofuse.compile(source, target="llvm -mcpu=cortex-a72 -mtriple=aarch64-linux-gnu", check=True)
