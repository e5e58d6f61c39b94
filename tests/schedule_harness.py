"""Builds small groups for tests of schedule families: from a description by hand to a Group and its fused PrimFunc.

A `Sketch` collects operators as tensor expressions with numpy's answer beside each. `finish` gives a `Case`, which runs
any scheduled function and compares it with the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from built_kernels import build_kernels
from tvm import relax, te, tirx

from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.lower.operators import conv2d_blocked, depthwise_conv2d_blocked, pool2d, unblock_channels
from autofuse.measure.worker import poison
from autofuse.schedule.family import Configuration, ScheduleFamily
from autofuse.schedule.preparations import prepare
from autofuse.target import Hardware

HARDWARE = Hardware()
ONE, MANY = MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY


@dataclass(frozen=True)
class Value:
    """A tensor of a sketch: its index, its Relax variable, and numpy's answer in stored layout."""

    index: int
    var: Any
    answer: np.ndarray


class Sketch:
    """Collects inputs, constants and operators of one group; every operator becomes a member."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self.parameters: list[Value] = []
        self.steps: list[tuple[Value, Callable[..., te.Tensor], tuple[Value, ...], dict[str, Any]]] = []

    def source(
        self, shape: Sequence[int], role: Role = Role.INPUT, array: np.ndarray | None = None, scale: float = 1.0
    ) -> Value:
        """A tensor from outside: `array` (its shape counts, and its type if that is a byte), or random numbers in
        [-scale, scale]."""
        array = self.uniform(shape, scale) if array is None else array
        index, shape = len(self.tensors), array.shape
        dtype = str(array.dtype) if array.dtype.itemsize == 1 else "float32"
        self.tensors.append(Tensor(index, f"t{index}", shape, dtype, role))
        var = relax.Var(f"p{index}", relax.TensorType(list(shape), dtype))
        value = Value(index, var, np.ascontiguousarray(array, dtype))
        self.parameters.append(value)
        return value

    def op(
        self,
        kind: str,
        build: Callable[..., te.Tensor],
        operands: Sequence[Value],
        answer: np.ndarray,
        *,
        mappings: Sequence[MappingType] | None = None,
        attrs: Mapping[str, Any] | None = None,
        work: Work | None = None,
        reduction: Sequence[int] = (),
        **keywords: Any,
    ) -> Value:
        """An operator `build(*tensors, **keywords)`; mappings default to elementwise with broadcast."""
        number = len(self.operators)
        index = len(self.tensors)
        shape = answer.shape
        dtype = str(answer.dtype) if answer.dtype.itemsize == 1 else "float32"
        self.tensors.append(Tensor(index, f"t{index}", tuple(shape), dtype))
        if mappings is None:
            mappings = [ONE if o.answer.shape == shape else MANY for o in operands]
        accesses = tuple(Access(i, o.index, m) for i, (o, m) in enumerate(zip(operands, mappings, strict=True)))
        self.operators.append(
            Operator(
                number, f"{kind}{number}", kind, kind, tuple(o.index for o in operands), (index,), accesses,
                work or Work(simple=int(np.prod(shape))), dict(attrs or {}), tuple(shape), tuple(reduction),
            )
        )  # fmt: skip
        value = Value(index, None, answer.astype(dtype))
        self.steps.append((value, build, tuple(operands), keywords))
        return value

    def elementwise(self, kind: str, function: Callable[..., Any], numpy: Callable[..., np.ndarray], *operands: Value,
                    special: bool = False) -> Value:  # fmt: skip
        """An elementwise operator of the first operand's shape; axes of extent 1 are broadcast."""
        shape = operands[0].answer.shape

        def build(*tensors: te.Tensor) -> te.Tensor:
            def at(*index: tirx.Var) -> tirx.Expr:
                values = [
                    t(*(0 if int(t.shape[a]) == 1 and shape[a] != 1 else i for a, i in enumerate(index)))
                    for t in tensors
                ]
                return function(*values)

            return te.compute(list(shape), at, name=kind)

        answer = numpy(*(o.answer for o in operands))
        count = int(np.prod(shape))
        return self.op(kind, build, operands, answer, work=Work(special=count) if special else Work(simple=count))

    def add(self, left: Value, right: Value) -> Value:
        """left + right."""
        return self.elementwise("add", lambda a, b: a + b, lambda a, b: a + b, left, right)

    def multiply(self, left: Value, right: Value) -> Value:
        """left · right."""
        return self.elementwise("multiply", lambda a, b: a * b, lambda a, b: a * b, left, right)

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        zero = tirx.const(0.0, "float32")
        return self.elementwise("nn.relu", lambda a: tirx.max(a, zero), lambda a: np.maximum(a, 0), x)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + exp(-x))."""
        return self.elementwise("sigmoid", tirx.sigmoid, lambda a: 1 / (1 + np.exp(-a)), x, special=True)

    def softplus(self, x: Value) -> Value:
        """log(1 + exp(x))."""
        one = tirx.const(1.0, "float32")
        return self.elementwise("softplus", lambda a: tirx.log(one + tirx.exp(a)), lambda a: np.log1p(np.exp(a)), x,
                                special=True)  # fmt: skip

    def tanh(self, x: Value) -> Value:
        """tanh(x)."""
        return self.elementwise("tanh", tirx.tanh, np.tanh, x, special=True)

    def dequantise(self, x: Value, scale: float = 0.05, zero: int = 3) -> Value:
        """(x - zero) · scale, of bytes."""
        return self.elementwise(
            "dequantize", lambda a: (a.astype("int32") - zero).astype("float32") * tirx.const(scale, "float32"),
            lambda a: (a.astype("int32") - zero) * np.float32(scale), x,
        )  # fmt: skip

    def quantise(self, x: Value, scale: float = 0.05, zero: int = 3, dtype: str = "uint8") -> Value:
        """x / scale + zero, rounded, as bytes."""
        low, high = (float(e) for e in (np.iinfo(dtype).min, np.iinfo(dtype).max))

        def build(a: Any) -> Any:
            made = tirx.round(a / tirx.const(scale, "float32")) + tirx.const(float(zero), "float32")
            return tirx.max(tirx.min(made, tirx.const(high, "float32")), tirx.const(low, "float32")).astype(dtype)

        return self.elementwise(
            "quantize", build, lambda a: np.clip(np.rint(a / np.float32(scale)) + zero, low, high).astype(dtype), x
        )

    def conv2d(
        self, data: Value, plain: np.ndarray, channels: int, kernel: Sequence[int], *, strides: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0, 0, 0), dilation: Sequence[int] = (1, 1), groups: int = 1, lanes: int = 8,
    ) -> Value:  # fmt: skip
        """A blocked convolution; `plain` is what `data` holds, as [N, C, H, W]."""
        inner = plain.shape[1] // groups
        weight = self.uniform((channels, inner, *kernel), (inner * kernel[0] * kernel[1]) ** -0.5)
        ib = lanes if data.answer.ndim == 5 else 1
        packed = np.zeros((-(-channels // lanes) * lanes, -(-inner // ib) * ib, *kernel), "float32")
        packed[:channels, :inner] = weight
        packed = packed.reshape(packed.shape[0] // lanes, lanes, packed.shape[1] // ib, ib, *kernel)
        constant = self.source((), Role.CONSTANT, packed.transpose(0, 2, 4, 5, 3, 1))
        answer = convolve(plain, weight, strides, padding, dilation, groups)
        attrs = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
        work = Work(fma=int(answer.size) * inner * kernel[0] * kernel[1])
        return self.op(
            "nn.conv2d", conv2d_blocked, [data, constant], block(answer, lanes), work=work,
            mappings=[MappingType.MANY_TO_MANY] * 2, attrs={**attrs, "variant": "blocked"}, **attrs,
        )  # fmt: skip

    def depthwise(
        self, data: Value, plain: np.ndarray, kernel: Sequence[int], *, strides: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0, 0, 0), dilation: Sequence[int] = (1, 1), lanes: int = 8,
    ) -> Value:  # fmt: skip
        """A blocked depthwise convolution; `plain` is what `data` holds, as [N, C, H, W]."""
        channels = plain.shape[1]
        weight = self.uniform((channels, 1, *kernel), (kernel[0] * kernel[1]) ** -0.5)
        packed = np.zeros((-(-channels // lanes) * lanes, *kernel), "float32")
        packed[:channels] = weight[:, 0]
        packed = packed.reshape(-1, lanes, *kernel).transpose(0, 2, 3, 1)
        constant = self.source((), Role.CONSTANT, packed)
        answer = convolve(plain, weight, strides, padding, dilation, channels)
        attrs = {"strides": strides, "padding": padding, "dilation": dilation}
        return self.op(
            "nn.conv2d", depthwise_conv2d_blocked, [data, constant], block(answer, lanes),
            mappings=[MappingType.MANY_TO_MANY] * 2, work=Work(fma=int(answer.size) * kernel[0] * kernel[1]),
            attrs={**attrs, "groups": channels, "variant": "depthwise"}, **attrs,
        )  # fmt: skip

    def pool(
        self, data: Value, kind: str, window: Sequence[int], *, strides: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0, 0, 0), dilation: Sequence[int] = (1, 1), ceil: bool = False,
        count_include_pad: bool = False,
    ) -> Value:  # fmt: skip
        """Max or average ("avg") pooling over axes 2 and 3."""
        base = data.answer
        spread = [(window[i] - 1) * dilation[i] + 1 for i in range(2)]
        size = [base.shape[2 + i] + padding[i] + padding[2 + i] for i in range(2)]
        extent = []
        for i in range(2):
            count = size[i] - spread[i]
            steps = -(-count // strides[i]) if ceil else count // strides[i]
            if ceil and steps * strides[i] >= base.shape[2 + i] + padding[i]:
                steps -= 1  # a window may not start beyond the data
            extent.append(steps + 1)
        reach = [size[i] + strides[i] + spread[i] for i in range(2)]
        large = np.full((*base.shape[:2], *reach, *base.shape[4:]), -np.inf if kind == "max" else 0, "float32")
        counted = np.zeros(reach)
        area = tuple(slice(padding[i], padding[i] + base.shape[2 + i]) for i in range(2))
        large[:, :, area[0], area[1]] = base
        counted[(slice(0, size[0]), slice(0, size[1])) if count_include_pad else area] = 1
        answer = np.zeros((*base.shape[:2], *extent, *base.shape[4:]), "float32")
        for y in range(extent[0]):
            for x in range(extent[1]):
                at = (
                    slice(y * strides[0], y * strides[0] + spread[0], dilation[0]),
                    slice(x * strides[1], x * strides[1] + spread[1], dilation[1]),
                )
                part = large[:, :, at[0], at[1]]
                answer[:, :, y, x] = part.max((2, 3)) if kind == "max" else part.sum((2, 3)) / max(1, counted[at].sum())

        def build(tensor: te.Tensor) -> te.Tensor:
            return pool2d(
                tensor, kind=kind, window=window, strides=strides, padding=padding, dilation=dilation, extent=extent,
                count_include_pad=count_include_pad,
            )  # fmt: skip

        attrs = {"pool_size": window, "strides": strides, "padding": padding, "dilation": dilation}
        work = Work(compare=int(answer.size) * window[0] * window[1])
        return self.op(
            f"nn.{kind}_pool2d", build, [data], answer, mappings=[MappingType.MANY_TO_ONE], attrs=attrs, work=work
        )

    def unblock(self, data: Value, channels: int) -> Value:
        """From channel blocks to NCHW."""
        n, _, rows, columns, _ = data.answer.shape
        answer = data.answer.transpose(0, 1, 4, 2, 3).reshape(n, -1, rows, columns)[:, :channels]

        def build(tensor: te.Tensor) -> te.Tensor:
            return unblock_channels(tensor, channels=channels)

        attrs = {"from": "NCHW8c", "to": "NCHW"}
        return self.op("layout_change", build, [data], answer, mappings=[MappingType.SHUFFLE], attrs=attrs)

    def uniform(self, shape: Sequence[int], scale: float = 1.0) -> np.ndarray:
        """Random numbers in [-scale, scale]."""
        return ((self.random.random(tuple(shape)) * 2 - 1) * scale).astype("float32")

    def finish(self, *outputs: Value) -> Case:
        """The case whose group writes `outputs`."""
        graph = Graph(
            "sketch", tuple(self.tensors), tuple(self.operators),
            tuple(p.index for p in self.parameters), tuple(o.index for o in outputs),
        )  # fmt: skip
        group = Group.of(graph, range(len(self.operators)), tuple(o.index for o in outputs))
        order = {p.index: p for p in self.parameters}
        parameters = [order[t] for t in group.inputs]
        return Case(group, tuple(parameters), tuple(outputs), tuple(self.steps))


@dataclass(frozen=True)
class Case:
    """A group with its operands' values and the results that it must give."""

    group: Group
    parameters: tuple[Value, ...]
    outputs: tuple[Value, ...]
    steps: tuple[Any, ...]

    @cached_property
    def func(self) -> tirx.PrimFunc:
        """The fused, unscheduled function: operands, then results."""
        builder = relax.BlockBuilder()
        known = {p.index: p.var for p in self.parameters}
        with builder.function("group", [p.var for p in self.parameters], attrs={"Primitive": 1}, private=True):
            with builder.dataflow():
                for value, build, operands, keywords in self.steps:
                    known[value.index] = builder.emit_te(build, *(known[o.index] for o in operands), **keywords)
                results = [known[o.index] for o in self.outputs]
                result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            builder.emit_func_output(result)
        module = builder.get()
        callee = next(g for g in module.get_global_vars() if g.name_hint == "group")
        arguments = [relax.Var(f"q{p.index}", p.var.ty) for p in self.parameters]
        with builder.function("main", arguments):
            with builder.dataflow():
                result = builder.emit_output(relax.Call(callee, arguments))
            builder.emit_func_output(result)
        module = relax.transform.DeadCodeElimination()(relax.transform.FuseTIR()(builder.get()))
        return next(module[g] for g in module.get_global_vars() if isinstance(module[g], tirx.PrimFunc))

    def arrays(self, prepared: Mapping[int, str] | None = None) -> tuple[list[Any], list[Any]]:
        """Operands (those of `prepared` in that form) and results (not written yet) as runtime tensors."""
        device = tvm.cpu()
        forms = prepared or {}
        values = [prepare(forms[i], p.answer) if i in forms else p.answer for i, p in enumerate(self.parameters)]
        given = [tvm.runtime.tensor(value, device) for value in values]
        empty = [tvm.runtime.tensor(poison(o.answer.shape, str(o.answer.dtype)), device) for o in self.outputs]
        return given, empty

    def error(self, kernel: Callable[..., Any], prepared: Mapping[int, str] | None = None) -> float:
        """Largest error of a kernel over all results, relative to the largest value of each.

        Of bytes, one in a hundred may be one off: the sum that was rounded is another one in its last bits.
        """
        given, empty = self.arrays(prepared)
        kernel(*given, *empty)
        worst = 0.0
        for tensor, output in zip(empty, self.outputs, strict=True):
            difference = np.abs(tensor.numpy().astype("float32") - output.answer)
            if output.answer.dtype.itemsize == 1 and difference.max() <= 1 and np.mean(difference) <= 0.01:
                continue
            if not np.isfinite(difference).all():
                return float("inf")
            worst = max(worst, float(difference.max()) / max(1e-6, float(np.abs(output.answer).max())))
        return worst

    def check(
        self, family: ScheduleFamily, configs: Sequence[Configuration] | None = None, hardware: Hardware = HARDWARE,
        tolerance: float = 2e-5,
    ) -> int:  # fmt: skip
        """Assert that the family matches and that each configuration (all by default) is right; how many were run."""
        refusal = family.match(self.group, hardware)
        assert refusal is None, str(refusal)
        offered = list(family.configs(self.group, hardware))
        assert offered and len(set(offered)) == len(offered)
        chosen = offered if configs is None else configs
        for config in chosen:
            assert type(config).parse(config.text) == config
            shape = family.shape(self.group, config, hardware)
            assert shape.tasks >= 1 and shape.recompute >= 1 and shape.memory_bytes > 0
        kernels = build_kernels([family.apply(self.func, self.group, config, hardware) for config in chosen])
        for config, kernel in zip(chosen, kernels, strict=True):
            error = self.error(kernel, family.prepared(self.group, config))
            assert error < tolerance, f"{family.name} {config.text}: error {error:.2e}"
        return len(chosen)


def block(x: np.ndarray, lanes: int = 8) -> np.ndarray:
    """[N, C, H, W] → [N, ceil(C/lanes), H, W, lanes], padded with zeros."""
    n, c, h, w = x.shape
    padded = np.zeros((n, -(-c // lanes) * lanes, h, w), x.dtype)
    padded[:, :c] = x
    return padded.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2)


def convolve(x: np.ndarray, weight: np.ndarray, strides: Sequence[int], padding: Sequence[int],
             dilation: Sequence[int], groups: int = 1) -> np.ndarray:  # fmt: skip
    """Plain 2-D convolution, NCHW and OIHW, in float64."""
    top, left, bottom, right = padding
    x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, c, h, w = x.shape
    o, i, kh, kw = weight.shape
    oh = (h - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (w - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((n, groups, o // groups, oh, ow))
    xg = x.reshape(n, groups, c // groups, h, w)
    wg = weight.astype("float64").reshape(groups, o // groups, i, kh, kw)
    for y in range(kh):
        for z in range(kw):
            y0, z0 = y * dilation[0], z * dilation[1]
            part = xg[:, :, :, y0 : y0 + (oh - 1) * strides[0] + 1 : strides[0],
                      z0 : z0 + (ow - 1) * strides[1] + 1 : strides[1]]  # fmt: skip
            out += np.einsum("ngihw,goi->ngohw", part, wg[:, :, :, y, z], optimize=True)
    return out.reshape(n, o, oh, ow).astype("float32")
