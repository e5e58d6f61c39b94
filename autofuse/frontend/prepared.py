"""`PreparedModel`: what the frontend gives to every later stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx
    import tvm


@dataclass(frozen=True)
class PreparedModel:
    """A model in the form that operator graphs are built from.

    Attributes:
        name: zoo name, file stem, or the name that the source carries.
        module: holds one Relax function `main`: a single dataflow block, static shapes, high-level Relax
            operators (never legalised here; `call_tir` of a source that was legalised already stays), weights
            as Relax constants, batch norm folded away.
        input_names: in the order of the model's inputs, which is the order of `main`'s parameters. These are the
            source's own names; the parameters of `main` may be spelt differently where Relax needs it.
        input_shapes: one static shape an input.
        input_dtypes: numpy dtype names, one an input.
        output_names: in the order of the model's outputs.
        output_shapes: one static shape an output.
        output_dtypes: numpy dtype names, one an output.
        source_digest: see `autofuse.frontend.digest`; the same for the same computation whatever the weights' values.
        seconds: wall-clock seconds: `import` (reading, simplifying, TVM's importer) and `prepare` (the passes).
        reference: the simplified ONNX model, of the same inputs and outputs, for a comparison with ONNX
            Runtime; None where the source was not ONNX.
    """

    name: str
    module: tvm.IRModule
    input_names: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_names: tuple[str, ...]
    output_shapes: tuple[tuple[int, ...], ...]
    output_dtypes: tuple[str, ...]
    source_digest: str
    seconds: Mapping[str, float]
    reference: onnx.ModelProto | None = field(default=None, repr=False, compare=False)
