"""Reductions along rows: every case against numpy, and the groups that no pass over rows can compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_groups import HARDWARE, LoweredGroup, layer_norm, softmax
from tvm import relax
from tvm.relax import op as R

from autofuse.schedule.cpu.elementwise import ElementwiseFamily
from autofuse.schedule.cpu.rows import RowsFamily

ROWS, ELEMENTWISE = RowsFamily(), ElementwiseFamily()


def scalar(value: float) -> Any:
    return relax.const(np.float32(value))


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 13, 15, 50, 197, 1000])
def test_softmax_of_rows_of_any_length(length: int) -> None:
    case = LoweredGroup(lambda emit, x: R.nn.softmax(x), [(6, length)])
    case.check(ROWS, softmax(case.arrays[0]), configs=ROWS.configs(case.group, HARDWARE)[:2])


@pytest.mark.parametrize("length", [7, 50, 384])
def test_layer_norm(length: int) -> None:
    case = LoweredGroup(lambda emit, x, g, b: R.nn.layer_norm(x, g, b, [-1]), [(2, 3, length), (length,), (length,)])
    case.check(ROWS, layer_norm(*case.arrays), configs=ROWS.configs(case.group, HARDWARE)[:2])


def test_a_result_is_read_again_across_other_axes() -> None:
    """The reshape's rows are not seen to be those of the concat: it computes them again, at true indices."""

    def build(emit: Any, x: Any) -> list[Any]:
        joined = emit(R.concat([x, x], axis=0))
        return [R.max(joined, [2]), R.reshape(joined, (2, 112)), joined]

    case = LoweredGroup(build, [(7, 2, 8)])
    joined = np.concatenate([case.arrays[0]] * 2)
    case.check(ROWS, [joined.max(2), joined.reshape(2, 112), joined])


@pytest.mark.parametrize("lanes", [9, 27])
def test_strips_between_buffers_that_share_memory_are_computed_once(lanes: int) -> None:
    """TVM lets the exponentials take the place of what they are computed of: none may be computed twice."""

    def build(emit: Any, x: Any) -> list[Any]:
        wide = emit(R.exp(x))
        return [R.add(wide, wide), R.nn.softmax(wide, axis=-2)]

    case = LoweredGroup(build, [(6, 7, lanes)])
    wide = np.exp(case.arrays[0])
    case.check(ROWS, [wide + wide, softmax(wide, -2)])


def test_layer_norm_over_several_axes() -> None:
    case = LoweredGroup(lambda emit, x, g, b: R.nn.layer_norm(x, g, b, [1, 2, 3]), [(2, 4, 3, 5), (4, 3, 5), (4, 3, 5)])
    case.check(ROWS, layer_norm(*case.arrays, (1, 2, 3)))


@pytest.mark.parametrize(
    ("shape", "axes", "kind"),
    [
        ((4, 50), [-1], "mean"),
        ((33, 50), [0], "sum"),
        ((3, 5, 6, 4), [1, 2], "max"),
        ((3, 5, 6, 20), [1], "min"),
        ((3, 20), [-1], "prod"),
        ((33, 50), None, "sum"),
        ((2, 11, 52), [1], "mean"),
        ((1, 1, 1), [0], "sum"),
    ],
)
def test_reductions_over_leading_middle_and_trailing_axes(shape: Any, axes: Any, kind: str) -> None:
    case = LoweredGroup(lambda emit, x: getattr(R, kind)(x, axes), [shape])
    answer = getattr(case.arrays[0], kind)(None if axes is None else tuple(axes))
    case.check(ROWS, np.asarray(answer))


def test_softmax_over_a_middle_axis_with_a_ragged_strip_of_lanes() -> None:
    case = LoweredGroup(lambda emit, x: R.nn.softmax(x, 1), [(2, 11, 52)])
    case.check(ROWS, softmax(case.arrays[0], 1))


def test_softmax_by_hand_is_one_kernel() -> None:
    def build(emit: Any, x: Any) -> Any:
        e = emit(R.exp(x))
        return R.divide(e, emit(R.sum(e, [-1], True)))

    case = LoweredGroup(build, [(8, 100)])
    assert case.family() == "rows"
    e = np.exp(case.arrays[0])
    case.check(ROWS, e / e.sum(-1, keepdims=True))


def test_elementwise_after_a_reduction_runs_over_many_rows() -> None:
    case = LoweredGroup(lambda emit, x: R.sqrt(emit(R.exp(emit(R.sum(x, [-1]))))), [(24, 25)])
    assert case.family() == "rows"
    case.check(ROWS, np.sqrt(np.exp(case.arrays[0].sum(-1))))


def test_mean_of_blocked_channels_reshape_and_relu_are_one_kernel() -> None:
    def build(emit: Any, x: Any) -> Any:
        return R.nn.relu(emit(R.reshape(emit(R.nn.adaptive_avg_pool2d(x, 1)), (1, 48))))

    case = LoweredGroup(build, [(1, 48, 7, 7)])
    assert case.family() == "rows"
    case.check(ROWS, np.maximum(case.arrays[0].mean((2, 3)), 0))


def test_one_tensor_passed_twice() -> None:
    def build(emit: Any, x: Any, g: Any) -> Any:
        n = emit(R.nn.layer_norm(x, g, g, [-1]))
        return R.add(emit(R.multiply(n, n)), x)

    case = LoweredGroup(build, [(6, 56), (56,)])
    assert case.family() == "rows"
    x, g = case.arrays
    case.check(ROWS, layer_norm(x, g, g) ** 2 + x)


def test_several_results_before_between_and_after() -> None:
    def build(emit: Any, x: Any, y: Any, g: Any, b: Any) -> list[Any]:
        a = emit(R.add(x, y))
        n = emit(R.nn.layer_norm(a, g, b, [-1]))
        return [a, emit(R.nn.relu(n)), emit(R.mean(n, [-1])), emit(R.max(a, [-1], True))]

    case = LoweredGroup(build, [(2, 5, 48), (2, 5, 48), (48,), (48,)])
    x, y, g, b = case.arrays
    n = layer_norm(x + y, g, b)
    case.check(ROWS, [x + y, np.maximum(n, 0), n.mean(-1), (x + y).max(-1, keepdims=True)])


def test_root_mean_square_norm_by_hand() -> None:
    def build(emit: Any, x: Any, g: Any) -> Any:
        q = emit(R.mean(emit(R.multiply(x, x)), [-1], True))
        return R.multiply(emit(R.multiply(x, emit(R.rsqrt(emit(R.add(q, scalar(1e-5))))))), g)

    case = LoweredGroup(build, [(9, 50), (50,)])
    x, g = case.arrays
    case.check(ROWS, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g)


def test_masked_and_scaled_softmax_then_reshape() -> None:
    def build(emit: Any, x: Any, m: Any) -> Any:
        return R.reshape(emit(R.nn.softmax(emit(R.add(emit(R.multiply(x, scalar(0.3))), m)))), (30, 17))

    case = LoweredGroup(build, [(2, 3, 5, 17), (2, 1, 1, 17)])
    x, m = case.arrays
    case.check(ROWS, softmax(x * np.float32(0.3) + m).reshape(30, 17))


def test_a_permutation_before_the_reduction_is_read_in_place() -> None:
    case = LoweredGroup(
        lambda emit, x, g, b: R.nn.layer_norm(emit(R.permute_dims(x, [0, 2, 1])), g, b, [-1]),
        [(2, 24, 5), (24,), (24,)],
    )
    x, g, b = case.arrays
    case.check(ROWS, layer_norm(x.transpose(0, 2, 1), g, b))


def test_variance_and_logarithm_of_softmax() -> None:
    case = LoweredGroup(lambda emit, x: [emit(R.variance(x, [-1], True)), emit(R.nn.log_softmax(x))], [(4, 50)])
    x = case.arrays[0]
    case.check(ROWS, [x.var(-1, keepdims=True), np.log(softmax(x))])


def test_reductions_over_different_axes_are_refused() -> None:
    def build(emit: Any, x: Any) -> list[Any]:
        s = emit(R.sigmoid(x))
        return [emit(R.sum(s, [0])), emit(R.max(s, [1]))]

    refusal = LoweredGroup(build, [(6, 56)]).refusal(ROWS)
    assert refusal is not None and refusal.rule == "axes"


def test_a_sum_added_to_other_rows_is_refused() -> None:
    refusal = LoweredGroup(lambda emit, x: R.add(x, emit(R.sum(x, [-1]))), [(5, 5)]).refusal(ROWS)
    assert refusal is not None and refusal.rule == "rows"


def test_a_transposed_result_is_refused() -> None:
    case = LoweredGroup(lambda emit, x: R.permute_dims(emit(R.nn.softmax(x)), [1, 0]), [(5, 7)])
    refusal = case.refusal(ROWS)
    assert refusal is not None and refusal.rule == "rows"


def test_groups_without_a_reduction_are_refused() -> None:
    refusal = LoweredGroup(lambda emit, x: R.exp(x), [(5, 7)]).refusal(ROWS)
    assert refusal is not None and refusal.rule == "anchor"


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_random_shapes_axes_and_configurations(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 19), min_size=1, max_size=4), label="shape")
    first = data.draw(st.integers(0, len(shape) - 1), label="first")
    last = data.draw(st.integers(first, len(shape) - 1), label="last")
    axes = list(range(first, last + 1))

    def build(emit: Any, x: Any) -> Any:
        peak = emit(R.max(x, axes, True))
        e = emit(R.exp(emit(R.subtract(x, peak))))
        return R.divide(e, emit(R.sum(e, axes, True)))

    case = LoweredGroup(build, [shape])
    chosen = data.draw(st.sampled_from(list(ROWS.configs(case.group, HARDWARE))), label="config")
    x = case.arrays[0]
    e = np.exp(x - x.max(tuple(axes), keepdims=True))
    case.check(ROWS, e / e.sum(tuple(axes), keepdims=True), [chosen])


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    lead=st.lists(st.integers(1, 7), min_size=0, max_size=3), width=st.integers(1, 70), residual=st.booleans(),
    scaled=st.booleans(), pick=st.integers(0, 11),
)  # fmt: skip
def test_root_mean_square_norms_of_any_rows(
    lead: list[int], width: int, residual: bool, scaled: bool, pick: int
) -> None:
    shape = (*lead, width)

    def build(emit: Any, x: Any, y: Any, g: Any) -> Any:
        z = emit(R.add(x, y)) if residual else x
        q = emit(R.mean(emit(R.multiply(z, z)), [-1], True))
        normal = emit(R.multiply(z, emit(R.rsqrt(emit(R.add(q, scalar(1e-5)))))))
        return R.multiply(normal, g) if scaled else normal

    case = LoweredGroup(build, [shape, shape, (width,)])
    x, y, g = case.arrays
    z = x + y if residual else x
    answer = z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-5)
    configs = list(ROWS.configs(case.group, HARDWARE))
    case.check(ROWS, answer * g if scaled else answer, [configs[pick % len(configs)]])


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    tokens=st.lists(st.integers(1, 9), min_size=1, max_size=2), table=st.integers(1, 40), width=st.integers(1, 50),
    normed=st.booleans(), dtype=st.sampled_from(["int64", "int32"]), pick=st.integers(0, 11),
)  # fmt: skip
def test_embeddings_of_any_size(
    tokens: list[int], table: int, width: int, normed: bool, dtype: str, pick: int
) -> None:  # fmt: skip
    """Rows of a table are looked up, places are added, then a layer norm or nothing."""

    def build(emit: Any, ids: Any, words: Any, places: Any, g: Any, b: Any) -> Any:
        z = emit(R.add(emit(R.take(words, ids, 0)), places))
        return R.nn.layer_norm(z, g, b, [-1]) if normed else z

    shapes = [tokens, (table, width), (tokens[-1], width), (width,), (width,)]
    case = LoweredGroup(build, shapes, whole={0: (dtype, 0, table - 1)})
    ids, words, places, g, b = case.arrays
    answer = words[ids] + places
    which = ROWS if normed else ELEMENTWISE
    configs = list(which.configs(case.group, HARDWARE))
    case.check(which, layer_norm(answer, g, b) if normed else answer, [configs[pick % len(configs)]])
