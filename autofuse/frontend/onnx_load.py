"""An ONNX file → `onnx.ModelProto`, or one line that says why the file is not one."""

from __future__ import annotations

from pathlib import Path

import onnx

from autofuse.errors import ModelError


def load_onnx(path: Path) -> onnx.ModelProto:
    """Reads an ONNX model with its external data.

    Raises:
        ModelError: no such file, a directory, an empty or truncated file, not ONNX, missing external data.
    """
    if path.is_dir():
        raise ModelError(f"{path}: is a directory; give the .onnx file itself")
    if not path.exists():
        raise ModelError(f"{path}: no such file; give the path of an .onnx file or a zoo name (`autofuse zoo list`)")
    try:
        size = path.stat().st_size
        if size == 0:
            raise ModelError(f"{path}: the file is empty; export or download the model again")
        model = onnx.load(str(path), load_external_data=False)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:
        # protobuf says no more than "Error parsing message"
        raise ModelError(
            f"{path}: is not an ONNX model, or is cut short ({size} bytes); export or download it again"
        ) from None
    check_model(model, str(path))
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise ModelError(
            f"{path}: its external weights cannot be read ({_first_line(error)}); keep the data files beside the model"
        ) from None
    return model


def check_model(model: onnx.ModelProto, where: str) -> None:
    """Rejects what parses as a protobuf message but is no usable ONNX model.

    Raises:
        ModelError: no graph, no output, no operator-set version, a node without an operator, or an input of strings.
    """
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{where}: is not an ONNX model (it holds no graph); export or download it again")
    if not model.graph.output:
        raise ModelError(f"{where}: the graph '{model.graph.name}' has no output, so there is nothing to compute")
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        raise ModelError(f"{where}: does not say which ONNX operator set it uses (opset_import); export it again")
    for position, node in enumerate(model.graph.node):
        if not node.op_type:
            raise ModelError(f"{where}: node {position} names no operator; the file is damaged, export it again")
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise ModelError(f"{where}: input '{value.name}' holds strings; export the model without that part")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
