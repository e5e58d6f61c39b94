"""Kernels in several steps: squeeze-and-excitation whole and in parts, pooled heads, vectors through products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowered_groups import HARDWARE, LoweredGroup
from tvm import relax
from tvm.relax import op as R

from autofuse.graph.model import Group
from autofuse.schedule.cpu.staged import StagedFamily, slice_axes
from autofuse.schedule.registry import families

STAGED = StagedFamily()


def constant(array: np.ndarray) -> Any:
    return relax.const(array.astype("float32"))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Squeeze:
    """A squeeze-and-excitation block behind a convolution that blocks its channels, and numpy's answer."""

    def __init__(self, channels: int, squeezed: int, samples: int, rows: int, columns: int, swish: bool = True) -> None:
        random = np.random.default_rng(channels + squeezed)

        def weight(o: int, i: int) -> np.ndarray:
            return random.standard_normal((o, i, 1, 1)).astype("float32") / np.sqrt(np.float32(i))

        self.first, self.down = weight(channels, channels), weight(squeezed, channels)
        self.up = weight(channels, squeezed)
        self.low, self.high = random.random((1, squeezed, 1, 1)), random.random((1, channels, 1, 1))
        self.swish = swish
        self.case = LoweredGroup(self.build, [(samples, channels, rows, columns)])
        convolutions = [op.index for op in self.case.graph.operators if op.kind == "nn.conv2d"]
        self.start = convolutions[0] + 1
        kinds = [op.kind for op in self.case.graph.operators]
        self.end = len(kinds) - 1 if kinds[-1] == "layout_change" else len(kinds)
        self.tail = convolutions[2]

    def build(self, emit: Any, x: Any) -> Any:
        x = emit(R.nn.conv2d(x, constant(self.first)))
        y = emit(R.mean(x, [2, 3], keepdims=True))
        y = emit(R.add(emit(R.nn.conv2d(y, constant(self.down))), constant(self.low)))
        y = emit(R.multiply(y, emit(R.sigmoid(y)))) if self.swish else emit(R.nn.relu(y))
        y = emit(R.sigmoid(emit(R.add(emit(R.nn.conv2d(y, constant(self.up))), constant(self.high)))))
        return emit(R.multiply(x, y))

    def group(self, start: int) -> Group:
        return Group.of(self.case.graph, range(start, self.end))


SQUEEZES = [(32, 8, 1, 9, 7, True), (24, 4, 2, 5, 6, True), (20, 6, 1, 13, 4, False), (8, 8, 3, 8, 8, False)]


@pytest.mark.parametrize("sizes", SQUEEZES)
def test_squeeze_and_excitation_is_one_kernel(sizes: Any) -> None:
    squeeze = Squeeze(*sizes)
    case, group = squeeze.case, squeeze.group(squeeze.start)
    assert group.operators[0].kind == "mean" and len(group.outputs) == 1
    assert next(f.name for f in families() if f.match(group, HARDWARE) is None) == "staged"
    case.agrees(STAGED, group.members, 1e-5, group.outputs)


def test_the_tail_of_a_squeeze_is_one_kernel_and_its_gate_costs_no_parallel_region() -> None:
    squeeze = Squeeze(32, 8, 1, 20, 30)
    group = squeeze.group(squeeze.tail)
    assert next(f.name for f in families() if f.match(group, HARDWARE) is None) == "staged"
    squeeze.case.agrees(STAGED, group.members, 1e-5, group.outputs)
    loops = {(c.parallel, c.inside): STAGED.shape(group, c, HARDWARE).loops for c in STAGED.configs(group, HARDWARE)}
    assert loops[1, 1] == 1


def product(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return x @ w + b


@pytest.mark.parametrize(("depth", "hidden", "columns"), [(40, 24, 10), (33, 100, 47), (7, 16, 32)])
def test_vectors_through_several_products(depth: int, hidden: int, columns: int) -> None:
    random = np.random.default_rng(depth)
    w1, b1 = random.standard_normal((depth, hidden)), random.standard_normal(hidden)
    w2, b2 = random.standard_normal((hidden, columns)), random.standard_normal(columns)

    def build(emit: Any, x: Any) -> Any:
        y = emit(R.nn.relu(emit(R.add(emit(R.matmul(x, constant(w1))), constant(b1)))))
        return R.add(emit(R.matmul(y, constant(w2))), constant(b2))

    case = LoweredGroup(build, [(1, depth)])
    assert case.family() == "staged"
    case.check(STAGED, product(np.maximum(product(case.arrays[0], w1, b1), 0), w2, b2))


def test_a_pooled_head_is_one_kernel() -> None:
    random = np.random.default_rng(3)
    first, w, b = random.standard_normal((24, 16, 1, 1)), random.standard_normal((24, 30)), random.standard_normal(30)

    def build(emit: Any, x: Any) -> Any:
        x = emit(R.nn.conv2d(x, constant(first)))
        x = emit(R.reshape(emit(R.mean(x, [2, 3], keepdims=True)), (1, 24)))
        return R.add(emit(R.matmul(x, constant(w))), constant(b))

    case = LoweredGroup(build, [(1, 16, 9, 5)])
    kinds = [op.kind for op in case.graph.operators]
    group = Group.of(case.graph, range(kinds.index("mean"), len(kinds)))
    assert next(f.name for f in families() if f.match(group, HARDWARE) is None) == "staged"
    case.agrees(STAGED, group.members, 1e-5, group.outputs)


def test_large_contractions_large_intermediates_and_single_steps_are_refused() -> None:
    wide = constant(np.ones((64, 64)))
    rows = LoweredGroup(lambda emit, x: R.matmul(emit(R.matmul(x, wide)), wide), [(5, 64)])
    refusal = rows.refusal(STAGED)
    assert refusal is not None and refusal.rule == "extent"
    single = LoweredGroup(lambda emit, x: R.nn.relu(emit(R.matmul(x, wide))), [(1, 64)])
    refusal = single.refusal(STAGED)
    assert refusal is not None and refusal.rule == "steps"
    both = LoweredGroup(
        lambda emit, x: [y := emit(R.matmul(x, wide)), emit(R.matmul(y, wide))], [(1, 64)],
    )  # fmt: skip
    refusal = both.refusal(STAGED)
    assert refusal is not None and refusal.rule == "results"
    before = LoweredGroup(lambda emit, x: R.matmul(emit(R.matmul(emit(R.exp(x)), wide)), wide), [(1, 64)])
    refusal = before.refusal(STAGED)
    assert refusal is not None and refusal.rule == "prologue"


def test_slices_follow_the_leading_axes() -> None:
    assert slice_axes((1, 4, 1, 1, 8), (1, 4, 7, 7, 8)) == 2
    assert slice_axes((1, 4, 7, 7, 8), (1, 4, 7, 7, 8)) == 0
    assert slice_axes((1, 1, 1, 1, 8), (1, 4, 7, 7, 8)) == 0
    assert slice_axes((4, 8), (1, 4, 8)) == 0


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    channels=st.integers(1, 40), squeezed=st.integers(1, 20), samples=st.integers(1, 2), rows=st.integers(2, 12),
    columns=st.integers(2, 12), start=st.sampled_from(["whole", "tail"]),
)  # fmt: skip
def test_squeezes_of_any_size(channels: int, squeezed: int, samples: int, rows: int, columns: int, start: str) -> None:
    squeeze = Squeeze(channels, squeezed, samples, rows, columns)
    group = squeeze.group(squeeze.start if start == "whole" else squeeze.tail)
    if STAGED.match(group, HARDWARE) is None:
        squeeze.case.agrees(STAGED, group.members, 1e-5, group.outputs)
    else:
        assert squeezed * 16 > rows * columns
