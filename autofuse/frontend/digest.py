"""A Relax module → a short name for its structure, the same on every machine.

It covers the operators of `main` in order, their attributes, how they are wired, and the shape and dtype of every
tensor; of constants it covers shape and dtype and, up to 64 elements, the values (axes, sizes and scalars are part of
the structure). The values of weights are not covered: hashing half a gigabyte would cost more than preparing it, and
no later stage decides on them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from autofuse.frontend.constants import array_of, is_constant
from autofuse.frontend.walk import bindings

_MOST_VALUES = 64


def structure_digest(module: tvm.IRModule) -> str:
    """SHA-256, as 64 hexadecimal digits."""
    function = module["main"]
    numbers: dict[Any, int] = {}
    sha = hashlib.sha256()

    def number(var: Any) -> int:
        return numbers.setdefault(var, len(numbers))

    def describe(expr: Any) -> str:
        if isinstance(expr, relax.Var):
            return f"%{number(expr)}"
        if isinstance(expr, relax.Tuple):
            return "(" + ",".join(describe(item) for item in expr.fields) + ")"
        if isinstance(expr, relax.TupleGetItem):
            return f"{describe(expr.tuple_value)}[{expr.index}]"
        if is_constant(expr):
            array = array_of(expr)
            values = array.tolist() if array.size <= _MOST_VALUES else ""
            return f"const{array.shape}{array.dtype}{values}"
        if isinstance(expr, tvm.ir.GenericConst):
            return f"const{expr.ty}"
        if isinstance(expr, relax.Call):
            operator = expr.op.name if isinstance(expr.op, tvm.ir.Op) else describe(expr.op)
            attributes = "" if expr.attrs is None else str(expr.attrs)
            return f"{operator}({','.join(describe(arg) for arg in expr.args)}){{{attributes}}}"
        if isinstance(expr, tvm.ir.GlobalVar):
            return f"@{tvm_ffi.structural_hash(module[expr])}"
        return str(expr)

    for param in function.params:
        sha.update(f"{describe(param)}:{param.ty}\n".encode())
    for binding in bindings(function):
        sha.update(f"{describe(binding.var)}:{binding.var.ty}={describe(binding.value)}\n".encode())
    sha.update(describe(function.body.body).encode())
    return sha.hexdigest()
