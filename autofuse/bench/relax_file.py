"""A prepared Relax module ↔ two files, for the engines' processes: its structure as TVMScript, its weights apart.

TVM's own JSON writer (`tvm.ir.save_json`) takes the process down, and TVMScript has no room for tensors: so every
constant becomes a parameter on the way out and is bound again on the way in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm.script
from tvm import relax

SUFFIX = ".relax.txt"
_WEIGHT = "bench_weight_{}"


@relax.expr_functor.mutator
class _Lift(relax.PyExprMutator):  # type: ignore[misc]
    """Puts a parameter in each tensor constant's place; scalars that are no tensors stay."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: list[Any] = []
        self.values: list[Any] = []

    def visit_generic_const_(self, constant: Any) -> Any:
        if not hasattr(constant.value, "numpy"):
            return constant
        parameter = relax.Var(_WEIGHT.format(len(self.values)), constant.ty)
        self.parameters.append(parameter)
        self.values.append(constant.value.numpy())
        return parameter


def write_module(module: tvm.IRModule, path: Path) -> None:
    """Writes `path` (which ends in `SUFFIX`) and, beside it, the weights."""
    main = module["main"]
    lifted = _Lift()
    body = lifted.visit_expr(main.body)
    parameters = [*main.params, *lifted.parameters]
    function = relax.Function(parameters, body, main.ret_ty, is_pure=main.is_pure, attrs=main.attrs)
    stripped = tvm.IRModule(dict(module.functions_items()))
    stripped.update_func(stripped.get_global_var("main"), function)
    path.write_text(stripped.script(), encoding="utf-8")
    with open(_weights_path(path), "wb") as file:
        np.savez(file, **{_WEIGHT.format(i): value for i, value in enumerate(lifted.values)})


def read_module(path: Path) -> tvm.IRModule:
    """The module that `write_module` wrote."""
    module = tvm.script.from_source(path.read_text(encoding="utf-8"))
    with np.load(_weights_path(path), allow_pickle=False) as weights:
        values = {name: tvm.runtime.tensor(weights[name]) for name in weights.files}
    return relax.transform.BindParams("main", values)(module)


def _weights_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(SUFFIX) + ".weights.npz")
