"""A seed → a random ONNX model with inputs and the results that ONNX Runtime gives for them.

A model is grown value by value: each node that a layer (random_layers.py) adds is run by itself with ONNX Runtime on
the arrays at hand. So shapes need no rules here, what ONNX Runtime refuses or what leaves the range of useful numbers
is left out with the whole layer, and layers may choose their attributes freely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPSET = 18
#: What a value may hold: beyond these, rounding differences or the time taken say nothing.
LARGEST_NUMBER = 1e4
LARGEST_VALUE = 60_000
Array = np.ndarray[Any, Any]
Layer = Callable[["Sketch"], object]
#: Sizes of images: one, powers of two, primes, long and thin.
IMAGES = (
    (1, 1), (2, 2), (3, 1), (1, 5), (4, 4), (7, 7), (8, 8), (5, 9), (14, 14), (13, 16), (17, 3), (28, 28), (31, 19)
)  # fmt: skip
CHANNELS = (1, 3, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 40, 64)
WIDTHS = (1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 23, 24, 31, 32, 37, 48, 64)


class RefusedError(Exception):
    """A layer cannot be added here."""


@dataclass(frozen=True)
class Value:
    """A tensor of the model and what it holds for the model's inputs."""

    name: str
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim

    @property
    def floating(self) -> bool:
        return self.array.dtype == np.float32


def ints(*numbers: int) -> Array:
    return np.asarray(numbers, dtype=np.int64)


def floats(*numbers: float) -> Array:
    return np.asarray(numbers, dtype=np.float32)


def scalar(number: float) -> Array:
    return np.asarray(number, dtype=np.float32)


def whole(value: Value) -> bool:
    return value.array.dtype == np.int64


@dataclass(frozen=True)
class RandomModel:
    """A model, what it is given and the order of its results."""

    seed: int
    model: onnx.ModelProto
    inputs: dict[str, Array]
    outputs: tuple[str, ...]

    def run(self, inputs: dict[str, Array]) -> list[Array]:
        """ONNX Runtime's results, without its optimisations."""
        return run_model(self.model, inputs)

    @cached_property
    def expected(self) -> list[Array]:
        return self.run(self.inputs)

    @cached_property
    def spread(self) -> list[Array]:
        """How far each result moves when the inputs do by rounding's order: where that is far, nothing can be said."""
        rng = np.random.default_rng(self.seed)
        moved: list[Array] = [np.zeros(array.shape) for array in self.expected]
        for _ in range(2):
            nudged = {
                name: (a * (1 + rng.choice([-4e-7, 4e-7], a.shape))).astype(a.dtype) if a.dtype == np.float32 else a
                for name, a in self.inputs.items()
            }
            for total, there, here in zip(moved, self.run(nudged), self.expected, strict=True):
                np.maximum(total, np.abs(there.astype(float) - here.astype(float)), out=total)
        return moved


def run_model(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(item) for item in session.run(None, inputs)]


def info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


class Sketch:
    """A model while it grows."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.inputs: list[Value] = []
        self.values: list[Value] = []
        self._count = 0

    def name(self, start: str) -> str:
        self._count += 1
        return f"{start}{self._count}"

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, part: float) -> bool:
        return bool(self.rng.random() < part)

    def numbers(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def input(self, array: Array) -> Value:
        value = Value(f"x{len(self.inputs)}", array)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def find(self, *ranks: int, where: Callable[[Value], bool] = lambda value: value.floating) -> Value:
        """One of the values so far that are no scalars, rather a late one."""
        fitting = [v for v in self.values if v.rank and where(v) and (not ranks or v.rank in ranks)]
        if not fitting:
            raise RefusedError
        return fitting[-1] if self.chance(0.5) else fitting[int(self.rng.integers(len(fitting)))]

    def add(
        self, op: str, *operands: Value | Array | None, results: int = 1, hidden: bool = False, **attributes: Any
    ) -> Value:
        """A node; arrays are constants, None an operand left out. Its first result, which `hidden` layers keep."""
        return self.add_all(op, *operands, results=results, hidden=hidden, **attributes)[0]

    def add_all(
        self, op: str, *operands: Value | Array | None, results: int = 1, hidden: bool = False, **attributes: Any
    ) -> list[Value]:
        names, constants, given = [], {}, {}
        for operand in operands:
            if operand is None:
                names.append("")
            elif isinstance(operand, Value):
                names.append(operand.name)
                given[operand.name] = operand.array
            else:
                names.append(self.name("c"))
                constants[names[-1]] = np.asarray(operand)
        made = [self.name("v") for _ in range(results)]
        node = helper.make_node(op, names, made, name=f"{op}_{made[0]}", **attributes)
        arrays = self._run(node, constants, given)
        for array in arrays:
            large = array.size > LARGEST_VALUE or not np.all(np.abs(array.astype(float)) < LARGEST_NUMBER)
            if large or array.size == 0:
                raise RefusedError
        self.nodes.append(node)
        self.constants.update(constants)
        values = [Value(name, array) for name, array in zip(made, arrays, strict=True)]
        if not hidden:
            self.values.extend(values)
        return values

    @staticmethod
    def _run(node: onnx.NodeProto, constants: dict[str, Array], given: dict[str, Array]) -> list[Array]:
        graph = helper.make_graph(
            [node],
            "node",
            [info(name, array) for name, array in given.items()],
            [helper.make_empty_tensor_value_info(name) for name in node.output],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        try:
            return run_model(onnx.shape_inference.infer_shapes(model), given)
        except Exception as error:  # ONNX Runtime has an exception class for each status
            raise RefusedError from error

    def grow(self, layer: Layer) -> bool:
        """Add a layer, or nothing at all where part of it is refused."""
        nodes, values, constants = len(self.nodes), len(self.values), dict(self.constants)
        try:
            layer(self)
        except RefusedError:
            del self.nodes[nodes:], self.values[values:]
            self.constants = constants
            return False
        return True

    def finish(self, seed: int) -> RandomModel:
        """What nothing reads is a result, and now and then values that are read, an input too."""
        read = {name for node in self.nodes for name in node.input}
        made = self.values[len(self.inputs) :]
        results = [v for v in made if v.name not in read]
        inner = [v for v in made if v.name in read]
        if inner and self.chance(0.4):
            results.append(inner[int(self.rng.integers(len(inner)))])
        if self.chance(0.05):
            results.append(self.inputs[0])
        results = [results[i] for i in self.rng.permutation(len(results))]
        kept = [v for v in self.inputs if v.name in read or v in results]
        graph = helper.make_graph(
            self.nodes,
            f"random{seed}",
            [info(v.name, v.array) for v in kept],
            [info(v.name, v.array) for v in results],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        return RandomModel(seed, model, {v.name: v.array for v in kept}, tuple(v.name for v in results))


def random_model(seed: int, layers: Sequence[str] = (), steps: int = 0) -> RandomModel:
    """The model of a seed: `steps` layers (2 to 8 when 0), of all kinds or of those named."""
    from random_layers import LAYERS, start

    sketch = Sketch(seed)
    start(sketch)
    kinds = [LAYERS[name] for name in layers or LAYERS]
    wanted = steps or int(sketch.rng.integers(2, 9))
    for _ in range(wanted * 20):
        wanted -= sketch.grow(kinds[int(sketch.rng.integers(len(kinds)))])
        if wanted <= 0:
            break
    if not sketch.nodes:
        sketch.add("Relu", sketch.find())
    return sketch.finish(seed)
