"""Normalisations that TVM's importer converts into something else than ONNX means, or for one dtype only."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from autofuse.errors import ModelError
from autofuse.frontend.converters.base import Attributes, OnnxOpConverter, Params, optional, scalar, shape_of


class LayerNormalization(OnnxOpConverter):  # type: ignore[misc]
    """Over the axes from `axis` to the last; gives the mean and the inverse deviation too where they are read."""

    @classmethod
    def _impl_v17(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        data, scale, bias = inputs[0], inputs[1], optional(inputs, 2)
        shape = shape_of(data)
        axes = list(range(attr.get("axis", -1) % len(shape), len(shape)))
        epsilon = attr.get("epsilon", 1e-5)
        dtype = scale.ty.dtype.dtype
        normal = tuple(shape[axis] for axis in axes)
        # ONNX lets scale and bias broadcast; Relax wants them whole.
        if shape_of(scale) != normal:
            scale = bb.normalize(relax.op.broadcast_to(scale, normal))
        if bias is None:
            bias = relax.const(np.zeros(normal, dtype))
        elif shape_of(bias) != normal:
            bias = bb.normalize(relax.op.broadcast_to(bias, normal))
        result = relax.op.nn.layer_norm(data, scale, bias, axes, epsilon)
        if attr["tvm_custom"]["num_outputs"] == 1:
            return result
        mean = bb.normalize(relax.op.mean(data, axes, keepdims=True))
        variance = bb.normalize(relax.op.variance(data, axes, keepdims=True))
        deviation = bb.normalize(relax.op.rsqrt(relax.op.add(variance, scalar(epsilon, data))))
        return relax.Tuple([bb.normalize(result), mean, deviation])


class GroupNormalization(OnnxOpConverter):  # type: ignore[misc]
    """group_norm with a scale and a bias a group (operator set 18) or a channel (21 and later)."""

    @classmethod
    def _impl_v18(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        groups, channels = attr["num_groups"], shape_of(inputs[0])[1]
        if channels % groups:
            raise ModelError(f"{channels} channels cannot be divided into {groups} groups")

        def spread(per_group: Any) -> Any:
            column = relax.op.reshape(per_group, [groups, 1])
            return relax.op.reshape(relax.op.broadcast_to(column, [groups, channels // groups]), [channels])

        return _group_norm(bb, inputs[0], spread(inputs[1]), spread(inputs[2]), attr)

    @classmethod
    def _impl_v21(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        if shape_of(inputs[0])[1] % attr["num_groups"]:
            raise ModelError(f"{shape_of(inputs[0])[1]} channels cannot be divided into {attr['num_groups']} groups")
        return _group_norm(bb, inputs[0], inputs[1], inputs[2], attr)


def _group_norm(bb: Any, data: Any, scale: Any, bias: Any, attr: Attributes) -> Any:
    axes = list(range(2, len(shape_of(data))))
    return relax.op.nn.group_norm(
        data, bb.normalize(scale), bb.normalize(bias), attr["num_groups"],
        channel_axis=1, axes=axes, epsilon=attr.get("epsilon", 1e-5),
    )  # fmt: skip


CONVERTERS: dict[str, Any] = {
    "LayerNormalization": LayerNormalization,
    "GroupNormalization": GroupNormalization,
}
