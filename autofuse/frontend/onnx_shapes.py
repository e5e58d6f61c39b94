"""An ONNX model and shape overrides → the same model with every input's shape static.

A dimension is fixed by, in this order: an override for its input, an override that gives the same symbol a size
elsewhere, `batch` (leading dimensions only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from autofuse.errors import InputError


def model_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs a caller has to give: those that no initialiser holds a value for."""
    held = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in held]


def fix_input_shapes(graph: onnx.GraphProto, overrides: Mapping[str, Sequence[int]] | None, batch: int | None) -> bool:
    """Writes static shapes into the graph's inputs, in place; tells whether a size that was static changed.

    Raises:
        InputError: an override that names no input, has another rank or a size below 1; a dimension that nothing
            fixes; an input of unknown rank with no override; an input that is no tensor.
    """
    inputs = model_inputs(graph)
    overrides = _checked_overrides(inputs, overrides or {})
    if batch is not None and batch < 1:
        raise InputError(f"batch {batch}: must be 1 or more")
    symbols = _symbols_fixed_by(inputs, overrides)
    changed = False
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "unknown"
            kind = kind.removesuffix("_type")
            raise InputError(f"input '{value.name}' is no tensor but a {kind}: only tensors compile")
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            if value.name not in overrides:
                raise InputError(f"input '{value.name}' has no known shape: give it with {_hint(value, None)}")
            tensor.shape.SetInParent()
            for given in overrides[value.name]:
                tensor.shape.dim.add().dim_value = given
            continue
        for axis, dim in enumerate(tensor.shape.dim):
            known = dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
            size: int | None = known
            if value.name in overrides:
                size = overrides[value.name][axis]
            elif axis == 0 and batch is not None and dim.dim_param not in symbols:
                size = batch
            elif known is None:
                size = symbols.get(dim.dim_param)
            if size is None:
                label = f" ('{dim.dim_param}')" if dim.dim_param else ""
                raise InputError(
                    f"input '{value.name}': dimension {axis}{label} has no fixed size: "
                    f"give it with {_hint(value, axis)}"
                )
            changed = changed or (known is not None and known != size)
            dim.Clear()
            dim.dim_value = size
    return changed


def _checked_overrides(
    inputs: list[onnx.ValueInfoProto], overrides: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    by_name = {value.name: value for value in inputs}
    checked = {}
    for name, shape in overrides.items():
        sizes = tuple(int(size) for size in shape)
        if name not in by_name:
            known = ", ".join(by_name) or "none"
            raise InputError(f"--input-shape {name}: the model has no such input (its inputs: {known})")
        if any(size < 1 for size in sizes):
            raise InputError(f"--input-shape {name}={_join(sizes)}: every size must be 1 or more")
        tensor = by_name[name].type.tensor_type
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(sizes):
            raise InputError(
                f"--input-shape {name}={_join(sizes)}: has {len(sizes)} dimensions, the input has "
                f"{len(tensor.shape.dim)} ({describe_shape(by_name[name])})"
            )
        checked[name] = sizes
    return checked


def _symbols_fixed_by(inputs: list[onnx.ValueInfoProto], overrides: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    symbols: dict[str, int] = {}
    for value in inputs:
        for dim, size in zip(value.type.tensor_type.shape.dim, overrides.get(value.name, ()), strict=False):
            if dim.dim_param and symbols.setdefault(dim.dim_param, size) != size:
                raise InputError(
                    f"--input-shape {value.name}: '{dim.dim_param}' is {size} here and "
                    f"{symbols[dim.dim_param]} in another input; they have to agree"
                )
    return symbols


def describe_shape(value: onnx.ValueInfoProto) -> str:
    """The declared shape in words: `N,3,224,224`, `?` where nothing is known."""
    dims = value.type.tensor_type.shape.dim
    return ",".join(str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "?" for dim in dims)


def _hint(value: onnx.ValueInfoProto, axis: int | None) -> str:
    dims = value.type.tensor_type.shape.dim
    if axis is None:
        return f"--input-shape {value.name}=1,3,224,224"
    # The rest of the example is what the model says, so it can be pasted and edited.
    example = [str(dim.dim_value) if dim.dim_value > 0 else "1" for dim in dims]
    return f"--input-shape {value.name}={','.join(example)}"


def _join(sizes: Sequence[int]) -> str:
    return ",".join(str(size) for size in sizes)
