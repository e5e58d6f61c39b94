"""An ONNX model with static inputs → the same model simplified: shape arithmetic folded, redundant nodes gone.

Weights take no part in it: a model is simplified with its large initialisers standing outside as if they were inputs,
then gets them back. The simplifier and shape inference serialise the model many times, which for VGG-16 would move
gigabytes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import onnx
import onnx.inliner

from autofuse.frontend.onnx_fold import SMALL, fold_constants, reject_dropping, reject_empty
from autofuse.frontend.onnx_pads import bake_pads

# These either make the importer's result worse (MatMul + Add as Reshape, Gemm, Reshape) or do on ONNX what the
# passes of this package do on Relax for every source (batch norm, scales and biases into the weights).
_SKIPPED_PATTERNS = [
    "FusionGemm", "FusionGemmMul", "FusionGemmAdd", "FusionConvBN", "FusionConvTransposeBN",
    "FusionConvMul", "FusionConvTransposeMul", "FusionConvAdd", "FusionConvTransposeAdd",
]  # fmt: skip

_OPTIONAL_OUTPUTS = {
    "MaxPool", "Dropout", "BatchNormalization", "LayerNormalization", "LSTM", "GRU", "RNN", "SkipLayerNormalization",
}  # fmt: skip
# A definition may use operators that are defined in turn.
_DEEPEST_DEFINITION = 4
_HOLDER = "autofuse.inputs"


def slim_onnx(model: onnx.ModelProto, supported: set[str], strict: bool) -> onnx.ModelProto:
    """Simplifies `model`, whose weights are moved into the result rather than copied: it must not be used after.

    Args:
        model: inputs have static shapes.
        supported: operators that the importer converts; others are replaced by ONNX's own definition of them
            in simpler operators, where there is one.
        strict: check the shapes all through the graph (used when the caller chose the input shapes).

    Raises:
        InputError: with `strict`, an operator does not accept the shapes that reach it; a window that does not fit.
        ModelError: a Dropout in training mode.
    """
    inputs = _clean_inputs(model.graph)
    outputs = [value.name for value in model.graph.output]
    light, weights = _without_weights(model)
    light = fold_constants(_inline_unsupported(light, supported), strict)
    reject_empty(light.graph)
    reject_dropping(light.graph)
    bake_pads(light.graph)
    light = fold_constants(_structural_slim(light))
    _trim_outputs(light.graph)
    _restore_interface(light.graph, inputs, outputs, weights)
    return _with_weights(light, model, weights)


def _clean_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Drops defaults from the list of inputs: an initialiser's value is what is compiled."""
    held = {tensor.name for tensor in graph.initializer}
    inputs = []
    for value in graph.input:
        if value.name not in held:
            copy = onnx.ValueInfoProto()
            copy.CopyFrom(value)
            inputs.append(copy)
    del graph.input[:]
    graph.input.extend(inputs)
    return inputs


def _without_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, int]]:
    """A copy of the model whose large initialisers are inputs, and where in `model` each of those is."""
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.metadata_props.extend(model.metadata_props)
    graph = light.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    weights: dict[str, int] = {}
    for position, tensor in enumerate(model.graph.initializer):
        elements = 1
        for size in tensor.dims:
            elements *= size
        if elements <= SMALL:
            graph.initializer.append(tensor)
        else:
            weights[tensor.name] = position
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return light, weights


def _with_weights(light: onnx.ModelProto, model: onnx.ModelProto, weights: dict[str, int]) -> onnx.ModelProto:
    """Puts the simplified graph into `model` around the weights it already holds, so that they are not copied."""
    read = {name for node in light.graph.node for name in node.input} | {v.name for v in light.graph.output}
    kept = {position for name, position in weights.items() if name in read}
    graph = model.graph
    for position in reversed(range(len(graph.initializer))):
        if position not in kept:
            del graph.initializer[position]
    for field in (graph.node, graph.input, graph.output, graph.value_info, graph.sparse_initializer):
        del field[:]
    graph.initializer.extend(light.graph.initializer)
    graph.node.extend(light.graph.node)
    graph.input.extend(value for value in light.graph.input if value.name not in weights)
    graph.output.extend(light.graph.output)
    del model.opset_import[:]
    model.opset_import.extend(light.opset_import)
    del model.functions[:]
    model.ir_version = light.ir_version
    return model


def _restore_interface(
    graph: onnx.GraphProto, inputs: list[onnx.ValueInfoProto], outputs: list[str], weights: dict[str, int]
) -> None:
    """The simplifier drops inputs that nothing reads, yet a caller still gives them."""
    extra = [value for value in graph.input if value.name in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.input.extend(extra)
    by_name = {value.name: value for value in graph.output}
    ordered = []
    for name in outputs:
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(by_name[name])
        ordered.append(copy)
    del graph.output[:]
    graph.output.extend(ordered)


def _trim_outputs(graph: onnx.GraphProto) -> None:
    """Drops the last outputs of a node that are optional and that nothing reads."""
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for node in graph.node:
        if node.op_type in _OPTIONAL_OUTPUTS:
            while len(node.output) > 1 and node.output[-1] not in read:
                node.output.pop()


def _inline_unsupported(model: onnx.ModelProto, supported: set[str]) -> onnx.ModelProto:
    """Replaces by their definition: the model's own functions, and ONNX operators that have no converter."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    for _ in range(_DEEPEST_DEFINITION):
        missing = {
            node.op_type
            for node in model.graph.node
            if node.domain in ("", "ai.onnx") and node.op_type not in supported and node.op_type != "Constant"
        }
        if not missing:
            break
        try:
            model = onnx.inliner.inline_selected_functions(
                model, [("", name) for name in sorted(missing)], inline_schema_functions=True
            )
        except Exception:
            break  # ONNX has no definition either: the importer reports the operator by its node
    return model


def _structural_slim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim

    # The simplifier compares every input with every other, again and again, but not the outputs of a node.
    holder = onnx.helper.make_node("Inputs", [], [value.name for value in model.graph.input], domain=_HOLDER)
    held = onnx.ModelProto()
    held.CopyFrom(model)
    del held.graph.input[:], held.graph.node[:]
    held.graph.node.append(holder)
    held.graph.node.extend(model.graph.node)
    held.graph.value_info.extend(model.graph.input)
    with quiet_onnxslim():
        try:
            slimmed = onnxslim.slim(
                held,
                no_shape_infer=True,
                skip_fusion_patterns=_SKIPPED_PATTERNS,
                skip_optimizations=["constant_folding", "weight_tying"],
            )
        except Exception:
            # Simplifying is worth having, not needed: an odd graph goes on as it is.
            return model
    return _without_holder(slimmed, model) if slimmed is not None else model


def _without_holder(slimmed: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """Puts the inputs back in place of the node that stood for them."""
    nodes = []
    for node in slimmed.graph.node:
        if node.domain != _HOLDER:
            nodes.append(node)
            continue
        if len(node.output) != len(model.graph.input):
            return model
        # Where an output only repeats an input, the simplifier may have kept the output's name for both.
        for value, name in zip(model.graph.input, node.output, strict=True):
            if name not in ("", value.name):
                nodes.append(onnx.helper.make_node("Identity", [value.name], [name], name=name))
    known = {value.name for value in model.graph.input} | {tensor.name for tensor in slimmed.graph.initializer}
    known |= {name for node in nodes for name in node.output}
    read = {name for node in nodes for name in node.input if name} | {value.name for value in model.graph.output}
    if not read <= known:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.initializer[:], result.graph.value_info[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(slimmed.graph.initializer)
    return result


@contextlib.contextmanager
def quiet_onnxslim() -> Iterator[None]:
    """Keeps the simplifier's remarks about graphs it leaves alone off the terminal."""
    logger = logging.getLogger("onnxslim")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
