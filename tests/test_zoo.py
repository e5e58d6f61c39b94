"""The model zoo: published sizes, exporter-like graphs, weights that let the input through, determinism."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError
from functools import cache
from math import erf, pi, sqrt
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from autofuse.errors import InputError, ModelError
from autofuse.frontend import zoo
from autofuse.frontend.zoo.blocks import activation, channel_shuffle
from autofuse.frontend.zoo.builder import GraphBuilder
from autofuse.frontend.zoo.transformer_blocks import causal_mask, gelu_erf, gelu_tanh, pre_norm_block

SMALL = "shufflenet_v2"
# Learned numbers of each graph, exactly: the published count, except where the entry's source says what is left out.
PARAMETERS = {
    "vgg16": 138_357_544,
    "mobilenet_v1": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "efficientnet_b0": 5_288_548,
    "yolov4": 64_363_101,
    "yolov4_tiny": 6_056_606,
    "resnet50": 25_557_032,
    "shufflenet_v2": 2_278_604,
    "densenet121": 7_978_856,
    "minilm_l6": 22_713_216 - 147_840,
    "vit_tiny": 5_717_416,
    "gpt2": 124_439_808,
}
# Published, in the units and to the digits that papers and model cards give them in: millions, billions.
PUBLISHED = {
    "vgg16": (138.36, 15.5),
    "mobilenet_v1": (4.23, 0.57),
    "mobilenet_v2": (3.50, 0.30),
    "efficientnet_b0": (5.29, 0.39),
    "yolov4": (64.4, 60.1 / 2),
    "yolov4_tiny": (6.06, 6.9 / 2),
    "resnet50": (25.56, 4.1),
    "shufflenet_v2": (2.28, 0.146),
    "densenet121": (7.98, 2.87),
    "minilm_l6": (22.7, 1.43),
    "vit_tiny": (5.72, 1.26),
    "gpt2": (124.4, 7.98),
}
EXPECTED_OPERATORS = {
    "vgg16": {"Conv", "Relu", "MaxPool", "Flatten", "Gemm"},
    "mobilenet_v1": {"Conv", "BatchNormalization", "Clip", "GlobalAveragePool", "Gemm"},
    "mobilenet_v2": {"Conv", "BatchNormalization", "Clip", "Add", "GlobalAveragePool", "Gemm"},
    "efficientnet_b0": {"Conv", "BatchNormalization", "Sigmoid", "Mul", "Add", "GlobalAveragePool"},
    "yolov4": {"Conv", "BatchNormalization", "Softplus", "Tanh", "Mul", "LeakyRelu", "MaxPool", "Resize", "Concat"},
    "yolov4_tiny": {"Conv", "BatchNormalization", "LeakyRelu", "Slice", "MaxPool", "Resize", "Concat"},
    "resnet50": {"Conv", "BatchNormalization", "Relu", "MaxPool", "Add", "GlobalAveragePool", "Gemm"},
    "shufflenet_v2": {"Conv", "BatchNormalization", "Split", "Concat", "Reshape", "Transpose"},
    "densenet121": {"Conv", "BatchNormalization", "Relu", "Concat", "AveragePool", "MaxPool"},
    "minilm_l6": {"Gather", "LayerNormalization", "MatMul", "Softmax", "Erf", "Transpose", "Reshape", "Add"},
    "vit_tiny": {"Conv", "LayerNormalization", "MatMul", "Softmax", "Erf", "Concat", "Expand", "Split"},
    "gpt2": {"Gather", "LayerNormalization", "MatMul", "Where", "Softmax", "Tanh", "Pow", "Split"},
}


@pytest.fixture(scope="module")
def built() -> Any:
    """Builds each network once for the module."""
    return cache(zoo.build)


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    # Session set-up with every optimisation costs more than one run does.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", zoo.names())
def test_parameters_and_macs_match_the_published_figures(name: str, built: Any) -> None:
    model, entry = built(name), zoo.describe(name)
    parameters, macs = zoo.parameters(model), zoo.macs(model)
    assert parameters == PARAMETERS[name]
    assert parameters == pytest.approx(entry.published_parameters, rel=0.007)
    assert macs == pytest.approx(entry.published_macs, rel=0.01)
    millions, billions = PUBLISHED[name]
    assert parameters / 1e6 == pytest.approx(millions, rel=0.007)
    # Two digits of 0.30 or 0.57 are worth 1.7 %.
    assert macs / 1e9 == pytest.approx(billions, rel=0.018)


@pytest.mark.parametrize("name", zoo.names())
def test_outputs_are_sane_and_depend_on_the_input(name: str, built: Any) -> None:
    model = built(name)
    run = session(model).run
    first, second = (run(None, zoo.sample_inputs(model, seed=seed)) for seed in (1, 2))
    for one, other, info in zip(first, second, model.graph.output, strict=True):
        assert one.shape == tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        assert np.isfinite(one).all()
        assert 1e-3 < one.std() < 1e3
        assert (one - other).std() > 1e-2 * one.std()


@pytest.mark.parametrize("name", zoo.names())
def test_graphs_are_valid_and_every_value_has_a_static_shape(name: str, built: Any) -> None:
    model = built(name)
    assert model.ir_version in (8, 9)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    if zoo.parameters(model) < 1e8:  # The checker copies the model; ONNX Runtime checks the two largest all the same.
        onnx.checker.check_model(model)
    shaped = {
        info.name
        for info in (*model.graph.value_info, *model.graph.output)
        if all(dim.dim_value > 0 for dim in info.type.tensor_type.shape.dim)
    }
    assert {value for node in model.graph.node for value in node.output} == shaped
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", zoo.names())
def test_graphs_are_written_as_exporters_write_them(name: str, built: Any) -> None:
    assert EXPECTED_OPERATORS[name] <= {node.op_type for node in built(name).graph.node}


@pytest.mark.parametrize("name", zoo.names())
def test_description_agrees_with_the_graph(name: str, built: Any) -> None:
    entry, model = zoo.describe(name), built(name)
    declared = [
        (info.name, tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim), info.type.tensor_type.elem_type)
        for info in model.graph.input
    ]
    described = [
        (item.name, item.shape, helper.np_dtype_to_tensor_dtype(np.dtype(item.dtype))) for item in entry.inputs
    ]
    assert declared == described
    assert entry.name == name and entry.title and entry.source
    by_model, by_name = zoo.sample_inputs(model, seed=3), zoo.sample_inputs(name, seed=3)
    for key, array in by_model.items():
        np.testing.assert_array_equal(array, by_name[key])


def test_value_shapes_come_from_inference_when_the_graph_has_none(built: Any) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(built("mobilenet_v2"))
    expected = zoo.macs(model)
    del model.graph.value_info[:]
    assert zoo.macs(model) == expected


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_weights(built: Any) -> None:
    again = zoo.build(SMALL).SerializeToString(deterministic=True)
    assert again == built(SMALL).SerializeToString(deterministic=True)
    other = zoo.build(SMALL, seed=1)
    weights, others = built(SMALL).graph.initializer, other.graph.initializer
    assert [tensor.name for tensor in weights] == [tensor.name for tensor in others]
    assert all(one.raw_data != two.raw_data for one, two in zip(weights, others, strict=True))


@pytest.mark.parametrize("name", [SMALL, "vit_tiny"])
def test_a_larger_batch_keeps_the_weights_and_gives_the_same_rows(name: str, built: Any) -> None:
    single, double = built(name), zoo.build(name, batch=2)
    for one, two in zip(single.graph.initializer, double.graph.initializer, strict=True):
        assert one.raw_data == two.raw_data
    assert zoo.macs(double) == 2 * zoo.macs(single)
    feed = zoo.sample_inputs(double)
    (both,) = session(double).run(None, feed)
    (first,) = session(single).run(None, {key: array[:1] for key, array in feed.items()})
    np.testing.assert_allclose(both[:1], first, rtol=1e-3, atol=1e-4)
    assert abs(both[0] - both[1]).max() > 1e-2 * both.std()


def test_the_causal_mask_hides_later_tokens_and_only_those() -> None:
    tokens, width, changed = 8, 32, 5
    builder = GraphBuilder("block", 0)
    x = builder.input("x", (1, tokens, width))
    mask = causal_mask(tokens)
    model = builder.finish({"y": pre_norm_block(builder, x, 4, 64, epsilon=1e-5, mask=mask, tanh_gelu=True)})
    one = np.random.default_rng(0).standard_normal((1, tokens, width), dtype=np.float32)
    two = one.copy()
    two[0, changed] += 1.0 + np.arange(width, dtype=np.float32) % 3
    run = session(model).run
    difference = abs(run(None, {"x": one})[0] - run(None, {"x": two})[0])[0].max(axis=1)
    assert (difference[:changed] == 0).all()
    assert (difference[changed:] > 1e-3).all()


def test_gpt2_shares_its_embedding_with_the_head(built: Any) -> None:
    graph = built("gpt2").graph
    (table,) = [tensor.name for tensor in graph.initializer if 50257 in tensor.dims]
    assert sorted(node.op_type for node in graph.node if table in node.input) == ["Gather", "Transpose"]


@pytest.mark.parametrize(
    ("chain", "reference"),
    [
        (gelu_erf, lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2)))),
        (gelu_tanh, lambda x: x * 0.5 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))),
        (lambda b, x: activation(b, x, "silu"), lambda x: x / (1 + np.exp(-x))),
        (lambda b, x: activation(b, x, "mish"), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
        (lambda b, x: activation(b, x, "relu6"), lambda x: np.clip(x, 0, 6)),
        (lambda b, x: activation(b, x, "leaky_relu"), lambda x: np.where(x > 0, x, 0.1 * x)),
    ],
)
def test_activation_chains_compute_their_formula(chain: Any, reference: Any) -> None:
    builder = GraphBuilder("chain", 0)
    x = np.linspace(-8, 8, 101, dtype=np.float32)
    model = builder.finish({"y": chain(builder, builder.input("x", x.shape))})
    np.testing.assert_allclose(session(model).run(None, {"x": x})[0], reference(x), rtol=1e-5, atol=1e-6)


def test_channel_shuffle_interleaves_the_halves() -> None:
    builder = GraphBuilder("shuffle", 0)
    model = builder.finish({"y": channel_shuffle(builder, builder.input("x", (1, 6, 1, 1)), 2)})
    (y,) = session(model).run(None, {"x": np.arange(6, dtype=np.float32).reshape(1, 6, 1, 1)})
    assert y.ravel().tolist() == [0, 3, 1, 4, 2, 5]


def test_filters_sum_to_zero_unless_they_are_small() -> None:
    builder = GraphBuilder("filters", 0)
    builder.filters("wide", (4, 300_000), 1.0)
    builder.filters("depthwise", (4, 1, 3, 3), 1.0)
    wide, depthwise = (onnx.numpy_helper.to_array(tensor) for tensor in builder.finish({}).graph.initializer)
    assert abs(wide.mean(axis=1)).max() < 1e-6 and abs(wide.std() - 1) < 0.01
    assert abs(depthwise.sum(axis=(1, 2, 3))).min() > 1e-3


def test_sample_inputs_are_normal_images_and_ids_in_range(built: Any) -> None:
    image = zoo.sample_inputs("resnet50", batch=2)["input"]
    assert image.shape == (2, 3, 224, 224) and image.dtype == np.float32
    assert abs(image.mean()) < 0.02 and abs(image.std() - 1) < 0.02
    ids = zoo.sample_inputs(built("minilm_l6"))["input_ids"]
    assert ids.dtype == np.int64 and ids.min() >= 0 and 20_000 < ids.max() < 30_522
    np.testing.assert_array_equal(ids, zoo.sample_inputs("minilm_l6")["input_ids"])


def test_sample_inputs_of_foreign_models_use_their_embeddings_and_skip_initialisers() -> None:
    table = helper.make_tensor("table", TensorProto.FLOAT, [5, 2], np.zeros(10))
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT32, [400]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, [400, 1]),
        helper.make_tensor_value_info("table", TensorProto.FLOAT, [5, 2]),
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["mask"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["rows", "wide"], ["y"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [400, 2])
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [output], [table]))
    feed = zoo.sample_inputs(model)
    assert sorted(feed) == ["ids", "mask"]
    assert feed["ids"].dtype == np.int32 and set(np.unique(feed["ids"])) == set(range(5))
    assert set(np.unique(feed["mask"])) == {0, 1}
    with pytest.raises(InputError, match="has batch 400, not 3"):
        zoo.sample_inputs(model, batch=3)
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "n"
    with pytest.raises(ModelError, match=r"'mask' has no static shape"):
        zoo.sample_inputs(model)


@pytest.mark.parametrize("transposed", [False, True])
def test_macs_count_gemm_and_matmul_by_their_inner_dimension(transposed: bool) -> None:
    shape_a = [7, 3] if transposed else [3, 7]
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, shape_a)]
    tables = [
        helper.make_tensor("w", TensorProto.FLOAT, [7, 5], np.zeros(35)),
        helper.make_tensor("v", TensorProto.FLOAT, [2, 5, 4], np.zeros(40)),
    ]
    nodes = [
        helper.make_node("Gemm", ["a", "w"], ["h"], transA=int(transposed)),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [output], tables))
    assert zoo.macs(model) == 3 * 7 * 5 + 2 * 3 * 5 * 4
    assert zoo.parameters(model) == 35 + 40


def test_macs_refuse_shapes_that_are_not_static() -> None:
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 7])]
    table = helper.make_tensor("w", TensorProto.FLOAT, [7, 5], np.zeros(35))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MatMul", ["a", "w"], ["y"], name="product")
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output], [table]))
    with pytest.raises(ModelError, match=r"node 'product' \(MatMul\).*not static"):
        zoo.macs(model)


def test_running_statistics_are_not_parameters(built: Any) -> None:
    model = built("yolov4_tiny")
    # darknet's weight file stores them too: 6,062,814 numbers behind its header.
    assert sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer) == 6_062_814
    assert zoo.parameters(model) == 6_062_814 - 2 * 3_104


@pytest.mark.parametrize(("asked", "meant"), [("mobilenetv2", "mobilenet_v2"), ("YOLO-v4", "yolov4"), ("gpt", "gpt2")])
def test_an_unknown_name_gets_the_closest_and_all_known_ones(asked: str, meant: str) -> None:
    for call in (zoo.build, zoo.describe, zoo.sample_inputs):
        with pytest.raises(ModelError, match=f"did you mean '{meant}'") as caught:
            call(asked)
        message = str(caught.value)
        assert "\n" not in message and all(name in message for name in zoo.names())


def test_bad_batch_and_seed_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="batch is 0"):
        zoo.build(SMALL, batch=0)
    with pytest.raises(InputError, match="seed is -1"):
        zoo.sample_inputs(SMALL, seed=-1)


def test_entries_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        zoo.describe(SMALL).title = "other"  # type: ignore[misc]


def test_listing_the_zoo_does_not_load_onnx() -> None:
    code = "import sys; from autofuse.frontend import zoo; zoo.describe(zoo.names()[0]); print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
