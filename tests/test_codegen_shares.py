"""Building a program's kernels in shares: as many libraries as processors, one result, exported and loaded whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from autofuse.codegen import build
from autofuse.target.registry import resolve

TARGET = resolve("llvm", 1).tvm_target()


def chain() -> tvm.IRModule:
    """tanh(exp(x) + x) * x, an operator a kernel."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 6], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            total = builder.emit(relax.op.add(builder.emit(relax.op.exp(x)), x))
            gate = builder.emit(relax.op.tanh(total))
            output = builder.emit_output(relax.op.multiply(gate, x))
        builder.emit_func_output(output)
    return relax.transform.LegalizeOps()(builder.get())


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_any_number_of_shares_gives_one_result(count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "processors", lambda: count)
    made = build.build_program(chain(), TARGET)
    assert len(made.mod.imports) == min(count, 4)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    path = tmp_path / "program.so"
    made.export_library(str(path))
    for library in (made, tvm.runtime.load_module(str(path))):
        machine = relax.VirtualMachine(library, tvm.cpu())
        y = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(y, np.tanh(np.exp(x) + x) * x, rtol=1e-5, atol=1e-6)


def test_shares_hold_every_kernel_once_and_weigh_about_the_same() -> None:
    module = chain()
    names = sorted(gv.name_hint for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc))
    shares = build._shares(module, 2)
    assert sorted(gv.name_hint for share in shares for gv in share) == names
    assert [len(share) for share in shares] == [2, 2]


def test_an_error_in_one_share_is_the_builds_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(part: tvm.IRModule, target: object) -> None:
        if any("tanh" in gv.name_hint for gv in part.functions):
            raise ValueError("no tanh here")

    monkeypatch.setattr(build, "processors", lambda: 4)
    monkeypatch.setattr(build, "_build_part", broken)
    with pytest.raises(ValueError, match="no tanh here"):
        build.build_program(chain(), TARGET)
