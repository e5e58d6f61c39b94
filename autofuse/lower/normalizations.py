"""Group normalisation: of images in blocks in these, however many channels a group has; else taken apart, unblocked."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from autofuse.lower.following import reshape, scalar_operand
from autofuse.lower.lowering import Lowering, as_numpy, constant_of, shape_of
from autofuse.lower.operators import ROLE, static_shape
from autofuse.lower.values import PLAIN, Value, block_array


def group_norm(state: Lowering, call: Any, hint: str) -> Value | None:
    """Over groups of channels and all that follows them; constant scale and bias of one number a channel."""
    data, scale, bias = (state.value(a) for a in call.args[:3])
    attrs, rank = call.attrs, len(data.shape)
    axes = sorted(int(a) % rank for a in attrs.axes)
    if data.dtype != "float32" or not (scale.constant and bias.constant):
        return None
    if int(attrs.channel_axis) % rank != 1 or axes != list(range(2, rank)):
        return None
    groups, epsilon = int(attrs.num_groups), float(attrs.epsilon)
    gamma, beta = as_numpy(scale).reshape(-1), as_numpy(bias).reshape(-1)
    channels = data.shape[1]
    whole = channels // groups % state.lanes == 0
    if data.layout == state.blocked and (whole or state.norms_by_lanes):
        shape = (1, channels, 1, 1)
        operands = [Value(shape, "float32", PLAIN, {}, a.reshape(shape)) for a in (gamma, beta)]
        return state.emit_te(
            "nn.group_norm",
            lambda x, g, b: (
                group_norm_blocked(x, g, b, groups=groups, epsilon=epsilon)
                if whole
                else group_norm_lanes(x, g, b, groups=groups, epsilon=epsilon, channels=channels)
            ),
            [(data, state.blocked), *((v, state.blocked) for v in operands)],
            [state.in_blocks(data), *(constant_of(block_array(as_numpy(v), state.lanes)) for v in operands)],
            shape=data.shape,
            dtype="float32",
            layout=state.blocked,
            attrs={"groups": groups, "epsilon": epsilon, "variant": "blocked" if whole else "lanes"},
            hint=hint,
        )
    return _taken_apart(state, data, gamma, beta, groups, epsilon, hint)


def _taken_apart(
    state: Lowering, data: Value, gamma: Any, beta: Any, groups: int, epsilon: float, hint: str
) -> Value | None:
    """(x - mean) / deviation over rows of [N, groups, the rest], then scale and bias in the data's shape."""
    rows = reshape(state, data, (data.shape[0], groups, int(np.prod(data.shape[1:])) // groups), hint)
    small = state.constant(np.array(epsilon, "float32"))
    column = (1, -1, *(1,) * (len(data.shape) - 2))

    def emit(make: Any, *values: Value | None, axes: list[int] | None = None) -> Value | None:
        known = [v for v in values if v is not None]
        if len(known) != len(values):
            return None
        tensors = [scalar_operand("add", v) if v.scalar else state.plain(v) for v in known]
        made = state.builder.normalize(make(*tensors))
        return state.emit_call(
            made, [(v, PLAIN) for v in known], list(made.args), tensors, shape=shape_of(made), dtype="float32",
            layout=PLAIN, hint=hint, attrs={"axes": axes} if axes else None,
        )  # fmt: skip

    op = relax.op
    centred = emit(op.subtract, rows, emit(lambda x: op.mean(x, [2], keepdims=True), rows, axes=[2]))
    variance = emit(lambda x: op.variance(x, [2], keepdims=True), rows, axes=[2])
    inverse = emit(op.rsqrt, emit(op.add, variance, small))
    normal = emit(op.multiply, centred, inverse)
    if normal is None:
        return None
    whole = reshape(state, normal, data.shape, hint)
    scaled = emit(op.multiply, whole, state.constant(gamma.reshape(column)))
    return emit(op.add, scaled, state.constant(beta.reshape(column)))


def group_norm_blocked(data: te.Tensor, scale: te.Tensor, bias: te.Tensor, *, groups: int, epsilon: float) -> te.Tensor:
    """Group normalisation of [N, C/b, H, W, b] whose groups are whole blocks. scale, bias: [1, C/b, 1, 1, b]."""
    n, outer, h, w, block = static_shape(data)
    per = outer // groups
    inverse = tirx.const(1.0 / (per * h * w * block), "float32")

    def over() -> list[tirx.IterVar]:
        names = zip((per, h, w, block), ("c", "y", "x", "i"), strict=True)
        return [te.reduce_axis((0, extent), name) for extent, name in names]

    first, second = over(), over()
    total = te.compute(
        (n, groups),
        lambda b, g: te.sum(data[b, g * per + first[0], first[1], first[2], first[3]], axis=first),
        name="gnorm_sum", attrs={ROLE: "gnorm_sum"},
    )  # fmt: skip

    def square(b: tirx.Var, g: tirx.Var) -> tirx.Expr:
        off = data[b, g * per + second[0], second[1], second[2], second[3]] - total[b, g] * inverse
        return te.sum(off * off, axis=second)

    squares = te.compute((n, groups), square, name="gnorm_squares", attrs={ROLE: "gnorm_squares"})

    def normal(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        g = tirx.floordiv(co, per)
        deviation = tirx.rsqrt(squares[b, g] * inverse + tirx.const(epsilon, "float32"))
        off = data[b, co, y, x, ci] - total[b, g] * inverse
        return off * deviation * scale[0, co, 0, 0, ci] + bias[0, co, 0, 0, ci]

    return te.compute((n, outer, h, w, block), normal, name="gnorm", attrs={ROLE: "gnorm"})


def group_norm_lanes(
    data: te.Tensor, scale: te.Tensor, bias: te.Tensor, *, groups: int, epsilon: float, channels: int
) -> te.Tensor:
    """As `group_norm_blocked`, of any `channels` that the groups divide: blocks hold several groups, or parts of them.

    The lanes past the last channel are treated like the last group: 0, where scale and bias are 0 there.
    """
    n, outer, h, w, block = static_shape(data)
    per = channels // groups
    inverse = tirx.const(1.0 / (per * h * w), "float32")

    def over() -> list[tirx.IterVar]:
        return [te.reduce_axis((0, extent), name) for extent, name in zip((per, h, w), ("c", "y", "x"), strict=True)]

    def element(b: tirx.Var, g: tirx.Var, axes: list[tirx.IterVar]) -> tirx.Expr:
        channel = g * per + axes[0]
        return data[b, tirx.floordiv(channel, block), axes[1], axes[2], tirx.floormod(channel, block)]

    first, second = over(), over()
    total = te.compute(
        (n, groups), lambda b, g: te.sum(element(b, g, first), axis=first), name="gnorm_sum",
        attrs={ROLE: "gnorm_sum"},
    )  # fmt: skip

    def square(b: tirx.Var, g: tirx.Var) -> tirx.Expr:
        off = element(b, g, second) - total[b, g] * inverse
        return te.sum(off * off, axis=second)

    squares = te.compute((n, groups), square, name="gnorm_squares", attrs={ROLE: "gnorm_squares"})

    def normal(b: tirx.Var, co: tirx.Var, y: tirx.Var, x: tirx.Var, ci: tirx.Var) -> tirx.Expr:
        g = tirx.floordiv(co * block + ci, per)
        if channels % block:
            g = tirx.min(g, groups - 1)
        deviation = tirx.rsqrt(squares[b, g] * inverse + tirx.const(epsilon, "float32"))
        off = data[b, co, y, x, ci] - total[b, g] * inverse
        return off * deviation * scale[0, co, 0, 0, ci] + bias[0, co, 0, 0, ci]

    return te.compute((n, outer, h, w, block), normal, name="gnorm", attrs={ROLE: "gnorm"})
