"""What a lowered module gives back, what may not spoil it, and whole networks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from frontend_graphs import model, node, weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered_graphs import kinds, lowered_like_onnxruntime, run_module, same, steps
from random_networks import small_networks
from tvm import relax

from autofuse.frontend import prepare, zoo
from autofuse.graph.build import build_graph
from autofuse.lower import lower
from autofuse.lower.padding import LIMIT, padding_bound


def conv(name: str, source: str, result: str, **attributes: Any) -> Any:
    return node("Conv", [source, name], [result], name=f"conv_{result}", **attributes)


def test_an_output_in_blocks_is_given_in_the_model_s_layout_and_only_once() -> None:
    source = model(
        [conv("w", "x", "a"), node("Relu", ["a"], ["y"]), node("Flatten", ["y"], ["z"])],
        {"x": [1, 3, 4, 4]},
        ["y", "z"],
        {"w": weights(12, 3, 1, 1)},
    )
    assert kinds(lowered_like_onnxruntime(source)).count("layout_change") == 1


def prepared_of(function: Any, inputs: dict[str, list[int]], **functions: Any) -> Any:
    """A prepared model of a Relax function that `function(builder, *vars)` describes."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in inputs.items()]
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(function(builder, *variables))
        builder.emit_func_output(output)
    fields = output.ty.fields if isinstance(output.ty, relax.TupleType) else [output.ty]
    return SimpleNamespace(
        name="small", module=builder.get(), input_names=tuple(inputs),
        output_names=tuple(f"y{i}" for i in range(len(fields))),
    )  # fmt: skip


def lowered_like_legalized(prepared: Any) -> Any:
    """Lowers for eight lanes and compares with TVM's own legalisation of the prepared module."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(e) for e in p.ty.shape]).astype("float32") for p in prepared.module["main"].params
    ]
    lowered = lower(prepared, 8)
    same(run_module(lowered.module, arrays), run_module(relax.transform.LegalizeOps()(prepared.module), arrays))
    return lowered


def test_inputs_constants_and_repeated_values_may_be_outputs() -> None:
    constant = np.arange(6, dtype="float32").reshape(2, 3)

    def body(builder: Any, x: Any, w: Any) -> Any:
        made = builder.emit(relax.op.nn.relu(x))
        return relax.Tuple([made, x, relax.const(constant), made, relax.const(np.float32(2.5))])

    lowered = lowered_like_legalized(prepared_of(body, {"x": [2, 3], "w": [1]}))
    assert kinds(lowered) == ["nn.relu"]
    assert len(lowered.output_names) == 5


def test_a_tuple_of_one_output_stays_a_tuple() -> None:
    lowered = lowered_like_legalized(prepared_of(lambda b, x: relax.Tuple([b.emit(relax.op.negative(x))]), {"x": [3]}))
    assert isinstance(lowered.module["main"].ret_ty, relax.TupleType)


def test_a_tensor_program_of_the_source_is_kept() -> None:
    def body(builder: Any, x: Any) -> Any:
        from tvm import te

        twice = builder.emit_te(lambda t: te.compute(t.shape, lambda i, j: t[i, j] * 2.0, name="twice"), x)
        return builder.emit(relax.op.nn.relu(twice))

    lowered = lower(prepared := prepared_of(body, {"x": [2, 3]}), 8)
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    same(run_module(lowered.module, [x]), [np.maximum(2 * x, 0)])
    assert len(build_graph(lowered.module, prepared.name).graph.operators) == 2


@pytest.mark.parametrize(
    ("chain", "blocked"),
    [
        (["Exp"], True),
        (["Exp", "Exp", "Exp", "Exp", "Exp"], False),  # e^e^e^e^e^0 is infinite
        (["Log"], False),  # log 0
        (["Reciprocal"], False),
        (["Sqrt"], False),
        (["Sigmoid", "Tanh", "Softplus", "Floor", "LeakyRelu", "Abs", "Neg", "Ceil", "Round", "Sign"], True),
    ],
)
def test_what_a_chain_makes_of_padded_channels_does_not_reach_the_next_convolution(
    chain: list[str], blocked: bool
) -> None:
    names = ["b", *(f"c{i}" for i in range(len(chain)))]
    source = model(
        [
            conv("w", "x", "a"),
            # The true channels stand between -3 and -2 or 2 and 3 so that every operator of the chains is finite.
            node("Clip", ["a", "low", "high"], ["b"]),
            *(node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(chain)),
            conv("w2", names[-1], "y"),
        ],
        {"x": [1, 12, 4, 4]},
        ["y"],
        {
            "w": weights(12, 12, 1, 1),
            "w2": weights(9, 12, 1, 1),
            "low": np.float32(-3 if len(chain) == 5 else 2),
            "high": np.float32(-2 if len(chain) == 5 else 3),
        },
    )
    lowered = lowered_like_onnxruntime(source)
    first = next(i for i, (kind, _) in enumerate(steps(lowered)) if kind == "clip")
    layouts = [layout for kind, layout in steps(lowered)[first + 1 :] if kind not in ("layout_change", "nn.conv2d")]
    assert all(layout == "NCHW8c" for layout in layouts) == blocked


@pytest.mark.parametrize(
    ("op", "constant"), [("Add", np.inf), ("Mul", np.inf), ("Div", 0.0), ("Max", np.inf), ("Add", 3e38)]
)
def test_constants_that_are_not_finite_stay_out_of_the_padding(op: str, constant: float) -> None:
    source = model(
        [
            conv("w", "x", "a"),
            node("Relu", ["a"], ["b"]),
            node("Add", ["b", "one"], ["c"]),
            node(op, ["c", "k"], ["d"]),
            node("Min", ["d", "one"], ["e"]),  # finite again, in the true channels
            conv("w2", "e", "y"),
        ],
        {"x": [1, 3, 4, 4]},
        ["y"],
        {
            "w": weights(12, 3, 1, 1),
            "w2": weights(9, 12, 1, 1),
            "one": np.float32(1),
            "k": np.float32(constant),
        },
    )
    lowered_like_onnxruntime(source)


UNARY = ["abs", "negative", "sigmoid", "tanh", "erf", "sin", "cos", "sign", "floor", "ceil", "round", "square", "atan",
         "exp"]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(UNARY), st.floats(0, 30), st.floats(-1, 1))
def test_bounds_of_the_padding_hold(kind: str, bound: float, share: float) -> None:
    functions = {"negative": np.negative, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "atan": np.arctan,
                 "erf": np.tanh}  # fmt: skip
    x = relax.Var("x", relax.TensorType([2], "float32"))
    found = padding_bound(getattr(relax.op, kind)(x), [bound])
    value = functions.get(kind, getattr(np, kind, None))(bound * share)
    assert abs(value) <= found * (1 + 1e-6)
    assert padding_bound(getattr(relax.op, kind)(x), [2 * LIMIT]) == float("inf")


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(small_networks())
def test_random_networks_compute_what_they_did(source: Any) -> None:
    lowered_like_onnxruntime(source, tolerance=1e-4)


@pytest.mark.parametrize("name", ["mobilenet_v1", "mobilenet_v2", "shufflenet_v2", "yolov4_tiny", "minilm_l6"])
def test_networks_become_kernels_alone(name: str) -> None:
    lowered = lower(prepare(zoo.build(name)), 8)
    graph = build_graph(lowered.module, name).graph
    assert [op.kind for op in graph.operators if not op.fusable] == []
    convolutions = [op for op in graph.operators if op.kind == "nn.conv2d"]
    assert all(op.attrs["variant"] in ("blocked", "depthwise") for op in convolutions)
    changes = [op for op in graph.operators if op.kind == "layout_change"]
    # (shufflenet's halves are 58 and 116 channels wide, which no block of eight divides: its weights shuffle.)
    assert len(changes) <= {"minilm_l6": 0}.get(name, 4)
    assert len(lowered.module["main"].params) == len(lowered.input_names)


def test_lowering_twice_gives_the_same_program() -> None:
    prepared = prepare(zoo.build("mobilenet_v1"))
    first, second = (lower(prepared, 8).module for _ in range(2))
    assert tvm_ffi.structural_equal(first, second)
