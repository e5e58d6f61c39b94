"""Operator graphs built from Relax modules, with and without the lowering's attributes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autofuse.errors import ModelError
from autofuse.graph.build import BuiltGraph, build_graph, kind_of
from autofuse.graph.keys import workload_key
from autofuse.graph.model import Graph, Group, MappingType, Role

tvm = pytest.importorskip("tvm")
from tvm import relax, te  # noqa: E402
from tvm.relax import op as R  # noqa: E402


def module(body: Callable[..., Any], *shapes: tuple[Any, ...], legalise: bool = True, names: str = "x") -> Any:
    """`body(builder, *parameters)` returns the expression (or list of expressions) to give back."""
    parameters = [relax.Var(f"{names}{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            result = body(builder, *parameters)
            output = builder.emit_output(relax.Tuple(result) if isinstance(result, list) else result)
        builder.emit_func_output(output)
    made = builder.get()
    return relax.transform.LegalizeOps()(made) if legalise else made


def graph(*arguments: Any, **options: Any) -> Graph:
    return build_graph(module(*arguments, **options), "test").graph


def constant(*shape: int, value: float = 1.0) -> Any:
    return relax.const(np.full(shape, value, "float32"))


def test_operators_tensors_and_wiring() -> None:
    weight = constant(8, 16)

    def body(builder: Any, x: Any) -> Any:
        hidden = builder.emit(R.nn.relu(builder.emit(R.matmul(x, weight))))
        return builder.emit(R.add(hidden, hidden))

    found = graph(body, (4, 8))
    assert [op.kind for op in found.operators] == ["matmul", "nn.relu", "add"]
    assert [t.role for t in found.tensors] == [Role.INPUT, Role.CONSTANT, Role.VALUE, Role.VALUE, Role.VALUE]
    matmul, relu, add = found.operators
    assert matmul.inputs == (0, 1)
    assert add.inputs == relu.outputs * 2
    assert found.inputs == (0,)
    assert found.outputs == add.outputs
    assert [a.tensor for a in add.accesses] == list(add.inputs)
    assert matmul.spatial == (4, 16) and matmul.reduction == (8,)
    assert found.tensors[1].shape == (8, 16)


def test_variables_lead_back_to_the_bindings() -> None:
    lowered = module(lambda b, x: b.emit(R.nn.relu(b.emit(R.exp(x)))), (4,))
    built = build_graph(lowered, "test")
    bound = {b.var: b.value for block in lowered["main"].body.blocks for b in block.bindings}
    assert isinstance(built, BuiltGraph)
    assert len(built.variables) == len(built.graph.operators)
    for operator, var in zip(built.graph.operators, built.variables, strict=True):
        assert kind_of(bound[var].args[0].name_hint) == operator.kind


def test_one_constant_object_is_one_tensor_two_are_two() -> None:
    one, two = constant(4), constant(4)

    def body(builder: Any, x: Any) -> Any:
        first = builder.emit(R.add(x, one))
        return builder.emit(R.add(builder.emit(R.add(first, one)), two))

    found = graph(body, (2, 4))
    assert sum(t.role is Role.CONSTANT for t in found.tensors) == 2
    a, b, c = (op.inputs[1] for op in found.operators)
    assert a == b != c


def test_scalars_are_folded_into_the_form() -> None:
    def times(value: float) -> Graph:
        return graph(lambda b, x: b.emit(R.multiply(x, relax.const(value, "float32"))), (4,))

    two, three = times(2.0), times(3.0)
    assert [len(op.inputs) for op in two.operators] == [1]
    assert two.operators[0].form != three.operators[0].form


def test_outputs_keep_their_order_and_may_be_inputs() -> None:
    def body(builder: Any, x: Any, y: Any) -> Any:
        return [builder.emit(R.exp(y)), builder.emit(R.exp(x)), x]

    found = graph(body, (2,), (3,))
    assert [found.tensors[t].shape for t in found.outputs] == [(3,), (2,), (2,)]
    assert found.outputs[2] == found.inputs[0]


def test_calls_that_are_no_tensor_programs_stay_outside_groups() -> None:
    found = graph(lambda b, x: b.emit(R.exp(b.emit(R.cumsum(x, 1)))), (2, 4))
    outside, exp = found.operators
    assert outside.kind == "cumsum" and not outside.fusable and "axis=1" in outside.form
    assert outside.accesses[0].mapping is MappingType.OPAQUE and outside.accesses[0].reason
    assert exp.fusable and exp.inputs == outside.outputs


def test_attributes_of_outside_calls_are_in_their_form() -> None:
    def along(axis: int) -> str:
        return graph(lambda b, x: b.emit(R.cumsum(x, axis)), (2, 4)).operators[0].form

    assert along(0) != along(1)


def test_several_results_become_tensors_of_one_unfusable_operator() -> None:
    def body(builder: Any, x: Any) -> Any:
        halves = builder.emit(R.split(x, 2, 1))
        return builder.emit(R.add(builder.emit(halves[0]), builder.emit(halves[1])))

    found = graph(body, (1, 8, 2, 2))
    split, add = found.operators
    assert len(split.outputs) == 2 and not split.fusable
    assert add.inputs == split.outputs


def test_form_and_key_do_not_depend_on_names() -> None:
    def body(builder: Any, x: Any, w: Any) -> Any:
        return builder.emit(R.nn.softmax(builder.emit(R.nn.conv2d(x, w, padding=1)), -1))

    shapes = ((1, 4, 5, 5), (6, 4, 3, 3))
    one, two = graph(body, *shapes, names="x"), graph(body, *shapes, names="renamed")
    assert [op.form for op in one.operators] == [op.form for op in two.operators]
    assert workload_key(Group.of(one, (0, 1))) == workload_key(Group.of(two, (0, 1)))


def test_forms_differ_with_attributes_shapes_and_kind() -> None:
    def conv(step: int, size: int) -> str:
        return graph(
            lambda b, x, w: b.emit(R.nn.conv2d(x, w, strides=step)), (1, 4, size, size), (6, 4, 3, 3)
        ).operators[0].form  # fmt: skip

    assert len({conv(1, 5), conv(2, 5), conv(1, 6)}) == 3
    unary = {graph(lambda b, x, f=f: b.emit(f(x)), (4,)).operators[0].form for f in (R.exp, R.tanh, R.nn.relu)}
    assert len(unary) == 3


def test_opaque_functions_have_forms_independent_of_names() -> None:
    def form(names: str, axis: int = 1) -> str:
        return graph(lambda b, x: b.emit(R.argmax(x, axis)), (4, 8), names=names).operators[0].form

    assert form("x") == form("another_name")
    assert form("x") != form("x", 0)


def lowered_with_attributes() -> Any:
    """A relu on [1, 2, 3, 3, 4] that stands for one on [1, 8, 3, 3]."""
    x = te.placeholder((1, 2, 3, 3, 4), name="x")
    zero = tvm.tirx.const(0.0, "float32")
    func = te.create_prim_func([x, te.compute(x.shape, lambda *i: tvm.te.max(x(*i), zero), name="y")])
    details = {
        "in_layouts": ["NCHW4c"], "out_layout": "NCHW4c", "in_logical": [[1, 8, 3, 3]], "out_logical": [1, 8, 3, 3],
        "variant": "blocked",
    }  # fmt: skip
    func = func.with_attr("autofuse.kind", "nn.relu").with_attr("autofuse.form", '{"kind": "nn.relu"}')
    func = func.with_attr("autofuse.attrs", json.dumps(details))
    builder = relax.BlockBuilder()
    parameter = relax.Var("x", relax.TensorType((1, 2, 3, 3, 4), "float32"))
    with builder.function("main", [parameter]):
        with builder.dataflow():
            name = builder.add_func(func, "kernel")
            call = relax.call_tir(name, (parameter,), relax.TensorType((1, 2, 3, 3, 4), "float32"))
            output = builder.emit_output(builder.emit(call))
        builder.emit_func_output(output)
    return builder.get()


def test_attributes_of_the_lowering_are_taken_over() -> None:
    found = build_graph(lowered_with_attributes(), "test").graph
    (relu,) = found.operators
    assert (relu.kind, relu.form, relu.attrs["variant"]) == ("nn.relu", '{"kind": "nn.relu"}', "blocked")
    assert relu.spatial == (1, 2, 3, 3, 4)
    for tensor in found.tensors:
        assert (tensor.layout, tensor.shape, tensor.logical_shape) == ("NCHW4c", (1, 2, 3, 3, 4), (1, 8, 3, 3))


def test_symbolic_shapes_are_refused_in_one_line() -> None:
    n = tvm.tirx.Var("n", "int64")
    with pytest.raises(ModelError, match=r"'net'.*'x0' is not static") as error:
        build_graph(module(lambda b, x: b.emit(R.exp(x)), (n, 4)), "net")
    assert "\n" not in str(error.value)


def test_a_module_without_main_is_refused() -> None:
    with pytest.raises(ModelError, match="no function 'main'"):
        build_graph(tvm.IRModule({}), "net")


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("conv2d", "nn.conv2d"), ("conv2d12", "nn.conv2d"), ("max_pool2d3", "nn.max_pool2d"), ("add", "add"),
        ("tir_sigmoid", "sigmoid"), ("resize2d1", "image.resize2d"), ("transpose4", "permute_dims"),
        ("concatenate", "concat"), ("fused_thing_7", "fused_thing"),
    ],
)  # fmt: skip
def test_kinds_from_names_of_functions(function: str, kind: str) -> None:
    assert kind_of(function) == kind


def test_large_graphs_build_quickly_and_share_analyses() -> None:
    def body(builder: Any, x: Any) -> Any:
        for _ in range(300):
            x = builder.emit(R.add(builder.emit(R.nn.relu(x)), x))
        return x

    found = graph(body, (1, 64, 56, 56))
    assert len(found.operators) == 600
    assert len({op.form for op in found.operators}) == 2
    assert found.operators[0].accesses[0].mapping is MappingType.ONE_TO_ONE
