"""Group normalisation in channel blocks: any shape and groups, with work around it, is right; no images, no blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from frontend_graphs import model, node, weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered_graphs import lowered_like_onnxruntime, steps
from lowered_groups import LoweredGroup
from schedule_harness import HARDWARE, Sketch
from test_schedule_conv import EPILOGUES, epilogue, run_some, start
from tvm import relax
from tvm.relax import op as R
from window_layers import normalised

from autofuse.compiler import analyse_for
from autofuse.schedule.cpu.group_norm import GroupNormFamily
from autofuse.target import GpuHardware

FEW = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@FEW
@given(
    channels=st.sampled_from([(8, 1), (16, 2), (32, 2), (24, 3), (32, 1), (16, 4), (8, 8), (24, 2), (80, 8)]),
    n=st.sampled_from([1, 1, 2]),
    h=st.sampled_from([1, 3, 8]), w=st.sampled_from([1, 2, 7, 8, 13, 17]),
    prologue=st.sampled_from(["", "relu", "sigmoid"]), after=st.sampled_from(EPILOGUES), pick=st.integers(0, 3),
)  # fmt: skip
def test_group_norm_is_right_on_any_shape(
    channels: tuple[int, int], n: int, h: int, w: int, prologue: str, after: str, pick: int
) -> None:
    count, groups = channels
    sketch = Sketch(pick)
    data, values = start(sketch, (n, count, h, w), prologue)
    result = normalised(sketch, data, values, groups)
    run_some(sketch.finish(*epilogue(sketch, result, after)), GroupNormFamily(), pick)


def test_every_configuration_is_right() -> None:
    """With what is computed before it, and its result in another layout behind it."""
    sketch = Sketch()
    data, values = start(sketch, (2, 32, 5, 13), "sigmoid")
    last = sketch.unblock(sketch.relu(normalised(sketch, data, values, 2)), 32)
    case = sketch.finish(last)
    case.check(GroupNormFamily(), GroupNormFamily().configs(case.group, HARDWARE))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("channels", "groups"), [(12, 3), (20, 2), (6, 1), (40, 4), (13, 13)])
def test_groups_that_do_not_fill_blocks(channels: int, groups: int, before: bool) -> None:
    """In every configuration, with an activation before it or what it reads added behind it; the last block may not be
    full either."""
    random = np.random.default_rng(0)
    weight = relax.const(random.standard_normal((channels, 8, 1, 1)).astype("float32"))
    scale, bias = (relax.const(random.standard_normal(channels).astype("float32")) for _ in range(2))

    def build(emit: Any, x: Any) -> Any:
        x = emit(R.nn.conv2d(x, weight))
        x = emit(R.sigmoid(x)) if before else x
        made = emit(R.nn.group_norm(x, scale, bias, groups, 1, [2, 3]))
        return R.nn.relu(made if before else emit(R.add(made, x)))

    case = LoweredGroup(build, [(2, 8, 7, 5)])
    kinds = [op.kind for op in case.graph.operators]
    start, end = kinds.index("sigmoid" if before else "nn.group_norm"), kinds.index("nn.relu")
    assert "layout_change" not in kinds[start:end] and kinds.count("nn.group_norm") == 1
    case.agrees(GroupNormFamily(), range(start, end + 1), 1e-5, case.graph.operators[end].outputs)


@pytest.mark.parametrize("groups", [2, 4])
def test_values_far_from_zero_keep_their_digits(groups: int) -> None:
    """The variance is that of the distances from the mean, not a difference of large squares."""
    sketch = Sketch()
    values = sketch.uniform((1, 16, 6, 6)) + 1000
    n, c, h, w = values.shape
    data = sketch.source((), array=values.reshape(n, c // 8, 8, h, w).transpose(0, 1, 3, 4, 2))
    case = sketch.finish(normalised(sketch, data, values, groups))
    case.check(GroupNormFamily(), GroupNormFamily().configs(case.group, HARDWARE)[:1], tolerance=1e-3)


def lowered_norm(channels: int, groups: int, rank: int = 4, lanes: int = 8) -> list[tuple[str, str]]:
    """The lowered operators of a convolution, a group normalisation and a sigmoid, checked against ONNX Runtime."""
    return steps(lowered_like_onnxruntime(convolved_norm(channels, groups, rank), lanes))


def convolved_norm(channels: int, groups: int, rank: int = 4) -> onnx.ModelProto:
    """A convolution, a group normalisation and a sigmoid."""
    spatial = [6, 5, 4][: rank - 2]
    made: onnx.ModelProto = model(
        [
            node("Conv", ["x", "w"], ["a"]),
            node("GroupNormalization", ["a", "g", "b"], ["n"], num_groups=groups),
            node("Sigmoid", ["n"], ["y"]),
        ],
        {"x": [2, 8, *spatial]},
        ["y"],
        {
            "w": weights(channels, 8, *(1,) * len(spatial)),
            "g": np.linspace(0.5, 2, channels, dtype="float32"),
            "b": np.linspace(-1, 1, channels, dtype="float32"),
        },
        opset=21,
    )
    return made


@pytest.mark.parametrize(("channels", "groups"), [(32, 2), (32, 4), (16, 1), (16, 4), (24, 2), (12, 3), (20, 2)])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_images_stay_in_blocks(channels: int, groups: int, lanes: int) -> None:
    """Whether groups are whole blocks or not."""
    found = lowered_norm(channels, groups, lanes=lanes)
    assert [kind for kind, _ in found][-4:] == ["nn.conv2d", "nn.group_norm", "sigmoid", "layout_change"]


def test_what_is_no_image_is_taken_apart() -> None:
    """Into operators that have schedules."""
    found = [kind for kind, _ in lowered_norm(16, 2, rank=3)]
    assert "nn.group_norm" not in found and "variance" in found


@pytest.mark.parametrize("groups", [2, 8])
def test_groups_that_do_not_fill_blocks_are_taken_apart_for_a_gpu(groups: int) -> None:
    """Which has no schedule for them."""
    analysed = analyse_for(convolved_norm(16, groups), GpuHardware())
    assert ("variance" in {op.kind for op in analysed.graph.operators}) == (16 // groups % GpuHardware().lanes != 0)


def written_with_reshapes(channels: int, groups: int, *, scale: bool, side: str = "") -> Any:
    """Convolution, group normalisation as PyTorch exports it to ONNX (instance norm of reshaped rows), ReLU."""
    spatial = (6, 5)
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Reshape", ["a", "rows"], ["r"]),
        node("InstanceNormalization", ["r", "gs", "bs"], ["i"], epsilon=1e-3),
        node("Reshape", ["i", "back"], ["n"]),
        node("Mul", ["n", "g"], ["m"]),
        node("Add", ["b", "m"], ["s"]),
        node("Relu", ["s"], ["y"]),
    ]
    ones, zeros = np.ones(groups, "float32"), np.zeros(groups, "float32")
    return model(
        nodes,
        {"x": [2, 8, *spatial]},
        ["y", *([side] if side else [])],
        {
            "w": weights(channels, 8, 1, 1),
            "rows": np.array([0, groups, -1]),
            "back": np.array([2, channels, *spatial]),
            "gs": np.linspace(0.5, 1.5, groups, dtype="float32") if scale else ones,
            "bs": np.linspace(-1, 1, groups, dtype="float32") if scale else zeros,
            "g": np.linspace(0.5, 2, channels, dtype="float32").reshape(channels, 1, 1),
            "b": np.linspace(-1, 1, channels, dtype="float32").reshape(1, channels, 1, 1),
        },
    )


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("side", ["", "n", "m"])
def test_a_normalisation_written_with_reshapes_is_one_operator(scale: bool, side: str) -> None:
    """Whatever else reads the normalised value or the scaled one."""
    lowered = lowered_like_onnxruntime(written_with_reshapes(32, 2, scale=scale, side=side))
    kinds = [kind for kind, _ in steps(lowered)]
    assert kinds.count("nn.group_norm") == 1 and "variance" not in kinds and "reshape" not in kinds
    # scale and shift are the normalisation's own unless what comes between them is read
    assert ("multiply" in kinds) == (side == "n") and ("add" in kinds) == (side != "")


def test_rows_across_images_are_no_group_normalisation() -> None:
    """Statistics over several images' channels cannot be those of an image's groups."""
    source = written_with_reshapes(32, 2, scale=False)
    for tensor in source.graph.initializer:
        if tensor.name == "rows":
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2, -1]), "rows"))
    kinds = [kind for kind, _ in steps(lowered_like_onnxruntime(source))]
    assert "nn.group_norm" not in kinds and "variance" in kinds
