"""Operators that follow the layout of their operands: elementwise, concat, slices, resize, spatial reductions.

Each rule takes a call of the prepared module and gives its value in blocked channels, or None where that does not work
and the operator has to see the model's own layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, topi

from autofuse.lower.arguments import integers, tensor_args, with_tensors
from autofuse.lower.lowering import Lowering, as_numpy, constant_of, dtype_of, shape_of
from autofuse.lower.padding import LIMIT, padding_bound
from autofuse.lower.values import PLAIN, Value, block_array

ELEMENTWISE = {
    "nn.relu", "nn.leakyrelu", "sigmoid", "tanh", "clip", "nn.silu", "nn.gelu", "nn.gelu_tanh", "nn.softplus", "abs",
    "negative", "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "erf", "exp", "log", "sqrt",
    "rsqrt", "floor", "ceil", "round", "sign", "square", "sin", "cos", "atan", "astype",
}  # fmt: skip


def spatial_reduction(state: Lowering, call: Any, hint: str) -> Value | None:
    """Reductions over exactly the spatial axes keep the channel blocks."""
    data = state.value(call.args[0])
    axes = sorted(int(a) % 4 for a in (call.attrs.axis or ())) if len(data.shape) == 4 else []
    if data.layout != state.blocked or axes != [2, 3]:
        return None
    kind = call.op.name.removeprefix("relax.")
    return _reduce_in_blocks(state, call, data, kind, bool(call.attrs.keepdims), hint)


def adaptive_avg_pool2d(state: Lowering, call: Any, hint: str) -> Value | None:
    """Global pooling only: a mean over the spatial axes."""
    data = state.value(call.args[0])
    if call.attrs.layout != "NCHW" or list(shape_of(call)[2:]) != [1, 1]:
        return None
    if data.layout == state.blocked:
        return _reduce_in_blocks(state, call, data, "mean", True, hint)
    mean = state.builder.normalize(relax.op.mean(state.plain(data), [2, 3], keepdims=True))
    return state.emit_call(
        mean, [(data, PLAIN)], [state.plain(data)], [state.plain(data)], shape=shape_of(call), dtype=data.dtype,
        layout=PLAIN, hint=hint,
    )  # fmt: skip


def _reduce_in_blocks(state: Lowering, call: Any, data: Value, kind: str, keepdims: bool, hint: str) -> Value | None:
    bound = data.padding * (data.shape[2] * data.shape[3] if kind == "sum" else 1)
    if kind == "variance":
        bound = data.padding**2
    if data.shape[1] % state.lanes and not bound <= LIMIT:
        return None
    source = state.in_blocks(data)
    reduced = state.builder.normalize(getattr(relax.op, kind)(source, [2, 3], keepdims=True))
    made = state.emit_call(
        reduced,
        [(data, state.blocked)],
        [source],
        [source],
        shape=(*data.shape[:2], 1, 1),
        dtype=data.dtype,
        layout=state.blocked,
        hint=hint,
        attrs={"axes": [2, 3]},
    )
    if made is None or keepdims:
        return _padded(made, bound)
    return reshape(state, made, shape_of(call), hint)


def reshape(state: Lowering, value: Value, shape: tuple[int, ...], hint: str) -> Value | None:
    """The value in another shape, in the model's own layout; a constant stays one."""
    if value.array is not None:
        return state.constant(value.array.reshape(shape))
    plain = state.plain(value)
    call = state.builder.normalize(relax.op.reshape(plain, shape))
    return state.emit_call(
        call,
        [(value, PLAIN)],
        [plain, call.args[1]],
        [plain],
        shape=shape,
        dtype=value.dtype,
        layout=PLAIN,
        hint=hint,
        literals=[str(call.args[1])],
    )


def scalar_operand(kind: str, value: Value) -> Any:
    """A constant of one element as an elementwise operand: without axes, so that legalisation folds it.

    A divisor that is zero keeps an axis: TVM refuses to fold a division by zero.
    """
    array = as_numpy(value)
    return constant_of(array.reshape((1,) if kind == "divide" and not array.any() else ()))


def _operand_in_blocks(state: Lowering, kind: str, value: Value, channels: int) -> Any | None:
    """An elementwise operand that broadcasts against [N, C/lanes, H, W, lanes]; None where that needs a reshape."""
    if value.scalar:
        return scalar_operand(kind, value)
    if value.array is not None and len(value.shape) <= 4:
        array = as_numpy(value).reshape((1,) * (4 - len(value.shape)) + value.shape)
        if array.shape[1] == channels:
            return constant_of(block_array(array, state.lanes))
        if array.shape[1] == 1:
            return constant_of(np.ascontiguousarray(array[..., None]))
        return None
    if len(value.shape) == 4 and value.shape[1] == channels:
        return state.in_blocks(value)
    return None


def _padding(value: Value, channels: int) -> float:
    """Bound of an elementwise operand's padding lanes; constants that are broadcast over channels reach into them."""
    if value.array is None:
        return value.padding
    array = as_numpy(value)
    if array.ndim >= 3 and array.shape[-3] == channels != 1:
        return 0.0
    return float(np.max(np.abs(array), initial=0.0))


def _padded(value: Value | None, bound: float) -> Value | None:
    if value is not None:
        value.padding = bound
    return value


def elementwise(state: Lowering, call: Any, hint: str) -> Value | None:
    """In blocks when an operand of the result's shape is, and the padding is known to stay finite."""
    values, literals = tensor_args(state, call)
    if not isinstance(call.ty, relax.TensorType):
        return None
    shape = shape_of(call)
    if len(shape) == 3:
        return _with_a_height(state, call, values, literals, shape, hint)
    return _elementwise(state, call, values, literals, shape, hint)


def _with_a_height(
    state: Lowering, call: Any, values: list[Value], literals: list[str], shape: tuple[int, ...], hint: str
) -> Value | None:
    """On values with a height of one, where an operand of the result's shape has such a form in blocks."""
    if not any(v.wide is not None and v.wide.layout == state.blocked and v.shape == shape for v in values):
        return None
    high = (*shape[:2], 1, shape[2])
    operands: list[Value] = []
    for value in values:
        if value.scalar or value.wide is not None:
            operands.append(value.wide or value)
        elif value.array is not None and len(value.shape) <= 3:
            array = value.array.reshape((1,) * (3 - len(value.shape)) + value.shape)
            operands.append(state.constant(array[:, :, None]))
        else:
            wide = reshape(state, value, high, hint) if value.shape == shape else None
            if wide is None:
                return None
            operands.append(wide)
    made = _elementwise(state, call, operands, literals, high, hint)
    return None if made is None else Value(shape, made.dtype, PLAIN, wide=made)


def _elementwise(
    state: Lowering, call: Any, values: list[Value], literals: list[str], shape: tuple[int, ...], hint: str
) -> Value | None:
    if len(shape) != 4 or not any(v.layout == state.blocked and v.shape == shape for v in values):
        return None
    bound = padding_bound(call, [_padding(v, shape[1]) for v in values]) if shape[1] % state.lanes else 0.0
    if not bound <= LIMIT:
        return None
    kind = call.op.name.removeprefix("relax.")
    tensors = [_operand_in_blocks(state, kind, v, shape[1]) for v in values]
    if any(t is None for t in tensors):
        return None
    made = state.emit_call(
        call,
        [(v, state.blocked) for v in values],
        with_tensors(call, tensors),
        tensors,
        shape=shape,
        dtype=dtype_of(call),
        layout=state.blocked,
        hint=hint,
        literals=literals,
    )
    return _padded(made, bound)


def quantisation(state: Lowering, call: Any, hint: str) -> Value | None:
    """quantize and dequantize, in blocks where all channels have one scale and zero point."""
    values, _ = tensor_args(state, call)
    return elementwise(state, call, hint) if all(v.scalar for v in values[1:]) else None


def concat(state: Lowering, call: Any, hint: str) -> Value | None:
    """In blocks when a part is and, along the channels, only the last part fills a block partly."""
    values = list(state.fields(call.args[0]))
    shape = shape_of(call)
    if len(shape) != 4 or not any(v.layout == state.blocked for v in values):
        return None
    axis = int(call.attrs.axis) % 4
    if axis == 1 and any(v.shape[1] % state.lanes for v in values[:-1]):
        return None
    tensors = [state.in_blocks(v) for v in values]
    # Counted from the end, the axis would be another one of the blocked tensors, which have one more.
    made = state.emit_call(
        state.builder.normalize(relax.op.concat(tensors, axis=axis)),
        [(v, state.blocked) for v in values],
        [relax.Tuple(tensors)],
        tensors,
        shape=shape,
        dtype=dtype_of(call),
        layout=state.blocked,
        hint=hint,
        attrs={"axis": axis},
    )
    return _padded(made, max(v.padding for v in values))


def _slice(
    state: Lowering, data: Value, axes: list[int], begin: list[int], end: list[int], step: list[int], hint: str
) -> Value | None:
    """A slice with positive steps, in blocks where the channel range is aligned to them."""
    rank = len(data.shape)
    shape = list(data.shape)
    for axis, b, e, s in zip(axes, begin, end, step, strict=True):
        shape[axis] = max(0, -(-(e - b) // s))
    lanes = state.lanes
    aligned = data.layout == state.blocked and rank == 4
    physical_begin, physical_end = list(begin), list(end)
    if aligned:
        for i, axis in enumerate(axes):
            if axis != 1:
                continue
            whole = end[i] == data.shape[1] or end[i] % lanes == 0
            if begin[i] % lanes or not whole or step[i] != 1:
                aligned = False
                break
            physical_begin[i], physical_end[i] = begin[i] // lanes, -(-end[i] // lanes)
    if not aligned:
        physical_begin, physical_end = list(begin), list(end)
    source = state.in_blocks(data) if aligned else state.plain(data)
    layout = state.blocked if aligned else PLAIN
    call = state.builder.normalize(relax.op.strided_slice(source, axes, physical_begin, physical_end, step))
    made = state.emit_call(
        call,
        [(data, layout)],
        list(call.args),
        [source],
        shape=tuple(shape),
        dtype=data.dtype,
        layout=layout,
        hint=hint,
        literals=[str([axes, begin, end, step])],
        attrs={"axes": axes, "begin": begin, "end": end, "step": step},
    )
    return _padded(made, data.padding)


def strided_slice(state: Lowering, call: Any, hint: str) -> Value | None:
    """Literal ranges with positive steps, clipped to the extents as numpy does."""
    lists = [integers(a) for a in call.args[1:]]
    if any(entry is None for entry in lists):
        return None
    axes, begin, end = (entry or [] for entry in lists[:3])
    step = (lists[3] or []) if len(lists) > 3 else [1] * len(axes)
    data = state.value(call.args[0])
    rank = len(data.shape)
    axes = [a % rank for a in axes]
    if any(s <= 0 for s in step):
        return None
    extents = [data.shape[a] for a in axes]
    begin = [min(max(b + e if b < 0 else b, 0), e) for b, e in zip(begin, extents, strict=True)]
    end = [min(max(x + e if x < 0 else x, 0), e) for x, e in zip(end, extents, strict=True)]
    return _slice(state, data, axes, begin, end, step, hint)


def split(state: Lowering, call: Any, hint: str) -> tuple[Value, ...] | None:
    """One slice for each part, so that every operator has one result."""
    data = state.value(call.args[0])
    axis = int(call.attrs.axis) % len(data.shape)
    parts = [tuple(int(e) for e in field.shape.values) for field in call.ty.fields]
    made: list[Value] = []
    start = 0
    for i, part in enumerate(parts):
        stop = start + part[axis]
        piece = _slice(state, data, [axis], [start], [stop], [1], f"{hint}_{i}")
        if piece is None:
            return None
        made.append(piece)
        start = stop
    return tuple(made)


def resize2d(state: Lowering, call: Any, hint: str) -> Value | None:
    """In blocks; cubic weights sum to one but overshoot, by less than a factor of four."""
    data, attrs = state.value(call.args[0]), call.attrs
    if attrs.layout != "NCHW" or data.layout != state.blocked:
        return None
    shape = shape_of(call)
    bound = 4.0 * data.padding + abs(float(attrs.extrapolation_value))
    if shape[1] % state.lanes and not bound <= LIMIT:
        return None
    size = list(shape[2:])
    described = str(attrs)
    made = state.emit_te(
        "image.resize2d",
        lambda x: topi.image.resize2d(
            x,
            roi=attrs.roi,
            size=size,
            layout=state.blocked,
            method=attrs.method,
            coordinate_transformation_mode=attrs.coordinate_transformation_mode,
            rounding_method=attrs.rounding_method,
            bicubic_alpha=attrs.cubic_alpha,
            bicubic_exclude=attrs.cubic_exclude,
            extrapolation_value=attrs.extrapolation_value,
        ),
        [(data, state.blocked)],
        [state.in_blocks(data)],
        shape=shape,
        dtype=data.dtype,
        layout=state.blocked,
        attrs={"resize": described},
        hint=hint,
    )
    return _padded(made, bound)
