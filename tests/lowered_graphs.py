"""Lowers small ONNX graphs, runs the unscheduled result and compares it with ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from frontend_graphs import NO_CHECKS, random_inputs, run_onnxruntime

from autofuse.frontend import PreparedModel, prepare
from autofuse.lower import LoweredModel, lower


def run_module(module: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Builds a lowered module without optimisation and runs it."""
    import tvm
    from tvm import relax

    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    with tvm.transform.PassContext(config=NO_CHECKS):
        executable = tvm.compile(module, target, relax_pipeline=relax.get_pipeline("default_build"))
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*(tvm.runtime.tensor(a) for a in arrays))
    return [item.numpy() for item in ([result] if hasattr(result, "numpy") else list(result))]


def same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], tolerance: float = 2e-5) -> None:
    """Same number, shapes and dtypes of outputs, the same values within `tolerance` of the largest."""
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
        if other.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, other)
        else:
            finite = other[np.isfinite(other)]
            scale = max(1.0, float(np.max(np.abs(finite), initial=0.0)))
            np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * scale)


def lowered_like_onnxruntime(
    source: Any, lanes: int = 8, arrays: Sequence[np.ndarray] | None = None, tolerance: float = 2e-5
) -> LoweredModel:
    """Prepares and lowers `source`, checks every output against ONNX Runtime on the source, returns the lowering."""
    prepared: PreparedModel = prepare(source)
    arrays = random_inputs(prepared) if arrays is None else list(arrays)
    lowered = lower(prepared, lanes)
    assert lowered.input_names == prepared.input_names
    assert lowered.output_names == prepared.output_names
    same(run_module(lowered.module, arrays), run_onnxruntime(source, prepared, arrays), tolerance)
    return lowered


def kernel_calls(lowered: LoweredModel) -> list[Any]:
    """The `call_tir` calls in order."""
    values = [b.value for block in lowered.module["main"].body.blocks for b in block.bindings]
    return [v for v in values if getattr(getattr(v, "op", None), "name", "") == "relax.call_tir"]


def steps(lowered: LoweredModel) -> list[tuple[str, str]]:
    """(kind, layout of the result) of each operator in order; calls that are no kernel have the layout "opaque"."""
    found = []
    for block in lowered.module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            name = getattr(getattr(call, "op", None), "name", "")
            if name == "relax.call_tir":
                attrs = lowered.module[call.args[0]].attrs
                found.append((str(attrs["autofuse.kind"]), json.loads(str(attrs["autofuse.attrs"]))["out_layout"]))
            elif name:
                found.append((name.removeprefix("relax."), "opaque"))
    return found


def kinds(lowered: LoweredModel) -> list[str]:
    """The operators' kinds in order."""
    return [kind for kind, _ in steps(lowered)]
