"""Layers of prepared modules compute what ONNX Runtime computes: activations, normalisations, recurrence, attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from frontend_graphs import (
    assert_same_as_onnxruntime,
    model,
    node,
    operators,
    run_onnxruntime,
    run_prepared,
    weights,
)

_ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.1}, "Elu": {}, "Selu": {}, "Celu": {"alpha": 1.5}, "HardSwish": {},
    "HardSigmoid": {"alpha": 0.3}, "Softplus": {}, "Softsign": {}, "Mish": {}, "Sigmoid": {}, "Tanh": {}, "Erf": {},
    "ThresholdedRelu": {"alpha": 0.4}, "Softmax": {"axis": 1}, "LogSoftmax": {"axis": -1}, "Exp": {}, "Abs": {},
    "Reciprocal": {}, "Floor": {}, "Ceil": {}, "Neg": {}, "Sign": {}, "Sin": {}, "Cos": {}, "Round": {},
}  # fmt: skip


def test_activations() -> None:
    """All of them in one graph, so that one compile serves."""
    nodes = [node(op, ["x"], [f"y_{op}"], **attributes) for op, attributes in _ACTIVATIONS.items()]
    assert_same_as_onnxruntime(model(nodes, {"x": [2, 3, 7]}, [f"y_{op}" for op in _ACTIVATIONS]))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    source = model([node("Gelu", ["x"], ["y"], approximate=approximate)], {"x": [3, 5]}, ["y"], opset=20)
    assert_same_as_onnxruntime(source, tolerance=1e-4)


def test_mish_spelt_out_takes_one_exponential() -> None:
    source = model(
        [node("Softplus", ["x"], ["s"]), node("Tanh", ["s"], ["t"]), node("Mul", ["x", "t"], ["y"])],
        {"x": [6, 50]},
        ["y"],
    )
    prepared = assert_same_as_onnxruntime(source)
    assert operators(prepared)["exp"] == 1
    assert not {"tanh", "log", "nn.softplus"} & set(operators(prepared))
    # far from zero the quotient is 1 or the exponential vanishes
    far = np.linspace(-100, 100, 300).astype("float32").reshape(6, 50)
    (ours,), (theirs,) = run_prepared(prepared, [far]), run_onnxruntime(source, prepared, [far])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_clip_in_all_its_forms() -> None:
    source = model(
        [
            node("Clip", ["x", "lo", "hi"], ["a"]),
            node("Clip", ["x", "", "hi"], ["b"]),
            node("Clip", ["x", "lo"], ["c"]),
            node("Clip", ["x", "zero"], ["d"]),
            node("Clip", ["x", "run"], ["e"]),
            node("Clip", ["x", "hi", "lo"], ["f"]),
        ],
        {"x": [2, 9], "run": []},
        ["a", "b", "c", "d", "e", "f"],
        {"lo": np.float32(-0.5), "hi": np.float32(0.5), "zero": np.float32(0)},
    )
    prepared = assert_same_as_onnxruntime(source)
    assert operators(prepared)["clip"] == 1
    assert operators(prepared)["nn.relu"] == 1


def test_normalisations() -> None:
    source = model(
        [
            node("LayerNormalization", ["x", "g4", "b4"], ["a"], axis=-1),
            node("LayerNormalization", ["x", "g64"], ["b"], axis=1, epsilon=1e-3),
            node("InstanceNormalization", ["x", "g6", "b6"], ["c"]),
            node("GroupNormalization", ["x", "g3", "b3"], ["d"], num_groups=3),
            node("LRN", ["x"], ["e"], size=3),
            node("BatchNormalization", ["x", "g6", "b6", "b6", "v6"], ["f"]),
        ],
        {"x": [2, 6, 4, 4]},
        list("abcdef"),
        {
            "g4": weights(4),
            "b4": weights(4, seed=1),
            "g64": weights(6, 4, 4),
            "g6": weights(6),
            "b6": weights(6, seed=1),
            "v6": np.full(6, 0.7, "float32"),
            "g3": weights(3),
            "b3": weights(3, seed=1),
        },
    )
    prepared = assert_same_as_onnxruntime(source, tolerance=1e-4)
    assert "nn.batch_norm" not in operators(prepared)


def test_group_normalisation_with_a_scale_a_channel() -> None:
    source = model(
        [node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=2)],
        {"x": [1, 6, 3, 3]},
        ["y"],
        {"g": weights(6), "b": weights(6, seed=1)},
        opset=21,
    )
    assert_same_as_onnxruntime(source, tolerance=1e-4)


_RECURRENT = [
    ("LSTM", {"direction": "forward"}, "full"),
    ("LSTM", {"direction": "bidirectional", "activations": ["HardSigmoid", "Relu", "Tanh"] * 2}, "plain"),
    ("LSTM", {"direction": "reverse", "clip": 0.4, "input_forget": 1}, "peepholes"),
    ("GRU", {"direction": "forward", "linear_before_reset": 1}, "full"),
    ("GRU", {"direction": "bidirectional"}, "full"),
    ("GRU", {"direction": "reverse", "linear_before_reset": 0}, "plain"),
    ("RNN", {"direction": "bidirectional"}, "full"),
    (
        "RNN",
        {"direction": "forward", "activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]},
        "plain",
    ),
]


@pytest.mark.parametrize(("op", "attributes", "given"), _RECURRENT)
def test_recurrent_layers(op: str, attributes: dict[str, Any], given: str) -> None:
    steps, batch, width, hidden = 3, 2, 4, 5
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    directions = 2 if attributes["direction"] == "bidirectional" else 1
    constants = {
        "w": weights(directions, gates * hidden, width, seed=1),
        "r": weights(directions, gates * hidden, hidden, seed=2),
        "b": weights(directions, 2 * gates * hidden, seed=3),
        "p": weights(directions, 3 * hidden, seed=4),
    }
    inputs = {"x": [steps, batch, width]}
    names = ["x", "w", "r"]
    if given != "plain":
        names += ["b", "", "h0"]
        inputs["h0"] = [directions, batch, hidden]
        if op == "LSTM":
            names.append("c0")
            inputs["c0"] = [directions, batch, hidden]
    if given == "peepholes":
        names.append("p")
    outputs = ["y", "yh"] + (["yc"] if op == "LSTM" else [])
    read = {name for name in names if name in constants}
    source = model(
        [node(op, names, outputs, hidden_size=hidden, **attributes)],
        inputs,
        outputs,
        {name: value for name, value in constants.items() if name in read},
    )
    assert_same_as_onnxruntime(source)


def test_attention_of_the_operator_set_is_taken_apart() -> None:
    source = model(
        [node("Attention", ["q", "k", "v"], ["y"])],
        {"q": [1, 2, 4, 8], "k": [1, 2, 5, 8], "v": [1, 2, 5, 8]},
        ["y"],
        opset=23,
    )
    assert operators(assert_same_as_onnxruntime(source))["matmul"] == 2


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [[2, 3, 4], [2, 4, 5]]),
        ("bhid,bhjd->bhij", [[1, 2, 3, 4], [1, 2, 5, 4]]),
        ("bij,kj->kbi", [[2, 3, 4], [5, 4]]),
        ("ij,kl->", [[2, 3], [4, 5]]),
        ("abc->cb", [[2, 3, 4]]),
        ("ij,ij->ij", [[3, 4], [3, 4]]),
        ("ij,jk", [[3, 4], [4, 2]]),
    ],
)
def test_einsum_becomes_a_matmul(equation: str, shapes: list[list[int]]) -> None:
    inputs = {f"x{k}": shape for k, shape in enumerate(shapes)}
    source = model([node("Einsum", list(inputs), ["y"], equation=equation)], inputs, ["y"])
    assert operators(assert_same_as_onnxruntime(source))["matmul"] == len(shapes) - 1


def test_pooling_and_reductions() -> None:
    source = model(
        [
            node("MaxPool", ["x"], ["a"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("AveragePool", ["x"], ["b"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
            node("GlobalAveragePool", ["x"], ["c"]),
            node("GlobalMaxPool", ["x"], ["d"]),
            node("ReduceMean", ["x", "axes"], ["e"], keepdims=0),
            node("ReduceL2", ["x", "axes"], ["f"]),
            node("ReduceLogSumExp", ["x", "axes"], ["g"]),
            node("ArgMax", ["x"], ["h"], axis=1),
        ],
        {"x": [1, 3, 7, 7]},
        list("abcdefgh"),
        {"axes": np.array([2, 3])},
    )
    assert_same_as_onnxruntime(source)


def test_attention_spelt_out() -> None:
    heads, width, steps = 2, 8, 5
    nodes = []
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Add", [f"b{name}", f"{name}0"], [f"{name}1"]),
            node("Reshape", [f"{name}1", "split"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["s0"]),
        node("Div", ["s0", "root"], ["s1"]),
        node("Softmax", ["s1"], ["s"], axis=-1),
        node("MatMul", ["s", "v"], ["o0"]),
        node("Transpose", ["o0"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "join"], ["y"]),
    ]
    constants: dict[str, Any] = {f"w{name}": weights(width, width, seed=k) for k, name in enumerate("qkv")}
    constants |= {f"b{name}": weights(width, seed=k + 5) for k, name in enumerate("qkv")}
    constants |= {"split": np.array([0, 0, heads, width // heads]), "join": np.array([0, 0, -1]), "root": np.float32(2)}
    prepared = assert_same_as_onnxruntime(model(nodes, {"x": [1, steps, width]}, ["y"], constants))
    assert operators(prepared)["matmul"] == 5
    assert "divide" not in operators(prepared)
