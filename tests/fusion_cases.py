"""The cases that public bug reports about fusion describe, as ONNX models of any size, with inputs for them.

`build(name, **sizes)` gives one; without sizes those of the report. Used by the tests and by scripts/bench_cases.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from frontend_graphs import model, node, weights
from onnx import TensorProto


@dataclass(frozen=True)
class FusionCase:
    """A model, and what each integer input may hold: `bounds` maps its name to one more than the largest value."""

    name: str
    model: onnx.ModelProto
    bounds: dict[str, int] = field(default_factory=dict)

    def inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Seeded inputs by name: N(0, 1), or integers within bounds."""
        random = np.random.default_rng(seed)
        arrays = {}
        for value in self.model.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            if value.name in self.bounds:
                arrays[value.name] = random.integers(0, self.bounds[value.name], shape)
            else:
                arrays[value.name] = random.standard_normal(shape, dtype=np.float32)
        return arrays


def exp_chain_broadcast(links: int = 16, n: int = 4096) -> FusionCase:
    """z ← exp(x - z/2) over a column, `links` times, then added to a matrix (TVM #20342)."""
    nodes, z = [], "x"
    for i in range(links):
        nodes.append(node("Mul", [z, "half"], [f"halved{i}"]))
        nodes.append(node("Sub", ["x", f"halved{i}"], [f"less{i}"]))
        nodes.append(node("Exp", [f"less{i}"], [f"z{i}"]))
        z = f"z{i}"
    nodes.append(node("Add", ["b", z], ["y"]))
    return FusionCase("exp_chain_broadcast", model(nodes, {"x": [n, 1], "b": [n, n]}, ["y"], {"half": np.float32(0.5)}))


def pool_reshape(channels: int = 512, size: int = 7) -> FusionCase:
    """A global pool, a reshape that moves nothing, an activation (TVM #17165)."""
    nodes = [
        node("GlobalAveragePool", ["x"], ["pooled"]),
        node("Reshape", ["pooled", "shape"], ["flat"]),
        node("Relu", ["flat"], ["y"]),
    ]
    shape = np.array([1, channels], np.int64)
    return FusionCase("pool_reshape", model(nodes, {"x": [1, channels, size, size]}, ["y"], {"shape": shape}))


def shared_exp(rows: int = 512, columns: int = 1024) -> FusionCase:
    """exp(x) over its own row sum: one producer, read by a reduction and by what consumes the reduction."""
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("ReduceSum", ["e", "last"], ["sum"], keepdims=1),
        node("Div", ["e", "sum"], ["y"]),
    ]
    return FusionCase("shared_exp", model(nodes, {"x": [rows, columns]}, ["y"], {"last": np.array([-1], np.int64)}))


def reduce_then_elementwise(rows: int = 1024, columns: int = 256) -> FusionCase:
    """A row sum and two elementwise operators on it."""
    nodes = [
        node("ReduceSum", ["x", "last"], ["sum"], keepdims=0),
        node("Exp", ["sum"], ["e"]),
        node("Sqrt", ["e"], ["y"]),
    ]
    return FusionCase(
        "reduce_then_elementwise", model(nodes, {"x": [rows, columns]}, ["y"], {"last": np.array([-1], np.int64)})
    )


def transpose_matmul(m: int = 128, k: int = 384, n: int = 512) -> FusionCase:
    """softmax(x · wᵀ) with w an input."""
    nodes = [
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["product"]),
        node("Softmax", ["product"], ["y"], axis=-1),
    ]
    return FusionCase("transpose_matmul", model(nodes, {"x": [m, k], "w": [n, k]}, ["y"]))


def same_tensor_twice(rows: int = 64, columns: int = 256) -> FusionCase:
    """A layer norm whose scale is its shift too, and a square by multiplication (TVM #17341, #17254)."""
    nodes = [
        node("LayerNormalization", ["x", "g", "g"], ["normal"], axis=-1),
        node("Mul", ["normal", "normal"], ["square"]),
        node("Add", ["square", "x"], ["y"]),
    ]
    return FusionCase("same_tensor_twice", model(nodes, {"x": [rows, columns], "g": [columns]}, ["y"]))


def wide_concat(parts: int = 1200) -> FusionCase:
    """A concatenation of very many activations (TVM PR #15137, PyTorch PR #113127)."""
    nodes = [node("Relu", [f"x{i}"], [f"r{i}"]) for i in range(parts)]
    nodes.append(node("Concat", [f"r{i}" for i in range(parts)], ["y"], axis=0))
    return FusionCase("wide_concat", model(nodes, {f"x{i}": [1, 16] for i in range(parts)}, ["y"]))


def long_chain(links: int = 2000, n: int = 64) -> FusionCase:
    """Thousands of elementwise operators one after another (TVM PR #4002, PR #6327, PyTorch #154652)."""
    names = ["x", *(f"v{i}" for i in range(1, links)), "y"]
    kinds = ("Tanh", "Neg", "Abs", "Sigmoid")
    nodes = [node(kinds[i % 4], [names[i]], [names[i + 1]]) for i in range(links)]
    return FusionCase("long_chain", model(nodes, {"x": [n, n]}, ["y"]))


def diamond_cycle(rows: int = 96, columns: int = 128) -> FusionCase:
    """e = exp(x) is read by the last operator and by a way to it through a matmul: one kernel of both is a cycle."""
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Transpose", ["e"], ["t"], perm=[1, 0]),
        node("MatMul", ["t", "e"], ["product"]),
        node("ReduceMax", ["product"], ["largest"], keepdims=1),
        node("Add", ["e", "largest"], ["y"]),
    ]
    return FusionCase("diamond_cycle", model(nodes, {"x": [rows, columns]}, ["y"]))


def cheap_ops_under_broadcast(links: int = 250, rows: int = 1024, columns: int = 512) -> FusionCase:
    """Very many cheap operators on a column that is then added to a matrix (TensorFlow PR #57829)."""
    nodes, z = [], "x"
    for i in range(links):
        nodes.append(node("Add" if i % 2 else "Mul", [z, "c"], [f"v{i}"]))
        z = f"v{i}"
    nodes.append(node("Add", [z, "b"], ["y"]))
    return FusionCase(
        "cheap_ops_under_broadcast",
        model(nodes, {"x": [rows, 1], "b": [rows, columns]}, ["y"], {"c": np.float32(0.99)}),
    )


def two_reductions_big_input(n: int = 4096) -> FusionCase:
    """A column sum and a row maximum of sigmoid(x) (PyTorch #138685)."""
    nodes = [
        node("Sigmoid", ["x"], ["s"]),
        node("ReduceSum", ["s", "first"], ["sums"], keepdims=0),
        node("ReduceMax", ["s", "last"], ["largest"], keepdims=0),
    ]
    axes = {"first": np.array([0], np.int64), "last": np.array([1], np.int64)}
    return FusionCase("two_reductions_big_input", model(nodes, {"x": [n, n]}, ["sums", "largest"], axes))


def take_then_elementwise(rows: int = 4, columns: int = 40, taken: int = 4) -> FusionCase:
    """Columns picked by an input's numbers, then two elementwise operators (TVM #20421)."""
    nodes = [
        node("Gather", ["x", "i"], ["picked"], axis=1),
        node("Tanh", ["picked"], ["t"]),
        node("Add", ["t", "picked"], ["y"]),
    ]
    built = model(nodes, {"x": [rows, columns], "i": ([taken], TensorProto.INT64)}, ["y"])
    return FusionCase("take_then_elementwise", built, {"i": columns})


def uneven_split(batch: int = 3, width: int = 5) -> FusionCase:
    """Parts of unequal sizes, two of them put together again (TVM #20207)."""
    nodes = [
        node("Split", ["x", "sizes"], ["a", "b", "c"], axis=1),
        node("Exp", ["a"], ["e"]),
        node("Mul", ["c", "e"], ["m"]),
        node("Concat", ["m", "b"], ["y"], axis=1),
    ]
    return FusionCase(
        "uneven_split", model(nodes, {"x": [batch, 11, width]}, ["y"], {"sizes": np.array([4, 3, 4], np.int64)})
    )


def conv_odd_sizes(
    batch: int = 3, channels: tuple[int, int, int] = (7, 13, 17), height: int = 31, width: int = 29
) -> FusionCase:
    """3×3 with stride 2, an activation, 1×1, a gated activation, at sizes that no tile divides (TVM PR #4404)."""
    first, second, third = channels
    nodes = [
        node("Conv", ["x", "w1"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "w2"], ["d"]),
        node("Sigmoid", ["d"], ["gate"]),
        node("Mul", ["d", "gate"], ["y"]),
    ]
    constants = {"w1": weights(second, first, 3, 3), "w2": weights(third, second, 1, 1)}
    return FusionCase("conv_odd_sizes", model(nodes, {"x": [batch, first, height, width]}, ["y"], constants))


BUILDERS: dict[str, Callable[..., FusionCase]] = {
    builder.__name__: builder
    for builder in (
        exp_chain_broadcast,
        pool_reshape,
        shared_exp,
        reduce_then_elementwise,
        transpose_matmul,
        same_tensor_twice,
        wide_concat,
        long_chain,
        diamond_cycle,
        cheap_ops_under_broadcast,
        two_reductions_big_input,
        take_then_elementwise,
        uneven_split,
        conv_odd_sizes,
    )
}


def build(name: str, **sizes: Any) -> FusionCase:
    """The case called `name`."""
    return BUILDERS[name](**sizes)


def onnxruntime_outputs(case: FusionCase, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime makes of the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run([value.name for value in case.model.graph.output], arrays))
