"""Takes an ONNX model, gives its parameters, its multiply-accumulates, and the shapes of its values.

Shapes come from ONNX shape inference on a copy without the large weights, so that a model of hundreds of megabytes is
counted in milliseconds.
"""

from __future__ import annotations

from math import prod

import onnx

from autofuse.errors import ModelError

# Shapes, axes and the like stay in the copy, because inference reads their values.
_KEPT_ELEMENTS = 1024
_FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
}


def parameters(model: onnx.ModelProto) -> int:
    """Learned numbers: floating-point initialisers, without the running statistics of batch norms.

    A tensor that several nodes share counts once. Constant nodes are not learned.
    """
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    return sum(
        prod(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type in _FLOATS and tensor.name not in statistics
    )


def macs(model: onnx.ModelProto) -> int:
    """Multiply-accumulates of one run: those of Conv, Gemm and MatMul, at the model's own batch size.

    Raises ModelError when the shape of one of these nodes is not static.
    """
    shapes = value_shapes(model)

    def shape(node: onnx.NodeProto, value: str) -> tuple[int, ...]:
        if value not in shapes:
            raise ModelError(
                f"cannot count node {node.name or node.output[0]!r} ({node.op_type}): the shape of {value!r} is not"
                " static; fix the model's input shapes first"
            )
        return shapes[value]

    total = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            # A weight is (out, in / groups, *kernel): an output element takes one MAC for each of the last ones.
            total += prod(shape(node, node.output[0])) * prod(shape(node, node.input[1])[1:])
        elif node.op_type == "MatMul":
            total += prod(shape(node, node.output[0])) * shape(node, node.input[0])[-1]
        elif node.op_type == "Gemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            total += prod(shape(node, node.output[0])) * shape(node, node.input[0])[0 if transposed else 1]
    return total


def value_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """The static shapes of a model's values by name; values without one are left out."""
    skeleton = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = skeleton.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    declared = {info.name for info in model.graph.input}
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= _KEPT_ELEMENTS:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True).graph
    shapes: dict[str, tuple[int, ...]] = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for info in (*model.graph.value_info, *inferred.input, *inferred.value_info, *inferred.output):
        tensor_type = info.type.tensor_type
        dims = tensor_type.shape.dim
        if tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shapes[info.name] = tuple(dim.dim_value for dim in dims)
    return shapes
