"""Gather: a slice where the indices are constant and evenly spaced, else a take that never reads out of bounds.

TVM's own conversion adds three operators for negative indices and then takes without a check: an index out of range,
which a model's input may well hold, would crash the process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import Gather as _TvmGather

from autofuse.errors import ModelError
from autofuse.frontend.constants import array_of, constant, is_constant
from autofuse.frontend.converters.base import Attributes, OnnxOpConverter, Params, shape_of


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
        where = array_of(indices).astype("int64")
        if where.size and (where.min() < -shape[axis] or where.max() >= shape[axis]):
            raise ModelError(f"its indices reach past axis {axis}, which has {shape[axis]} elements")
        where = np.where(where < 0, where + shape[axis], where)
        flat = where.reshape(-1)
        steps = np.unique(np.diff(flat))
        step = int(steps[0]) if len(steps) else 1
        if where.size == 0 or len(steps) > 1 or step < 1 or is_constant(data):
            return relax.op.take(data, constant(where), axis=axis, mode="clip")
        rows = relax.op.strided_slice(data, [axis], [int(flat[0])], [int(flat[-1]) + 1], [step])
        return relax.op.reshape(bb.normalize(rows), [*shape[:axis], *where.shape, *shape[axis + 1 :]])


CONVERTERS: dict[str, Any] = {"Gather": Gather}
