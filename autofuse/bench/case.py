"""A model in any form that the frontend takes → files that every engine's process reads: model and inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autofuse.bench.peer import Array
from autofuse.errors import InputError

if TYPE_CHECKING:
    import onnx

    from autofuse.frontend.prepared import PreparedModel

# A protobuf message ends at 2 GB; weights go to a file of their own well before.
_EXTERNAL_ABOVE = 1 << 30


@dataclass(frozen=True)
class BenchCase:
    """What to run: `model_path` and `inputs_path` are as in `Workload`."""

    name: str
    model_path: Path
    inputs_path: Path
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


def make_case(
    model: Any,
    folder: Path,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    inputs: Mapping[str, Array] | None = None,
    seed: int = 0,
) -> BenchCase:
    """Prepares the model once, to learn its inputs, and writes the files into `folder`.

    Engines get the source itself where its shapes are static and as asked for, so that what the frontend does to a
    model is checked too; else the frontend's simplified ONNX model, which has the shapes. `inputs` are taken as they
    are; without them, those of the zoo's network, or random ones.

    Raises:
        ModelError, InputError: whatever `autofuse.frontend.prepare` raises; inputs that do not fit.
    """
    from autofuse.frontend import prepare

    network = _zoo_network(model)
    source: Any = model
    if network is not None:
        from autofuse.frontend import zoo

        source = zoo.build(network, batch=batch or 1)
    prepared = prepare(model if network is None else source, input_shapes=input_shapes, batch=batch)
    if inputs is None:
        drawn = (
            _zoo_inputs(network, batch or 1, seed) if network and not input_shapes else random_inputs(prepared, seed)
        )
    else:
        drawn = dict(inputs)
    checked = check_inputs(drawn, prepared)
    inputs_path = folder / "inputs.npz"
    with open(inputs_path, "wb") as file:
        np.savez(file, **checked)  # type: ignore[arg-type]  # its stub allows a bool among the keywords
    name = network or prepared.name
    return BenchCase(
        name, _model_file(source, prepared, folder, name), inputs_path, prepared.input_names, prepared.output_names
    )


def random_inputs(prepared: PreparedModel, seed: int) -> dict[str, Array]:
    """Seeded inputs for a model that is not of the zoo.

    Those of the zoo's rules where there is an ONNX graph to read them from; else floats are N(0, 1) and integers 0 or
    1, which any table of embeddings has. A mask by its name is all ones: a row masked out everywhere has no softmax.
    """
    random = np.random.default_rng(seed)
    drawn: dict[str, Array] = {}
    if prepared.reference is not None:
        from autofuse.frontend import zoo

        drawn.update(zoo.sample_inputs(prepared.reference, seed=seed))
    for name, shape, dtype in zip(prepared.input_names, prepared.input_shapes, prepared.input_dtypes, strict=True):
        kind = np.dtype(dtype)
        if kind == np.bool_ or "mask" in name.lower():
            drawn[name] = np.ones(shape, dtype=kind)
        elif name in drawn:
            continue
        elif np.issubdtype(kind, np.floating):
            drawn[name] = random.standard_normal(shape).astype(kind)
        else:
            drawn[name] = random.integers(0, 2, size=shape).astype(kind)
    return drawn


def check_inputs(inputs: Mapping[str, Array], prepared: PreparedModel) -> dict[str, Array]:
    """The inputs in the model's order, or an InputError that names the one that does not fit."""
    unknown = [name for name in inputs if name not in prepared.input_names]
    if unknown:
        raise InputError(f"the model has no input {unknown[0]!r}; it has {', '.join(prepared.input_names)}")
    fitting: dict[str, Array] = {}
    for name, shape, dtype in zip(prepared.input_names, prepared.input_shapes, prepared.input_dtypes, strict=True):
        if name not in inputs:
            raise InputError(f"input {name!r} is missing: give an array of shape {list(shape)}, {dtype}")
        array = np.asarray(inputs[name])
        if array.shape != tuple(shape) or array.dtype != np.dtype(dtype):
            got = f"{list(array.shape)}, {array.dtype}"
            raise InputError(f"input {name!r} must have shape {list(shape)}, {dtype}, not {got}")
        fitting[name] = array
    return fitting


def _zoo_network(model: Any) -> str | None:
    """The network that a name stands for: as in the rest of autofuse, a path that exists goes first."""
    from autofuse.frontend import zoo

    if isinstance(model, str) and model in zoo.names() and not Path(model).exists():
        return model
    return None


def _zoo_inputs(network: str, batch: int, seed: int) -> dict[str, Array]:
    from autofuse.frontend import zoo

    return dict(zoo.sample_inputs(network, batch=batch, seed=seed))


def _model_file(source: Any, prepared: PreparedModel, folder: Path, name: str) -> Path:
    reference = prepared.reference
    if reference is None:
        return _write_relax(prepared, folder / f"{name}.relax.txt")
    import onnx

    if isinstance(source, (str, os.PathLike)):
        path = Path(source).resolve()
        if path.suffix == ".onnx" and _fits(onnx.load(str(path), load_external_data=False), prepared):
            return path
    elif isinstance(source, onnx.ModelProto) and _fits(source, prepared):
        reference = source
    return _write_onnx(reference, folder / f"{name}.onnx")


def _fits(model: onnx.ModelProto, prepared: PreparedModel) -> bool:
    """Whether the source states, as it is, the input shapes that were prepared."""
    held = {tensor.name for tensor in model.graph.initializer}
    stated = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
        if value.name not in held
    }
    return stated == dict(zip(prepared.input_names, map(tuple, prepared.input_shapes), strict=True))


def _write_onnx(model: onnx.ModelProto, path: Path) -> Path:
    import onnx

    if model.ByteSize() < _EXTERNAL_ABOVE:
        onnx.save_model(model, str(path))
        return path
    # Saving with external data strips the tensors of the model it is given.
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save_model(copy, str(path), save_as_external_data=True, location=f"{path.stem}.weights")
    return path


def _write_relax(prepared: PreparedModel, path: Path) -> Path:
    from autofuse.bench.relax_file import write_module

    write_module(prepared.module, path)
    return path
