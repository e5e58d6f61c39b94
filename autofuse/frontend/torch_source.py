"""A `torch.export.ExportedProgram` → a Relax module, through TVM's importer. PyTorch is loaded only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm.relax

from autofuse.errors import ModelError


def is_exported_program(model: Any) -> bool:
    """Told by the class's name, so that PyTorch need not be there to say no."""
    return any(
        cls.__name__ == "ExportedProgram" and cls.__module__.startswith("torch.export") for cls in type(model).__mro__
    )


def import_exported_program(program: Any) -> tvm.IRModule:
    """Weights and buffers become constants, the result a tensor or a tuple of tensors.

    Raises:
        ModelError: PyTorch is missing, or the importer lacks an operator.
    """
    try:
        from tvm.relax.frontend.torch import from_exported_program
    except ImportError as error:
        raise ModelError(f"PyTorch programs need PyTorch ({error}); install autofuse[torch]") from None
    try:
        return from_exported_program(
            program, keep_params_as_input=False, unwrap_unit_return_tuple=True, custom_convert_map=_CONVERTERS
        )
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise ModelError(f"the exported program cannot be imported: {reason[:240]}; export it without that") from error


def _reduction(operator: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A converter of a reduction over one axis, several, or (none named) all."""

    def convert(node: Any, importer: Any) -> Any:
        data = importer.retrieve_args(node)[0]
        axes = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        kept = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
        return importer.block_builder.emit(operator(data, None if axes == [] else axes, keepdims=bool(kept)))

    return convert


# What TVM's importer lacks.
_CONVERTERS = {"amax.default": _reduction(tvm.relax.op.max), "amin.default": _reduction(tvm.relax.op.min)}
