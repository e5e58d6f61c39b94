"""Which layout each operator takes and gives, and how it is emitted in it.

Convolutions and pooling work on blocked channels; operators that do not care about the layout (elementwise, concat,
slices and resize on aligned channels, spatial means) follow their operands; the rest sees the model's own layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, topi

from autofuse.lower import operators
from autofuse.lower.lowering import Lowering, as_numpy, dtype_of, shape_of
from autofuse.lower.values import PLAIN, Value, block_array, pack_conv2d, pack_depthwise, pack_matmul

# Elementwise operators that keep the zero padding of a partly filled channel block finite: padded lanes meet zero
# weights in the next convolution, and zero times infinity would spoil every channel.
_FINITE_AT_ZERO = {
    "nn.relu", "nn.relu6", "nn.leakyrelu", "sigmoid", "tanh", "clip", "nn.silu", "nn.gelu", "nn.gelu_tanh",
    "nn.softplus", "abs", "negative", "add", "subtract", "multiply", "maximum", "minimum", "erf",
}  # fmt: skip
_ELEMENTWISE = _FINITE_AT_ZERO | {
    "exp", "log", "sqrt", "rsqrt", "divide", "power", "floor", "ceil", "round", "sign", "square", "sin", "cos", "atan",
    "astype",
}  # fmt: skip

Rule = Callable[[Lowering, Any, str], "Value | tuple[Value, ...] | None"]


def lower_call(state: Lowering, call: Any, hint: str) -> Value | tuple[Value, ...]:
    """Lower one call of the prepared module; `hint` names its result."""
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    kind = name.removeprefix("relax.")
    rule = _RULES.get(kind)
    if rule is None and kind in _ELEMENTWISE:
        rule = _elementwise
    if rule is not None:
        done = rule(state, call, hint)
        if done is not None:
            return done
    return _as_it_is(state, call, hint)


def _tensor_args(state: Lowering, call: Any) -> tuple[list[Value], list[str]]:
    """The call's tensor operands, tuples flattened, and the text of its other arguments."""
    values: list[Value] = []
    literals: list[str] = []
    for arg in call.args:
        ty = getattr(arg, "ty", None)
        if isinstance(ty, relax.TensorType):
            values.append(state.value(arg))
        elif isinstance(ty, relax.TupleType) and all(isinstance(f, relax.TensorType) for f in ty.fields):
            values.extend(state.fields(arg))
        else:
            literals.append(str(arg))
    return values, literals


def _with_tensors(call: Any, tensors: Sequence[Any]) -> list[Any]:
    """The call's arguments with its tensor operands (flattened) replaced by `tensors`."""
    left = list(tensors)
    args = []
    for arg in call.args:
        ty = getattr(arg, "ty", None)
        if isinstance(ty, relax.TensorType):
            args.append(left.pop(0))
        elif isinstance(ty, relax.TupleType) and all(isinstance(f, relax.TensorType) for f in ty.fields):
            args.append(relax.Tuple([left.pop(0) for _ in ty.fields]))
        else:
            args.append(arg)
    return args


# Operators whose axes a schedule has to know, and what the attribute is called.
_AXES = {
    "sum": "axis", "mean": "axis", "max": "axis", "min": "axis", "prod": "axis", "variance": "axis", "std": "axis",
    "nn.softmax": "axis", "nn.log_softmax": "axis", "nn.layer_norm": "axes", "nn.rms_norm": "axes",
    "permute_dims": "axes",
}  # fmt: skip


def _axes(call: Any) -> dict[str, object] | None:
    """The axes that a reduction reduces over or that a permutation takes in turn, none of them negative."""
    name = _AXES.get(call.op.name.removeprefix("relax."))
    if name is None:
        return None
    rank = len(call.args[0].ty.shape.values)
    axes = getattr(call.attrs, name)
    if axes is None:
        return {"axes": list(range(rank))[::-1] if name == "axes" else list(range(rank))}
    axes = [axes] if isinstance(axes, int) else list(axes)
    return {"axes": [int(a) % rank for a in axes]}


def _as_it_is(state: Lowering, call: Any, hint: str) -> Value | tuple[Value, ...]:
    """In the model's own layout, by TVM's legalisation; kept as a call where there is none."""
    values, literals = _tensor_args(state, call)
    tensors = [state.plain(v) for v in values]
    if isinstance(call.ty, relax.TensorType):
        if isinstance(call.op, tvm.ir.Op) and call.op.name != "relax.call_tir":
            done = state.emit_call(
                call,
                [(v, PLAIN) for v in values],
                _with_tensors(call, tensors),
                tensors,
                shape=shape_of(call),
                dtype=dtype_of(call),
                layout=PLAIN,
                hint=hint,
                literals=literals,
                attrs=_axes(call),
            )
            if done is not None:
                return done
        var = state.builder.emit(
            relax.Call(call.op, _with_tensors(call, tensors), call.attrs, call.ty_args), name_hint=hint
        )
        return Value(shape_of(call), dtype_of(call), PLAIN, {PLAIN: var})
    var = state.builder.emit(
        relax.Call(call.op, _with_tensors(call, tensors), call.attrs, call.ty_args), name_hint=hint
    )
    return tuple(
        Value(
            tuple(int(e) for e in field.shape.values),
            str(getattr(field.dtype, "dtype", field.dtype)),
            PLAIN,
            {PLAIN: state.builder.emit(relax.TupleGetItem(var, i))},
        )
        for i, field in enumerate(call.ty.fields)
    )


def _conv2d(state: Lowering, call: Any, hint: str) -> Value | None:
    data, weight = state.value(call.args[0]), state.value(call.args[1])
    attrs = call.attrs
    if attrs.data_layout != "NCHW" or attrs.kernel_layout != "OIHW" or not weight.constant or data.dtype != "float32":
        return None
    shape, lanes, groups = shape_of(call), state.lanes, int(attrs.groups)
    channels, outputs = data.shape[1], weight.shape[0]
    geometry = {
        "strides": [int(s) for s in attrs.strides],
        "padding": [int(p) for p in attrs.padding],
        "dilation": [int(d) for d in attrs.dilation],
    }
    described = {**geometry, "groups": groups, "kernel": list(weight.shape[2:])}
    array = as_numpy(weight)
    if groups > 1 and groups == channels == outputs:
        packed = state.constant(pack_depthwise(array, lanes))
        args = [state.in_blocks(data), packed.forms[PLAIN]]
        return state.emit_te(
            "nn.conv2d",
            lambda x, w: operators.depthwise_conv2d_blocked(x, w, **geometry),
            [(data, state.blocked), (weight, "packed")],
            args,
            shape=shape,
            dtype=data.dtype,
            layout=state.blocked,
            attrs={**described, "variant": "depthwise"},
            hint=hint,
        )
    if groups > 1 and (channels // groups % lanes or outputs // groups % lanes):
        return None
    # Few input channels (an image) are read where they stand: one channel at a time, broadcast over the outputs.
    in_block = 1 if channels < lanes and data.layout == PLAIN else lanes
    packed = state.constant(pack_conv2d(array, in_block, lanes))
    first = state.plain(data) if in_block == 1 else state.in_blocks(data)
    return state.emit_te(
        "nn.conv2d",
        lambda x, w: operators.conv2d_blocked(x, w, groups=groups, **geometry),
        [(data, PLAIN if in_block == 1 else state.blocked), (weight, "packed")],
        [first, packed.forms[PLAIN]],
        shape=shape,
        dtype=data.dtype,
        layout=state.blocked,
        attrs={**described, "variant": "blocked", "in_block": in_block},
        hint=hint,
    )


def _matmul(state: Lowering, call: Any, hint: str) -> Value | None:
    left, right = state.value(call.args[0]), state.value(call.args[1])
    if left.dtype != "float32" or right.dtype != "float32" or len(left.shape) < 2 or len(right.shape) < 2:
        return None
    shape = shape_of(call)
    if right.constant and all(extent == 1 for extent in right.shape[:-2]):
        array = as_numpy(right).reshape(right.shape[-2:])
        packed = state.constant(pack_matmul(array, 2 * state.lanes))
        if len(shape) == len(left.shape):
            columns = right.shape[-1]
            return state.emit_te(
                "matmul",
                lambda a, b: operators.matmul_packed(a, b, columns=columns),
                [(left, PLAIN), (right, "packed")],
                [state.plain(left), packed.forms[PLAIN]],
                shape=shape,
                dtype="float32",
                layout=PLAIN,
                attrs={"variant": "packed"},
                hint=hint,
            )
    return state.emit_te(
        "matmul",
        operators.matmul_batched,
        [(left, PLAIN), (right, PLAIN)],
        [state.plain(left), state.plain(right)],
        shape=shape,
        dtype="float32",
        layout=PLAIN,
        attrs={"variant": "batched"},
        hint=hint,
    )


def _pool2d(state: Lowering, call: Any, hint: str) -> Value | None:
    data, attrs = state.value(call.args[0]), call.attrs
    if attrs.layout != "NCHW" or data.dtype != "float32":
        return None
    shape = shape_of(call)
    layout = data.layout
    kind = "max" if call.op.name == "relax.nn.max_pool2d" else "avg"
    described = {
        "window": [int(e) for e in attrs.pool_size],
        "strides": [int(s) for s in attrs.strides],
        "padding": [int(p) for p in attrs.padding],
        "dilation": [int(d) for d in attrs.dilation],
        "count_include_pad": bool(attrs.count_include_pad),
    }
    arguments: dict[str, Any] = dict(described)
    return state.emit_te(
        call.op.name.removeprefix("relax."),
        lambda x: operators.pool2d(x, kind=kind, extent=shape[2:], **arguments),
        [(data, layout)],
        [data.forms[layout]],
        shape=shape,
        dtype=data.dtype,
        layout=layout,
        attrs=described,
        hint=hint,
    )


def _spatial_mean(state: Lowering, call: Any, hint: str) -> Value | None:
    """Reductions over exactly the spatial axes keep the channel blocks."""
    data = state.value(call.args[0])
    axes = sorted(int(a) % 4 for a in (call.attrs.axis or ())) if len(data.shape) == 4 else []
    if data.layout != state.blocked or axes != [2, 3]:
        return None
    kind = call.op.name.removeprefix("relax.")
    return _spatial_reduction(state, call, data, kind, bool(call.attrs.keepdims), hint)


def _adaptive_avg_pool2d(state: Lowering, call: Any, hint: str) -> Value | None:
    data = state.value(call.args[0])
    if call.attrs.layout != "NCHW" or list(shape_of(call)[2:]) != [1, 1]:
        return None
    if data.layout == state.blocked:
        return _spatial_reduction(state, call, data, "mean", True, hint)
    mean = state.builder.normalize(relax.op.mean(state.plain(data), [2, 3], keepdims=True))
    return state.emit_call(
        mean, [(data, PLAIN)], [state.plain(data)], [state.plain(data)], shape=shape_of(call), dtype=data.dtype,
        layout=PLAIN, hint=hint,
    )  # fmt: skip


def _spatial_reduction(state: Lowering, call: Any, data: Value, kind: str, keepdims: bool, hint: str) -> Value | None:
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
        return made
    flat = state.builder.normalize(relax.op.reshape(state.plain(made), shape_of(call)))
    plain = state.plain(made)
    return state.emit_call(
        flat, [(made, PLAIN)], [plain, flat.args[1]], [plain], shape=shape_of(call), dtype=data.dtype, layout=PLAIN,
        hint=hint, literals=[str(flat.args[1])],
    )  # fmt: skip


def _operand_in_blocks(state: Lowering, value: Value, channels: int) -> Any | None:
    """An elementwise operand that broadcasts against [N, C/lanes, H, W, lanes]; None where that needs a reshape."""
    if value.scalar:
        return relax.const(as_numpy(value).reshape(()))
    if value.array is not None and len(value.shape) <= 4:
        array = as_numpy(value).reshape((1,) * (4 - len(value.shape)) + value.shape)
        if array.shape[1] == channels:
            return relax.const(block_array(array, state.lanes))
        if array.shape[1] == 1:
            return relax.const(np.ascontiguousarray(array[..., None]))
        return None
    if len(value.shape) == 4 and value.shape[1] == channels:
        return state.in_blocks(value)
    return None


def _elementwise(state: Lowering, call: Any, hint: str) -> Value | None:
    values, literals = _tensor_args(state, call)
    if not isinstance(call.ty, relax.TensorType):
        return None
    shape = shape_of(call)
    if len(shape) != 4 or not any(v.layout == state.blocked and v.shape == shape for v in values):
        return None
    kind = call.op.name.removeprefix("relax.")
    if shape[1] % state.lanes and kind not in _FINITE_AT_ZERO:
        safe = kind == "divide" and values[1].scalar
        if not safe:
            return None
    tensors = [_operand_in_blocks(state, v, shape[1]) for v in values]
    if any(t is None for t in tensors):
        return None
    return state.emit_call(
        call,
        [(v, state.blocked) for v in values],
        _with_tensors(call, tensors),
        tensors,
        shape=shape,
        dtype=dtype_of(call),
        layout=state.blocked,
        hint=hint,
        literals=literals,
    )


def _concat(state: Lowering, call: Any, hint: str) -> Value | None:
    values = list(state.fields(call.args[0]))
    shape = shape_of(call)
    if len(shape) != 4 or not any(v.layout == state.blocked for v in values):
        return None
    axis = int(call.attrs.axis) % 4
    if axis == 1 and any(v.shape[1] % state.lanes for v in values):
        return None
    tensors = [state.in_blocks(v) for v in values]
    return state.emit_call(
        call,
        [(v, state.blocked) for v in values],
        [relax.Tuple(tensors)],
        tensors,
        shape=shape,
        dtype=dtype_of(call),
        layout=state.blocked,
        hint=hint,
        attrs={"axis": axis},
    )


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
            if begin[i] % lanes or not whole or step[i] != 1 or shape[1] % lanes:
                aligned = False
                break
            physical_begin[i], physical_end[i] = begin[i] // lanes, -(-end[i] // lanes)
    if not aligned:
        physical_begin, physical_end = list(begin), list(end)
    source = state.in_blocks(data) if aligned else state.plain(data)
    layout = state.blocked if aligned else PLAIN
    call = state.builder.normalize(relax.op.strided_slice(source, axes, physical_begin, physical_end, step))
    return state.emit_call(
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


def _integers(arg: Any) -> list[int] | None:
    fields = getattr(arg, "fields", None)
    if fields is None or not all(hasattr(f, "value") for f in fields):
        return None
    return [int(f.value) for f in fields]


def _strided_slice(state: Lowering, call: Any, hint: str) -> Value | None:
    lists = [_integers(a) for a in call.args[1:]]
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


def _split(state: Lowering, call: Any, hint: str) -> tuple[Value, ...] | None:
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


def _resize2d(state: Lowering, call: Any, hint: str) -> Value | None:
    data, attrs = state.value(call.args[0]), call.attrs
    if attrs.layout != "NCHW" or data.layout != state.blocked:
        return None
    shape = shape_of(call)
    size = list(shape[2:])
    described = str(attrs)
    return state.emit_te(
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


_RULES: dict[str, Rule] = {
    "nn.conv2d": _conv2d,
    "matmul": _matmul,
    "nn.max_pool2d": _pool2d,
    "nn.avg_pool2d": _pool2d,
    "nn.adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "mean": _spatial_mean,
    "sum": _spatial_mean,
    "max": _spatial_mean,
    "concat": _concat,
    "strided_slice": _strided_slice,
    "split": _split,
    "image.resize2d": _resize2d,
}
