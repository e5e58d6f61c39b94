"""Cast, OneHot, Pow and the operators of any number of inputs (Min, Max, Sum, Mean) as plain elementwise operators.

TVM's own conversions broadcast and stack the inputs in memory, and guard casts against what ONNX leaves undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import onnx
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import Cast as _TvmCast

from autofuse.errors import ModelError
from autofuse.frontend.constants import constant
from autofuse.frontend.converters.base import (
    Attributes,
    OnnxOpConverter,
    Params,
    constant_input,
    scalar,
    shape_of,
)


class Cast(OnnxOpConverter):  # type: ignore[misc]
    """astype: floats to integers towards zero, anything to bool as "is not zero"."""

    @classmethod
    def _impl_v6(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        if not isinstance(inputs[0].ty, relax.TensorType):
            return _TvmCast._impl_v13(bb, inputs, attr, params)  # a shape
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(attr["to"]))
        except (KeyError, TypeError):
            raise ModelError(f"its target type {attr['to']} is not known") from None
        if dtype.kind == "O":
            raise ModelError("strings are not supported")
        if dtype == np.bool_ and str(inputs[0].ty.dtype.dtype) != "bool":
            return relax.op.not_equal(inputs[0], scalar(0, inputs[0]))
        return relax.op.astype(inputs[0], str(dtype))


def _folded(combine: Callable[[Any, Any], Any]) -> type[OnnxOpConverter]:
    class Folded(OnnxOpConverter):  # type: ignore[misc]
        """The inputs combined two at a time, broadcasting as they go."""

        @classmethod
        def _impl_v1(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
            return reduce(lambda left, right: bb.normalize(combine(left, right)), list(inputs))

    return Folded


class Mean(OnnxOpConverter):  # type: ignore[misc]
    """The sum of the inputs over their number."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        total = reduce(lambda left, right: bb.normalize(relax.op.add(left, right)), list(inputs))
        return relax.op.multiply(total, scalar(1.0 / len(inputs), total))


class OneHot(OnnxOpConverter):  # type: ignore[misc]
    """`on` where the position along the new axis is the index, counted from the end when negative, `off` elsewhere."""

    @classmethod
    def _impl_v9(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        indices = inputs[0]
        depth_input = constant_input(inputs, 1, "depth")
        if depth_input is None:
            raise ModelError("gives no depth")
        depth = int(depth_input.reshape(-1)[0])
        rank = len(shape_of(indices)) + 1
        axis = int(attr.get("axis", -1)) % rank
        if str(indices.ty.dtype.dtype) != "int64":
            indices = bb.normalize(relax.op.astype(indices, "int64"))
        from_end = bb.normalize(relax.op.add(indices, relax.const(depth, "int64")))
        indices = bb.normalize(relax.op.where(relax.op.less(indices, relax.const(0, "int64")), from_end, indices))
        along = [1] * rank
        along[axis] = depth
        positions = constant(np.arange(depth, dtype="int64").reshape(along))
        hot = bb.normalize(relax.op.equal(relax.op.expand_dims(indices, axis), positions))
        off, on = (
            bb.normalize(relax.op.reshape(relax.op.strided_slice(inputs[2], [0], [k], [k + 1]), (1,))) for k in (0, 1)
        )
        return relax.op.where(hot, on, off)


class Pow(OnnxOpConverter):  # type: ignore[misc]
    """The result has the base's type, whatever the exponent's; integers go through float64, as power is for floats."""

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        base, exponent = inputs[0], inputs[1]
        dtype = str(base.ty.dtype.dtype)
        between = dtype if dtype.startswith("float") else "float64"
        operands = [
            value if str(value.ty.dtype.dtype) == between else bb.normalize(relax.op.astype(value, between))
            for value in (base, exponent)
        ]
        result = bb.normalize(relax.op.power(*operands))
        return result if between == dtype else relax.op.astype(relax.op.round(result), dtype)


CONVERTERS: dict[str, Any] = {
    "Cast": Cast,
    "Max": _folded(relax.op.maximum),
    "Mean": Mean,
    "Min": _folded(relax.op.minimum),
    "OneHot": OneHot,
    "Pow": Pow,
    "Sum": _folded(relax.op.add),
}
