"""Takes a network's name, a batch size and a seed, gives its ONNX graph with random weights, and inputs to feed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from autofuse.errors import InputError, ModelError
from autofuse.frontend.zoo.branched_cnns import densenet121, shufflenet_v2
from autofuse.frontend.zoo.builder import GraphBuilder
from autofuse.frontend.zoo.catalog import describe
from autofuse.frontend.zoo.mobile_cnns import efficientnet_b0, mobilenet_v1, mobilenet_v2
from autofuse.frontend.zoo.plain_cnns import resnet50, vgg16
from autofuse.frontend.zoo.transformers import gpt2, minilm_l6, vit_tiny
from autofuse.frontend.zoo.yolo import yolov4, yolov4_tiny

_NETWORKS: tuple[Callable[[GraphBuilder, int], dict[str, str]], ...] = (
    vgg16,
    mobilenet_v1,
    mobilenet_v2,
    efficientnet_b0,
    yolov4,
    yolov4_tiny,
    resnet50,
    shufflenet_v2,
    densenet121,
    minilm_l6,
    vit_tiny,
    gpt2,
)
_BY_NAME = {network.__name__: network for network in _NETWORKS}
# Drawn for an input's dtype when no embedding reads it: masks and token types take 0 and 1.
_SMALL_RANGE = 2


def build(name: str, batch: int = 1, seed: int = 0) -> onnx.ModelProto:
    """A network of the zoo as an ONNX model (opset 17) for a fixed batch size, with random weights from the seed.

    Equal arguments give equal bytes; the weights do not depend on the batch size. Every value's shape is in the graph.
    Raises ModelError for an unknown name, InputError for a batch below 1 or a negative seed.
    """
    describe(name)
    _check(batch, seed)
    builder = GraphBuilder(name, seed)
    return builder.finish(_BY_NAME[name](builder, batch))


def sample_inputs(
    model_or_name: onnx.ModelProto | str, batch: int | None = None, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Random inputs for a network of the zoo or any ONNX model with static input shapes.

    Floats are N(0, 1). Integers are token ids that the embedding they index has a row for, or 0 and 1 where no
    embedding reads them. `batch` defaults to 1 for a name and to the model's own size for a model. Raises ModelError
    for an unknown name or an input without a static shape, InputError for a batch that the model does not have.
    """
    _check(1 if batch is None else batch, seed)
    if isinstance(model_or_name, str):
        size = 1 if batch is None else batch
        items = describe(model_or_name).inputs
        specs = [(item.name, (size, *item.shape[1:]), np.dtype(item.dtype)) for item in items]
        rows = {item.name: item.bound for item in items if item.bound is not None}
    else:
        specs = [_input_spec(info, batch) for info in _fed_inputs(model_or_name)]
        rows = _embedding_rows(model_or_name)
    rng = np.random.default_rng(seed)
    inputs: dict[str, NDArray[Any]] = {}
    for name, shape, dtype in specs:
        if np.issubdtype(dtype, np.floating):
            inputs[name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype, copy=False)
        else:
            inputs[name] = rng.integers(0, rows.get(name, _SMALL_RANGE), shape).astype(dtype, copy=False)
    return inputs


def _check(batch: int, seed: int) -> None:
    if batch < 1:
        raise InputError(f"batch is {batch}: give a whole number of 1 or more")
    if seed < 0:
        raise InputError(f"seed is {seed}: give a whole number of 0 or more")


def _fed_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph's inputs that a caller must feed: old models list initialisers among them."""
    given = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in given]


def _input_spec(info: onnx.ValueInfoProto, batch: int | None) -> tuple[str, tuple[int, ...], np.dtype[Any]]:
    dims = info.type.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        raise ModelError(f"input {info.name!r} has no static shape: fix the model's input shapes first")
    shape = tuple(dim.dim_value for dim in dims)
    if batch is not None and shape and shape[0] != batch:
        raise InputError(f"input {info.name!r} has batch {shape[0]}, not {batch}: build the model for that batch")
    return info.name, shape, onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)


def _embedding_rows(model: onnx.ModelProto) -> dict[str, int]:
    """For each value that indexes axis 0 of an initialiser, how many rows that has (the fewest, of several)."""
    tables = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    rows: dict[str, int] = {}
    for node in model.graph.node:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if node.op_type == "Gather" and axis == 0 and tables.get(node.input[0]):
            index = node.input[1]
            rows[index] = min(rows.get(index, tables[node.input[0]][0]), tables[node.input[0]][0])
    return rows
