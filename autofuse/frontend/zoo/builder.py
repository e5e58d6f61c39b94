"""Takes operator calls and tensor shapes, gives a checked ONNX graph with seeded weights and every shape known.

Learned tensors become initialisers, everything else that is fixed (clip bounds, target shapes, masks) a Constant
node, as PyTorch's exporter writes them. `counting.parameters` relies on that distinction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, TypeProto, helper, numpy_helper, shape_inference

OPSET = 17
IR_VERSION = 8
# Floats drawn at a time: 1 MB.
_CHUNK = 1 << 18
# Elements from which a filter is centred.
CENTRED_FROM = 16


class GraphBuilder:
    """Appends nodes to one ONNX model; values are named by strings and their shapes are inferred node by node.

    Weights are drawn from one seeded stream in the order of the calls, so equal seeds give equal bytes, and the batch
    size, which no weight depends on, leaves them alone.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._opsets = [helper.make_opsetid("", OPSET)]
        self._model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="autofuse.zoo", opset_import=self._opsets)
        self._model.graph.name = name
        self._types: dict[str, TypeProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._constant_data: dict[str, TensorProto] = {}
        self._scopes: list[str] = []
        self._used: dict[str, int] = {}

    @contextmanager
    def scope(self, name: str | int) -> Iterator[None]:
        """Prefixes the names of the nodes (`/a/b/Conv`) and parameters (`a.b.weight`) made inside."""
        self._scopes.append(str(name))
        try:
            yield
        finally:
            self._scopes.pop()

    def shape(self, value: str) -> tuple[int, ...]:
        """The static shape of a value."""
        return tuple(dim.dim_value for dim in self._types[value].tensor_type.shape.dim)

    def channels(self, value: str) -> int:
        """The size of axis 1: the channels of an NCHW value."""
        return self.shape(value)[1]

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        """Declares an input of the model."""
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        info = helper.make_tensor_value_info(name, element, list(shape))
        self._model.graph.input.append(info)
        self._types[name] = info.type
        return name

    def normal(self, name: str, shape: Sequence[int], std: float, *, mean: float = 0.0) -> str:
        """A parameter drawn from N(mean, std²)."""
        return self._normal(name, shape, std, centred=False, mean=mean)

    def filters(self, name: str, shape: Sequence[int], std: float) -> str:
        """A parameter of shape (out, ...) drawn from N(0, std²), then centred so that every filter sums to zero.

        Activations behind a rectifier are positive. A filter that sums to zero does not see their common mean, which
        would otherwise swamp, layer after layer, the part that depends on the input (Qiao et al. 2019,
        arXiv:1903.10520). Filters of few elements are left as drawn: centring would make them blind to flat areas.
        """
        return self._normal(name, shape, std, centred=prod(shape[1:]) >= CENTRED_FROM)

    def uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> str:
        """A parameter drawn evenly from [low, high)."""
        data = self._rng.random(tuple(shape), dtype=np.float32)
        data *= np.float32(high - low)
        data += np.float32(low)
        return self._parameter(name, shape, data.astype("<f4", copy=False).tobytes())

    def constant(self, array: NDArray[Any]) -> str:
        """A fixed tensor as a Constant node; equal constants share one node."""
        array = np.ascontiguousarray(array) if array.ndim else array
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            tensor = numpy_helper.from_array(array)
            (value,) = self.nodes("Constant", [], 1, scoped=False, value=tensor)
            self._constants[key] = value
            self._constant_data[value] = tensor
        return self._constants[key]

    def scalar(self, value: float) -> str:
        """A float32 constant of rank 0."""
        return self.constant(np.array(value, dtype=np.float32))

    def ints(self, values: Sequence[int] | int) -> str:
        """An int64 constant: a vector, or rank 0 for a plain integer."""
        return self.constant(np.array(values, dtype=np.int64))

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Appends a node with one output and returns the output's name."""
        return self.nodes(op, inputs, 1, **attributes)[0]

    def nodes(
        self, op: str, inputs: Sequence[str], outputs: int, *, scoped: bool = True, **attributes: Any
    ) -> list[str]:
        """Appends a node with `outputs` outputs; an input "" is an optional one left out."""
        name = self._unique("/" + "/".join([*(self._scopes if scoped else []), op]))
        values = [f"{name}_output_{index}" for index in range(outputs)]
        node = helper.make_node(op, list(inputs), values, name=name, **attributes)
        schema = onnx.defs.get_schema(op, OPSET, "")
        known = {value: self._types[value] for value in inputs if value}
        data = {value: self._constant_data[value] for value in inputs if value in self._constant_data}
        self._types.update(
            shape_inference.infer_node_outputs(
                schema, node, known, data, opset_imports=self._opsets, ir_version=IR_VERSION
            )
        )
        self._model.graph.node.append(node)
        return values

    def finish(self, outputs: Mapping[str, str]) -> onnx.ModelProto:
        """Names the outputs (`{output name: value}`), records every value's shape, checks and returns the model."""
        graph = self._model.graph
        renamed = {value: name for name, value in outputs.items()}
        for node in graph.node:
            for names in (node.input, node.output):
                for index, value in enumerate(names):
                    if value in renamed:
                        names[index] = renamed[value]
        for name, value in outputs.items():
            graph.output.append(onnx.ValueInfoProto(name=name, type=self._types[value]))
        # Initialisers and inputs carry their own type; outputs are renamed above.
        typed = {tensor.name for tensor in graph.initializer} | {info.name for info in graph.input} | set(renamed)
        graph.value_info.extend(
            onnx.ValueInfoProto(name=value, type=kind) for value, kind in self._types.items() if value not in typed
        )
        return self._model

    def _normal(self, name: str, shape: Sequence[int], std: float, *, centred: bool, mean: float = 0.0) -> str:
        # Drawn a few rows at a time: a weight of 400 MB then costs one copy of itself and a scratch that fits a cache.
        rows, width = shape[0], prod(shape[1:])
        step = min(rows, max(1, _CHUNK // width))
        scratch = np.empty((step, width), dtype=np.float32)
        buffer = BytesIO()
        for start in range(0, rows, step):
            part = scratch[: min(step, rows - start)]
            self._rng.standard_normal(dtype=np.float32, out=part)
            part *= np.float32(std)
            if centred:
                part -= part.mean(axis=1, keepdims=True)
            if mean:
                part += np.float32(mean)
            buffer.write(part.astype("<f4", copy=False).data)
        return self._parameter(name, shape, buffer.getvalue())

    def _parameter(self, name: str, shape: Sequence[int], raw: bytes) -> str:
        full = self._unique(".".join([*self._scopes, name]))
        tensor = self._model.graph.initializer.add()
        tensor.name = full
        tensor.data_type = TensorProto.FLOAT
        tensor.dims.extend(shape)
        tensor.raw_data = raw
        self._types[full] = helper.make_tensor_type_proto(TensorProto.FLOAT, shape)
        return full

    def _unique(self, name: str) -> str:
        count = self._used.get(name, 0)
        self._used[name] = count + 1
        return f"{name}_{count}" if count else name
