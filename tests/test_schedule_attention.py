"""Attention in one kernel: heads split and merged, scales, masks, any lengths, against numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_groups import HARDWARE, LoweredGroup, softmax
from tvm import relax
from tvm.relax import op as R

from autofuse.graph.model import Group
from autofuse.schedule.cpu.attention import AttentionConfiguration, AttentionFamily

ATTENTION = AttentionFamily()


@dataclass(frozen=True)
class Sizes:
    """batch, heads, queries, keys, depth (of queries and keys), width (of values)."""

    b: int
    h: int
    q: int
    k: int
    d: int
    w: int


def split_and_merged(n: Sizes, mask: tuple[int, ...] | None, bias: bool = False) -> tuple[LoweredGroup, np.ndarray]:
    """Operands [b, length, heads · depth], split into heads and merged again; a bias before them, a mask behind."""

    def heads(emit: Any, x: Any, length: int, depth: int, axes: list[int]) -> Any:
        return emit(R.permute_dims(emit(R.reshape(x, (n.b, length, n.h, depth))), axes))

    def build(emit: Any, q: Any, k: Any, v: Any, *more: Any) -> Any:
        more_left = list(more)
        if bias:
            q, k, v = (emit(R.add(x, more_left.pop(0))) for x in (q, k, v))
        left, right = heads(emit, q, n.q, n.d, [0, 2, 1, 3]), heads(emit, k, n.k, n.d, [0, 2, 3, 1])
        scores = emit(R.multiply(emit(R.matmul(left, right)), relax.const(np.float32(0.7))))
        if mask is not None:
            scores = emit(R.add(scores, more_left.pop(0)))
        mixed = emit(R.matmul(emit(R.nn.softmax(scores)), heads(emit, v, n.k, n.w, [0, 2, 1, 3])))
        return R.reshape(emit(R.permute_dims(mixed, [0, 2, 1, 3])), (n.b, n.q, n.h * n.w))

    shapes: list[tuple[int, ...]] = [(n.b, n.q, n.h * n.d), (n.b, n.k, n.h * n.d), (n.b, n.k, n.h * n.w)]
    if bias:
        shapes += [(n.h * n.d,), (n.h * n.d,), (n.h * n.w,)]
    case = LoweredGroup(build, shapes + ([mask] if mask is not None else []))
    arrays = [x.astype("float64") for x in case.arrays]
    q, k, v = (x + y for x, y in zip(arrays[:3], arrays[3:6], strict=True)) if bias else arrays[:3]
    scores = np.einsum("bqhd,bkhd->bhqk", q.reshape(n.b, n.q, n.h, n.d), k.reshape(n.b, n.k, n.h, n.d)) * 0.7
    if mask is not None:
        scores = scores + arrays[-1]
    mixed = np.einsum("bhqk,bkhd->bqhd", softmax(scores), v.reshape(n.b, n.k, n.h, n.w))
    return case, mixed.reshape(n.b, n.q, n.h * n.w)


def spread(case: LoweredGroup, count: int) -> list[AttentionConfiguration]:
    """Some of the configurations that are offered, spread over the list."""
    offered = list(ATTENTION.configs(case.group, HARDWARE))
    return list(dict.fromkeys(offered[i * (len(offered) - 1) // max(1, count - 1)] for i in range(count)))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_tile_of_any_sizes(data: st.DataObject) -> None:
    def some(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    n = Sizes(some(1, 2), some(1, 3), some(1, 40), some(2, 40), some(1, 20), some(2, 36))
    masks = [None, (n.b, 1, 1, n.k), (1, 1, n.q, n.k), (n.b, n.h, n.q, n.k), (n.b, 1, n.q, n.k)]
    case, expected = split_and_merged(n, data.draw(st.sampled_from(masks)), data.draw(st.booleans()))
    config = AttentionConfiguration(
        8 * some(1, 4), some(1, 7), some(1, 6), some(1, 3), some(1, 3), some(0, 1), some(0, 1)
    )
    case.check(ATTENTION, expected, [config])


@pytest.mark.parametrize(
    "n",
    [Sizes(1, 2, 197, 197, 64, 64), Sizes(2, 3, 32, 32, 32, 32), Sizes(1, 1, 1, 50, 16, 16), Sizes(3, 1, 9, 2, 4, 4)],
)
def test_what_is_offered_is_right(n: Sizes) -> None:
    case, expected = split_and_merged(n, None)
    assert case.family() == "attention"
    case.check(ATTENTION, expected, spread(case, 4))


def test_a_causal_mask_by_selection() -> None:
    """As exported by GPT-2: positions after the query get the lowest float."""
    length, heads, depth = 21, 4, 8
    allowed = np.tril(np.ones((1, 1, length, length), bool))

    def build(emit: Any, q: Any, k: Any, v: Any) -> Any:
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        lowest = relax.const(np.float32(np.finfo("float32").min))
        scores = emit(R.where(relax.const(allowed), scores, lowest))
        return R.matmul(emit(R.nn.softmax(scores)), v)

    case = LoweredGroup(build, [(1, heads, length, depth)] * 3)
    assert case.family() == "attention"
    q, k, v = (x.astype("float64") for x in case.arrays)
    scores = np.where(allowed, q @ k.transpose(0, 1, 3, 2), -1e38)
    case.check(ATTENTION, softmax(scores) @ v, spread(case, 5))


def test_a_mask_of_minus_infinity() -> None:
    n = Sizes(1, 2, 19, 23, 8, 8)
    case, _ = split_and_merged(n, (1, 1, n.q, n.k))
    mask = case.arrays[-1]
    mask[np.random.default_rng(3).random(mask.shape) < 0.5] = -np.inf
    mask[..., 0] = 0.0
    q, k, v = (x.astype("float64").reshape(1, -1, n.h, n.d).transpose(0, 2, 1, 3) for x in case.arrays[:3])
    mixed = softmax(q @ k.transpose(0, 1, 3, 2) * 0.7 + mask) @ v
    case.check(ATTENTION, mixed.transpose(0, 2, 1, 3).reshape(1, n.q, n.h * n.w), spread(case, 3))


def test_large_scores_do_not_overflow() -> None:
    def build(emit: Any, q: Any, k: Any, v: Any) -> Any:
        scores = emit(R.multiply(emit(R.matmul(q, emit(R.permute_dims(k, [0, 2, 1])))), relax.const(np.float32(300))))
        return R.matmul(emit(R.nn.softmax(scores)), v)

    case = LoweredGroup(build, [(3, 12, 16), (3, 14, 16), (3, 14, 8)])
    q, k, v = (x.astype("float64") for x in case.arrays)
    case.check(ATTENTION, softmax(q @ k.transpose(0, 2, 1) * 300) @ v, spread(case, 2), tolerance=3e-4)


def test_heads_folded_into_the_batch_and_a_mask_that_is_computed() -> None:
    """Scores are reshaped for the mask and back; the mask comes from zeros and ones."""
    b, h, length, depth = 2, 3, 11, 8

    def build(emit: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
        one, big = relax.const(np.float32(1)), relax.const(np.float32(-1e4))
        mask = emit(R.multiply(emit(R.subtract(one, keep)), big))
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 2, 1]))))
        scores = emit(R.add(emit(R.reshape(scores, (b, h, length, length))), mask))
        scores = emit(R.reshape(scores, (b * h, length, length)))
        return R.matmul(emit(R.nn.softmax(scores)), v)

    case = LoweredGroup(build, [(b * h, length, depth)] * 3 + [(b, 1, 1, length)])
    case.arrays[3][...] = np.random.default_rng(1).random((b, 1, 1, length)) < 0.6
    case.arrays[3][..., 0] = 1.0
    assert case.family() == "attention"
    q, k, v, keep = (x.astype("float64") for x in case.arrays)
    scores = (q @ k.transpose(0, 2, 1)).reshape(b, h, length, length) + (1 - keep) * -1e4
    case.check(ATTENTION, softmax(scores.reshape(b * h, length, length)) @ v, spread(case, 4))


def test_one_tensor_sliced_into_queries_keys_and_values() -> None:
    b, length, h, d = 1, 26, 2, 16

    def build(emit: Any, x: Any) -> Any:
        def part(i: int) -> Any:
            piece = emit(R.strided_slice(x, [2], [i * h * d], [(i + 1) * h * d]))
            return emit(R.permute_dims(emit(R.reshape(piece, (b, length, h, d))), [0, 2, 1, 3]))

        scores = emit(R.matmul(part(0), emit(R.permute_dims(part(1), [0, 1, 3, 2]))))
        mixed = emit(R.matmul(emit(R.nn.softmax(scores)), part(2)))
        return R.reshape(emit(R.permute_dims(mixed, [0, 2, 1, 3])), (b, length, h * d))

    case = LoweredGroup(build, [(b, length, 3 * h * d)])
    assert case.family() == "attention"
    q, k, v = case.arrays[0].astype("float64").reshape(b, length, 3, h, d).transpose(2, 0, 3, 1, 4)
    mixed = softmax(q @ k.transpose(0, 1, 3, 2)) @ v
    case.check(ATTENTION, mixed.transpose(0, 2, 1, 3).reshape(b, length, h * d), spread(case, 3))


def test_keys_that_serve_as_values_and_work_after_the_product() -> None:
    def build(emit: Any, q: Any, k: Any, scale: Any) -> Any:
        weights = emit(R.nn.softmax(emit(R.matmul(q, emit(R.permute_dims(k, [0, 2, 1]))))))
        return R.nn.relu(emit(R.multiply(emit(R.matmul(weights, k)), scale)))

    case = LoweredGroup(build, [(4, 18, 24), (4, 33, 24), (24,)])
    assert case.family() == "attention"
    q, k, scale = (x.astype("float64") for x in case.arrays)
    case.check(ATTENTION, np.maximum(softmax(q @ k.transpose(0, 2, 1)) @ k * scale, 0), spread(case, 3))


def test_weights_that_are_wanted_outside_are_refused() -> None:
    def build(emit: Any, q: Any, k: Any, v: Any) -> Any:
        weights = emit(R.nn.softmax(emit(R.matmul(q, k))))
        return [weights, R.matmul(weights, v)]

    case = LoweredGroup(build, [(2, 5, 8), (2, 8, 9), (2, 9, 8)])
    refusal = case.refusal(ATTENTION)
    assert refusal is not None and refusal.rule == "outputs"


def test_other_pairs_of_products_are_refused() -> None:
    def chain(emit: Any, x: Any, y: Any, z: Any) -> Any:
        return R.matmul(emit(R.matmul(x, y)), z)

    def over_queries(emit: Any, x: Any, y: Any, z: Any) -> Any:
        return R.matmul(emit(R.nn.softmax(emit(R.matmul(x, y)), 1)), z)

    def from_the_right(emit: Any, x: Any, y: Any, z: Any) -> Any:
        return R.matmul(z, emit(R.nn.softmax(emit(R.matmul(x, y)))))

    def scaled_after(emit: Any, x: Any, y: Any, z: Any) -> Any:
        weights = emit(R.nn.softmax(emit(R.matmul(x, y))))
        return R.matmul(emit(R.multiply(weights, relax.const(np.float32(2)))), z)

    for build in (chain, over_queries, from_the_right, scaled_after):
        case = LoweredGroup(build, [(2, 6, 6)] * 3)
        assert case.refusal(ATTENTION) is not None, build.__name__


def test_a_single_product_is_left_to_others() -> None:
    case, _ = split_and_merged(Sizes(1, 2, 8, 8, 8, 8), None)
    last = next(op for op in reversed(case.graph.operators) if op.kind == "matmul")
    refusal = ATTENTION.match(Group.of(case.graph, [last.index]), HARDWARE)
    assert refusal is not None and refusal.rule == "anchor"


def test_heads_are_split_whole_or_not_at_all() -> None:
    case, _ = split_and_merged(Sizes(1, 2, 8, 8, 8, 8), None)
    operators = case.graph.operators
    reshapes = [op.index for op in operators if op.kind == "reshape"]
    half = ATTENTION.match(Group.of(case.graph, [op.index for op in operators if op.index != reshapes[0]]), HARDWARE)
    assert half is not None and half.rule == "run"
    moved = ("reshape", "permute_dims")
    core = Group.of(case.graph, [op.index for op in operators if op.kind not in moved])
    assert ATTENTION.match(core, HARDWARE) is None


def test_what_the_kernel_before_does_for_nothing_is_left_to_it() -> None:
    def build(emit: Any, x: Any, w: Any, bias: Any, k: Any, v: Any) -> Any:
        q = emit(R.add(emit(R.matmul(x, w)), bias))
        return R.matmul(emit(R.nn.softmax(emit(R.matmul(q, k)))), v)

    case = LoweredGroup(build, [(2, 6, 8), (8, 8), (8,), (2, 8, 9), (2, 9, 8)])
    refusal = ATTENTION.match(Group.of(case.graph, range(1, len(case.graph.operators))), HARDWARE)
    assert refusal is not None and refusal.rule == "prologue"
    assert ATTENTION.match(Group.of(case.graph, range(2, len(case.graph.operators))), HARDWARE) is None
