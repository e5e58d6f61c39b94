"""Right outputs of a group by numpy: takes a group and its inputs as stored, gives its outputs as stored.

Independent of TVM, and fast where the unscheduled loops are not: products and convolutions go through BLAS. Tensors in
channel blocks are unpacked to [N, C, H, W] with all stored channels, so that what a kernel makes of padding is checked
too; operators that count channels (concat, slice, reshape) see the logical ones and pad with zeros, as lowering does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autofuse.graph.model import Group, Operator, Tensor
from autofuse.measure.oracle_attributes import Array, NotEvaluated, form, ints, logical, number
from autofuse.measure.oracle_resize import resize
from autofuse.measure.oracle_windows import (
    avg_pool,
    batch_to_space,
    conv2d,
    conv2d_transpose,
    group_norm,
    max_pool,
    space_to_batch,
)

__all__ = ["Definition", "NotEvaluated", "evaluate"]

# The result of an operator, as stored, from its operands as stored, by tensor. Raises NotEvaluated.
Definition = Callable[[Operator, Mapping[int, Array]], Array]


def evaluate(group: Group, inputs: Sequence[Array], define: Definition | None = None) -> list[Array]:
    """The group's outputs for `inputs` (in the order of `group.inputs`).

    `define` gives the result of an operator that has no form here. Raises NotEvaluated, naming the operator.
    """
    tensors = group.graph.tensors
    for op in group.operators:
        if len(op.outputs) != 1 or (op.kind not in _KINDS and define is None):
            raise NotEvaluated(f"{op.name} ({op.kind})")
    values = {t: _unpack(array, tensors[t]) for t, array in zip(group.inputs, inputs, strict=True)}
    for op in group.operators:
        try:
            result = _known(op, values, tensors)
        except NotEvaluated:
            if define is None:
                raise
            stored = define(op, {t: _pack(values[t], tensors[t]) for t in op.inputs})
            result = _unpack(stored, tensors[op.outputs[0]])
        values[op.outputs[0]] = result
    return [_pack(values[t], tensors[t]) for t in group.outputs]


def _known(op: Operator, values: Mapping[int, Array], tensors: Sequence[Tensor]) -> Array:
    """The result of an operator that has a form here."""
    if op.kind not in _KINDS:
        raise NotEvaluated(f"{op.name} ({op.kind})")
    operands = _operands(op, [values[t] for t in op.inputs])
    if op.kind not in _BY_CHANNEL:
        cropped = [_crop(a, tensors[t]) for a, t in zip(operands, op.inputs, strict=False)]
        operands = cropped + operands[len(op.inputs) :]
    with np.errstate(all="ignore"):
        result = _KINDS[op.kind](op, operands)
    return _fit(np.asarray(result), tensors[op.outputs[0]], op)


def _unpack(array: Array, tensor: Tensor) -> Array:
    """[N, C/b, H, W, b] → [N, C, H, W]; anything else as it is."""
    if not _blocked(tensor):
        return array
    n, outer, h, w, block = array.shape
    return np.ascontiguousarray(array.transpose(0, 1, 4, 2, 3)).reshape(n, outer * block, h, w)


def _pack(array: Array, tensor: Tensor) -> Array:
    if not _blocked(tensor):
        return np.asarray(array, order="C")  # ascontiguousarray gives a scalar an axis
    n, outer, h, w, block = tensor.shape
    return np.ascontiguousarray(array.reshape(n, outer, block, h, w).transpose(0, 1, 3, 4, 2))


def _blocked(tensor: Tensor) -> bool:
    return bool(re.fullmatch(r"NCHW\d+c", tensor.layout)) and len(tensor.shape) == 5


def _crop(array: Array, tensor: Tensor) -> Array:
    """Logical channels alone."""
    return array[:, : tensor.logical_shape[1]] if _blocked(tensor) and tensor.logical_shape else array


def _fit(array: Array, tensor: Tensor, op: Operator) -> Array:
    """The result in the form that `values` keeps: padded with zero channels where it has the logical ones alone."""
    if _blocked(tensor):
        n, outer, h, w, block = tensor.shape
        missing = outer * block - array.shape[1] if array.ndim == 4 else -1
        if missing > 0:
            array = np.pad(array, ((0, 0), (0, missing), (0, 0), (0, 0)))
        shape: tuple[int, ...] = (n, outer * block, h, w)
    else:
        shape = tensor.shape
    if array.shape != shape:
        raise NotEvaluated(f"{op.name} ({op.kind}): {array.shape} instead of {shape}")
    return array.astype(tensor.dtype, copy=False)


def _operands(op: Operator, given: Sequence[Array]) -> list[Array]:
    """The operator's operands in order: tensors, and the scalars that its form holds where they stand."""
    if op.kind in _WITH_ATTRS:
        return list(given)
    operands = form(op)[1]
    tensors = [o for o in operands if isinstance(o, list) and len(o) in (2, 3)]
    if len(tensors) <= len(given):
        return list(given)
    if len(tensors) - sum(len(o) == 3 for o in tensors) != len(given):
        raise NotEvaluated(f"{op.name} ({op.kind}): operands {operands}")
    rest = iter(given)
    return [np.asarray(o[2], o[0]) if len(o) == 3 else next(rest) for o in tensors]


# ---- products, reductions


def _matmul(op: Operator, operands: list[Array]) -> Array:
    left, right = operands
    variant = op.attrs.get("variant")
    if variant == "packed":  # [N/16, K, 16]
        right = right.transpose(1, 0, 2).reshape(right.shape[1], -1)[:, : logical(op)[-1]]
    elif variant != "batched":
        raise NotEvaluated(f"{op.name}: product of variant {variant!r}")
    return np.asarray(np.matmul(left, right))


def _reduced(name: str) -> Callable[[Operator, list[Array]], Array]:
    def reduce(op: Operator, operands: list[Array]) -> Array:
        kept = getattr(np, name)(operands[0], axis=ints(op, "axes"), keepdims=True)
        channels = kept.shape[1] if kept.ndim == 4 and len(logical(op)) == 4 else None
        shape = logical(op) if channels is None else (logical(op)[0], channels, *logical(op)[2:])
        return np.asarray(kept.reshape(shape))

    return reduce


def _softmax(op: Operator, operands: list[Array]) -> Array:
    axes = ints(op, "axes")
    moved = np.exp(operands[0] - operands[0].max(axis=axes, keepdims=True))
    return np.asarray(moved / moved.sum(axis=axes, keepdims=True))


def _layer_norm(op: Operator, operands: list[Array]) -> Array:
    data, *scale = operands
    axes = ints(op, "axes")
    if axes != tuple(range(data.ndim - len(axes), data.ndim)):
        raise NotEvaluated(f"{op.name}: normalised along {axes} of {data.ndim} axes")
    centred = data - data.mean(axis=axes, keepdims=True)
    result = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + number(op, "epsilon"))
    if len(scale) != 2:
        raise NotEvaluated(f"{op.name}: {len(scale)} operands beside the data")
    return np.asarray(result * scale[0] + scale[1])


# ---- movement


def _take(op: Operator, operands: list[Array]) -> Array:
    data, indices = operands
    return np.asarray(np.take(data, indices, axis=int(number(op, "axis")), mode="wrap"))


def _concat(op: Operator, operands: list[Array]) -> Array:
    axis = op.attrs.get("axis")
    return np.concatenate(operands, axis=axis if isinstance(axis, int) else int(number(op, "axis")))


def _slice(op: Operator, operands: list[Array]) -> Array:
    index: list[slice] = [slice(None)] * operands[0].ndim
    for axis, begin, end, step in zip(*(ints(op, k) for k in ("axes", "begin", "end", "step")), strict=True):
        if step < 1 or begin < 0 or end < 0:
            raise NotEvaluated(f"{op.name}: slice {begin}:{end}:{step}")
        index[axis] = slice(begin, end, step)
    return operands[0][tuple(index)]


def _clip(op: Operator, operands: list[Array]) -> Array:
    bounds = [float(v) for v in re.findall(r"\((-?[\w.+-]+)\)", form(op)[0])]
    if len(bounds) != 2:
        raise NotEvaluated(f"{op.name}: clip without two bounds")
    return np.asarray(np.clip(operands[0], bounds[0], bounds[1]))


def _erf(op: Operator, operands: list[Array]) -> Array:
    from scipy.special import erf

    return np.asarray(erf(operands[0]))


def _softplus(op: Operator, operands: list[Array]) -> Array:
    beta = np.float32(number(op, "beta"))
    return np.asarray(np.logaddexp(np.float32(0), operands[0] * beta) / beta)


def _gelu(op: Operator, operands: list[Array]) -> Array:
    return np.asarray(operands[0] * (1 + _erf(op, [operands[0] * np.float32(0.5**0.5)])) * np.float32(0.5))


def _gelu_tanh(op: Operator, operands: list[Array]) -> Array:
    x = operands[0]
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)))


def _quantize(op: Operator, operands: list[Array]) -> Array:
    data, scale, zero = _of_one_scale(op, operands)
    kind = re.search(r"out_dtype=\W*(u?int\d+)", form(op)[0])
    if kind is None:
        raise NotEvaluated(f"{op.name} ({op.kind}) does not give whole numbers")
    limits = np.iinfo(kind[1])
    return np.asarray(np.clip(np.rint(data / scale) + zero, limits.min, limits.max))


def _dequantize(op: Operator, operands: list[Array]) -> Array:
    data, scale, zero = _of_one_scale(op, operands)
    return np.asarray((data.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale)


def _of_one_scale(op: Operator, operands: list[Array]) -> list[Array]:
    if any(operand.size != 1 for operand in operands[1:]):
        raise NotEvaluated(f"{op.name} ({op.kind}) has a scale for each channel")
    return [operands[0], *(operand.reshape(()) for operand in operands[1:])]


def _of(function: Callable[..., Any]) -> Callable[[Operator, list[Array]], Array]:
    return lambda op, operands: np.asarray(function(*operands))


def _reshape(op: Operator, operands: list[Array]) -> Array:
    return operands[0].reshape(logical(op))


_KINDS: Mapping[str, Callable[[Operator, list[Array]], Array]] = {
    "nn.conv2d": conv2d,
    "nn.conv2d_transpose": conv2d_transpose,
    "nn.group_norm": group_norm,
    "space_to_batch": space_to_batch,
    "batch_to_space": batch_to_space,
    "nn.max_pool2d": max_pool,
    "nn.avg_pool2d": avg_pool,
    "matmul": _matmul,
    "mean": _reduced("mean"),
    "sum": _reduced("sum"),
    "max": _reduced("max"),
    "min": _reduced("min"),
    "variance": _reduced("var"),
    "nn.softmax": _softmax,
    "nn.layer_norm": _layer_norm,
    "take": _take,
    "strided_slice": _slice,
    "concat": _concat,
    "image.resize2d": resize,
    "layout_change": lambda op, operands: operands[0],
    "reshape": _reshape,
    "expand_dims": _reshape,
    "squeeze": _reshape,
    "permute_dims": lambda op, operands: operands[0].transpose(ints(op, "axes")),
    "broadcast_to": lambda op, operands: np.broadcast_to(operands[0], logical(op)),
    "clip": _clip,
    "erf": _erf,
    "nn.softplus": _softplus,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "astype": lambda op, operands: operands[0],
    "atan": _of(np.arctan),
    "round": _of(np.rint),
    "nn.leakyrelu": lambda op, operands: np.where(operands[0] > 0, operands[0], operands[0] * number(op, "alpha")),
    "nn.relu": lambda op, operands: np.maximum(operands[0], 0),
    "sigmoid": lambda op, operands: 1 / (1 + np.exp(-operands[0])),
    "nn.silu": lambda op, operands: operands[0] / (1 + np.exp(-operands[0])),
    "rsqrt": lambda op, operands: 1 / np.sqrt(operands[0]),
    **{name: _of(getattr(np, name)) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "exp", "log", "tanh", "sqrt", "abs",
        "negative", "square", "where", "floor", "ceil", "equal", "greater", "less", "sin", "cos", "sign",
    )},
}  # fmt: skip

# Operators that treat every stored channel alike: padding goes through them like any other channel.
_BY_CHANNEL = frozenset(
    kind
    for kind in _KINDS
    if kind not in ("concat", "strided_slice", "reshape", "expand_dims", "squeeze", "permute_dims", "layout_change",
                    "broadcast_to", "nn.softmax", "nn.layer_norm", "take", "matmul")
)  # fmt: skip

# Operators whose operands are tensors alone, and whose form keeps attributes apart.
_WITH_ATTRS = frozenset({
    "nn.conv2d", "nn.conv2d_transpose", "nn.group_norm", "nn.max_pool2d", "nn.avg_pool2d", "matmul", "layout_change",
    "concat", "space_to_batch", "batch_to_space",
})  # fmt: skip
