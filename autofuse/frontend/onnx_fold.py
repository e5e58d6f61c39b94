"""Constant and shape folding on an ONNX graph: what depends on constants and static shapes alone becomes initialisers.

TVM's importer wants shapes, axes, pads and repeats as constants; exporters compute them with chains of Shape, Gather,
Concat. Each node is evaluated with ONNX's own reference implementation, so no engine has to be installed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import onnx.reference
import onnx.shape_inference

from autofuse.errors import InputError, ModelError

Array = npt.NDArray[Any]

# A value with more elements than this is a weight: it stays out of shape arithmetic and is folded after the import.
SMALL = 4096
_RANDOM = {
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout",
}  # fmt: skip
_WINDOWED = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"}
_ROUNDS = 8


def fold_constants(model: onnx.ModelProto, strict: bool = False) -> onnx.ModelProto:
    """Folds until nothing changes; returns a model with inferred shapes.

    Shape inference and folding take turns because each feeds the other: a folded Reshape target gives the shapes
    behind it, which let the next Shape fold.

    Raises:
        InputError: with `strict`, the input shapes contradict an operator; the line names the node.
    """
    _constants_to_initialisers(model.graph)
    for _ in range(_ROUNDS):
        model = infer_shapes(model, strict)
        if not _fold_once(model):
            break
    return model


def infer_shapes(model: onnx.ModelProto, strict: bool) -> onnx.ModelProto:
    """ONNX shape inference from the inputs alone: what the file claims about its inner tensors is dropped."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=True)
    except Exception as error:
        if strict:
            raise InputError(f"the input shapes given do not fit the model: {_reason(error)}") from None
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=False)
    except Exception:
        return model  # what is wrong with the graph, the importer says with the node's name


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "node name" in line), lines[0] if lines else type(error).__name__)[:300]


def _constants_to_initialisers(graph: onnx.GraphProto) -> None:
    kept = []
    for node in graph.node:
        tensor = _constant_tensor(node) if node.op_type == "Constant" and node.domain in ("", "ai.onnx") else None
        if tensor is None:
            kept.append(node)
            continue
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    _set_nodes(graph, kept)


def _constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(attribute.t)
            return tensor
        if attribute.name in ("value_float", "value_floats"):
            value: Any = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            return onnx.numpy_helper.from_array(np.asarray(value, "float32"))
        if attribute.name in ("value_int", "value_ints"):
            value = attribute.i if attribute.name == "value_int" else list(attribute.ints)
            return onnx.numpy_helper.from_array(np.asarray(value, "int64"))
    return None


def _fold_once(model: onnx.ModelProto) -> bool:
    graph = model.graph
    values = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer if _elements(t.dims) <= SMALL}
    shapes = static_shapes(graph)
    outputs = {value.name for value in graph.output}
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    new: dict[str, Array] = {}
    kept = []
    for node in graph.node:
        results = None
        if not any(name in outputs for name in node.output):
            results = _evaluate(node, values, shapes, opsets)
        if results is None:
            kept.append(node)
            continue
        values.update(results)
        new.update(results)
    if not new:
        return False
    needed = {name for node in kept for name in _names_read(node)}
    for name, array in new.items():
        if name in needed:
            # ascontiguousarray makes 1-d of 0-d
            whole = np.ascontiguousarray(array).reshape(array.shape)
            graph.initializer.append(onnx.numpy_helper.from_array(whole, name))
    _set_nodes(graph, kept)
    return True


def _evaluate(
    node: onnx.NodeProto, values: dict[str, Array], shapes: dict[str, tuple[int, ...]], opsets: dict[str, int]
) -> dict[str, Array] | None:
    if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
        return None
    if node.op_type in ("Shape", "Size") and node.input[0] in shapes:
        return {node.output[0]: _shape_value(node, shapes[node.input[0]])}
    names = [name for name in node.input if name]
    if not all(name in values for name in names) or any(a.HasField("g") or a.graphs for a in node.attribute):
        return None
    if any(_elements(shapes.get(name, ())) > SMALL for name in node.output):
        return None  # an expanded constant: cheaper left to the importer than stored
    arrays = {name: values[name] for name in names}
    to_onnx = onnx.helper.np_dtype_to_tensor_dtype
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(n, to_onnx(a.dtype), a.shape) for n, a in arrays.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    single = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()])
    try:
        results = onnx.reference.ReferenceEvaluator(single).run(None, arrays)
    except Exception:
        return None  # no reference implementation, or a node that is wrong: the importer says which
    found = dict(zip([name for name in node.output if name], (np.asarray(r) for r in results), strict=True))
    return found if all(a.dtype != object and a.size <= SMALL for a in found.values()) else None


def _shape_value(node: onnx.NodeProto, shape: tuple[int, ...]) -> Array:
    if node.op_type == "Size":
        return np.asarray(_elements(shape), "int64")
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    return np.asarray(shape[attributes.get("start", 0) : attributes.get("end")], "int64")


def reject_empty(graph: onnx.GraphProto) -> None:
    """Raises InputError where a window (of a convolution, a pool) is larger than what it slides over."""
    shapes = static_shapes(graph)
    for node in graph.node:
        shape = shapes.get(node.output[0], ()) if node.op_type in _WINDOWED else ()
        if any(size < 1 for size in shape):
            label = node.name or node.output[0]
            raise InputError(
                f"node '{label}' ({node.op_type}): its output would be empty ({'x'.join(map(str, shape))}); "
                "give larger input shapes with --input-shape"
            )


def reject_dropping(graph: onnx.GraphProto) -> None:
    """Raises ModelError where a constant tells a Dropout to drop elements: the simplifier would take it out."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        training = constants.get(node.input[2]) if node.op_type == "Dropout" and len(node.input) > 2 else None
        if training is not None and onnx.numpy_helper.to_array(training).any():
            label = f"node '{node.name}'" if node.name else f"the node giving '{node.output[0]}'"
            raise ModelError(f"{label} (Dropout): is in training mode; export the model for inference")


def static_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes that inference found, of every tensor whose sizes are all known."""
    shapes: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shapes[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
    return shapes


def _names_read(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for inner in graph.node:
                names |= _names_read(inner)
            names |= {value.name for value in graph.output}
    return names


def _set_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copies.append(copy)
    del graph.node[:]
    graph.node.extend(copies)


def _elements(dims: Any) -> int:
    return int(np.prod([int(d) for d in dims], dtype=np.int64)) if len(dims) else 1
