"""Which layout each operator takes and gives, and how it is emitted in it.

Convolutions and pooling work on blocked channels; operators that do not care about the layout (elementwise, concat,
slices and resize on aligned channels, spatial means) follow their operands; the rest sees the model's own layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from autofuse.lower import operators
from autofuse.lower.arguments import tensor_args, with_tensors
from autofuse.lower.convolutions import conv1d, conv1d_transpose, conv2d, conv2d_transpose
from autofuse.lower.following import (
    ELEMENTWISE,
    adaptive_avg_pool2d,
    concat,
    elementwise,
    quantisation,
    reshape,
    resize2d,
    scalar_operand,
    spatial_reduction,
    split,
    strided_slice,
)
from autofuse.lower.lowering import Lowering, as_numpy, dtype_of, shape_of
from autofuse.lower.normalizations import group_norm
from autofuse.lower.values import PLAIN, Value, pack_matmul

Rule = Callable[[Lowering, Any, str], "Value | tuple[Value, ...] | None"]


def lower_call(state: Lowering, call: Any, hint: str) -> Value | tuple[Value, ...]:
    """Lower one call of the prepared module; `hint` names its result."""
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    kind = name.removeprefix("relax.")
    rule = _RULES.get(kind)
    if rule is None and kind in ELEMENTWISE:
        rule = elementwise
    if rule is not None:
        done = rule(state, call, hint)
        if done is not None:
            return done
    return _as_it_is(state, call, hint)


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
    values, literals = tensor_args(state, call)
    kind = call.op.name.removeprefix("relax.") if isinstance(call.op, tvm.ir.Op) else ""
    ranks = [len(v.shape) for v in values if not v.scalar]
    # A constant of one element and shape [1, 1, 1] would stay an argument; without its axes it is folded.
    fold = kind in ELEMENTWISE and bool(ranks)
    tensors = [
        scalar_operand(kind, v) if fold and v.scalar and len(v.shape) <= max(ranks) else state.plain(v) for v in values
    ]
    args = with_tensors(call, tensors)
    if kind == "call_tir":
        args[0] = state.adopt(args[0])
    elif kind and isinstance(call.ty, relax.TensorType):
        done = state.emit_call(
            call,
            [(v, PLAIN) for v in values],
            args,
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
    var = state.builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args), name_hint=hint)
    if isinstance(call.ty, relax.TensorType):
        return Value(shape_of(call), dtype_of(call), PLAIN, {PLAIN: var})
    return tuple(
        Value(
            tuple(int(e) for e in field.shape.values),
            str(getattr(field.dtype, "dtype", field.dtype)),
            PLAIN,
            {PLAIN: state.builder.emit(relax.TupleGetItem(var, i))},
        )
        for i, field in enumerate(call.ty.fields)
    )


def _matmul(state: Lowering, call: Any, hint: str) -> Value | None:
    left, right = state.value(call.args[0]), state.value(call.args[1])
    shape = shape_of(call)
    if left.dtype != "float32" or right.dtype != "float32":
        return None
    if len(left.shape) == 1 or len(right.shape) == 1:
        # A vector is a matrix of one row or column, whose axis the result lacks.
        wide = reshape(state, left, (1, *left.shape), hint) if len(left.shape) == 1 else left
        tall = reshape(state, right, (*right.shape, 1), hint) if len(right.shape) == 1 else right
        if wide is None or tall is None:
            return None
        lead = max(wide.shape[:-2], tall.shape[:-2], key=len)
        made = _product(state, wide, tall, (*lead, wide.shape[-2], tall.shape[-1]), None, hint)
        return reshape(state, made, shape, hint)
    return _product(state, left, right, shape, call.args[1], hint)


def _product(
    state: Lowering, left: Value, right: Value, shape: tuple[int, ...], source: Any | None, hint: str
) -> Value:
    """A product of matrices; `source` is the right operand in the prepared module, where packing it pays."""
    flat = right.constant and all(extent == 1 for extent in right.shape[:-2])
    if flat and source is not None and len(shape) == len(left.shape):
        array, columns = as_numpy(right).reshape(right.shape[-2:]), right.shape[-1]
        packed = state.packed(source, "matmul", lambda: pack_matmul(array, 2 * state.lanes))
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
    made = state.emit_te(
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
    made.padding = data.padding
    return made


_RULES: dict[str, Rule] = {
    "nn.conv1d": conv1d,
    "nn.conv1d_transpose": conv1d_transpose,
    "nn.conv2d": conv2d,
    "nn.conv2d_transpose": conv2d_transpose,
    "nn.group_norm": group_norm,
    "matmul": _matmul,
    "nn.max_pool2d": _pool2d,
    "nn.avg_pool2d": _pool2d,
    "nn.adaptive_avg_pool2d": adaptive_avg_pool2d,
    "mean": spatial_reduction,
    "sum": spatial_reduction,
    "max": spatial_reduction,
    "variance": spatial_reduction,
    "quantize": quantisation,
    "dequantize": quantisation,
    "concat": concat,
    "strided_slice": strided_slice,
    "split": split,
    "image.resize2d": resize2d,
}
