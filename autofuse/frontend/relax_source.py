"""A Relax module from anywhere → one that the passes accept: `main` alone, static shapes, parameters bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from autofuse.errors import InputError, ModelError


def accept_relax(
    module: tvm.IRModule, input_shapes: Mapping[str, Sequence[int]] | None, batch: int | None
) -> tvm.IRModule:
    """Binds symbolic sizes to `input_shapes` and `batch`, and inlines the private functions that `main` calls.

    `call_tir` and the PrimFuncs it names stay as they are.

    Raises:
        ModelError: no Relax function `main`, or a parameter that is no tensor.
        InputError: a shape that does not fit, or a symbolic size that nothing fixes.
    """
    names = [var.name_hint for var, function in module.functions.items() if isinstance(function, relax.Function)]
    if "main" not in names:
        found = ", ".join(sorted(names)) or "none"
        raise ModelError(f"the Relax module has no function 'main' (its Relax functions: {found}); rename the entry")
    if len(names) > 1:
        module = relax.transform.InlinePrivateFunctions()(module)
    module = tvm.IRModule(dict(module.functions.items()), attrs=module.attrs)
    return _bind_symbols(module, input_shapes or {}, batch)


def _bind_symbols(module: tvm.IRModule, shapes: Mapping[str, Sequence[int]], batch: int | None) -> tvm.IRModule:
    params = {param.name: param for param in module["main"].params}
    unknown = [name for name in shapes if name not in params]
    if unknown:
        raise InputError(
            f"--input-shape {unknown[0]}: the model has no such input (its inputs: {', '.join(params) or 'none'})"
        )
    fixed: dict[Any, int] = {}
    for name, param in params.items():
        if not isinstance(param.ty, relax.TensorType):
            raise ModelError(f"input '{name}' is no tensor; pass tensors, and bind the rest before")
        if not isinstance(param.ty.shape, relax.ShapeExpr):
            raise ModelError(f"input '{name}' has no known shape; annotate the parameter of 'main'")
        _bind_one(name, list(param.ty.shape.values), shapes.get(name), batch, fixed)
    if fixed:
        names = {str(var.name): size for var, size in fixed.items()}
        module = relax.transform.BindSymbolicVars(names)(module)
    for name, param in {p.name: p for p in module["main"].params}.items():
        for axis, size in enumerate(param.ty.shape.values):
            if not isinstance(size, tvm.tirx.IntImm):
                raise InputError(
                    f"input '{name}': dimension {axis} ('{size}') has no fixed size: give it with "
                    f"--input-shape {name}={','.join(_example(s) for s in param.ty.shape.values)}"
                )
    return module


def _bind_one(
    name: str, declared: list[Any], wanted: Sequence[int] | None, batch: int | None, fixed: dict[Any, int]
) -> None:
    if wanted is None:
        if batch is not None and declared and isinstance(declared[0], tvm.tirx.Var):
            fixed.setdefault(declared[0], batch)
        elif batch is not None and declared and isinstance(declared[0], tvm.tirx.IntImm) and int(declared[0]) != batch:
            raise InputError(f"batch {batch}: input '{name}' of this Relax module is fixed at {declared[0]} there")
        return
    text = ",".join(str(size) for size in wanted)
    if len(wanted) != len(declared):
        raise InputError(f"--input-shape {name}={text}: has {len(wanted)} dimensions, the input has {len(declared)}")
    for axis, (size, given) in enumerate(zip(declared, wanted, strict=True)):
        if isinstance(size, tvm.tirx.IntImm):
            if int(size) != given:
                raise InputError(f"--input-shape {name}={text}: dimension {axis} of the module is fixed at {size}")
        elif isinstance(size, tvm.tirx.Var) and fixed.setdefault(size, int(given)) != given:
            raise InputError(f"--input-shape {name}={text}: '{size}' is {fixed[size]} elsewhere; they have to agree")


def _example(size: Any) -> str:
    return str(int(size)) if isinstance(size, tvm.tirx.IntImm) else "1"
