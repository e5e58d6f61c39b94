"""Products of two activations: packing, broadcast batches, transposed operands, attention's two halves."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_groups import HARDWARE, LoweredGroup, softmax
from tvm import relax
from tvm.relax import op as R

from autofuse.schedule.cpu.matmul import MatmulConfiguration, MatmulFamily

MATMUL = MatmulFamily()


def spread(case: LoweredGroup, count: int = 3) -> list[MatmulConfiguration]:
    """Some of the configurations that are offered, spread over the list."""
    offered = list(MATMUL.configs(case.group, HARDWARE))
    return list(dict.fromkeys(offered[i * (len(offered) - 1) // (count - 1)] for i in range(count)))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    lead=st.sampled_from([((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (2, 3)), ((), ()), ((3,), (1,))]),
    rows=st.integers(1, 13), depth=st.integers(1, 20), columns=st.integers(1, 40), mt=st.integers(1, 5),
    jt=st.integers(1, 2), rb=st.integers(1, 4), cb=st.integers(1, 3), order=st.integers(0, 1), pack=st.integers(0, 2),
    parallel=st.integers(0, 1),
)  # fmt: skip
def test_any_tile_of_any_batch(
    lead: Any, rows: int, depth: int, columns: int, mt: int, jt: int, rb: int, cb: int, order: int, pack: int,
    parallel: int,
) -> None:  # fmt: skip
    case = LoweredGroup(lambda emit, x, y: R.matmul(x, y), [(*lead[0], rows, depth), (*lead[1], depth, columns)])
    config = MatmulConfiguration(mt, jt, rb, cb, order, pack, 0, parallel)
    case.check(MATMUL, case.arrays[0] @ case.arrays[1], [config])


def test_queries_times_keys_and_softmax() -> None:
    def build(emit: Any, q: Any, k: Any) -> Any:
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        return R.nn.softmax(emit(R.multiply(scores, relax.const(np.float32(0.3)))))

    case = LoweredGroup(build, [(1, 3, 7, 8), (1, 3, 21, 8)])
    assert case.family() == "matmul"
    q, k = case.arrays
    case.check(MATMUL, softmax(q @ k.transpose(0, 1, 3, 2) * np.float32(0.3)), spread(case))


def test_both_operands_are_read_by_heads() -> None:
    def build(emit: Any, q: Any, k: Any) -> Any:
        return R.matmul(emit(R.permute_dims(q, [0, 2, 1, 3])), emit(R.permute_dims(k, [0, 2, 3, 1])))

    case = LoweredGroup(build, [(1, 7, 3, 8), (1, 21, 3, 8)])
    q, k = case.arrays
    case.check(MATMUL, q.transpose(0, 2, 1, 3) @ k.transpose(0, 2, 3, 1), spread(case))


def test_values_are_merged_as_they_are_stored() -> None:
    def build(emit: Any, p: Any, v: Any) -> Any:
        return R.reshape(emit(R.permute_dims(emit(R.matmul(p, v)), [0, 2, 1, 3])), (1, 7, 24))

    case = LoweredGroup(build, [(1, 3, 7, 21), (1, 3, 21, 8)])
    assert case.family() == "matmul"
    p, v = case.arrays
    case.check(MATMUL, (p @ v).transpose(0, 2, 1, 3).reshape(1, 7, 24), spread(case))


def test_transpose_product_and_softmax_are_one_kernel() -> None:
    def build(emit: Any, x: Any, w: Any) -> Any:
        return R.nn.softmax(emit(R.matmul(x, emit(R.permute_dims(w, [1, 0])))))

    case = LoweredGroup(build, [(12, 38), (51, 38)])
    assert case.family() == "matmul"
    x, w = case.arrays
    case.check(MATMUL, softmax(x @ w.T), spread(case))


def test_a_tensor_times_itself() -> None:
    case = LoweredGroup(lambda emit, x: R.matmul(x, x), [(12, 12)])
    x = case.arrays[0]
    case.check(MATMUL, x @ x, spread(case))
    case = LoweredGroup(lambda emit, x: R.matmul(x, emit(R.permute_dims(x, [1, 0]))), [(12, 38)])
    x = case.arrays[0]
    case.check(MATMUL, x @ x.T, spread(case))


def test_a_softmax_over_another_axis_is_refused() -> None:
    case = LoweredGroup(lambda emit, x, y: R.nn.softmax(emit(R.matmul(x, y)), 1), [(2, 3, 4), (2, 4, 5)])
    refusal = case.refusal(MATMUL)
    assert refusal is not None and refusal.rule == "axes"
