"""What the converters share: their base class and access to attributes and constants."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import OnnxOpConverter as OnnxOpConverter

from autofuse.errors import ModelError
from autofuse.frontend.constants import Array, array_of, is_constant
from autofuse.frontend.walk import static_shape

Attributes = dict[str, Any]
Params = Any


def text(attributes: Attributes, name: str, default: str) -> str:
    """A string attribute, which ONNX keeps as bytes."""
    value = attributes.get(name, default)
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def shape_of(expr: Any) -> tuple[int, ...]:
    """The static shape of an input.

    Raises:
        ModelError: it depends on run-time values.
    """
    shape = static_shape(expr)
    if shape is None:
        raise ModelError("an input's shape depends on run-time values, which is not supported")
    return shape


def optional(inputs: Any, position: int) -> Any:
    """An input that may be left out: None then. An empty constant counts as left out."""
    value = inputs[position] if position < len(inputs) else None
    if value is not None and is_constant(value) and array_of(value).size == 0:
        return None
    return value


def constant_input(inputs: Any, position: int, meaning: str) -> Array | None:
    """A side input that has to be known at compile time: its values, None when left out.

    Raises:
        ModelError: it is computed at run time.
    """
    value = optional(inputs, position)
    if value is None:
        return None
    if isinstance(value, relax.ShapeExpr):
        return np.asarray([int(size) for size in value.values], "int64")
    if not is_constant(value):
        raise ModelError(f"its {meaning} must be constant, but is computed at run time")
    return array_of(value)


def scalar(value: float, like: Any) -> Any:
    """A 0-d constant of the dtype of `like`."""
    return relax.const(value, like.ty.dtype)
