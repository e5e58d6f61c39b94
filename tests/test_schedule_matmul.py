"""Packed matrix products: every tile and task shape against numpy, what is fused with them, and what is refused."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_groups import HARDWARE, LoweredGroup, layer_norm, softmax
from tvm import relax
from tvm.relax import op as R

from autofuse.codegen.digest import tir_digest
from autofuse.codegen.transport import from_text, to_text
from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.matmul import MatmulConfiguration, MatmulFamily, even_shares

MATMUL = MatmulFamily()
RANDOM = np.random.default_rng(7)


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32") * np.float32(0.3)


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


W, W48, BIAS = weights(32, 40), weights(32, 48), weights(40)


def affine(emit: Any, x: Any) -> Any:
    return emit(R.add(emit(R.matmul(x, relax.const(W))), relax.const(BIAS)))


def some(case: LoweredGroup) -> list[MatmulConfiguration]:
    """Three of the configurations that are offered, spread over the list."""
    offered = list(MATMUL.configs(case.group, HARDWARE))
    return list(dict.fromkeys([offered[0], offered[len(offered) // 2], offered[-1]]))


@pytest.mark.parametrize(("m", "k", "n"), [(7, 13, 24), (13, 9, 100), (1, 33, 10), (4, 16, 7)])
def test_every_configuration_of_products_with_ragged_rows_and_columns(m: int, k: int, n: int) -> None:
    w = weights(k, n)
    case = LoweredGroup(lambda emit, x: R.matmul(x, relax.const(w)), [(m, k)])
    case.check(MATMUL, case.arrays[0] @ w)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 14), depth=st.integers(1, 40), columns=st.integers(1, 70), mt=st.integers(1, 6),
    jt=st.integers(1, 3), rb=st.integers(1, 5), cb=st.integers(1, 3), order=st.integers(0, 1), stage=st.integers(0, 2),
    parallel=st.integers(0, 1),
)  # fmt: skip
def test_any_tile_of_any_product(
    rows: int, depth: int, columns: int, mt: int, jt: int, rb: int, cb: int, order: int, stage: int, parallel: int,
) -> None:  # fmt: skip
    w = weights(depth, columns)
    case = LoweredGroup(lambda emit, x: R.nn.relu(emit(R.matmul(emit(R.abs(x)), relax.const(w)))), [(rows, depth)])
    config = MatmulConfiguration(mt, jt, rb, cb, order, 0, stage, parallel)
    case.check(MATMUL, np.maximum(np.abs(case.arrays[0]) @ w, 0), [config])


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    lead=st.sampled_from([(), (2,)]), rows=st.integers(1, 14), depth=st.integers(1, 60), columns=st.integers(2, 70),
    mt=st.integers(1, 6), jt=st.integers(1, 2), rb=st.integers(1, 5), cb=st.integers(1, 3), order=st.integers(0, 2),
    parallel=st.integers(0, 1), read=st.booleans(),
)  # fmt: skip
def test_any_tile_of_products_whose_rows_are_normalised(
    lead: Any, rows: int, depth: int, columns: int, mt: int, jt: int, rb: int, cb: int, order: int, parallel: int,
    read: bool,
) -> None:  # fmt: skip
    w, bias = weights(depth, columns), weights(columns)
    gamma, beta = weights(columns), weights(columns)

    def build(emit: Any, x: Any, y: Any) -> list[Any]:
        product = emit(R.matmul(x, relax.const(w)))
        z = emit(R.add(emit(R.add(product, relax.const(bias))), y))
        normal = emit(R.nn.layer_norm(z, relax.const(gamma), relax.const(beta), axes=[-1]))
        return [product, normal] if read else [normal]

    case = LoweredGroup(build, [(*lead, rows, depth), (*lead, rows, columns)])
    if order < 2:
        cb = columns  # a task takes whole rows
    product = case.arrays[0] @ w
    answer = layer_norm(product + bias + case.arrays[1], gamma, beta)
    config = MatmulConfiguration(mt, jt, rb, cb, order, 0, 0, parallel)
    case.check(MATMUL, [product, answer] if read else answer, [config], tolerance=1e-4)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 14), depth=st.integers(1, 60), columns=st.integers(1, 70), which=st.sampled_from([0, 1]),
    dtype=st.sampled_from(["int8", "uint8"]), pick=st.integers(0, 9),
)  # fmt: skip
def test_operands_of_bytes_are_dequantised_in_front_of_the_product(
    rows: int, depth: int, columns: int, which: int, dtype: str, pick: int
) -> None:
    w = weights(depth, columns)

    def build(emit: Any, *given: Any) -> Any:
        parts = [*given] if which else [*given, relax.const(w)]
        parts[which] = emit(R.dequantize(parts[which], relax.const(np.float32(0.05)), relax.const(3, dtype), -1))
        return R.nn.relu(emit(R.matmul(*parts)))

    shapes = [(rows, depth), (depth, columns)][: 1 + which]
    case = LoweredGroup(build, shapes, whole={which: (dtype, 0, 127)})
    assert case.family() == "matmul"
    parts = [*case.arrays] if which else [*case.arrays, w]
    parts[which] = (parts[which].astype("float32") - 3) * np.float32(0.05)
    configs = list(MATMUL.configs(case.group, HARDWARE))
    case.check(MATMUL, np.maximum(parts[0] @ parts[1], 0), [configs[pick % len(configs)]])


def test_weights_that_several_tasks_would_read_are_offered_with_rows_finished_last() -> None:
    wide = weights(1536, 384)
    case = LoweredGroup(lambda emit, x: R.nn.softmax(emit(R.matmul(x, relax.const(wide)))), [(64, 1536)])
    offered = MATMUL.configs(case.group, HARDWARE)
    assert any(c.order == 2 and c.cb * c.jt * 16 < 384 for c in offered)


def test_bias_and_gelu() -> None:
    case = LoweredGroup(lambda emit, x: R.nn.gelu(affine(emit, x)), [(2, 5, 32)])
    assert case.family() == "matmul"
    case.check(MATMUL, gelu(case.arrays[0] @ W + BIAS), some(case))


def test_bias_swish_and_residual() -> None:
    case = LoweredGroup(lambda emit, x, y: R.add(emit(R.nn.silu(affine(emit, x))), y), [(2, 5, 32), (2, 5, 40)])
    x, y = case.arrays
    z = x @ W + BIAS
    case.check(MATMUL, z / (1 + np.exp(-z)) + y, some(case))


def test_approximate_gelu_keeps_what_it_reads_twice() -> None:
    case = LoweredGroup(lambda emit, x: R.nn.gelu_tanh(affine(emit, x)), [(7, 32)])
    z = case.arrays[0] @ W + BIAS
    case.check(MATMUL, 0.5 * z * (1 + np.tanh(0.79788456 * (z + 0.044715 * z**3))), some(case))


def test_results_along_the_chain() -> None:
    def build(emit: Any, x: Any) -> list[Any]:
        product = emit(R.matmul(x, relax.const(W)))
        shifted = emit(R.add(product, relax.const(BIAS)))
        return [product, shifted, emit(R.nn.relu(shifted))]

    case = LoweredGroup(build, [(2, 5, 32)])
    product = case.arrays[0] @ W
    case.check(MATMUL, [product, product + BIAS, np.maximum(product + BIAS, 0)], some(case))


@pytest.mark.parametrize(("batch", "length", "heads", "width"), [(2, 5, 3, 16), (1, 9, 2, 24), (1, 7, 6, 8)])
def test_heads_are_split_as_they_are_stored(batch: int, length: int, heads: int, width: int) -> None:
    def build(emit: Any, x: Any) -> Any:
        split = emit(R.reshape(emit(R.matmul(x, relax.const(W48))), (batch, length, heads, width)))
        return R.permute_dims(split, [0, 2, 1, 3])

    case = LoweredGroup(build, [(batch, length, 32)])
    assert case.family() == "matmul"
    answer = (case.arrays[0] @ W48).reshape(batch, length, heads, width).transpose(0, 2, 1, 3)
    case.check(MATMUL, answer, some(case))


def test_heads_are_merged_as_they_are_read() -> None:
    def build(emit: Any, x: Any) -> Any:
        merged = emit(R.reshape(emit(R.permute_dims(x, [0, 2, 1, 3])), (2, 5, 32)))
        return R.matmul(merged, relax.const(W))

    case = LoweredGroup(build, [(2, 4, 5, 8)])
    answer = case.arrays[0].transpose(0, 2, 1, 3).reshape(2, 5, 32) @ W
    case.check(MATMUL, answer, some(case))


def test_places_of_elements_are_computed_before_a_product_with_many_columns() -> None:
    def build(emit: Any, x: Any) -> Any:
        merged = emit(R.reshape(emit(R.permute_dims(x, [0, 2, 1, 3])), (5, 96)))
        return R.matmul(merged, relax.const(wide))

    wide = weights(96, 400)
    case = LoweredGroup(build, [(1, 12, 5, 8)])
    before = [c for c in MATMUL.configs(case.group, HARDWARE) if c.stage == 2]
    assert before[0].parallel
    case.check(MATMUL, case.arrays[0].transpose(0, 2, 1, 3).reshape(5, 96) @ wide, before)


def test_a_dear_operand_is_staged() -> None:
    def build(emit: Any, x: Any) -> Any:
        return R.matmul(emit(R.multiply(x, emit(R.tanh(emit(R.exp(x)))))), relax.const(W))

    case = LoweredGroup(build, [(2, 5, 32)])
    x = case.arrays[0]
    assert all(config.stage for config in MATMUL.configs(case.group, HARDWARE))
    case.check(MATMUL, (x * np.tanh(np.exp(x))) @ W, some(case))


def test_softmax_along_the_rows_of_the_product() -> None:
    def build(emit: Any, x: Any) -> list[Any]:
        product = emit(R.matmul(x, relax.const(W)))
        return [product, emit(R.nn.softmax(product))]

    case = LoweredGroup(build, [(7, 32)])
    product = case.arrays[0] @ W
    case.check(MATMUL, [product, softmax(product)], some(case))


def test_a_transposed_result_cannot_be_stored_from_a_tile() -> None:
    case = LoweredGroup(lambda emit, x: R.permute_dims(emit(R.matmul(x, relax.const(W))), [0, 2, 1]), [(1, 9, 32)])
    refusal = case.refusal(MATMUL)
    assert refusal is not None and refusal.rule == "store"


def test_heads_narrower_than_a_vector_are_refused() -> None:
    def build(emit: Any, x: Any) -> Any:
        return R.permute_dims(emit(R.reshape(emit(R.matmul(x, relax.const(W48))), (1, 9, 12, 4))), [0, 2, 1, 3])

    refusal = LoweredGroup(build, [(1, 9, 32)]).refusal(MATMUL)
    assert refusal is not None and refusal.rule == "store"


def test_two_products_and_reduced_operands_are_refused() -> None:
    two = LoweredGroup(
        lambda emit, x: R.matmul(emit(R.matmul(x, relax.const(W48))), relax.const(weights(48, 8))), [(3, 32)]
    )
    refusal = two.refusal(MATMUL)
    assert refusal is not None and refusal.rule == "anchor"
    reduced = LoweredGroup(lambda emit, x: R.matmul(emit(R.nn.softmax(x)), relax.const(W)), [(3, 32)])
    refusal = reduced.refusal(MATMUL)
    assert refusal is not None and refusal.rule == "prologue"


def test_a_sum_over_the_rows_of_the_product_is_refused() -> None:
    refusal = LoweredGroup(lambda emit, x: R.sum(emit(R.matmul(x, relax.const(W))), [0]), [(3, 32)]).refusal(MATMUL)
    assert refusal is not None and refusal.rule == "axes"


def test_another_function_is_an_error() -> None:
    case = LoweredGroup(lambda emit, x: R.matmul(x, relax.const(W)), [(3, 32)])
    other = LoweredGroup(lambda emit, x: R.exp(x), [(3, 32)])
    config = MATMUL.configs(case.group, HARDWARE)[0]
    with pytest.raises(ScheduleError, match="matmul"):
        MATMUL.apply(other.fuser.fuse(other.group), case.group, config, HARDWARE)


@pytest.mark.parametrize(("rows", "depth", "fetches"), [(64, 300, True), (64, 96, False), (6, 300, False)])
def test_weights_of_the_next_columns_are_fetched_where_rows_enough_share_it(
    rows: int, depth: int, fetches: bool
) -> None:
    w = weights(depth, 100)
    case = LoweredGroup(lambda emit, x: R.matmul(x, relax.const(w)), [(rows, depth)])
    config = MatmulConfiguration(6, 1, -(-rows // 6), 4, 0, 0, 0, 0)
    func = MATMUL.apply(case.fuser.fuse(case.group), case.group, config, HARDWARE)
    assert ("prefetch" in func.script()) == fetches
    assert tir_digest(from_text(to_text(func))) == tir_digest(func)  # whoever measures it builds it from its text
    case.check(MATMUL, case.arrays[0] @ w, [config])


@given(tiles=st.integers(1, 400), cores=st.integers(1, 16), more=st.integers(1, 4))
def test_shares_are_as_even_as_any(tiles: int, cores: int, more: int) -> None:
    smallest, largest = even_shares(tiles, cores * more, cores)

    def busiest(share: int) -> int:
        tasks = -(-tiles // share)
        return share * -(-tasks // cores)

    assert 1 <= smallest <= largest <= tiles and -(-tiles // smallest) <= cores * more
    assert busiest(smallest) == busiest(largest) <= busiest(-(-tiles // cores))
