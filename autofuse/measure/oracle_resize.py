"""What the oracle makes of resizes: images [N, C, H, W] of another height and width."""

from __future__ import annotations

import re

import numpy as np

from autofuse.graph.model import Operator
from autofuse.measure.oracle_attributes import Array, NotEvaluated, form, logical


def resize(op: Operator, operands: list[Array]) -> Array:
    """Nearest (rounded down, asymmetric) and linear ones."""
    text = str(op.attrs.get("resize", "")) or form(op)[0]
    words = set(re.findall(r'(\w+)="(\w*)"', text.replace("\\", "")))
    mode = dict(words).get("coordinate_transformation_mode", "")
    data, size = operands[0], logical(op)[2:]
    if words >= {("layout", "NCHW"), ("method", "nearest_neighbor"), ("rounding_method", "floor")}:
        if mode == "asymmetric":
            rows, columns = (np.arange(e) * s // e for e, s in zip(size, data.shape[2:], strict=True))
            return data[:, :, rows][:, :, :, columns]
    elif words >= {("layout", "NCHW"), ("method", "linear")} and mode in ("half_pixel", "align_corners", "asymmetric"):
        return _linear(_linear(data, 2, size[0], mode), 3, size[1], mode)
    raise NotEvaluated(f"{op.name}: this resize")


def _linear(data: Array, axis: int, count: int, mode: str) -> Array:
    """Linear interpolation along one axis to `count` elements; what lies outside is as the last element."""
    extent, place = data.shape[axis], np.arange(count, dtype=np.float64)
    if mode == "align_corners":
        place *= (extent - 1) / (count - 1) if count > 1 else 0.0
    else:
        place = (place + 0.5) * extent / count - 0.5 if mode == "half_pixel" else place * extent / count
    low = np.floor(place)
    share = (place - low).astype(data.dtype).reshape(-1, *(1,) * (data.ndim - axis - 1))
    first, second = (np.take(data, np.clip(low + o, 0, extent - 1).astype(int), axis) for o in (0, 1))
    return np.asarray(first * (1 - share) + second * share)
