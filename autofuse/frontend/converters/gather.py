"""Gather: a slice where the indices are constant and evenly spaced, else a take that never reads out of bounds.

TVM's own conversion adds three operators for negative indices and then takes without a check: an index out of range,
which a model's input may well hold, would crash the process.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import Gather as _TvmGather

from autofuse.frontend.constants import array_of, is_constant
from autofuse.frontend.converters.base import Attributes, OnnxOpConverter, Params, shape_of
from autofuse.frontend.indexing import take_constant


class Gather(OnnxOpConverter):  # type: ignore[misc]
    """Along one axis; indices count from the end when negative."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        data, indices = inputs[0], inputs[1]
        if not all(isinstance(value.ty, relax.TensorType) for value in (data, indices)):
            return _TvmGather._impl_v13(bb, inputs, attr, params)  # a shape
        shape = shape_of(data)
        axis = int(attr.get("axis", 0)) % len(shape)
        if not is_constant(indices):
            # wrap: the index modulo the size, which is what a negative one means
            return relax.op.take(data, indices, axis=axis, mode="wrap")
        return take_constant(bb.normalize, data, shape, array_of(indices), axis)


CONVERTERS: dict[str, Any] = {"Gather": Gather}
