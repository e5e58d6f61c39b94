"""Bad models and bad shapes get one line that names the node or the input and says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from frontend_graphs import model, node, weights
from onnx import TensorProto, helper

from autofuse.errors import AutofuseError, InputError, ModelError
from autofuse.frontend import prepare


def _line(capfd: pytest.CaptureFixture[str], source: Any, kind: type[AutofuseError], **options: Any) -> str:
    """The error's only line; nothing else may reach the terminal."""
    with pytest.raises(kind) as caught:
        prepare(source, **options)
    text = str(caught.value)
    assert "\n" not in text and 10 < len(text) < 500
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    return text


def _small(shape: Any = (1, 3, 8, 8), **changes: Any) -> onnx.ModelProto:
    return model(
        [node("Conv", ["x", "w"], ["c"], name="first"), node("Relu", ["c"], ["y"])],
        {"x": list(shape)},
        ["y"],
        {"w": weights(4, 3, 3, 3)},
        **changes,
    )


def test_a_missing_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent.onnx"
    assert str(path) in _line(capfd, path, ModelError)
    assert "no such file" in _line(capfd, str(path), ModelError)


def test_a_directory(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "directory" in _line(capfd, tmp_path, ModelError)
    assert "directory" in _line(capfd, str(tmp_path), ModelError)


def test_a_name_that_is_neither_file_nor_network(capfd: pytest.CaptureFixture[str]) -> None:
    text = _line(capfd, "resnet51", ModelError)
    assert "'resnet51'" in text and "resnet50" in text


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x00" * 100, b"PK\x03\x04"])
def test_a_file_that_is_not_onnx(tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    assert str(path) in _line(capfd, path, ModelError)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.95])
def test_a_truncated_model(tmp_path: Path, capfd: pytest.CaptureFixture[str], kept: float) -> None:
    whole = _small().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: int(len(whole) * kept)])
    text = _line(capfd, path, ModelError)
    assert str(path) in text and "cut short" in text


def test_missing_external_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_small(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert prepare(path).name == "model"
    (tmp_path / "weights.bin").unlink()
    assert "external" in _line(capfd, path, ModelError)


def test_something_that_is_no_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert "int" in _line(capfd, 3, ModelError)
    assert "no graph" in _line(capfd, onnx.ModelProto(), ModelError)


def test_an_unsupported_operator_is_named_with_its_node(capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("Relu", ["x"], ["r"]), node("StringNormalizer", ["r"], ["y"], name="odd")], {"x": [3]}, ["y"])
    text = _line(capfd, source, ModelError)
    assert "'odd'" in text and "StringNormalizer" in text
    custom = model([node("Relu", ["x"], ["r"])], {"x": [3]}, ["r"])
    custom.graph.node[0].CopyFrom(helper.make_node("Secret", ["x"], ["r"], domain="com.acme"))
    text = _line(capfd, custom, ModelError)
    assert "Secret" in text and "com.acme" in text and "'r'" in text


def test_control_flow_is_refused_by_name(capfd: pytest.CaptureFixture[str]) -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [value])

    source = model(
        [node("If", ["flag"], ["y"], name="fork", then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg"))],
        {"x": [3], "flag": ([], TensorProto.BOOL)},
        ["y"],
    )
    assert "'fork'" in _line(capfd, source, ModelError)


def test_training_mode_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    source = model(
        [node("BatchNormalization", ["x", "g", "g", "g", "g"], ["y", "m", "v"], name="norm", training_mode=1)],
        {"x": [2, 3, 4, 4]},
        ["y"],
        {"g": np.ones(3, "float32")},
    )
    text = _line(capfd, source, ModelError)
    assert "'norm'" in text and "training" in text


def test_a_dropout_that_drops_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    source = model(
        [node("Dropout", ["x", "ratio", "training"], ["y"], name="drop")],
        {"x": [2, 3]},
        ["y"],
        {"ratio": np.float32(0.5), "training": np.bool_(True)},
    )
    text = _line(capfd, source, ModelError)
    assert "'drop'" in text and "training" in text


def test_a_node_whose_shapes_do_not_fit_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    source = _small()
    source.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights(4, 5, 3, 3), "w"))
    text = _line(capfd, source, ModelError)
    assert "'first'" in text and "Conv" in text


def test_a_value_that_nothing_computes(capfd: pytest.CaptureFixture[str]) -> None:
    source = _small()
    source.graph.node[1].input[0] = "nowhere"
    assert "nowhere" in _line(capfd, source, ModelError)


def test_an_input_of_unknown_size_says_which_option_fixes_it(capfd: pytest.CaptureFixture[str]) -> None:
    text = _line(capfd, _small(("N", 3, "H", 8)), InputError)
    assert "'x'" in text and "dimension 0 ('N')" in text and "--input-shape x=1,3,1,8" in text
    text = _line(capfd, _small(("N", 3, "H", 8)), InputError, batch=2)
    assert "dimension 2 ('H')" in text


def test_an_input_of_unknown_rank_says_which_option_fixes_it(capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"])
    source.graph.input[0].type.tensor_type.ClearField("shape")
    assert "--input-shape x=" in _line(capfd, source, InputError)
    assert prepare(source, input_shapes={"x": [2, 5]}).output_shapes == ((2, 5),)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"y": [1, 3, 8, 8]}, "no such input"),
        ({"x": [1, 3, 8]}, "3 dimensions"),
        ({"x": [1, 3, 0, 8]}, "1 or more"),
        ({"x": [1, 4, 8, 8]}, "first"),
        ({"x": [1, 3, 2, 2]}, "first"),
    ],
)
def test_an_override_that_does_not_fit(
    capfd: pytest.CaptureFixture[str], shapes: dict[str, list[int]], expected: str
) -> None:
    text = _line(capfd, _small(), AutofuseError, input_shapes=shapes)
    assert expected in text


def test_overrides_of_one_symbol_must_agree(capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("Add", ["a", "b"], ["y"])], {"a": ["N", 3], "b": ["N", 3]}, ["y"])
    assert prepare(source, input_shapes={"a": [4, 3]}).input_shapes == ((4, 3), (4, 3))
    assert "'N'" in _line(capfd, source, InputError, input_shapes={"a": [4, 3], "b": [5, 3]})


def test_an_override_changes_static_sizes_all_through() -> None:
    prepared = prepare(_small(), input_shapes={"x": [2, 3, 12, 10]})
    assert prepared.input_shapes == ((2, 3, 12, 10),)
    assert prepared.output_shapes == ((2, 4, 10, 8),)
    assert prepare(_small(), batch=5).output_shapes == ((5, 4, 6, 6),)


def test_a_batch_that_the_graph_does_not_allow(capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("Reshape", ["x", "s"], ["y"])], {"x": [1, 6]}, ["y"], {"s": np.array([2, 3])})
    text = _line(capfd, source, AutofuseError, batch=3)
    assert "Reshape_y" in text


def test_a_side_input_that_must_be_constant(capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("Resize", ["x", "", "s"], ["y"], name="grow")], {"x": [1, 2, 4, 4], "s": [4]}, ["y"], opset=18)
    text = _line(capfd, source, ModelError)
    assert "'grow'" in text and "constant" in text


def test_an_output_that_cannot_be_computed_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    pool = node("MaxPool", ["x"], ["y", "where"], name="pool", kernel_shape=[2, 2])
    text = _line(capfd, model([pool], {"x": [1, 2, 4, 4]}, ["y", "where"]), ModelError)
    assert "'pool'" in text and "'where'" in text
    assert prepare(model([pool], {"x": [1, 2, 4, 4]}, ["y"])).output_shapes == ((1, 2, 3, 3),)


def test_sequences_of_different_lengths_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    source = model(
        [node("RNN", ["x", "w", "r", "", "n"], ["y"], name="rnn", hidden_size=2)],
        {"x": [3, 2, 4]},
        ["y"],
        {"w": weights(1, 2, 4), "r": weights(1, 2, 2), "n": np.array([3, 1], "int32")},
    )
    assert re.search("'rnn'.*lengths", _line(capfd, source, ModelError))


def test_an_input_of_strings(capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("Identity", ["words"], ["y"])], {"words": [4]}, ["y"])
    source.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    assert "'words'" in _line(capfd, source, ModelError)


def test_an_output_of_unknown_shape(capfd: pytest.CaptureFixture[str]) -> None:
    source = model([node("NonZero", ["x"], ["places"])], {"x": [4, 4]}, ["places"])
    text = _line(capfd, source, ModelError)
    assert "'places'" in text and "run-time" in text


def test_a_tensor_too_large_to_index(capfd: pytest.CaptureFixture[str]) -> None:
    text = _line(capfd, _small(), InputError, input_shapes={"x": (1, 3, 65536, 32768)})
    assert "input x" in text and "elements" in text and "smaller" in text
    inner = model([node("Expand", ["x", "s"], ["e"]), node("Relu", ["e"], ["y"])], {"x": [1, 1]}, ["y"],
                  {"s": np.array([65536, 65536])})  # fmt: skip
    assert "value" in _line(capfd, inner, InputError)


def test_a_window_larger_than_its_data_where_onnx_counts_one_result(capfd: pytest.CaptureFixture[str]) -> None:
    pool = node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    text = _line(capfd, model([pool], {"x": [1, 3, 1, 5]}, ["y"]), ModelError)
    assert "max_pool2d" in text and "larger than" in text
