"""Windows that are not alike along rows and columns: every family with a window is right for any kernel, stride,
dilation and padding of either axis, with groups where it takes them, for results that no tile divides, on floats and
with bytes on either side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_harness import Sketch
from test_schedule_conv import EPILOGUES, epilogue, run_some, start
from test_schedule_pairs import ORDERS, between, taking
from window_layers import grouped, transposed

from autofuse.schedule.cpu.conv2d import Conv2dFamily
from autofuse.schedule.cpu.conv_pool import ConvPoolFamily
from autofuse.schedule.cpu.depthwise import DepthwiseFamily
from autofuse.schedule.cpu.grouped import GroupedFamily
from autofuse.schedule.cpu.pool import PoolFamily
from autofuse.schedule.cpu.transposed import TransposedFamily

FEW = settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
RESULTS = st.sampled_from([1, 2, 5, 7, 11, 13])
BEFORE = st.sampled_from(["", "relu", "bytes"])
AFTER = st.sampled_from((*EPILOGUES, "bytes"))
PICK = st.integers(0, 11)
Two = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """How a window moves over data of `size`. padding: top, left, bottom, right."""

    size: Two
    kernel: Two
    strides: Two
    dilation: Two
    padding: tuple[int, int, int, int]


@st.composite
def windows(
    draw: st.DrawFn, kernels: tuple[int, ...] = (1, 2, 3, 3, 5), most_stride: int = 3, dilated: bool = True,
    gaps: bool = True, most_padding: int = 99,
) -> Window:  # fmt: skip
    """A window for each axis, with up to `most_padding` a side. gaps: whether it may leave out rows or columns."""
    axes = []
    for _ in range(2):
        kernel = draw(st.sampled_from(kernels))
        dilation = draw(st.sampled_from([1, 1, 2, 3])) if dilated else 1
        reach = (kernel - 1) * dilation
        stride = draw(st.integers(1, most_stride if gaps else min(most_stride, reach + 1)))
        low, high = (draw(st.integers(0, min(reach, most_padding))) for _ in range(2))
        over = draw(st.integers(0, stride - 1))  # what the last window leaves of the data
        size = (draw(RESULTS) - 1) * stride + reach + 1 - low - high + over
        axes.append((max(1, size), kernel, stride, dilation, low, high))
    size, kernel, strides, dilation, low, high = zip(*axes, strict=True)
    return Window(size, kernel, strides, dilation, (*low, *high))  # type: ignore[arg-type]


@FEW
@given(
    window=windows(), n=st.sampled_from([1, 2]), groups=st.sampled_from([1, 2, 3]), inputs=st.sampled_from([8, 16]),
    outputs=st.sampled_from([8, 16, 24]), before=BEFORE, after=AFTER, pick=PICK,
)  # fmt: skip
def test_convolutions_also_in_groups_of_whole_blocks(
    window: Window, n: int, groups: int, inputs: int, outputs: int, before: str, after: str, pick: int
) -> None:
    sketch = Sketch(pick)
    data, values = start(sketch, (n, groups * inputs, *window.size), before)
    result = sketch.conv2d(
        data, values, groups * outputs, window.kernel, strides=window.strides, padding=window.padding,
        dilation=window.dilation, groups=groups,
    )  # fmt: skip
    run_some(sketch.finish(*epilogue(sketch, result, after)), Conv2dFamily(), pick)


@FEW
@given(window=windows(), channels=st.sampled_from([8, 13, 24]), before=BEFORE, after=AFTER, pick=PICK)
def test_depthwise_convolutions(window: Window, channels: int, before: str, after: str, pick: int) -> None:
    sketch = Sketch(pick)
    data, values = start(sketch, (1, channels, *window.size), before)
    result = sketch.depthwise(
        data, values, window.kernel, strides=window.strides, padding=window.padding, dilation=window.dilation
    )
    run_some(sketch.finish(*epilogue(sketch, result, after)), DepthwiseFamily(), pick)


@FEW
@given(
    window=windows(), channels=st.sampled_from([(4, 4, 4), (2, 4, 6), (3, 3, 5), (12, 12, 2), (5, 7, 3)]),
    before=BEFORE, after=AFTER, pick=PICK,
)  # fmt: skip
def test_convolutions_in_groups_that_fill_no_blocks(
    window: Window, channels: tuple[int, int, int], before: str, after: str, pick: int
) -> None:
    inputs, outputs, groups = channels
    sketch = Sketch(pick)
    data, values = start(sketch, (1, inputs * groups, *window.size), before)
    result = grouped(
        sketch, data, values, outputs, window.kernel, groups, window.strides, window.padding, window.dilation
    )
    run_some(sketch.finish(*epilogue(sketch, result, after)), GroupedFamily(), pick)


@FEW
@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)), strides=st.sampled_from([(1, 2), (2, 1), (2, 3), (4, 2)]),
    cut=st.tuples(*[st.integers(0, 4)] * 4), more=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    size=st.tuples(st.integers(5, 7), st.integers(5, 9)), before=BEFORE, after=AFTER, pick=PICK,
    channels=st.sampled_from([(8, 8, 1), (13, 20, 1), (16, 16, 2), (24, 24, 24)]),
)  # fmt: skip
def test_transposed_convolutions(
    kernel: Two, strides: Two, cut: tuple[int, int, int, int], more: Two, size: Two, before: str, after: str, pick: int,
    channels: tuple[int, int, int],
) -> None:  # fmt: skip
    inputs, outputs, groups = channels
    padding = tuple(min(c, kernel[i % 2] - 1) for i, c in enumerate(cut))
    extra = (min(more[0], strides[0] - 1), min(more[1], strides[1] - 1))
    sketch = Sketch(pick)
    data, values = start(sketch, (1, inputs, *size), before)
    result = transposed(sketch, data, values, outputs, kernel, strides, padding, extra, groups)
    run_some(sketch.finish(*epilogue(sketch, result, after)), TransposedFamily(), pick)


@pytest.mark.parametrize("kind", ["max", "avg"])
@FEW
@given(
    data=st.data(), n=st.sampled_from([1, 2]), channels=st.sampled_from([3, 8, 17]), blocked=st.booleans(),
    counted=st.booleans(), before=BEFORE, pick=PICK,
)  # fmt: skip
def test_pools_also_dilated_ones(
    kind: str, data: st.DataObject, n: int, channels: int, blocked: bool, counted: bool, before: str, pick: int
) -> None:
    """Padding is less than half of a window, dilated ones have none: every window holds an element."""
    dilated = data.draw(st.booleans(), label="dilated")
    window = data.draw(windows(dilated=dilated, most_padding=0 if dilated else 1), label="window")
    sketch = Sketch(pick)
    values, _ = start(sketch, (n, channels, *window.size), before, plain=not blocked)
    result = sketch.pool(
        values, kind, window.kernel, strides=window.strides, padding=window.padding, dilation=window.dilation,
        count_include_pad=counted,
    )  # fmt: skip
    run_some(sketch.finish(sketch.relu(result)), PoolFamily(), pick)


@pytest.mark.parametrize("order", ORDERS)
@FEW
@given(
    window=windows(gaps=False), inputs=st.sampled_from([8, 24]), channels=st.sampled_from([8, 40]), before=BEFORE,
    middle=st.sampled_from(["", "relu", "swish", "gate"]), after=AFTER, pick=PICK,
)  # fmt: skip
def test_pairs(
    order: str, window: Window, inputs: int, channels: int, before: str, middle: str, after: str, pick: int
) -> None:
    how = {"strides": window.strides, "padding": window.padding, "dilation": window.dilation}
    sketch = Sketch(pick)
    data, values = start(sketch, (1, inputs, *window.size), before)
    if order == ORDERS[0]:
        made, values = between(sketch, sketch.depthwise(data, values, window.kernel, **how), inputs, middle)
        result = sketch.conv2d(made, values, channels, (1, 1))
    else:
        made, values = between(sketch, sketch.conv2d(data, values, channels, (1, 1)), channels, middle)
        result = sketch.depthwise(made, values, window.kernel, **how)
    run_some(sketch.finish(*epilogue(sketch, result, after)), taking(order), pick)


@FEW
@given(
    pool=windows(kernels=(2, 3), most_stride=2, dilated=False, gaps=False, most_padding=1),
    kernel=st.tuples(*[st.sampled_from([1, 3])] * 2), strides=st.tuples(*[st.integers(1, 2)] * 2),
    dilation=st.tuples(*[st.integers(1, 2)] * 2), groups=st.sampled_from([1, 2]), outputs=st.sampled_from([8, 24]),
    kind=st.sampled_from(["max", "avg"]), middle=st.sampled_from(["none", "relu", "residual"]), pick=PICK,
)  # fmt: skip
def test_convolutions_with_a_pool_behind(
    pool: Window, kernel: Two, strides: Two, dilation: Two, groups: int, outputs: int, kind: str, middle: str, pick: int
) -> None:
    """The pool's data are what the convolution gives: its own data are as large as that needs, padding on one side."""
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    size = [(results - 1) * s + 1 for results, s in zip(pool.size, strides, strict=True)]
    sketch = Sketch(pick)
    data, values = start(sketch, (1, 8 * groups, *size), "")
    made = sketch.conv2d(
        data, values, outputs * groups, kernel, strides=strides, padding=(reach[0], 0, 0, reach[1]), dilation=dilation,
        groups=groups,
    )  # fmt: skip
    assert made.answer.shape[2:4] == pool.size
    rows = epilogue(sketch, made, middle)[0]
    result = sketch.pool(rows, kind, pool.kernel, strides=pool.strides, padding=pool.padding)
    run_some(sketch.finish(result), ConvPoolFamily(), pick)


def test_windows_that_are_drawn_are_uneven_and_fit() -> None:
    """What the tests above are about does turn up: axes that differ in everything, and sizes that leave a result."""
    seen: list[Window] = []

    @settings(FEW, max_examples=40, database=None)
    @given(window=windows())
    def draw(window: Window) -> None:
        seen.append(window)

    draw()
    for name in ("kernel", "strides", "dilation"):
        assert any(getattr(w, name)[0] != getattr(w, name)[1] for w in seen)
    assert any(len(set(w.padding)) > 2 for w in seen)
    for w in seen:
        padded = np.array(w.size) + w.padding[:2] + w.padding[2:]
        assert (padded > (np.array(w.kernel) - 1) * w.dilation).all()
