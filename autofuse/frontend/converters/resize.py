"""Resize and Upsample: image.resize2d where it computes what ONNX asks for, interpolation axis by axis elsewhere.

resize2d knows only the two sizes, whereas ONNX maps coordinates with the scales when those are given, and they differ
when a scaled size is not whole. Along one axis every mode is either a selection of rows (`take`) or a matmul with a
constant matrix, for any rank, any axis, and with antialiasing. Formulas: the ONNX specification of Resize.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from autofuse.errors import ModelError
from autofuse.frontend.constants import Array, constant
from autofuse.frontend.converters.base import (
    Attributes,
    OnnxOpConverter,
    Params,
    constant_input,
    shape_of,
    text,
)

_RESIZE2D_COORDINATES = {"half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"}


@dataclass(frozen=True)
class _Axis:
    """How one axis is resampled; `length` is the target before it is rounded down."""

    size: int
    target: int
    scale: float
    roi: tuple[float, float]
    length: float


class Resize(OnnxOpConverter):  # type: ignore[misc]
    """Operator sets 11 and later; inputs X, roi, scales, sizes."""

    @classmethod
    def _impl_v10(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        attr = {**attr, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return _resize(bb, inputs[0], constant_input(inputs, 1, "scales"), None, None, attr)

    @classmethod
    def _impl_v11(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        roi = None
        if text(attr, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
            roi = constant_input(inputs, 1, "region of interest")
        return _resize(
            bb, inputs[0], constant_input(inputs, 2, "scales"), constant_input(inputs, 3, "sizes"), roi, attr
        )


class Upsample(OnnxOpConverter):  # type: ignore[misc]
    """The operator that Resize replaced: scales an attribute (7) or an input (9)."""

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        attr = {**attr, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        scales = np.asarray(attr["scales"], "float32")
        return _resize(bb, inputs[0], scales, None, None, attr)

    @classmethod
    def _impl_v9(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        attr = {**attr, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return _resize(bb, inputs[0], constant_input(inputs, 1, "scales"), None, None, attr)


def _resize(bb: Any, data: Any, scales: Array | None, sizes: Array | None, roi: Array | None, attr: Attributes) -> Any:
    shape = shape_of(data)
    axes = _plan(shape, scales, sizes, roi, attr)
    if _fits_resize2d(shape, axes, attr):
        nearest = text(attr, "mode", "nearest") == "nearest"
        return relax.op.image.resize2d(
            data,
            size=relax.ShapeExpr([axes[2].target, axes[3].target]),
            roi=[0.0] * 4,
            layout="NCHW",
            method="nearest_neighbor" if nearest else text(attr, "mode", "nearest"),
            coordinate_transformation_mode=text(attr, "coordinate_transformation_mode", "half_pixel"),
            rounding_method=text(attr, "nearest_mode", "round_prefer_floor") if nearest else "",
            cubic_alpha=float(attr.get("cubic_coeff_a", -0.75)),
            cubic_exclude=int(attr.get("exclude_outside", 0)),
        )
    for position, axis in enumerate(axes):
        if axis.size != axis.target or axis.scale != 1.0 or axis.roi != (0.0, 1.0):
            data = _resample(bb, data, position, axis, attr)
    return data


def _plan(
    shape: tuple[int, ...], scales: Array | None, sizes: Array | None, roi: Array | None, attr: Attributes
) -> list[_Axis]:
    rank = len(shape)
    which = [int(a) % rank for a in attr.get("axes", range(rank))]
    if scales is None and sizes is None:
        raise ModelError("gives neither scales nor sizes")
    given = scales if scales is not None else sizes
    assert given is not None
    if len(given) != len(which):
        raise ModelError(f"gives {len(given)} scales or sizes for {len(which)} axes")
    planned = [_Axis(size, size, 1.0, (0.0, 1.0), size) for size in shape]
    policy = text(attr, "keep_aspect_ratio_policy", "stretch")
    common = None
    if scales is None and policy != "stretch":
        ratios = [float(given[k]) / shape[axis] for k, axis in enumerate(which)]
        common = min(ratios) if policy == "not_larger" else max(ratios)
    for k, axis in enumerate(which):
        size = shape[axis]
        region = (float(roi[k]), float(roi[len(which) + k])) if roi is not None else (0.0, 1.0)
        if scales is not None:
            scale = float(scales[k])
            # In float32, as ONNX's shape inference does: 10 rows by 0.7 are 7.
            target = math.floor(np.float32(size) * np.float32(region[1] - region[0]) * np.float32(scale))
            length = scale * size
        elif common is not None:
            scale, target, length = common, math.floor(common * size + 0.5), common * size
        else:
            target = int(given[k])
            scale, length = target / size, target
        planned[axis] = _Axis(size, target, scale, region, length)
    return planned


def _fits_resize2d(shape: tuple[int, ...], axes: list[_Axis], attr: Attributes) -> bool:
    mode = text(attr, "mode", "nearest")
    coordinates = text(attr, "coordinate_transformation_mode", "half_pixel")
    if len(shape) != 4 or coordinates not in _RESIZE2D_COORDINATES or mode not in ("nearest", "linear"):
        return False
    if attr.get("antialias", 0) or any(axis.target != axis.size or axis.scale != 1.0 for axis in axes[:2]):
        return False
    # With whole scaled sizes the ratio of sizes is the scale. Coordinates that fall just on the border between two
    # rows round as the arithmetic of the moment goes: nearest stays with whole upscaling.
    whole = all(abs(axis.scale * axis.size - axis.target) < 1e-9 for axis in axes[2:])
    if mode == "nearest":
        return whole and coordinates == "asymmetric" and all(axis.target % axis.size == 0 for axis in axes[2:])
    # One row or column has a place of its own there, and resize2d divides by zero.
    alone = coordinates in ("align_corners", "pytorch_half_pixel") and any(axis.target == 1 for axis in axes[2:])
    return whole and not alone


def _resample(bb: Any, data: Any, position: int, axis: _Axis, attr: Attributes) -> Any:
    where = _coordinates(axis, text(attr, "coordinate_transformation_mode", "half_pixel"))
    mode = text(attr, "mode", "nearest")
    outside = (where < 0) | (where > axis.size - 1)
    crop = text(attr, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if mode == "nearest":
        rows = np.clip(_rounded(where, text(attr, "nearest_mode", "round_prefer_floor")), 0, axis.size - 1)
        if not (crop and outside.any()):
            return bb.normalize(relax.op.take(data, constant(rows.astype("int64")), axis=position))
        matrix = np.eye(axis.size)[rows.astype(int)]
    else:
        matrix = _weights(where, axis, mode, attr)
    if crop:
        matrix[outside] = 0.0
    data = _apply(bb, data, position, matrix)
    extra = float(attr.get("extrapolation_value", 0.0))
    if crop and extra and outside.any():
        shape = [1] * len(shape_of(data))
        shape[position] = axis.target
        fill = (outside * extra).astype(str(data.ty.dtype.dtype)).reshape(shape)
        mask = constant((~outside).astype(fill.dtype).reshape(shape))
        data = bb.normalize(relax.op.add(bb.normalize(relax.op.multiply(data, mask)), constant(fill)))
    return data


def _coordinates(axis: _Axis, mode: str) -> Array:
    """Where in the input each output position lies, float32.

    Nearest jumps where a coordinate crosses a border, and many fall just on one: with scale 0.3 position 3 lies at 10,
    or just before it, as the arithmetic rounds. So it is ONNX Runtime's: the scale is a float32, and so is every step.
    """
    one, half = np.float32(1), np.float32(0.5)
    x = np.arange(axis.target, dtype="float32")
    scale, size, target = np.float32(axis.scale), np.float32(axis.size), np.float32(axis.target)
    # What align_corners stretches over is not rounded.
    length = np.float32(axis.length)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and axis.target > 1):
        return (x + half) / scale - half
    if mode == "half_pixel_symmetric":
        return size / 2 * (one - target / (scale * size)) + (x + half) / scale - half
    if mode == "pytorch_half_pixel":
        return np.zeros_like(x)
    if mode == "align_corners":
        return x * (size - one) / (length - one) if length > 1 else np.zeros_like(x)
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        start, end = np.float32(axis.roi[0]), np.float32(axis.roi[1])
        if axis.target > 1:
            return start * (size - one) + x * (end - start) * (size - one) / (target - one)
        return np.full(1, half * (start + end) * (size - one))
    raise ModelError(f"its coordinate_transformation_mode {mode} is not supported")


def _rounded(where: Array, mode: str) -> Array:
    if mode == "round_prefer_floor":
        return np.ceil(where - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(where + 0.5)
    return np.floor(where) if mode == "floor" else np.ceil(where)


def _weights(where: Array, axis: _Axis, mode: str, attr: Attributes) -> Array:
    """The matrix [target, size] that interpolates linearly or by cubics, wider when it has to smooth."""
    stretch = max(1.0, 1.0 / axis.scale) if attr.get("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    matrix = np.zeros((axis.target, axis.size))
    for row, center in enumerate(where):
        taps = np.arange(math.floor(center - reach) + 1, math.floor(center + reach) + 1)
        weights = _kernel((taps - center) / stretch, mode, float(attr.get("cubic_coeff_a", -0.75)))
        if attr.get("exclude_outside", 0):
            weights = weights * ((taps >= 0) & (taps < axis.size))
        if attr.get("exclude_outside", 0) or stretch > 1.0:
            weights = weights / weights.sum()
        np.add.at(matrix[row], np.clip(taps, 0, axis.size - 1), weights)
    return matrix


def _kernel(distance: Array, mode: str, a: float) -> Array:
    d = np.abs(distance)
    if mode == "linear":
        return np.maximum(0.0, 1.0 - d)
    if mode != "cubic":
        raise ModelError(f"its mode {mode} is not supported")
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _apply(bb: Any, data: Any, position: int, matrix: Array) -> Any:
    """Multiplies one axis of `data` by a matrix [target, size]."""
    dtype = str(data.ty.dtype.dtype)
    rank = len(shape_of(data))
    if position == rank - 2:
        return bb.normalize(relax.op.matmul(constant(matrix.astype(dtype)), data))
    last = [axis for axis in range(rank) if axis != position] + [position]
    if position != rank - 1:
        data = bb.normalize(relax.op.permute_dims(data, last))
    data = bb.normalize(relax.op.matmul(data, constant(matrix.T.astype(dtype))))
    if position != rank - 1:
        data = bb.normalize(relax.op.permute_dims(data, [last.index(axis) for axis in range(rank)]))
    return data


CONVERTERS: dict[str, Any] = {"Resize": Resize, "Upsample": Upsample}
