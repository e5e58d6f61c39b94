"""Vector forms of the elementary functions against double precision."""

from __future__ import annotations

from collections.abc import Callable
from math import erf

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from autofuse.codegen.intrinsics import register_intrinsics


def run(function: Callable[..., object], x: np.ndarray, lanes: int) -> np.ndarray:
    register_intrinsics()
    source = te.placeholder(x.shape, name="x", dtype=str(x.dtype))
    result = te.compute(x.shape, lambda i: function(source[i]), name="y")
    sch = s_tir.Schedule(te.create_prim_func([source, result]).with_attr("global_symbol", "main"))
    if lanes > 1:
        _, inner = sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, lanes])
        sch.vectorize(inner)
    built = tvm.compile(sch.mod, tvm.target.Target({"kind": "llvm"}))
    out = tvm.runtime.empty(x.shape, str(x.dtype))
    built["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


def relative(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want) / np.maximum(np.abs(want), np.finfo("float32").tiny)))


GRID = np.concatenate([np.linspace(-20, 20, 8176), [0.0, -0.0, 1e-6, -1e-6] * 4]).astype("float32")
CASES = {
    "exp": (tirx.exp, np.exp, np.linspace(-86.9, 88.7, 8192).astype("float32"), 3e-7),
    "tanh": (tirx.tanh, np.tanh, GRID, 5e-7),
    "erf": (tirx.erf, np.vectorize(erf), GRID, 6e-7),
    "sigmoid": (tirx.sigmoid, lambda v: 1 / (1 + np.exp(-v)), GRID, 5e-7),
    "log": (tirx.log, np.log, np.geomspace(1e-37, 1e38, 8192).astype("float32"), 3e-7),
}


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


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([-inf, inf, nan, 0, -1, 1, 100, -100], "float32")
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(tirx.exp, x, 8), np.exp(x), rtol=1e-6, atol=1e-37)
        np.testing.assert_allclose(run(tirx.tanh, x, 8), np.tanh(x), rtol=1e-6)
        np.testing.assert_allclose(run(tirx.log, x, 8), np.log(x), rtol=1e-6)


@pytest.mark.parametrize("power", [2.0, 3.0, 4.0, 1.7])
def test_powers(power: float) -> None:
    x = np.linspace(0.1, 3, 64).astype("float32")
    got = run(lambda v: tirx.power(v, tirx.const(power, "float32")), x, 8)
    np.testing.assert_allclose(got, x.astype("float64") ** power, rtol=1e-6)


def test_double_precision_keeps_its_own_functions() -> None:
    x = np.linspace(-5, 5, 64)
    np.testing.assert_allclose(run(tirx.exp, x, 1), np.exp(x), rtol=1e-14)
