"""What a prepared module looks like: one dataflow block, constants folded, sources of every kind accepted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from frontend_graphs import model, node, operators, random_inputs, run_prepared, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import autofuse
from autofuse.errors import InputError, ModelError
from autofuse.frontend import PreparedModel, prepare
from autofuse.frontend.constants import array_of, constant, scalar_value
from autofuse.frontend.walk import bindings, op_name

F32 = "float32"


def relax_module(build: Any, **inputs: tuple[int, ...]) -> tvm.IRModule:
    """A module whose `main` is what `build(builder, *parameters)` returns, outside any dataflow block."""
    params = [relax.Var(name, relax.TensorType(shape, F32)) for name, shape in inputs.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(build(builder, *params))
    return builder.get()


def assert_one_dataflow_block(prepared: PreparedModel) -> None:
    blocks = prepared.module["main"].body.blocks
    assert len(blocks) == 1 and isinstance(blocks[0], relax.DataflowBlock)
    relax.analysis.well_formed(prepared.module)  # raises where it is not


def test_a_relax_module_becomes_one_dataflow_block() -> None:
    def build(bb: Any, x: Any, y: Any) -> Any:
        a = bb.emit(relax.op.add(x, y))
        with bb.dataflow():
            b = bb.emit_output(bb.emit(relax.op.nn.relu(a)))
        return bb.emit(relax.op.multiply(b, a))

    prepared = prepare(relax_module(build, x=(2, 3), y=(3,)))
    assert_one_dataflow_block(prepared)
    assert prepared.input_names == ("x", "y") and prepared.input_shapes == ((2, 3), (3,))
    assert prepared.input_dtypes == (F32, F32) and prepared.output_shapes == ((2, 3),)
    assert prepared.reference is None
    x, y = random_inputs(prepared)
    np.testing.assert_allclose(run_prepared(prepared, [x, y])[0], np.maximum(x + y, 0) * (x + y), rtol=1e-6)


def test_a_legalised_module_keeps_its_kernels() -> None:
    source = relax_module(lambda bb, x: bb.emit(relax.op.exp(bb.emit(relax.op.add(x, x)))), x=(4, 4))
    prepared = prepare(relax.transform.LegalizeOps()(source))
    assert operators(prepared) == {"call_tir": 2}
    (x,) = random_inputs(prepared)
    np.testing.assert_allclose(run_prepared(prepared, [x])[0], np.exp(2 * x), rtol=1e-5)


def test_symbolic_sizes_are_bound_by_shapes_or_by_the_batch() -> None:
    size = tvm.tirx.Var("n", "int64")
    params = [relax.Var("x", relax.TensorType((size, 3), F32)), relax.Var("y", relax.TensorType((size, 3), F32))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(relax.op.add(*params)))
    source = builder.get()
    assert prepare(source, batch=4).input_shapes == ((4, 3), (4, 3))
    assert prepare(source, input_shapes={"y": (5, 3)}).output_shapes == ((5, 3),)
    with pytest.raises(InputError, match=r"input 'x': dimension 0 .*--input-shape x=1,3"):
        prepare(source)
    with pytest.raises(InputError, match="agree"):
        prepare(source, input_shapes={"x": (4, 3), "y": (5, 3)})
    with pytest.raises(InputError, match="has 1 dimensions, the input has 2"):
        prepare(source, input_shapes={"x": (4,)})
    with pytest.raises(InputError, match="no such input"):
        prepare(source, input_shapes={"z": (4, 3)})


def test_a_module_without_main_is_refused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2,), F32))
    with builder.function("forward", [x]):
        builder.emit_func_output(builder.emit(relax.op.add(x, x)))
    with pytest.raises(ModelError, match="forward"):
        prepare(builder.get())


def test_control_flow_in_relax_is_refused() -> None:
    condition = relax.Var("c", relax.TensorType((), "bool"))
    x = relax.Var("x", relax.TensorType((2,), F32))
    builder = relax.BlockBuilder()
    with builder.function("main", [condition, x]):
        chosen = builder.emit(relax.If(condition, relax.SeqExpr([], x), relax.SeqExpr([], x)))
        builder.emit_func_output(chosen)
    with pytest.raises(ModelError, match="control flow"):
        prepare(builder.get())


def test_private_functions_are_inlined() -> None:
    builder = relax.BlockBuilder()
    inner = relax.Var("a", relax.TensorType((2,), F32))
    with builder.function("twice", [inner], private=True):
        builder.emit_func_output(builder.emit(relax.op.add(inner, inner)))
    x = relax.Var("x", relax.TensorType((2,), F32))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.Call(builder.get().get_global_var("twice"), [x])))
    prepared = prepare(builder.get())
    assert operators(prepared) == {"add": 1}
    assert_one_dataflow_block(prepared)


def test_batch_norm_of_a_relax_module_ends_in_the_weights() -> None:
    stats = [constant(np.abs(weights(4, seed=k)) + 0.5) for k in range(4)]

    def build(bb: Any, x: Any) -> Any:
        y = bb.emit(relax.op.nn.conv2d(x, constant(weights(4, 3, 1, 1))))
        return bb.emit(relax.TupleGetItem(bb.emit(relax.op.nn.batch_norm(y, *stats, axis=1)), 0))

    assert operators(prepare(relax_module(build, x=(1, 3, 5, 5)))) == {"nn.conv2d": 1, "add": 1}


def test_batch_norm_that_nothing_precedes_is_a_multiply_and_an_add() -> None:
    stats = [constant(np.abs(weights(3, seed=k)) + 0.5) for k in range(4)]
    source = relax_module(
        lambda bb, x: bb.emit(relax.TupleGetItem(bb.emit(relax.op.nn.batch_norm(x, *stats, axis=1)), 0)), x=(1, 3, 5)
    )
    assert operators(prepare(source)) == {"multiply": 1, "add": 1}


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda op, x: op.reshape(op.reshape(x, (6, 4)), (2, 3, 4)), {}),
        (lambda op, x: op.expand_dims(op.squeeze(op.expand_dims(x, 0), [0]), 3), {"reshape": 1}),
        (lambda op, x: op.permute_dims(op.permute_dims(x, [2, 0, 1]), [1, 2, 0]), {}),
        (lambda op, x: op.permute_dims(op.permute_dims(x, [1, 0, 2]), [0, 2, 1]), {"permute_dims": 1}),
        (lambda op, x: op.permute_dims(op.reshape(x, (6, 1, 4)), [1, 0, 2]), {"reshape": 1}),
        (lambda op, x: op.multiply(op.add(x, relax.const(0.0)), relax.const(np.ones((1, 1, 4), F32))), {}),
        (lambda op, x: op.add(x, relax.const(np.zeros((5, 1, 1, 1), F32))), {"add": 1}),
        (lambda op, x: op.divide(x, relax.const(8.0)), {"multiply": 1}),
        (lambda op, x: op.divide(x, relax.const(0.0)), {"divide": 1}),
        (lambda op, x: op.power(op.power(x, relax.const(2.0)), relax.const(0.5)), {"multiply": 1, "sqrt": 1}),
        (lambda op, x: op.astype(x, F32), {}),
        (lambda op, x: op.strided_slice(x, [1], [0], [3]), {}),
        (lambda op, x: op.strided_slice(x, [1], [2], [-10], [-1]), {"strided_slice": 1}),
        (lambda op, x: op.concat([x], 0), {}),
        (lambda op, x: op.broadcast_to(x, (2, 3, 4)), {}),
        (lambda op, x: relax.TupleGetItem(op.nn.dropout(x), 0), {}),
    ],
)
def test_what_does_nothing_goes(build: Any, left: dict[str, int]) -> None:
    def emit(bb: Any, x: Any) -> Any:
        return bb.emit(build(_Emitting(bb), x))

    prepared = prepare(relax_module(emit, x=(2, 3, 4)))
    assert operators(prepared) == left


class _Emitting:
    """`relax.op` whose calls are bound to variables, as importers write them."""

    def __init__(self, bb: Any, op: Any = relax.op) -> None:
        self.bb, self.op = bb, op

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.op, name)
        if name == "nn":
            return _Emitting(self.bb, found)
        return lambda *args, **kwargs: self.bb.emit(found(*args, **kwargs))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_chains_of_reshapes_and_transposes_move_the_data_as_before(data: st.DataObject) -> None:
    """Whatever is merged, the elements end where they did: checked by running the rewritten chain with numpy."""
    steps: list[tuple[str, tuple[int, ...]]] = []
    array = np.arange(24.0, dtype=F32).reshape(2, 3, 1, 4)
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            axes = tuple(data.draw(st.permutations(range(array.ndim))))
            steps.append(("permute_dims", axes))
            array = array.transpose(axes)
        else:
            shape = data.draw(st.sampled_from([(24,), (2, 12), (3, 8), (4, 1, 6), (2, 3, 4), (1, 2, 3, 1, 4)]))
            steps.append(("reshape", shape))
            array = array.reshape(shape)

    def build(bb: Any, x: Any) -> Any:
        for name, argument in steps:
            x = bb.emit(getattr(relax.op, name)(x, argument))
        return bb.emit(relax.op.negative(x))

    prepared = prepare(relax_module(build, x=(2, 3, 1, 4)))
    value = np.arange(24.0, dtype=F32).reshape(2, 3, 1, 4)
    counts = operators(prepared)
    assert counts["reshape"] + counts["permute_dims"] <= len(steps)
    for binding in bindings(prepared.module["main"]):
        if op_name(binding.value) == "relax.permute_dims":
            value = value.transpose([int(a) for a in binding.value.attrs.axes])
        elif op_name(binding.value) == "relax.reshape":
            value = value.reshape([int(s) for s in binding.value.args[1].values])
    np.testing.assert_array_equal(value, array)


_FOLDABLE: list[tuple[str, Any, Any]] = [
    ("permute_dims", lambda op, a, b: op.permute_dims(a, [1, 0]), lambda a, b: a.T),
    ("concat", lambda op, a, b: op.concat([a, b], 1), lambda a, b: np.concatenate([a, b], 1)),
    ("slice", lambda op, a, b: op.strided_slice(a, [1], [3], [-9], [-2]), lambda a, b: a[:, 3::-2]),
    ("take", lambda op, a, b: op.take(a, relax.const(np.array([2, 0])), 1), lambda a, b: a[:, [2, 0]]),
    ("arithmetic", lambda op, a, b: op.divide(op.subtract(op.multiply(a, b), a), b), lambda a, b: (a * b - a) / b),
    ("reduce", lambda op, a, b: op.mean(a, [1], keepdims=True), lambda a, b: a.mean(1, keepdims=True)),
    (
        "broadcast",
        lambda op, a, b: op.broadcast_to(op.sum(a, [0]), (3, 4)),
        lambda a, b: np.broadcast_to(a.sum(0), (3, 4)),
    ),
    ("matmul", lambda op, a, b: op.matmul(a, op.permute_dims(b, [1, 0])), lambda a, b: a @ b.T),
    (
        "where",
        lambda op, a, b: op.where(op.greater(a, b), a, op.sqrt(op.abs(b))),
        lambda a, b: np.where(a > b, a, np.sqrt(abs(b))),
    ),
    ("clip", lambda op, a, b: op.clip(a, -0.1, 0.1), lambda a, b: a.clip(-0.1, 0.1)),
    ("split", lambda op, a, b: relax.TupleGetItem(op.split(a, [1, 3], 1), 1), lambda a, b: a[:, 1:3]),
    ("tile", lambda op, a, b: op.tile(a, [2, 1]), lambda a, b: np.tile(a, (2, 1))),
    (
        "cast",
        lambda op, a, b: op.astype(op.multiply(a, relax.const(9.0)), "int32"),
        lambda a, b: (a * 9).astype("int32"),
    ),
]


@pytest.mark.parametrize(("build", "expected"), [case[1:] for case in _FOLDABLE], ids=[case[0] for case in _FOLDABLE])
def test_constants_are_folded_with_numpy(build: Any, expected: Any) -> None:
    a, b = weights(3, 4, seed=1), weights(3, 4, seed=2)
    source = relax_module(lambda bb, x: bb.emit(build(_Emitting(bb), constant(a), constant(b))), x=(1,))
    prepared = prepare(source)
    assert not operators(prepared)
    result = prepared.module["main"].body
    value = result.body if not result.blocks else result.blocks[0].bindings[-1].value
    np.testing.assert_allclose(array_of(value), expected(a, b), rtol=1e-6)


def test_a_fill_too_large_to_store_stays_an_operator() -> None:
    def build(bb: Any, x: Any) -> Any:
        return bb.emit(relax.op.add(bb.emit(relax.op.broadcast_to(relax.const(3.0), (1024, 1024))), x))

    assert operators(prepare(relax_module(build, x=(1,)))) == {"broadcast_to": 1, "add": 1}


@pytest.mark.parametrize("shape", [(300, 700), (257, 256), (3, 70000), (1, 1), (0, 4), ()])
def test_a_constant_holds_its_array_however_that_lies_in_memory(shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=F32).reshape(shape)
    for view in (array, array.T, array[::-1] if array.ndim else array):
        np.testing.assert_array_equal(array_of(constant(view)), view)


def test_scalar_value_sees_uniform_constants_only() -> None:
    assert scalar_value(relax.const(np.full((2, 2), 7, "int64"))) == 7
    assert scalar_value(relax.const(np.arange(4.0))) is None
    assert scalar_value(relax.Var("x", relax.TensorType((), F32))) is None


def test_a_very_wide_concatenation_is_a_tree() -> None:
    nodes = [node("Relu", [f"x{k}"], [f"r{k}"]) for k in range(70)]
    nodes.append(node("Concat", [f"r{k}" for k in range(70)], ["y"], axis=0))
    prepared = prepare(model(nodes, {f"x{k}": [1, 4] for k in range(70)}, ["y"]))
    widths = [
        len(binding.value.args[0].fields)
        for binding in bindings(prepared.module["main"])
        if op_name(binding.value) == "relax.concat"
    ]
    assert widths == [32, 32, 6, 3]
    arrays = random_inputs(prepared)
    np.testing.assert_array_equal(run_prepared(prepared, arrays)[0], np.maximum(np.concatenate(arrays), 0))


def test_models_of_a_thousand_inputs_or_operators_take_seconds() -> None:
    wide = [node("Relu", [f"x{k}"], [f"r{k}"]) for k in range(1000)]
    wide.append(node("Concat", [f"r{k}" for k in range(1000)], ["y"], axis=0))
    started = time.process_time()
    assert len(prepare(model(wide, {f"x{k}": [1, 4] for k in range(1000)}, ["y"])).input_names) == 1000
    kinds = ["Tanh", "Neg", "Abs", "Sigmoid"]
    chain = [node(kinds[k % 4], [f"v{k}"], [f"v{k + 1}"]) for k in range(1000)]
    assert operators(prepare(model(chain, {"v0": [4, 4]}, ["v1000"])))["tanh"] == 250
    assert time.process_time() - started < 12


def test_weights_are_not_stored_twice_in_the_module_and_reference_is_optional() -> None:
    source = model([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 80]}, ["y"], {"w": weights(80, 90)})
    prepared = prepare(source, keep_reference=False)
    assert prepared.reference is None
    found = [arg for b in bindings(prepared.module["main"]) for arg in b.value.args if hasattr(arg, "value")]
    np.testing.assert_array_equal(array_of(found[0]), weights(80, 90))
    assert [tensor.name for tensor in source.graph.initializer] == ["w"], "the caller's model is left as it was"


def test_the_digest_names_the_structure() -> None:
    def made(scale: float = 0.3, stride: int = 1, seed: int = 0, op: str = "Relu") -> str:
        return prepare(
            model(
                [node("Conv", ["x", "w"], ["c"], strides=[stride, stride]), node(op, ["c"], ["y"])],
                {"x": [1, 3, 9, 9]},
                ["y"],
                {"w": weights(16, 3, 3, 3, seed=seed, scale=scale)},
            )
        ).source_digest

    assert made() == made() == made(seed=5), "weights' values are no part of it"
    assert len({made(), made(stride=2), made(op="Tanh")}) == 3
    script = "from autofuse.frontend import prepare; print(prepare('mobilenet_v1').source_digest)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == prepare("mobilenet_v1").source_digest


def test_names_come_from_the_source(tmp_path: Path) -> None:
    source = model([node("Relu", ["1.in/put"], ["out:0"])], {"1.in/put": [2]}, ["out:0"])
    onnx.save(source, tmp_path / "tiny net.onnx")
    prepared = prepare(tmp_path / "tiny net.onnx")
    assert (prepared.name, prepared.input_names, prepared.output_names) == ("tiny net", ("1.in/put",), ("out:0",))
    assert prepare(source).name == "small"
    assert prepare(source, name="mine").name == "mine"
    assert set(prepared.seconds) == {"import", "prepare"}


def test_resnet50_is_prepared_in_under_three_seconds() -> None:
    from autofuse.frontend import zoo

    source = zoo.build("resnet50")
    started = time.process_time()
    prepared = prepare(source)
    assert time.process_time() - started < 3
    assert set(operators(prepared)) == {"nn.conv2d", "add", "nn.relu", "nn.max_pool2d", "mean", "reshape", "matmul"}
    assert operators(prepared)["nn.conv2d"] == 53 and operators(prepared)["add"] == 53 + 16 + 1
    assert_one_dataflow_block(prepared)


def test_a_zoo_network_with_a_batch() -> None:
    prepared = prepare("mobilenet_v2", batch=3)
    assert prepared.name == "mobilenet_v2"
    assert prepared.input_shapes == ((3, 3, 224, 224),) and prepared.output_shapes == ((3, 1000),)


def test_an_exported_program() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
    example = torch.randn(1, 3, 8, 8)
    prepared = prepare(torch.export.export(layer, (example,)))
    assert operators(prepared)["nn.conv2d"] == 1 and "nn.batch_norm" not in operators(prepared)
    expected = layer(example).detach().numpy()
    np.testing.assert_allclose(run_prepared(prepared, [example.numpy()])[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda op, x: op.take(x, relax.const(-1, "int64"), 1, mode="fast"), lambda x: x[:, -1]),
        (lambda op, x: op.take(x, relax.const(np.array([-1, 0])), 0, mode="fast"), lambda x: x[[-1, 0]]),
        (lambda op, x: op.take(x, op.argmax(x, axis=-1), 1, mode="fast"), lambda x: np.take(x, x.argmax(-1), 1)),
        (
            lambda op, x: op.index_tensor(x, [relax.const(np.array([0, -1])), relax.const(np.array([[1], [-2]]))]),
            lambda x: x[np.array([0, -1]), np.array([[1], [-2]])],
        ),
        (
            lambda op, x: op.index_tensor(x, [op.subtract(op.argmax(x, axis=0), relax.const(1, "int64"))]),
            lambda x: x[x.argmax(0) - 1],
        ),
    ],
)
def test_indices_count_from_the_end_when_negative(build: Any, expected: Any) -> None:
    prepared = prepare(relax_module(lambda bb, x: bb.emit(build(_Emitting(bb), x)), x=(2, 4, 4)))
    x = np.random.default_rng(0).standard_normal((2, 4, 4), dtype=np.float32)
    made = autofuse.compile(prepared.module, strategy="none", threads=2)
    np.testing.assert_array_equal(made(x)[0], expected(x))


@pytest.mark.parametrize("build", ["take", "index_tensor"])
def test_a_constant_index_past_the_end_is_refused(build: str) -> None:
    far = relax.const(np.array([4]))

    def emit(bb: Any, x: Any) -> Any:
        return bb.emit(relax.op.take(x, far, 1) if build == "take" else relax.op.index_tensor(x, [far]))

    with pytest.raises(ModelError, match="past"):
        prepare(relax_module(emit, x=(2, 4, 4)))


def test_exported_programs_with_what_the_importer_lacks_or_adds() -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x: Any) -> Any:
            hot = torch.nn.functional.one_hot((x[0, :, 0] > 0).long(), 3)
            return x[:, -1], x.amax((1, 2)), x.amin(-1, keepdim=True), x.logsumexp(-1), hot.float()

    x = torch.randn(2, 5, 7)
    made = autofuse.compile(torch.export.export(Network().eval(), (x,)), threads=2)
    for mine, theirs in zip(made(x.numpy()), Network()(x), strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-5)
