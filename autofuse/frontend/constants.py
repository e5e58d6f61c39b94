"""Relax constants as numpy arrays and back, without copying more than once.

A network's weights can fill most of memory (VGG-16: 528 MB), so `array_of` gives a view, and `constant` writes an
array straight into the tensor that the constant will hold.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

Array = npt.NDArray[Any]

# numpy has no type of its own for these, so arrays of them cannot be computed with.
_OPAQUE_DTYPES = ("bfloat16", "float8", "float4", "int4", "uint4")


def is_constant(expr: Any) -> bool:
    """Whether `expr` is a tensor constant that numpy can compute with."""
    if not isinstance(expr, tvm.ir.GenericConst) or not isinstance(expr.value, tvm.runtime.Tensor):
        return False
    return not str(expr.value.dtype).startswith(_OPAQUE_DTYPES)


def array_of(expr: Any) -> Array:
    """The values of a constant: a view that must not be written to."""
    view = cast(Array, np.from_dlpack(expr.value))
    view.flags.writeable = False
    return view


def constant(array: Array) -> Any:
    """A Relax constant holding a copy of `array` (contiguous, aligned as TVM wants it)."""
    array = np.asarray(array)
    tensor = tvm.runtime.empty(array.shape, str(array.dtype))
    np.copyto(np.from_dlpack(tensor), array)
    return relax.const(tensor)


def scalar_value(expr: Any) -> float | int | bool | None:
    """The value of a constant whose elements are all the same number, None for anything else.

    Only small constants are looked at: a large one is a weight.
    """
    if not is_constant(expr):
        return None
    array = array_of(expr)
    if array.size == 0 or array.size > 65536:
        return None
    first = array.reshape(-1)[0]
    if not bool(np.all(array == first)):
        return None
    return cast("float | int | bool", first.item())
