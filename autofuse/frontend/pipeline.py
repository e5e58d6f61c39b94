"""The whole frontend in one place: a model in any accepted form → `PreparedModel`.

A source becomes a Relax module (ONNX: shapes fixed, simplified, imported), then the passes of `PASSES` run in order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from autofuse.errors import InputError, ModelError
from autofuse.frontend.digest import structure_digest
from autofuse.frontend.pass_batch_norm import lower_batch_norm
from autofuse.frontend.pass_fold_constants import fold_constants
from autofuse.frontend.pass_group_norm import gather_group_norm
from autofuse.frontend.pass_scales import fold_scales
from autofuse.frontend.pass_simplify import simplify
from autofuse.frontend.pass_split_concat import split_concat
from autofuse.frontend.prepared import PreparedModel
from autofuse.frontend.walk import bindings, dtype_of, op_name, static_shape

#: Elements of the largest tensor: generated code indexes with 32 bits.
MOST_ELEMENTS = 2**31 - 1

Pass = Callable[[tvm.IRModule], tvm.IRModule]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("lower_batch_norm", lower_batch_norm),
    ("decompose", lambda module: relax.transform.DecomposeOpsForInference()(module)),
    ("fold_constants", fold_constants),
    ("simplify", simplify),
    # simplifying turns up constants (x/c as x·(1/c)), and merged reshapes uncover more of them
    ("fold_constants_again", fold_constants),
    ("gather_group_norm", gather_group_norm),
    ("fold_scales", fold_scales),
    ("simplify_again", simplify),
    ("split_concat", split_concat),
    # the last value becomes the output itself rather than an alias of it
    ("drop_aliases", lambda module: relax.transform.CanonicalizeBindings()(module)),
    ("remove_dead_code", lambda module: relax.transform.DeadCodeElimination(["main"])(module)),
)


def prepare(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    name: str | None = None,
    keep_reference: bool = True,
) -> PreparedModel:
    """Reads, imports and prepares a model.

    Args:
        model: path of an ONNX file, zoo name, `onnx.ModelProto`, Relax `IRModule` or `torch.export.ExportedProgram`.
        input_shapes: shapes by input name; they fix dynamic dimensions and override static ones.
        batch: size of the leading dimension of every input whose shape is not in `input_shapes`.
        keep_reference: keep the simplified ONNX model, which holds a second copy of the weights.
        name: what to call the model; by default the zoo name, the file's stem or the graph's name.

    Raises:
        ModelError: the model cannot be read, or has an operator that is not supported.
        InputError: an input's shape is unknown, or a given one does not fit.
    """
    started = time.perf_counter()
    source = _import(model, input_shapes, batch)
    imported = time.perf_counter()
    if not keep_reference:
        source.reference = None
    _limit_sizes(source)
    _check_windows(source)
    module = _run_passes(source.module)
    function = module["main"]
    shapes, dtypes = _interface(function.params)
    results = function.ret_ty.fields if isinstance(function.ret_ty, relax.TupleType) else [function.ret_ty]
    output_names = source.output_names or tuple(f"output_{k}" for k in range(len(results)))
    output_shapes, output_dtypes = _result_types(results, output_names)
    digest = structure_digest(module)
    return PreparedModel(
        name=name or source.name,
        module=module,
        input_names=source.input_names or tuple(str(param.name) for param in function.params),
        input_shapes=shapes,
        input_dtypes=dtypes,
        output_names=output_names,
        output_shapes=output_shapes,
        output_dtypes=output_dtypes,
        source_digest=digest,
        seconds={"import": imported - started, "prepare": time.perf_counter() - imported},
        reference=source.reference,
    )


def _limit_sizes(source: _Source) -> None:
    """InputError for a value that 32-bit indices, which generated code uses, cannot address."""
    function = source.module["main"]
    names = source.input_names or tuple(str(p.name) for p in function.params)
    values = [(f"input {n}", p) for n, p in zip(names, function.params, strict=False)]
    values += [(f"value {b.var.name}", b.var) for b in bindings(function)]
    for what, value in values:
        shape = static_shape(value)
        if shape is not None and math.prod(shape) > MOST_ELEMENTS:
            raise InputError(
                f"{what} of {source.name} has shape {shape}, {math.prod(shape):,} elements: more than the "
                f"{MOST_ELEMENTS:,} that kernels can index; give smaller input shapes"
            )


def _check_windows(source: _Source) -> None:
    """ModelError for a window that does not fit into its padded data, so that there is nothing to compute."""
    for binding in bindings(source.module["main"]):
        operator, shape = op_name(binding.value), static_shape(binding.var)
        if operator.startswith(("relax.nn.conv", "relax.nn.max_pool", "relax.nn.avg_pool")) and min(shape or (1,)) < 1:
            raise ModelError(
                f"value {binding.var.name} of {source.name} ({operator.removeprefix('relax.')}) would have shape "
                f"{shape}: the window is larger than the padded data; give larger input shapes"
            )


class _Source:
    """What an importer found: the module and the source's own names."""

    def __init__(
        self,
        name: str,
        module: tvm.IRModule,
        input_names: tuple[str, ...] = (),
        output_names: tuple[str, ...] = (),
        reference: Any = None,
    ) -> None:
        self.name = name
        self.module = module
        self.input_names = input_names
        self.output_names = output_names
        self.reference = reference


def _import(model: Any, input_shapes: Mapping[str, Sequence[int]] | None, batch: int | None) -> _Source:
    if isinstance(model, tvm.IRModule):
        return _Source("relax", _accept(model, input_shapes, batch))
    if isinstance(model, str | Path):
        return _import_named(model, input_shapes, batch)
    import onnx

    if isinstance(model, onnx.ModelProto):
        from autofuse.frontend.onnx_load import check_model

        check_model(model, model.graph.name or "the model")
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return _import_onnx(copy, model.graph.name or "onnx", input_shapes, batch)
    from autofuse.frontend.torch_source import import_exported_program, is_exported_program

    if is_exported_program(model):
        return _Source("torch", _accept(import_exported_program(model), input_shapes, batch))
    raise ModelError(
        f"a {type(model).__name__} is no model: give an ONNX file, a zoo name, an onnx.ModelProto, a Relax IRModule "
        "or a torch.export.ExportedProgram"
    )


def _accept(module: tvm.IRModule, input_shapes: Mapping[str, Sequence[int]] | None, batch: int | None) -> tvm.IRModule:
    from autofuse.frontend.relax_source import accept_relax

    return accept_relax(module, input_shapes, batch)


def _import_named(model: str | Path, input_shapes: Mapping[str, Sequence[int]] | None, batch: int | None) -> _Source:
    path = Path(model)
    if isinstance(model, str) and not path.suffix and not path.exists():
        from autofuse.frontend import zoo

        if model in zoo.names():
            return _import_onnx(zoo.build(model, batch=batch or 1), model, input_shapes, None)
        if path.parent == Path("."):
            raise ModelError(
                f"'{model}' is neither a file nor a network of the zoo (which has {', '.join(zoo.names())})"
            )
    from autofuse.frontend.onnx_load import load_onnx

    return _import_onnx(load_onnx(path), path.stem, input_shapes, batch)


def _import_onnx(model: Any, name: str, input_shapes: Mapping[str, Sequence[int]] | None, batch: int | None) -> _Source:
    """Consumes `model`: its weights end up in the reference without being copied."""
    from autofuse.frontend.onnx_import import import_onnx, supported_operators
    from autofuse.frontend.onnx_shapes import fix_input_shapes
    from autofuse.frontend.onnx_slim import slim_onnx

    changed = fix_input_shapes(model.graph, input_shapes, batch)
    slimmed = slim_onnx(model, supported_operators(), strict=changed or bool(input_shapes) or batch is not None)
    module = import_onnx(slimmed)
    return _Source(
        name,
        module,
        tuple(value.name for value in slimmed.graph.input),
        tuple(value.name for value in slimmed.graph.output),
        slimmed,
    )


def _run_passes(module: tvm.IRModule) -> tvm.IRModule:
    for name, run in PASSES:
        try:
            module = run(module)
        except (ModelError, InputError):
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise ModelError(f"the model cannot be prepared (pass {name}: {lines[0][:200]})") from error
    return module


def _interface(params: Sequence[Any]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    shapes = []
    for param in params:
        shape = static_shape(param)
        if shape is None:
            raise InputError(f"input '{param.name}' has no static shape: give --input-shape {param.name}=1,3,224,224")
        shapes.append(shape)
    return tuple(shapes), tuple(dtype_of(param) for param in params)


def _result_types(types: Sequence[Any], names: Sequence[str]) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    shapes, dtypes = [], []
    for name, ty in zip(names, types, strict=True):
        known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
        if not known or not all(isinstance(size, tvm.tirx.IntImm) for size in ty.shape.values):
            raise ModelError(
                f"output '{name}' has a shape that depends on run-time values, which is not supported; "
                "export the model without the operator that gives it"
            )
        shapes.append(tuple(int(size) for size in ty.shape.values))
        dtypes.append(str(getattr(ty.dtype, "dtype", ty.dtype)))
    return tuple(shapes), tuple(dtypes)
