"""Small private buffers are on the stack: no calls of the runtime for them, no writing back."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from autofuse.codegen.stack import MOST_BYTES, pipeline


def row_sums(columns: int, scope: str) -> s_tir.Schedule:
    """out[i, j] = 2 Σ_k a[k, i, j], a row of sums in a buffer of its own."""
    a = te.placeholder((16, 4, columns), name="a")
    k = te.reduce_axis((0, 16), name="k")
    sums = te.compute((4, columns), lambda i, j: te.sum(a[k, i, j], axis=k), name="sums")
    out = te.compute((4, columns), lambda i, j: sums[i, j] * tirx.const(2.0, "float32"), name="out")
    sch = s_tir.Schedule(te.create_prim_func([a, out]).with_attr("global_symbol", "main"))
    sch.set_scope(sch.get_sblock("sums"), 0, scope)
    row = sch.get_loops(sch.get_sblock("out"))[0]
    sch.parallel(row)
    sch.compute_at(sch.get_sblock("sums"), row)
    return sch


@pytest.mark.parametrize(
    ("columns", "scope", "calls"),
    [(8, "local", False), (MOST_BYTES // 4, "local", False), (MOST_BYTES // 4 + 8, "local", True)],
)
def test_only_large_buffers_are_asked_of_the_runtime(columns: int, scope: str, calls: bool) -> None:
    built = tvm.compile(row_sums(columns, scope).mod, tvm.target.Target({"kind": "llvm"}), tir_pipeline=pipeline())
    assert ("TVMBackendAllocWorkspace" in built.mod.inspect_source("ll")) == calls
    a = np.random.default_rng(0).standard_normal((16, 4, columns)).astype("float32")
    out = tvm.runtime.empty((4, columns), "float32")
    built["main"](tvm.runtime.tensor(a), out)
    np.testing.assert_allclose(out.numpy(), 2 * a.sum(0), rtol=1e-5, atol=1e-5)


def test_the_pipeline_is_registered_once() -> None:
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    known = PIPELINE_MAP[pipeline()]
    assert PIPELINE_MAP[pipeline()] is known
