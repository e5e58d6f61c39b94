"""A simplified ONNX model → a Relax module, through TVM's importer and the converters of this package.

TVM's importer prints and raises whatever a converter stumbled over; here each failure becomes one line that names the
node.
"""

from __future__ import annotations

import warnings
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from autofuse.errors import ModelError
from autofuse.frontend.converters import CONVERTERS
from autofuse.frontend.onnx_shapes import model_inputs
from autofuse.frontend.walk import abandon

# TVM's converter of this name is for an operator of com.microsoft; ONNX's own is replaced by its definition.
_OTHER_MEANING = {"Attention"}
_CONTROL_FLOW = {"If", "Loop", "Scan"}


def supported_operators() -> set[str]:
    """Names of the ONNX operators (default domain) that can be imported."""
    return (set(onnx_frontend._get_convert_map()) | set(CONVERTERS)) - _OTHER_MEANING


def _is_supported(node: onnx.NodeProto, supported: set[str]) -> bool:
    if node.domain in ("", "ai.onnx"):
        return node.op_type in supported
    return node.domain == "com.microsoft" and node.op_type in onnx_frontend._get_convert_map()


def import_onnx(model: onnx.ModelProto) -> tvm.IRModule:
    """Imports a model whose inputs have static shapes, weights as constants.

    Raises:
        ModelError: an operator that has no converter, or one whose converter rejects the node.
    """
    _reject_unsupported(model)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model_inputs(model.graph)
    }
    importer = _Importer(model.graph, shapes)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importer.from_onnx(model.graph, opset)
    except BaseException as error:
        abandon(importer.bb)
        raise _translated(error) from (error.cause if isinstance(error, _NodeFailure) else error)


def _translated(error: BaseException) -> BaseException:
    """An importer's failure as the one line a user sees; anything that is no Exception passes through."""
    if isinstance(error, _NodeFailure):
        return ModelError(f"{describe_node(error.node)}: {_reason(error.cause)}")
    if isinstance(error, ModelError) or not isinstance(error, Exception):
        return error
    if isinstance(error, KeyError):
        return ModelError(f"the graph reads '{error.args[0]}', which nothing in it computes; export the model again")
    return ModelError(f"the model cannot be imported: {_first_line(error)}")


def describe_node(node: onnx.NodeProto) -> str:
    """`node 'conv1' (Conv)`, or by its first output where it has no name."""
    label = f"node '{node.name}'" if node.name else f"the node giving '{next(iter(node.output), '?')}'"
    return f"{label} ({node.op_type})"


def _reject_unsupported(model: onnx.ModelProto) -> None:
    supported = supported_operators()
    for node in model.graph.node:
        if node.op_type in _CONTROL_FLOW:
            raise ModelError(
                f"{describe_node(node)}: control flow that depends on run-time values is not supported; "
                "export the model with the branch fixed or the loop unrolled"
            )
        if any(a.name == "training_mode" and a.i for a in node.attribute):
            raise ModelError(f"{describe_node(node)}: is in training mode; export the model for inference")
        if not _is_supported(node, supported):
            domain = f" of domain '{node.domain}'" if node.domain not in ("", "ai.onnx") else ""
            others = sum(1 for other in model.graph.node if not _is_supported(other, supported)) - 1
            more = f" (and {others} more unsupported nodes)" if others else ""
            raise ModelError(
                f"{describe_node(node)}: operator {node.op_type}{domain} is not supported{more}; "
                "export the model without it"
            )


class _NodeFailure(BaseException):
    """Carries a converter's failure past the importer, which would print every input, weights included."""

    def __init__(self, node: onnx.NodeProto, cause: Exception) -> None:
        super().__init__()
        self.node = node
        self.cause = cause


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer with more converters, and with the node at hand when one fails."""

    def __init__(self, graph: onnx.GraphProto, shapes: dict[str, list[int]]) -> None:
        super().__init__(shapes, None, keep_params_in_input=False)
        self._pending = iter(graph.node)
        self._converters = {**onnx_frontend._get_convert_map(), **CONVERTERS}

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Done before, with the node's name."""

    def _convert_operator(self, op_name: str, inputs: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        node = next(self._pending)
        try:
            convert = self._converters[op_name].get_converter(opset)
            result = convert(self.bb, inputs, attrs, [self._nodes, self._params])
            result = self.bb.normalize(result) if isinstance(result, tvm.ir.Expr) else result
            _check_outputs(node, result)
            return result
        except Exception as error:
            raise _NodeFailure(node, error) from None


def _check_outputs(node: onnx.NodeProto, result: Any) -> None:
    ty = getattr(result, "ty", None)
    count = len(ty.fields) if isinstance(ty, relax.TupleType) else 1
    if count < len(node.output):
        raise ModelError(f"its output '{node.output[count]}' is not supported; export the model without it")


def _reason(error: BaseException) -> str:
    text = _first_line(error)
    if isinstance(error, ModelError):
        return text
    return f"cannot be imported ({text}); check the shapes and attributes of this node"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 240 else text[:237] + "..."
