"""Right outputs of a group by numpy: takes a group and its inputs as stored, gives its outputs as stored.

Independent of TVM, and fast where the unscheduled loops are not: products and convolutions go through BLAS. Tensors in
channel blocks are unpacked to [N, C, H, W] with all stored channels, so that what a kernel makes of padding is checked
too; operators that count channels (concat, slice, reshape) see the logical ones and pad with zeros, as lowering does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group, Operator, Tensor

Array = NDArray[Any]


class NotEvaluated(Exception):
    """The group has an operator, or a variant of one, that this module does not know."""


def evaluate(group: Group, inputs: Sequence[Array]) -> list[Array]:
    """The group's outputs for `inputs` (in the order of `group.inputs`). Raises NotEvaluated, naming the operator."""
    tensors = group.graph.tensors
    for op in group.operators:
        if len(op.outputs) != 1 or op.kind not in _KINDS:
            raise NotEvaluated(f"{op.name} ({op.kind})")
    values = {t: _unpack(array, tensors[t]) for t, array in zip(group.inputs, inputs, strict=True)}
    for op in group.operators:
        out = tensors[op.outputs[0]]
        operands = _operands(op, [values[t] for t in op.inputs])
        if op.kind not in _BY_CHANNEL:
            operands = [_crop(a, tensors[t]) for a, t in zip(operands, op.inputs, strict=False)] + operands[
                len(op.inputs) :
            ]
        with np.errstate(all="ignore"):
            result = _KINDS[op.kind](op, operands)
        values[op.outputs[0]] = _fit(np.asarray(result), out, op)
    return [_pack(values[t], tensors[t]) for t in group.outputs]


def _unpack(array: Array, tensor: Tensor) -> Array:
    """[N, C/b, H, W, b] → [N, C, H, W]; anything else as it is."""
    if not _blocked(tensor):
        return array
    n, outer, h, w, block = array.shape
    return np.ascontiguousarray(array.transpose(0, 1, 4, 2, 3)).reshape(n, outer * block, h, w)


def _pack(array: Array, tensor: Tensor) -> Array:
    if not _blocked(tensor):
        return np.ascontiguousarray(array)
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


def _form(op: Operator) -> tuple[str, list[list[Any]]]:
    """Attributes of the operator's form as text, and its operands, scalars that are no tensors among them.

    A form whose operator text is a kind alone has its attributes beside it.
    """
    try:
        text = json.loads(op.form)["op"]
        if not text.startswith("["):
            return "", []
        _, attributes, operands = json.loads(text)
    except (ValueError, KeyError, TypeError) as error:
        raise NotEvaluated(f"{op.name} ({op.kind}) has no form to read") from error
    return str(attributes), operands


def _operands(op: Operator, given: Sequence[Array]) -> list[Array]:
    """The operator's operands in order: tensors, and the scalars that its form holds where they stand."""
    if op.kind in _WITH_ATTRS:
        return list(given)
    operands = _form(op)[1]
    tensors = [o for o in operands if isinstance(o, list) and len(o) in (2, 3)]
    if len(tensors) <= len(given):
        return list(given)
    if len(tensors) - sum(len(o) == 3 for o in tensors) != len(given):
        raise NotEvaluated(f"{op.name} ({op.kind}): operands {operands}")
    rest = iter(given)
    return [np.asarray(o[2], o[0]) if len(o) == 3 else next(rest) for o in tensors]


def _number(op: Operator, name: str) -> float:
    found = re.search(rf"\b{name}=(-?[\d.e+-]+)", _form(op)[0])
    if found is None:
        raise NotEvaluated(f"{op.name} ({op.kind}) has no {name}")
    return float(found[1])


def _ints(op: Operator, name: str) -> tuple[int, ...]:
    value = op.attrs.get(name)
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, list | tuple):
        raise NotEvaluated(f"{op.name} ({op.kind}) has no {name}")
    return tuple(int(v) for v in value)


def _logical(op: Operator) -> tuple[int, ...]:
    return _ints(op, "out_logical")


# ---- windows


def _conv2d(op: Operator, operands: list[Array]) -> Array:
    data, weight = operands
    variant, groups = op.attrs.get("variant"), cast(int, op.attrs.get("groups", 1))
    strides, dilation, padding = _ints(op, "strides"), _ints(op, "dilation"), _ints(op, "padding")
    if variant == "depthwise":  # [C/b, KH, KW, b]
        kernel = weight.transpose(0, 3, 1, 2).reshape(-1, *weight.shape[1:3])
        return _taps(data, kernel.shape[1:], strides, dilation, padding, 0.0,
                     lambda total, x, i, j: total + x * kernel[None, :, i, j, None, None])  # fmt: skip
    if variant == "grouped":
        return _grouped(op, data, weight)
    if variant != "blocked":
        raise NotEvaluated(f"{op.name}: convolution of variant {variant!r}")
    # [OC/b, IC/i, KH, KW, i, b], IC a group's
    full = weight.transpose(0, 5, 1, 4, 2, 3)
    full = full.reshape(full.shape[0] * full.shape[1], full.shape[2] * full.shape[3], *full.shape[4:])
    if data.shape[1] != full.shape[1] * groups:
        raise NotEvaluated(f"{op.name}: {data.shape[1]} channels for weights of {full.shape[1]} in {groups} groups")
    parts = []
    for part, kernel in zip(np.split(data, groups, axis=1), np.split(full, groups), strict=True):

        def add(total: Array | float, x: Array, i: int, j: int, kernel: Array = kernel) -> Array:
            n, c, h, w = x.shape
            product = np.matmul(np.ascontiguousarray(kernel[:, :, i, j]), x.reshape(n, c, h * w))
            return cast(Array, total + product.reshape(n, -1, h, w))

        parts.append(_taps(part, kernel.shape[2:], strides, dilation, padding, 0.0, add))
    return np.concatenate(parts, axis=1)


def _grouped(op: Operator, data: Array, weight: Array) -> Array:
    """Weights [OC/b, R, KH, KW, b]: R channels of a lane's own group, or of all groups of its block."""
    inputs, outputs = _ints(op, "channels")
    count, block, depth = cast(int, op.attrs["groups"]), weight.shape[-1], weight.shape[1]
    parts = []
    for channel in range(count * outputs):
        first = channel // outputs * inputs
        start = 0 if depth == inputs else first - channel // block * block // outputs * inputs
        kernel = weight[channel // block, start : start + inputs, :, :, channel % block]

        def add(total: Any, x: Array, i: int, j: int, kernel: Array = kernel) -> Any:
            return total + np.einsum("nchw,c->nhw", x, kernel[:, i, j])[:, None]

        group = data[:, first : first + inputs]
        parts.append(
            _taps(group, kernel.shape[1:], _ints(op, "strides"), _ints(op, "dilation"), _ints(op, "padding"), 0.0, add)
        )
    return np.concatenate(parts, axis=1)


def _conv2d_transpose(op: Operator, operands: list[Array]) -> Array:
    """By its definition: every element of the data is spread over the results that its taps reach."""
    data, weight = operands
    kernel, strides, padding = _ints(op, "kernel"), _ints(op, "strides"), _ints(op, "padding")
    height, width = _ints(op, "out")
    depthwise = op.attrs.get("variant") == "depthwise"
    if depthwise:  # [C/b, sh, sw, th, tw, b]
        taps, groups = weight.transpose(0, 5, 1, 2, 3, 4).reshape(-1, 1, *weight.shape[1:5]), data.shape[1]
    else:  # [OC/b, IC/b, sh, sw, th, tw, b, b]
        taps, groups = weight.transpose(0, 7, 1, 6, 2, 3, 4, 5), cast(int, op.attrs.get("groups", 1))
        taps = taps.reshape(taps.shape[0] * taps.shape[1], -1, *taps.shape[4:])
    n, channels, rows, columns = data.shape
    data = data.reshape(n, groups, -1, rows, columns)
    taps = taps.reshape(groups, -1, *taps.shape[1:])
    if channels != groups * taps.shape[2]:
        raise NotEvaluated(f"{op.name}: {channels} channels for weights of {taps.shape[2]} in {groups} groups")
    reach = [max((e - 1) * s + k, p + o) for e, s, k, p, o in
             zip((rows, columns), strides, kernel, padding, (height, width), strict=False)]  # fmt: skip
    total = np.zeros((n, groups, taps.shape[1], *reach))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            # The phase that sees this element of the kernel, and which of its taps it is: the last one comes first.
            phase = [(k - p) % s for k, p, s in zip((i, j), padding, strides, strict=False)]
            at = [taps.shape[5 + a] - 1 - k // strides[a] for a, k in enumerate((i, j))]
            part = np.einsum("ngihw,goi->ngohw", data, taps[:, :, :, phase[0], phase[1], at[0], at[1]])
            total[:, :, :, i : i + (rows - 1) * strides[0] + 1 : strides[0],
                  j : j + (columns - 1) * strides[1] + 1 : strides[1]] += part  # fmt: skip
    total = total.reshape(n, -1, *reach)
    return total[:, :, padding[0] : padding[0] + height, padding[1] : padding[1] + width].astype("float32")


def _space_to_batch(op: Operator, operands: list[Array]) -> Array:
    """An image for each phase of rows and columns, phases of columns in a row."""
    (step,) = _ints(op, "step")
    (data,) = operands
    n, c, h, w = data.shape
    rows, columns = -(-h // step), -(-w // step)
    whole = np.pad(data, ((0, 0), (0, 0), (0, rows * step - h), (0, columns * step - w)))
    return whole.reshape(n, c, rows, step, columns, step).transpose(0, 3, 5, 1, 2, 4).reshape(-1, c, rows, columns)


def _batch_to_space(op: Operator, operands: list[Array]) -> Array:
    (step,) = _ints(op, "step")
    (data,) = operands
    _, c, rows, columns = data.shape
    whole = data.reshape(-1, step, step, c, rows, columns).transpose(0, 3, 4, 1, 5, 2)
    height, width = _logical(op)[2:]
    return whole.reshape(-1, c, rows * step, columns * step)[:, :, :height, :width]


def _group_norm(op: Operator, operands: list[Array]) -> Array:
    data, scale, bias = operands
    rows = data.astype("float64").reshape(data.shape[0], _ints(op, "groups")[0], -1)
    off = rows - rows.mean(2, keepdims=True)
    off = off / np.sqrt(off.var(2, keepdims=True) + _number_of(op, "epsilon"))
    return cast(Array, (off.reshape(data.shape) * scale + bias).astype("float32"))


def _number_of(op: Operator, name: str) -> float:
    value = op.attrs.get(name)
    if not isinstance(value, int | float):
        raise NotEvaluated(f"{op.name} ({op.kind}) has no {name}")
    return float(value)


def _taps(
    data: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    border: float,
    step: Callable[[Any, Array, int, int], Any],
    start: Any = 0.0,
) -> Array:
    """Walks over a window's taps: `step(total, what the tap sees, row, column)`. Padding: top, left, bottom, right."""
    top, left, bottom, right = padding if len(padding) == 4 else (*padding, *padding)
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=border)
    height = (padded.shape[2] - (kernel[0] - 1) * dilation[0] - 1) // strides[0] + 1
    width = (padded.shape[3] - (kernel[1] - 1) * dilation[1] - 1) // strides[1] + 1
    total = start
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            y, x = i * dilation[0], j * dilation[1]
            seen = padded[:, :, y : y + (height - 1) * strides[0] + 1 : strides[0],
                          x : x + (width - 1) * strides[1] + 1 : strides[1]]  # fmt: skip
            total = step(total, np.ascontiguousarray(seen), i, j)
    return cast(Array, total)


def _max_pool(op: Operator, operands: list[Array]) -> Array:
    return _taps(operands[0], *_window(op), -np.inf, lambda total, x, i, j: np.maximum(total, x), -np.inf)


def _avg_pool(op: Operator, operands: list[Array]) -> Array:
    def add(total: Any, x: Array, i: int, j: int) -> Any:
        return total + x

    window = _window(op)
    total = _taps(operands[0], *window, 0.0, add)
    if op.attrs.get("count_include_pad"):
        return total / (window[0][0] * window[0][1])
    return total / _taps(np.ones_like(operands[0][:1, :1]), *window, 0.0, add)


def _window(op: Operator) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return _ints(op, "window"), _ints(op, "strides"), _ints(op, "dilation"), _ints(op, "padding")


# ---- products, reductions


def _matmul(op: Operator, operands: list[Array]) -> Array:
    left, right = operands
    variant = op.attrs.get("variant")
    if variant == "packed":  # [N/16, K, 16]
        right = right.transpose(1, 0, 2).reshape(right.shape[1], -1)[:, : _logical(op)[-1]]
    elif variant != "batched":
        raise NotEvaluated(f"{op.name}: product of variant {variant!r}")
    return np.asarray(np.matmul(left, right))


def _reduced(name: str) -> Callable[[Operator, list[Array]], Array]:
    def reduce(op: Operator, operands: list[Array]) -> Array:
        kept = getattr(np, name)(operands[0], axis=_ints(op, "axes"), keepdims=True)
        channels = kept.shape[1] if kept.ndim == 4 and len(_logical(op)) == 4 else None
        shape = _logical(op) if channels is None else (_logical(op)[0], channels, *_logical(op)[2:])
        return np.asarray(kept.reshape(shape))

    return reduce


def _softmax(op: Operator, operands: list[Array]) -> Array:
    axes = _ints(op, "axes")
    moved = np.exp(operands[0] - operands[0].max(axis=axes, keepdims=True))
    return np.asarray(moved / moved.sum(axis=axes, keepdims=True))


def _layer_norm(op: Operator, operands: list[Array]) -> Array:
    data, *scale = operands
    axes = _ints(op, "axes")
    if axes != tuple(range(data.ndim - len(axes), data.ndim)):
        raise NotEvaluated(f"{op.name}: normalised along {axes} of {data.ndim} axes")
    centred = data - data.mean(axis=axes, keepdims=True)
    result = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + _number(op, "epsilon"))
    if len(scale) != 2:
        raise NotEvaluated(f"{op.name}: {len(scale)} operands beside the data")
    return np.asarray(result * scale[0] + scale[1])


# ---- movement


def _take(op: Operator, operands: list[Array]) -> Array:
    data, indices = operands
    return np.asarray(np.take(data, indices, axis=int(_number(op, "axis")), mode="wrap"))


def _concat(op: Operator, operands: list[Array]) -> Array:
    axis = op.attrs.get("axis")
    return np.concatenate(operands, axis=axis if isinstance(axis, int) else int(_number(op, "axis")))


def _slice(op: Operator, operands: list[Array]) -> Array:
    index: list[slice] = [slice(None)] * operands[0].ndim
    for axis, begin, end, step in zip(*(_ints(op, k) for k in ("axes", "begin", "end", "step")), strict=True):
        if step < 1 or begin < 0 or end < 0:
            raise NotEvaluated(f"{op.name}: slice {begin}:{end}:{step}")
        index[axis] = slice(begin, end, step)
    return operands[0][tuple(index)]


def _resize(op: Operator, operands: list[Array]) -> Array:
    text = str(op.attrs.get("resize", "")) or _form(op)[0]
    words = set(re.findall(r'(\w+)="(\w*)"', text.replace("\\", "")))
    mode = dict(words).get("coordinate_transformation_mode", "")
    data, size = operands[0], _logical(op)[2:]
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


def _clip(op: Operator, operands: list[Array]) -> Array:
    bounds = [float(v) for v in re.findall(r"\((-?[\w.+-]+)\)", _form(op)[0])]
    if len(bounds) != 2:
        raise NotEvaluated(f"{op.name}: clip without two bounds")
    return np.asarray(np.clip(operands[0], bounds[0], bounds[1]))


def _erf(op: Operator, operands: list[Array]) -> Array:
    from scipy.special import erf

    return np.asarray(erf(operands[0]))


def _of(function: Callable[..., Any]) -> Callable[[Operator, list[Array]], Array]:
    return lambda op, operands: np.asarray(function(*operands))


def _reshape(op: Operator, operands: list[Array]) -> Array:
    return operands[0].reshape(_logical(op))


_KINDS: Mapping[str, Callable[[Operator, list[Array]], Array]] = {
    "nn.conv2d": _conv2d,
    "nn.conv2d_transpose": _conv2d_transpose,
    "nn.group_norm": _group_norm,
    "space_to_batch": _space_to_batch,
    "batch_to_space": _batch_to_space,
    "nn.max_pool2d": _max_pool,
    "nn.avg_pool2d": _avg_pool,
    "matmul": _matmul,
    "mean": _reduced("mean"),
    "sum": _reduced("sum"),
    "max": _reduced("max"),
    "min": _reduced("min"),
    "nn.softmax": _softmax,
    "nn.layer_norm": _layer_norm,
    "take": _take,
    "strided_slice": _slice,
    "concat": _concat,
    "image.resize2d": _resize,
    "layout_change": lambda op, operands: operands[0],
    "reshape": _reshape,
    "expand_dims": _reshape,
    "squeeze": _reshape,
    "permute_dims": lambda op, operands: operands[0].transpose(_ints(op, "axes")),
    "broadcast_to": lambda op, operands: np.broadcast_to(operands[0], _logical(op)),
    "clip": _clip,
    "erf": _erf,
    "nn.leakyrelu": lambda op, operands: np.where(operands[0] > 0, operands[0], operands[0] * _number(op, "alpha")),
    "nn.relu": lambda op, operands: np.maximum(operands[0], 0),
    "sigmoid": lambda op, operands: 1 / (1 + np.exp(-operands[0])),
    "nn.silu": lambda op, operands: operands[0] / (1 + np.exp(-operands[0])),
    "rsqrt": lambda op, operands: 1 / np.sqrt(operands[0]),
    **{name: _of(getattr(np, name)) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "exp", "log", "tanh", "sqrt", "abs",
        "negative", "square", "where", "floor", "ceil", "equal", "greater", "less", "sin", "cos",
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
