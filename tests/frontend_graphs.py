"""Small ONNX graphs for the frontend's tests, and the comparison of a prepared module with ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autofuse.frontend import PreparedModel, prepare

# For TVM's passes: kernels do not check their arguments. LLVM takes longer for such checks than for small loops.
NO_CHECKS = {"tirx.disable_assert": True}


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        op, list(inputs), list(outputs), name=attributes.pop("name", f"{op}_{outputs[0]}"), **attributes
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """Inputs are shapes, or (shape, ONNX dtype); output shapes are left for the reader to infer."""
    values = []
    for name, shape in inputs.items():
        shape, dtype = shape if isinstance(shape, tuple) else (shape, TensorProto.FLOAT)
        values.append(helper.make_tensor_value_info(name, dtype, shape))
    graph = helper.make_graph(
        list(nodes),
        "small",
        values,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(made, data_prop=True)
    del made.graph.output[:]
    made.graph.output.extend(inferred.graph.output)
    return made


def weights(*shape: int, seed: int = 0, scale: float = 0.3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype("float32")


def operators(prepared: PreparedModel) -> Counter[str]:
    """How often each operator occurs in the prepared module, without the `relax.` before its name."""
    from autofuse.frontend.walk import bindings, op_name

    names = (op_name(binding.value).removeprefix("relax.") for binding in bindings(prepared.module["main"]))
    return Counter(name for name in names if name)


def random_inputs(prepared: PreparedModel, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = []
    for shape, dtype in zip(prepared.input_shapes, prepared.input_dtypes, strict=True):
        if dtype.startswith("float"):
            arrays.append(rng.standard_normal(shape).astype(dtype))
        elif dtype == "bool":
            arrays.append(rng.random(shape) < 0.5)
        else:
            arrays.append(rng.integers(0, 3, shape).astype(dtype))
    return arrays


def run_prepared(prepared: PreparedModel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Legalises and runs the prepared module with TVM's plain pipeline; hardly optimised, to be built quickly."""
    import tvm
    from tvm import relax

    target = tvm.target.Target({"kind": "llvm", "opt-level": 1})
    with tvm.transform.PassContext(config=NO_CHECKS):
        executable = tvm.compile(relax.transform.LegalizeOps()(prepared.module), target)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(array) for array in arrays))
    results = [result] if hasattr(result, "numpy") else list(result)
    return [item.numpy() for item in results]


def run_onnxruntime(source: onnx.ModelProto, prepared: PreparedModel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = dict(zip(prepared.input_names, arrays, strict=True))
    return list(session.run(list(prepared.output_names), feed))


def assert_same_as_onnxruntime(source: onnx.ModelProto, tolerance: float = 2e-5, **options: Any) -> PreparedModel:
    """Prepares `source` and compares every output with ONNX Runtime on the source itself; returns the preparation."""
    prepared = prepare(source, **options)
    arrays = random_inputs(prepared)
    ours = run_prepared(prepared, arrays)
    theirs = run_onnxruntime(source, prepared, arrays)
    assert len(ours) == len(theirs) == len(prepared.output_names)
    for name, shape, mine, other in zip(prepared.output_names, prepared.output_shapes, ours, theirs, strict=True):
        assert mine.shape == other.shape == shape, name
        assert mine.dtype == other.dtype, name
        scale = max(1.0, float(np.max(np.abs(other.astype("float64")), initial=0.0)))
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance * scale, err_msg=name)
    return prepared
