"""An ONNX model with static shapes → a `torch.fx.GraphModule` that computes the same, for `torch.compile` to take.

Covers the operators of convolutional networks and transformers, float32, inference only; anything else is one clear
error. Operands that decide shapes must be constants, as they are after simplification. Semantics are those of the
ONNX operator specification, opset 13 and later (https://onnx.ai/onnx/operators/).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import fx

Tensor = Any
_FIRST_OPSET = 13


@dataclass(frozen=True)
class _Rule:
    """How an operator is computed: `compute(*operands, **attributes)`.

    `constants` are the operands it needs as Python values (lists or numbers) at the time of conversion.
    """

    compute: Callable[..., Any]
    constants: frozenset[int] = frozenset()


_RULES: dict[str, _Rule] = {}


def convert(model: onnx.ModelProto) -> fx.GraphModule:
    """The module takes the model's inputs in order and returns a tuple of its outputs.

    Raises:
        ValueError: an operator, or a form of one, that has no conversion; the opset is too old.
    """
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < _FIRST_OPSET:
        raise ValueError(f"the model's ONNX opset is {opset}, and the conversion to PyTorch starts at {_FIRST_OPSET}")
    return _Conversion(model.graph).run()


class _Conversion:
    """State of one conversion: ONNX names → fx nodes, and the values of those that are constants."""

    def __init__(self, source: onnx.GraphProto) -> None:
        self._source = source
        self._known = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in source.initializer}
        self._values: dict[str, fx.Node] = {}
        self._graph = fx.Graph()
        self._root = torch.nn.Module()

    def run(self) -> fx.GraphModule:
        for index, value in enumerate(self._source.input):
            if value.name not in self._known:
                self._values[value.name] = self._graph.placeholder(f"input_{index}")
        for node in self._source.node:
            self._convert(node)
        self._graph.output(tuple(self._operand(value.name) for value in self._source.output))
        self._graph.lint()
        return fx.GraphModule(self._root, self._graph).eval()

    def _convert(self, node: onnx.NodeProto) -> None:
        attributes = {entry.name: _attribute(entry) for entry in node.attribute}
        if node.op_type == "Constant":
            (value,) = attributes.values()
            self._known[node.output[0]] = np.asarray(value)
            return
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            raise ValueError(f"operator {node.op_type} (node {node.name!r}) has no conversion to PyTorch")
        operands = [
            self._constant(name, node) if index in rule.constants else self._operand(name)
            for index, name in enumerate(node.input)
        ]
        if node.op_type == "Split":
            attributes["parts"] = len(node.output)
        result = self._graph.call_function(rule.compute, tuple(operands), attributes)
        if node.op_type != "Split":
            # Further outputs (statistics, masks) are for training.
            self._values[node.output[0]] = result
            return
        for index, name in enumerate(node.output):
            self._values[name] = self._graph.call_function(operator.getitem, (result, index))

    def _operand(self, name: str) -> fx.Node | None:
        if not name:
            return None
        if name not in self._values:
            if name not in self._known:
                raise ValueError(f"value {name!r} comes from nowhere: an optional output that has no conversion")
            label = f"constant_{len(self._values)}"
            self._root.register_buffer(label, torch.from_numpy(np.array(self._known[name])))
            self._values[name] = self._graph.get_attr(label)
        return self._values[name]

    def _constant(self, name: str, node: onnx.NodeProto) -> Any:
        if not name:
            return None
        if name not in self._known:
            raise ValueError(f"{node.op_type} (node {node.name!r}): operand {name!r} is not a constant")
        return self._known[name].tolist()


def _attribute(entry: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(entry)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _rule(name: str, *constants: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(compute: Callable[..., Any]) -> Callable[..., Any]:
        _RULES[name] = _Rule(compute, frozenset(constants))
        return compute

    return register


_PLAIN: Mapping[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": torch.div,
    "Equal": torch.eq,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Greater": torch.gt,
    "HardSwish": F.hardswish,
    "Less": torch.lt,
    "Log": torch.log,
    "MatMul": torch.matmul,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Mish": F.mish,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Where": torch.where,
    "Identity": lambda x: x,
    "Dropout": lambda x, *_, **__: x,
    "Softplus": lambda x: F.softplus(x, threshold=1e6),
    "GlobalAveragePool": lambda x: x.mean(dim=tuple(range(2, x.dim())), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(dim=tuple(range(2, x.dim())), keepdim=True),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "LogSoftmax": lambda x, axis=-1: torch.log_softmax(x, axis),
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0.0, 1.0),
    "Gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate),
    "Concat": lambda *parts, axis: torch.cat(parts, dim=axis),
    "Transpose": lambda x, perm=None: x.permute(*(perm or reversed(range(x.dim())))),
}
_RULES.update({name: _Rule(compute) for name, compute in _PLAIN.items()})


def _padded(x: Tensor, pads: Sequence[int] | None, auto_pad: str, value: float) -> tuple[Tensor, list[int]]:
    """Symmetric padding is left to the operator; any other is put round the data first."""
    if auto_pad not in ("NOTSET", "VALID"):
        raise ValueError(f"auto_pad {auto_pad} has no conversion: export with explicit pads")
    rank = x.dim() - 2
    before, after = (list(pads[:rank]), list(pads[rank:])) if pads and auto_pad == "NOTSET" else ([0] * rank,) * 2
    if before == after:
        return x, before
    around = [amount for pair in zip(reversed(before), reversed(after), strict=True) for amount in pair]
    return F.pad(x, around, value=value), [0] * rank


@_rule("Conv")
def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor = None,
    *,
    kernel_shape: Sequence[int] = (),
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    auto_pad: str = "NOTSET",
) -> Tensor:
    rank = x.dim() - 2
    x, padding = _padded(x, pads, auto_pad, 0.0)
    convolution = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[rank]
    return convolution(x, weight, bias, strides or [1] * rank, padding, dilations or [1] * rank, group)


@_rule("MaxPool")
def _max_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    ceil_mode: int = 0,
    auto_pad: str = "NOTSET",
    storage_order: int = 0,
) -> Tensor:
    rank = x.dim() - 2
    x, padding = _padded(x, pads, auto_pad, float("-inf"))
    if any(2 * amount > size for amount, size in zip(padding, kernel_shape, strict=True)):
        x, padding = F.pad(x, [p for p in reversed(padding) for _ in range(2)], value=float("-inf")), [0] * rank
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[rank]
    return pool(x, kernel_shape, strides or [1] * rank, padding, dilations or [1] * rank, ceil_mode=bool(ceil_mode))


@_rule("AveragePool")
def _average_pool(
    x: Tensor,
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    auto_pad: str = "NOTSET",
) -> Tensor:
    rank = x.dim() - 2
    if not count_include_pad and pads and list(pads[:rank]) != list(pads[rank:]):
        raise ValueError("AveragePool with uneven pads that do not count has no conversion")
    x, padding = _padded(x, pads, auto_pad, 0.0)
    pool = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[rank]
    return pool(x, kernel_shape, strides or [1] * rank, padding, bool(ceil_mode), bool(count_include_pad))


@_rule("BatchNormalization")
def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Tensor:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


@_rule("LayerNormalization")
def _layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


@_rule("Gemm")
def _gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    a, b = (a.t() if transA else a), (b.t() if transB else b)
    if c is None:
        return alpha * (a @ b)
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


@_rule("Clip", 1, 2)
def _clip(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    return torch.clamp(x, low, high)


@_rule("Cast")
def _cast(x: Tensor, *, to: int, saturate: int = 1) -> Tensor:
    kinds = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64}
    if to not in kinds:
        raise ValueError(f"Cast to ONNX type {to} has no conversion")
    return x.to(kinds[to])


@_rule("Reshape", 1)
def _reshape(x: Tensor, shape: Sequence[int], *, allowzero: int = 0) -> Tensor:
    return x.reshape([x.shape[axis] if not size and not allowzero else size for axis, size in enumerate(shape)])


@_rule("Expand", 1)
def _expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


@_rule("Unsqueeze", 1)
def _unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@_rule("Squeeze", 1)
def _squeeze(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


@_rule("Slice", 1, 2, 3, 4)
def _slice(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    cuts = [slice(None)] * x.dim()
    for position, (start, end) in enumerate(zip(starts, ends, strict=True)):
        step = steps[position] if steps else 1
        if step < 1:
            raise ValueError("Slice with a negative step has no conversion")
        cuts[axes[position] if axes else position] = slice(start, end, step)
    return x[tuple(cuts)]


@_rule("Split", 1)
def _split(x: Tensor, sizes: Sequence[int] | None = None, *, parts: int, axis: int = 0, num_outputs: int = 0) -> Any:
    whole = x.shape[axis]
    return torch.split(x, list(sizes) if sizes else -(-whole // parts), dim=axis)


@_rule("Gather")
def _gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis %= x.dim()
    wrapped = torch.where(indices < 0, indices + x.shape[axis], indices)
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    return torch.index_select(x, axis, wrapped.reshape(-1)).reshape(shape)


@_rule("Pad", 1, 2, 3)
def _pad(
    x: Tensor, pads: Sequence[int], value: Any = None, axes: Sequence[int] | None = None, *, mode: str = "constant"
) -> Tensor:
    if mode != "constant" or axes is not None:
        raise ValueError(f"Pad with mode {mode} or with axes has no conversion")
    rank = len(pads) // 2
    around = [amount for axis in reversed(range(rank)) for amount in (pads[axis], pads[rank + axis])]
    return F.pad(x, around, value=float(value or 0.0))


def _reduction(compute: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        x: Tensor,
        given: Sequence[int] | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:
        over = tuple(given or axes or ())
        if not over and noop_with_empty_axes:
            return x
        return compute(x, dim=over or tuple(range(x.dim())), keepdim=bool(keepdims))

    return reduce


for _name, _compute in (
    ("ReduceMean", torch.mean),
    ("ReduceSum", torch.sum),
    ("ReduceMax", torch.amax),
    ("ReduceMin", torch.amin),
):
    _RULES[_name] = _Rule(_reduction(_compute), frozenset({1}))


@_rule("Resize", 1, 2, 3)
def _resize(
    x: Tensor,
    _region: Any = None,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
) -> Tensor:
    into = list(sizes[2:]) if sizes else [int(n * s) for n, s in zip(x.shape[2:], (scales or [])[2:], strict=True)]
    whole = all(size % old == 0 for size, old in zip(into, x.shape[2:], strict=True))
    # Growing by a whole factor, both of these read the element that PyTorch's nearest reads.
    floors = coordinate_transformation_mode == "asymmetric" and nearest_mode == "floor"
    rounds = coordinate_transformation_mode == "half_pixel" and nearest_mode.startswith("round_prefer")
    if mode == "nearest" and (floors or (rounds and whole)):
        return F.interpolate(x, size=into, mode="nearest")
    if mode == "linear" and x.dim() == 4 and coordinate_transformation_mode in ("half_pixel", "align_corners"):
        corners = coordinate_transformation_mode == "align_corners"
        return F.interpolate(x, size=into, mode="bilinear", align_corners=corners)
    raise ValueError(f"Resize with {mode}, {coordinate_transformation_mode}, {nearest_mode} has no conversion")
