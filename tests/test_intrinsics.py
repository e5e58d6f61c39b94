"""Vector forms of the elementary functions against double precision."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import pytest
import tvm
from frontend_graphs import model, node
from tvm import s_tir, te, tirx

import autofuse
from autofuse.codegen.intrinsics import register_intrinsics


def run(function: Callable[..., object], x: np.ndarray, lanes: int) -> np.ndarray:
    built = compiled(function, x.shape, str(x.dtype), lanes)
    out = tvm.runtime.empty(x.shape, str(x.dtype))
    built["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


def compiled(function: Callable[..., object], shape: tuple[int, ...], dtype: str, lanes: int, **options: str) -> Any:
    register_intrinsics()
    source = te.placeholder(shape, name="x", dtype=dtype)
    result = te.compute(shape, lambda i: function(source[i]), name="y")
    sch = s_tir.Schedule(te.create_prim_func([source, result]).with_attr("global_symbol", "main"))
    if lanes > 1:
        _, inner = sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, lanes])
        sch.vectorize(inner)
    return tvm.compile(sch.mod, tvm.target.Target({"kind": "llvm", **options}))


def relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want) / np.maximum(np.abs(want), np.finfo("float32").tiny)))


GRID = np.concatenate([np.linspace(-20, 20, 8176), [0.0, -0.0, 1e-6, -1e-6] * 4]).astype("float32")
CASES = {
    "exp": (tirx.exp, np.exp, np.linspace(-86.9, 88.7, 8192).astype("float32"), 3e-7),
    "tanh": (tirx.tanh, np.tanh, GRID, 5e-7),
    "erf": (tirx.erf, np.vectorize(erf), GRID, 6e-7),
    "sigmoid": (tirx.sigmoid, lambda v: 1 / (1 + np.exp(-v)), GRID, 3e-7),
    "sigmoid, far": (
        tirx.sigmoid, lambda v: 1 / (1 + np.exp(-v)), np.linspace(-87, 100, 8192).astype("float32"), 3e-7,
    ),
    "swish": (lambda v: v * tirx.sigmoid(v), lambda v: v / (1 + np.exp(-v)), GRID, 4e-7),
    "rsqrt": (tirx.rsqrt, lambda v: v**-0.5, np.geomspace(1e-37, 1e38, 8192).astype("float32"), 3e-7),
    "log": (tirx.log, np.log, np.geomspace(1e-37, 1e38, 8192).astype("float32"), 3e-7),
}  # fmt: skip


WIDE = np.concatenate([np.linspace(-12, 12, 8192), np.linspace(-80, 80, 4096), [1e-6, -1e-6, 0.0]]).astype("float32")
BOUNDS = (4e-7, 4e-7, 4e-7, 3e-7)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", sorted(CASES))
def test_error_stays_within_the_stated_bound(name: str, lanes: int) -> None:
    function, reference, grid, bound = CASES[name]
    got = run(function, grid, lanes).astype("float64")
    want = np.asarray(reference(grid.astype("float64")))
    if name == "log":
        assert np.max(np.abs(got - want) / np.maximum(np.abs(want), 1.0)) < bound
    else:
        assert relative(got, want) < bound


def by_softplus(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.logaddexp(0, x))


def by_erf(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def by_tanh(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def by_sigmoid(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def test_activations_made_of_them_stay_within_their_bounds() -> None:
    """mish, gelu of both kinds and swish as models have them: x · f(x), the error relative to |x|."""
    source = model(
        [
            node("Softplus", ["x"], ["a"]), node("Tanh", ["a"], ["b"]), node("Mul", ["x", "b"], ["mish"]),
            node("Gelu", ["x"], ["gelu"]), node("Gelu", ["x"], ["gelu_tanh"], approximate="tanh"),
            node("Sigmoid", ["x"], ["c"]), node("Mul", ["x", "c"], ["swish"]),
        ],
        {"x": [len(WIDE)]}, ["mish", "gelu", "gelu_tanh", "swish"], opset=20,
    )  # fmt: skip
    found = autofuse.compile(source, threads=1)(WIDE)
    x = WIDE.astype("float64")
    for got, formula, bound in zip(found, (by_softplus, by_erf, by_tanh, by_sigmoid), BOUNDS, strict=True):
        error = np.max(np.abs(got - formula(x)) / np.maximum(np.abs(x), 1e-30))
        assert error < bound, f"{formula.__name__}: {error:.2e}"


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([-inf, inf, nan, 0, -1, 1, 100, -100], "float32")
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(tirx.exp, x, 8), np.exp(x), rtol=1e-6, atol=1e-37)
        np.testing.assert_allclose(run(tirx.tanh, x, 8), np.tanh(x), rtol=1e-6)
        np.testing.assert_allclose(run(tirx.log, x, 8), np.log(x), rtol=1e-6)
        np.testing.assert_allclose(run(tirx.sigmoid, x, 8), 1 / (1 + np.exp(-x)), rtol=1e-6, atol=1e-37)
        np.testing.assert_array_equal(run(tirx.erf, x, 8)[:3], np.array([-1, 1, nan], "float32"))


def test_sigmoid_of_large_numbers_is_exact() -> None:
    """Swish multiplies it by the number: what is not quite 0 or 1 would show."""
    x = np.array([-3e38, -1e10, -104, -90, 20, 90, 1e10, 3e38], "float32")
    np.testing.assert_array_equal(run(lambda v: v * tirx.sigmoid(v), x, 8), np.where(x < 0, np.float32(0), x))


def test_results_stay_in_range_and_in_order() -> None:
    x = np.linspace(-12, 12, 1 << 16).astype("float32")
    for function, low, high in ((tirx.tanh, -1, 1), (tirx.sigmoid, 0, 1)):
        y = run(function, x, 8)
        assert y.min() >= low and y.max() <= high
        # Not monotone to the last bit, but to within the error.
        assert np.max(y[:-1] - y[1:]) < 5e-7
    assert run(tirx.sigmoid, np.zeros(8, "float32"), 8)[0] == 0.5
    assert run(tirx.exp, np.zeros(8, "float32"), 8)[0] == 1.0


@pytest.mark.parametrize("name", ["exp", "erf", "log", "rsqrt", "sigmoid", "tanh"])
def test_vectors_stay_vectors(name: str) -> None:
    """No function makes TVM take a vector loop apart."""
    code = compiled(getattr(tirx, name), (64,), "float32", 8, mcpu="x86-64-v3").mod.inspect_source("ll")
    loop = code[code.index("@main_compute_") :] if "@main_compute_" in code else code
    assert "<8 x float>" in loop
    assert not re.search(r"= f(mul|div|add) (reassoc |fast )?float|= (shufflevector|extractelement)", loop)


@pytest.mark.parametrize("power", [2.0, 3.0, 4.0, 1.7])
def test_powers(power: float) -> None:
    x = np.linspace(0.1, 3, 64).astype("float32")
    got = run(lambda v: tirx.power(v, tirx.const(power, "float32")), x, 8)
    np.testing.assert_allclose(got, x.astype("float64") ** power, rtol=1e-6)


def test_double_precision_keeps_its_own_functions() -> None:
    x = np.linspace(-5, 5, 64)
    np.testing.assert_allclose(run(tirx.exp, x, 1), np.exp(x), rtol=1e-14)
