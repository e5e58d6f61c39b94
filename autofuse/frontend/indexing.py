"""Reading along an axis at constant indices: a slice where they are evenly spaced, else a take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autofuse.errors import ModelError
from autofuse.frontend.constants import Array, constant, is_constant


def take_constant(emit: Callable[[Any], Any], data: Any, shape: tuple[int, ...], indices: Array, axis: int) -> Any:
    """The elements of `data` (of `shape`) at `indices` along `axis`, which count from the end when negative.

    `emit` binds an intermediate value. ModelError when an index reaches past the axis.
    """
    from tvm import relax

    where = indices.astype("int64")
    if where.size and (where.min() < -shape[axis] or where.max() >= shape[axis]):
        raise ModelError(f"its indices reach past axis {axis}, which has {shape[axis]} elements")
    where = np.where(where < 0, where + shape[axis], where)
    flat = where.reshape(-1)
    steps = np.unique(np.diff(flat))
    step = int(steps[0]) if len(steps) else 1
    if where.size == 0 or len(steps) > 1 or step < 1 or is_constant(data):
        return relax.op.take(data, constant(where), axis=axis, mode="clip")
    rows = relax.op.strided_slice(data, [axis], [int(flat[0])], [int(flat[-1]) + 1], [step])
    return relax.op.reshape(emit(rows), [*shape[:axis], *where.shape, *shape[axis + 1 :]])
