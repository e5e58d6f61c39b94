"""Groups without a reduction: chains, broadcasts, what only moves data, several results, views; odd operators alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from frontend_graphs import model, node
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_groups import HARDWARE, LoweredGroup
from tvm import relax, tirx
from tvm.relax import op as R
from tvm.s_tir.stmt import SBlockRealize

import autofuse
from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.elementwise import ElementwiseFamily
from autofuse.schedule.cpu.plain import PlainFamily
from autofuse.schedule.cpu.view import ViewFamily
from autofuse.schedule.registry import families

ELEMENTWISE, VIEW, PLAIN = ElementwiseFamily(), ViewFamily(), PlainFamily()


def scalar(value: float) -> Any:
    return relax.const(np.float32(value))


def mish(emit: Any, x: Any) -> Any:
    return emit(R.multiply(x, emit(R.tanh(emit(R.log(emit(R.add(emit(R.exp(x)), scalar(1)))))))))


@pytest.mark.parametrize("shape", [(), (1,), (13,), (3, 7, 5), (2, 1001)])
def test_chains_of_any_shape(shape: Any) -> None:
    case = LoweredGroup(lambda emit, x: R.exp(emit(R.nn.relu(emit(R.multiply(x, scalar(0.5)))))), [shape])
    case.check(ELEMENTWISE, np.exp(np.maximum(case.arrays[0] * np.float32(0.5), 0)))


@pytest.mark.parametrize("shape", [(3, 7, 41), (5, 3, 7), (2, 3, 9), (6, 861)])
def test_rows_that_vectors_do_not_divide_run_without_conditions(shape: Any) -> None:
    case = LoweredGroup(lambda emit, x, b: R.exp(emit(R.add(x, b))), [shape, shape[1:]])
    case.check(ELEMENTWISE, np.exp(case.arrays[0] + case.arrays[1]))
    for config in ELEMENTWISE.configs(case.group, HARDWARE):
        func = ELEMENTWISE.apply(case.fuser.fuse(case.group), case.group, config, HARDWARE)
        leaves: list[Any] = []
        tvm_ffi.structural_walk(func.body, (SBlockRealize, leaves.append))
        assert all(isinstance(leaf.predicate, tirx.IntImm) and int(leaf.predicate) for leaf in leaves)


def test_a_dear_value_under_a_broadcast_is_computed_once() -> None:
    def build(emit: Any, x: Any, b: Any) -> Any:
        inner = emit(R.exp(emit(R.subtract(x, emit(R.multiply(emit(R.exp(x)), scalar(0.5)))))))
        return R.add(inner, b)

    case = LoweredGroup(build, [(40, 1), (40, 50)])
    x, b = case.arrays
    assert ELEMENTWISE.shape(case.group, ELEMENTWISE.configs(case.group, HARDWARE)[0], HARDWARE).loops > 1
    case.check(ELEMENTWISE, np.exp(x - np.exp(x) * np.float32(0.5)) + b)


def test_channel_gates() -> None:
    case = LoweredGroup(lambda emit, g, x: R.multiply(emit(R.sigmoid(g)), x), [(2, 5, 1, 1), (2, 5, 7, 3)])
    g, x = case.arrays
    case.check(ELEMENTWISE, x / (1 + np.exp(-g)))


def test_diamonds_do_not_explode() -> None:
    case = LoweredGroup(lambda emit, x: mish(emit, mish(emit, x)), [(3, 50)])

    def answer(x: np.ndarray) -> np.ndarray:
        return x * np.tanh(np.log1p(np.exp(x)))

    case.check(ELEMENTWISE, answer(answer(case.arrays[0])))


@pytest.mark.parametrize("shape", [(1, 9), (3, 13), (40, 50)])
def test_values_between_nests_that_share_memory_are_computed_once(shape: Any) -> None:
    """TVM lets a nest write over what it reads: an element that is stored twice would be computed of its result."""

    def answer(x: np.ndarray) -> np.ndarray:
        return x * np.tanh(np.log1p(np.exp(x)))

    case = LoweredGroup(lambda emit, x: mish(emit, mish(emit, mish(emit, mish(emit, x)))), [shape])
    case.check(ELEMENTWISE, answer(answer(answer(answer(case.arrays[0])))))


def test_transposes_slices_concatenation_and_padding() -> None:
    case = LoweredGroup(lambda emit, x: R.tanh(emit(R.permute_dims(x, [0, 2, 1]))), [(2, 9, 20)])
    case.check(ELEMENTWISE, np.tanh(case.arrays[0].transpose(0, 2, 1)))
    case = LoweredGroup(lambda emit, x, y: R.nn.relu(emit(R.concat([x, y], 2))), [(2, 3, 9), (2, 3, 11)])
    case.check(ELEMENTWISE, np.maximum(np.concatenate(case.arrays, 2), 0))
    case = LoweredGroup(
        lambda emit, x: R.add(emit(R.strided_slice(x, [1, 2], [1, 0], [7, 9], [2, 1])), scalar(1)), [(2, 8, 11)]
    )
    case.check(ELEMENTWISE, case.arrays[0][:, 1:7:2, :9] + 1)
    case = LoweredGroup(lambda emit, x: R.nn.relu(emit(R.nn.pad(x, [0, 0, 1, 2]))), [(3, 11)])
    case.check(ELEMENTWISE, np.maximum(np.pad(case.arrays[0], ((0, 0), (1, 2))), 0))


def test_split_multiply_and_concat() -> None:
    def build(emit: Any, x: Any) -> Any:
        parts = emit(R.split(x, [4, 7], 1))
        a, b, c = (emit(relax.TupleGetItem(parts, i)) for i in range(3))
        return R.concat([emit(R.multiply(c, emit(R.exp(a)))), b], 1)

    case = LoweredGroup(build, [(3, 11, 5)])
    x = case.arrays[0]
    case.check(ELEMENTWISE, np.concatenate([x[:, 7:] * np.exp(x[:, :4]), x[:, 4:7]], 1))


def test_gather_and_resize() -> None:
    picked = relax.const(np.array([3, 0, 2, 39], "int64"))
    case = LoweredGroup(lambda emit, x: R.tanh(emit(R.take(x, picked, 1))), [(4, 40)])
    case.check(ELEMENTWISE, np.tanh(case.arrays[0][:, [3, 0, 2, 39]]))

    def twice(emit: Any, x: Any) -> Any:
        return R.nn.relu(
            emit(
                R.image.resize2d(
                    x,
                    (14, 10),
                    method="nearest_neighbor",
                    coordinate_transformation_mode="asymmetric",
                    rounding_method="floor",
                )
            )
        )

    case = LoweredGroup(twice, [(1, 3, 7, 5)])
    case.check(ELEMENTWISE, np.maximum(case.arrays[0].repeat(2, 2).repeat(2, 3), 0))


def test_layout_changes_round_a_convolution_move_every_channel() -> None:
    weight = relax.const(np.random.default_rng(0).standard_normal((20, 20, 1, 1)).astype("float32"))
    case = LoweredGroup(lambda emit, x: R.nn.conv2d(x, weight), [(2, 20, 5, 3)])
    moves = [op for op in case.graph.operators if op.kind == "layout_change"]
    assert len(moves) == 2
    for op in moves:
        case.agrees(ELEMENTWISE, [op.index])


def test_several_results() -> None:
    def build(emit: Any, x: Any, y: Any) -> list[Any]:
        total = emit(R.add(x, y))
        kept = emit(R.nn.relu(total))
        return [total, kept, emit(R.exp(kept))]

    case = LoweredGroup(build, [(5, 11), (5, 11)])
    total = case.arrays[0] + case.arrays[1]
    case.check(ELEMENTWISE, [total, np.maximum(total, 0), np.exp(np.maximum(total, 0))])


def test_results_of_different_shapes_and_reductions_are_refused() -> None:
    case = LoweredGroup(lambda emit, x: [emit(R.exp(x)), emit(R.permute_dims(x, [1, 0]))], [(3, 11)])
    refusal = case.refusal(ELEMENTWISE)
    assert refusal is not None and refusal.rule == "shapes"
    refusal = LoweredGroup(lambda emit, x: R.sum(x, [0]), [(3, 11)]).refusal(ELEMENTWISE)
    assert refusal is not None and refusal.rule == "reduction"


def test_reshapes_are_views_and_have_no_kernel() -> None:
    case = LoweredGroup(lambda emit, x: R.reshape(x, (6, 4)), [(2, 3, 4)])
    assert case.family() == "view"
    config = VIEW.configs(case.group, HARDWARE)[0]
    assert VIEW.shape(case.group, config, HARDWARE).loops == 0
    with pytest.raises(ScheduleError, match="view"):
        VIEW.apply(case.fuser.fuse(case.group), case.group, config, HARDWARE)
    refusal = LoweredGroup(lambda emit, x: R.permute_dims(x, [1, 0]), [(2, 3)]).refusal(VIEW)
    assert refusal is not None and refusal.rule == "moves"


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([1, 2, 3, 5, 7]), min_size=2, max_size=5), st.data())
def test_views_of_any_shape_launch_nothing_and_keep_every_element(extents: list[int], data: st.DataObject) -> None:
    """Between two kernels, one behind the other, and as a result of the program."""
    first, second = (data.draw(st.permutations(extents), label="shape") for _ in range(2))
    second = [second[0] * second[1], *second[2:]]
    source = model(
        [
            node("Relu", ["x"], ["a"]),
            node("Reshape", ["a", "first"], ["b"]),
            node("Reshape", ["b", "second"], ["c"]),
            node("Tanh", ["c"], ["y"]),
        ],
        {"x": extents},
        ["b", "y"],
        {"first": np.array(first), "second": np.array(second)},
    )
    x = np.random.default_rng(len(extents)).standard_normal(extents).astype("float32")
    made = autofuse.compile(source, strategy="none", threads=2)
    assert made.kernels == 2 and VIEW.name in {group.family for group in made.plan.groups}
    shown, last = made(x)
    np.testing.assert_array_equal(shown, np.maximum(x, 0).reshape(first))
    np.testing.assert_allclose(last, np.tanh(np.maximum(x, 0)).reshape(second), atol=1e-6)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.data())
def test_random_broadcasts_and_permutations(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4), label="shape")
    small = [e if data.draw(st.booleans()) else 1 for e in shape]
    axes = data.draw(st.permutations(range(len(shape))), label="axes")

    def build(emit: Any, x: Any, y: Any) -> Any:
        return R.permute_dims(emit(R.add(x, emit(R.exp(y)))), list(axes))

    case = LoweredGroup(build, [shape, small])
    x, y = case.arrays
    config = data.draw(st.sampled_from(list(ELEMENTWISE.configs(case.group, HARDWARE))), label="config")
    case.check(ELEMENTWISE, (x + np.exp(y)).transpose(axes), [config])


def conv1d(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    steps = range(0, x.shape[2] - w.shape[2] + 1, stride)
    return np.stack([np.einsum("nck,ock->no", x[:, :, s : s + w.shape[2]], w) for s in steps], -1)


def test_one_dimensional_convolution_by_the_plain_schedule() -> None:
    case = LoweredGroup(lambda emit, x, w: R.nn.conv1d(x, w, padding=1, strides=2), [(2, 4, 21), (5, 4, 3)])
    case.check(PLAIN, conv1d(*case.arrays, 2))


PLAIN_CASES: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "convolution of two inputs": (lambda emit, x, w: R.nn.conv2d(x, w, padding=1), [(1, 4, 9, 11), (6, 4, 3, 3)]),
    "transposed convolution": (
        lambda emit, x, w: R.nn.conv2d_transpose(x, w, strides=2, padding=1), [(1, 4, 7, 6), (4, 5, 3, 3)],
    ),
    "three dimensions": (lambda emit, x, w: R.nn.conv3d(x, w, padding=1), [(1, 4, 5, 6, 7), (5, 4, 3, 3, 3)]),
    "sum over axes apart": (lambda emit, x: R.sum(x, [0, 2]), [(3, 5, 7)]),
    "pooling in one dimension": (lambda emit, x: R.nn.max_pool1d(x, 3, 2), [(1, 3, 17)]),
    "cubic resize": (lambda emit, x: R.image.resize2d(x, (14, 10), method="cubic"), [(1, 3, 7, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_the_plain_schedule_changes_no_result(name: str) -> None:
    build, shapes = PLAIN_CASES[name]
    case = LoweredGroup(build, shapes)
    assert case.family() == "plain"
    case.check(PLAIN, case.unscheduled(), tolerance=1e-5)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 2), channels=st.sampled_from([(1, 1, 3), (1, 4, 5), (2, 4, 6), (3, 3, 9)]),
    size=st.tuples(st.integers(3, 6), st.integers(3, 6), st.integers(3, 19)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), stride=st.integers(1, 2),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)), padding=st.integers(0, 1),
    pick=st.integers(0, 3),
)  # fmt: skip
def test_convolutions_over_three_axes_of_any_shape(
    n: int, channels: tuple[int, int, int], size: tuple[int, int, int], kernel: tuple[int, int, int], stride: int,
    dilation: tuple[int, int, int], padding: int, pick: int,
) -> None:  # fmt: skip
    groups, inputs, outputs = channels
    spread = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    size = tuple(max(s, r - 2 * padding) for s, r in zip(size, spread, strict=True))  # type: ignore[assignment]
    case = LoweredGroup(
        lambda emit, x, w: R.nn.conv3d(x, w, strides=stride, padding=padding, dilation=list(dilation), groups=groups),
        [(n, inputs, *size), (outputs, inputs // groups, *kernel)],
    )
    x, w = case.arrays
    x = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * 3))
    windows = np.lib.stride_tricks.sliding_window_view(x, spread, axis=(2, 3, 4))[:, :, ::stride, ::stride, ::stride]
    windows = windows[..., :: dilation[0], :: dilation[1], :: dilation[2]]
    parts = zip(np.split(windows, groups, 1), np.split(w, groups, 0), strict=True)
    configs = list(PLAIN.configs(case.group, HARDWARE))
    wanted = np.concatenate([np.einsum("ncdhwxyz,ocxyz->nodhw", a, b) for a, b in parts], 1)
    case.check(PLAIN, wanted, [configs[pick % len(configs)]])


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_sums_and_maxima_over_any_axes_by_the_plain_schedule(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 14), min_size=1, max_size=4), label="shape")
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1), label="axes")
    keepdims = data.draw(st.booleans(), label="keepdims")
    which, reduce = data.draw(st.sampled_from([(R.sum, np.sum), (R.max, np.max), (R.min, np.min)]), label="which")
    case = LoweredGroup(lambda emit, x: which(x, sorted(axes), keepdims=keepdims), [shape])
    if case.refusal(PLAIN) is None:
        config = data.draw(st.sampled_from(list(PLAIN.configs(case.group, HARDWARE))), label="config")
        case.check(PLAIN, reduce(case.arrays[0], axis=tuple(axes), keepdims=keepdims), [config])


def test_the_plain_schedule_takes_single_operators_alone() -> None:
    refusal = LoweredGroup(lambda emit, x: R.exp(emit(R.exp(x))), [(3,)]).refusal(PLAIN)
    assert refusal is not None and refusal.rule == "family"
    assert families()[-1].name == "plain"


def conditions(func: Any) -> tuple[int, int]:
    """How many selections stand in values, and how many branches stand between loops."""
    text = func.script(show_meta=False)
    return text.count("if_then_else"), sum(line.strip().startswith("if ") for line in text.splitlines())


def test_a_concatenation_branches_outside_its_loops() -> None:
    shapes = [(2, c, 6, 9) for c in (4, 3, 5, 1)]
    case = LoweredGroup(lambda emit, *xs: R.nn.relu(emit(R.concat(list(xs), 1))), shapes)
    case.check(ELEMENTWISE, np.maximum(np.concatenate(case.arrays, 1), 0))
    config = ELEMENTWISE.configs(case.group, HARDWARE)[0]
    fused = case.fuser.fuse(case.group)
    assert conditions(fused)[0] == 3
    assert conditions(ELEMENTWISE.apply(fused, case.group, config, HARDWARE)) == (0, 3)


def test_a_dear_function_in_front_of_a_concatenation_is_computed_in_its_loops() -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        e = emit(R.exp(x))
        return R.concat([emit(R.divide(e, emit(R.add(e, scalar(1))))), emit(R.tanh(y))], 1)

    case = LoweredGroup(build, [(2, 3, 6, 9), (2, 5, 6, 9)])
    x, y = case.arrays
    case.check(ELEMENTWISE, np.concatenate([1 / (1 + np.exp(-x)), np.tanh(y)], 1))
    config = ELEMENTWISE.configs(case.group, HARDWARE)[0]
    assert ELEMENTWISE.shape(case.group, config, HARDWARE).loops == 1
    text = ELEMENTWISE.apply(case.fuser.fuse(case.group), case.group, config, HARDWARE).script(show_meta=False)
    assert "alloc_buffer" not in text and "if_then_else" not in text


def test_a_dear_function_stays_out_of_conditions_of_single_lanes() -> None:
    case = LoweredGroup(lambda emit, x, y: R.concat([emit(R.exp(x)), emit(R.tanh(y))], 2), [(2, 3, 9), (2, 3, 11)])
    case.check(ELEMENTWISE, np.concatenate([np.exp(case.arrays[0]), np.tanh(case.arrays[1])], 2))
    assert ELEMENTWISE.shape(case.group, ELEMENTWISE.configs(case.group, HARDWARE)[0], HARDWARE).loops == 3


def test_padding_of_rows_branches_outside_its_loops() -> None:
    case = LoweredGroup(lambda emit, x: R.exp(emit(R.nn.pad(x, [1, 2, 0, 3, 0, 0]))), [(3, 7, 16)])
    case.check(ELEMENTWISE, np.exp(np.pad(case.arrays[0], ((1, 2), (0, 3), (0, 0)))))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.data())
def test_random_concatenations_slices_and_pads(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 12), min_size=2, max_size=4), label="shape")
    axis = data.draw(st.integers(0, len(shape) - 1), label="axis")
    parts = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=6), label="parts")
    low, high = data.draw(st.integers(0, 2), label="low"), data.draw(st.integers(0, 2), label="high")
    shapes = [tuple(p if a == axis else e for a, e in enumerate(shape)) for p in parts]
    start = data.draw(st.integers(0, sum(parts) - 1), label="start")
    width = [0, 0] * axis + [low, high] + [0, 0] * (len(shape) - axis - 1)

    def build(emit: Any, *xs: Any) -> Any:
        whole = emit(R.concat(list(xs), axis))
        return R.nn.relu(emit(R.nn.pad(emit(R.strided_slice(whole, [axis], [start], [sum(parts)])), width)))

    case = LoweredGroup(build, shapes)
    cut = np.take(np.concatenate(case.arrays, axis), np.arange(start, sum(parts)), axis)
    padded = np.pad(cut, [(low, high) if a == axis else (0, 0) for a in range(len(shape))])
    config = data.draw(st.sampled_from(list(ELEMENTWISE.configs(case.group, HARDWARE))), label="config")
    case.check(ELEMENTWISE, np.maximum(padded, 0), [config])


def test_a_gather_costs_the_rows_that_it_reads() -> None:
    picked = relax.const(np.array([3, 0], "int64"))
    case = LoweredGroup(lambda emit, x: R.take(x, picked, 0), [(5000, 32)])
    shape = ELEMENTWISE.shape(case.group, ELEMENTWISE.configs(case.group, HARDWARE)[0], HARDWARE)
    assert shape.memory_bytes < 1000 and shape.footprint <= shape.memory_bytes


@pytest.mark.parametrize("shape", [(1, 32, 3, 8), (2, 19, 3, 5), (1, 7, 2, 33)])
def test_transpositions_of_the_last_two_axes(shape: Any) -> None:
    case = LoweredGroup(lambda emit, x: R.permute_dims(emit(R.exp(x)), [0, 2, 3, 1]), [shape])
    case.check(ELEMENTWISE, np.exp(case.arrays[0]).transpose(0, 2, 3, 1))


def test_a_shuffle_of_channels_selects_its_operand_outside_the_loops() -> None:
    def build(emit: Any, x: Any, y: Any) -> Any:
        whole = emit(R.reshape(emit(R.concat([x, y], 1)), (1, 2, 5, 6, 24)))
        return R.reshape(emit(R.permute_dims(whole, [0, 2, 1, 3, 4])), (1, 10, 6, 24))

    case = LoweredGroup(build, [(1, 5, 6, 24)] * 2)
    whole = np.concatenate(case.arrays, 1).reshape(1, 2, 5, 6, 24)
    case.check(ELEMENTWISE, whole.transpose(0, 2, 1, 3, 4).reshape(1, 10, 6, 24))
    config = ELEMENTWISE.configs(case.group, HARDWARE)[0]
    assert conditions(ELEMENTWISE.apply(case.fuser.fuse(case.group), case.group, config, HARDWARE)) == (0, 1)
