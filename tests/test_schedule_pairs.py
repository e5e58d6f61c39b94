"""Two convolutions in one kernel: depthwise then pointwise, pointwise then depthwise; right on any shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_harness import HARDWARE, Case, Role, Sketch, Value
from test_schedule_conv import EPILOGUES, epilogue, run_some, start

from autofuse.schedule.cpu.depthwise_pointwise import DepthwisePointwiseFamily
from autofuse.schedule.cpu.pointwise_depthwise import PointwiseDepthwiseFamily
from autofuse.schedule.family import ScheduleFamily
from autofuse.schedule.registry import families

FEW = settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
ORDERS = ("depthwise, pointwise", "pointwise, depthwise")


def taking(order: str) -> ScheduleFamily:
    return DepthwisePointwiseFamily() if order == ORDERS[0] else PointwiseDepthwiseFamily()


def plain(value: Value, channels: int) -> np.ndarray:
    """What a blocked value holds, as [N, C, H, W]."""
    n, _, rows, columns, _ = value.answer.shape
    return value.answer.transpose(0, 1, 4, 2, 3).reshape(n, -1, rows, columns)[:, :channels]


def between(sketch: Sketch, value: Value, channels: int, kind: str) -> tuple[Value, np.ndarray]:
    """Elementwise operators between the two convolutions."""
    if kind:
        value = sketch.add(value, sketch.source((1, value.answer.shape[1], 1, 1, 8), Role.CONSTANT))
        value = sketch.relu(value)
    if kind == "swish":
        value = sketch.multiply(value, sketch.sigmoid(value))
    if kind == "gate":
        value = sketch.multiply(value, sketch.relu(sketch.source((value.answer.shape[0], *value.answer.shape[1:]))))
    return value, plain(value, channels)


def pair(
    order: str, shape: tuple[int, ...], channels: int, kernel: int, stride: int = 1, dilation: int = 1,
    padding: tuple[int, ...] = (), prologue: str = "", middle: str = "relu", after: str = "none", seed: int = 0,
) -> Case:  # fmt: skip
    """Both convolutions with work around them; `shape` of the data, `channels` of the pointwise results."""
    reach = (kernel - 1) * dilation
    how = {
        "strides": (stride, stride), "dilation": (dilation, dilation), "padding": padding or (reach // 2,) * 4
    }  # fmt: skip
    sketch = Sketch(seed)
    data, values = start(sketch, shape, prologue)
    if order == ORDERS[0]:
        made, values = between(sketch, sketch.depthwise(data, values, (kernel, kernel), **how), shape[1], middle)
        result = sketch.conv2d(made, values, channels, (1, 1))
    else:
        made, values = between(sketch, sketch.conv2d(data, values, channels, (1, 1)), channels, middle)
        result = sketch.depthwise(made, values, (kernel, kernel), **how)
    return sketch.finish(*epilogue(sketch, result, after))


@pytest.mark.parametrize("order", ORDERS)
@FEW
@given(
    n=st.sampled_from([1, 1, 3]), inputs=st.sampled_from([8, 16, 40]), channels=st.sampled_from([8, 24, 32, 40, 56]),
    h=st.sampled_from([1, 2, 5, 7, 8, 13, 14]), w=st.sampled_from([1, 4, 7, 13, 14, 29]),
    kernel=st.sampled_from([1, 3, 3, 3, 5, 7]), stride=st.sampled_from([1, 1, 2]), dilation=st.sampled_from([1, 1, 2]),
    prologue=st.sampled_from(["", "", "relu", "sigmoid"]), middle=st.sampled_from(["", "relu", "swish", "gate"]),
    after=st.sampled_from(EPILOGUES), pick=st.integers(0, 7), uneven=st.booleans(),
)  # fmt: skip
def test_pairs_are_right_on_any_shape(
    order: str, n: int, inputs: int, channels: int, h: int, w: int, kernel: int, stride: int, dilation: int,
    prologue: str, middle: str, after: str, pick: int, uneven: bool,
) -> None:  # fmt: skip
    reach = (kernel - 1) * dilation
    padding = (0, 0, reach, reach) if uneven else (reach // 2,) * 4
    stride = 1 if kernel == 1 else stride
    case = pair(
        order, (n, inputs, h, w), channels, kernel, stride, dilation, padding, prologue, middle, after, seed=pick
    )
    run_some(case, taking(order), pick)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("prologue", ["", "relu"])
def test_every_configuration_is_right(order: str, prologue: str) -> None:
    """Rows, columns and channels that nothing divides; the last part of the rows overlaps the one before it."""
    case = pair(order, (1, 16, 13, 19), 40, 3, prologue=prologue, after="residual")
    offered = taking(order).configs(case.group, HARDWARE)
    assert any(13 % config.hb for config in offered) and any(5 % config.nb for config in offered)
    case.check(taking(order), offered[:: 3 if prologue else 2])


@pytest.mark.parametrize("order", ORDERS)
def test_channels_that_only_fill_a_block_do_no_harm(order: str) -> None:
    case = pair(order, (1, 13, 6, 9), 17, 5, stride=2, after="relu")
    case.check(taking(order), taking(order).configs(case.group, HARDWARE)[::3])


@pytest.mark.parametrize("order", ORDERS)
def test_a_layout_change_ends_the_group(order: str) -> None:
    sketch = Sketch()
    data, values = start(sketch, (1, 16, 5, 6), "")
    if order == ORDERS[0]:
        made, values = between(sketch, sketch.depthwise(data, values, (3, 3), padding=(1, 1, 1, 1)), 16, "relu")
        result = sketch.conv2d(made, values, 13, (1, 1))
    else:
        made, values = between(sketch, sketch.conv2d(data, values, 13, (1, 1)), 13, "relu")
        result = sketch.depthwise(made, values, (3, 3), padding=(1, 1, 1, 1))
    case = sketch.finish(sketch.unblock(sketch.relu(result), 13))
    case.check(taking(order), taking(order).configs(case.group, HARDWARE)[::3])


@pytest.mark.parametrize("order", ORDERS)
def test_only_what_stays_inside_is_fused(order: str) -> None:
    """The result of the first convolution is not written, and read by the second one alone."""
    sketch = Sketch()
    data, values = start(sketch, (1, 16, 6, 6), "")
    if order == ORDERS[0]:
        first = sketch.depthwise(data, values, (3, 3), padding=(1, 1, 1, 1))
        last = sketch.conv2d(first, plain(first, 16), 16, (1, 1))
    else:
        first = sketch.conv2d(data, values, 16, (1, 1))
        last = sketch.depthwise(first, plain(first, 16), (3, 3), padding=(1, 1, 1, 1))
    for case in (sketch.finish(first, last), sketch.finish(sketch.add(last, first))):
        refusal = taking(order).match(case.group, HARDWARE)
        assert refusal is not None and refusal.rule == "output"


@pytest.mark.parametrize("order", ORDERS)
def test_other_pairs_are_refused(order: str) -> None:
    """A 3×3 convolution instead of the pointwise one, a stride of its own, the other order."""
    assert taking(order).match(pair(ORDERS[order == ORDERS[0]], (1, 16, 8, 8), 16, 3).group, HARDWARE) is not None
    for how in ({"kernel": (3, 3)}, {"kernel": (1, 1), "strides": (2, 2)}):
        sketch = Sketch()
        data, values = start(sketch, (1, 16, 8, 8), "")
        if order == ORDERS[0]:
            first = sketch.depthwise(data, values, (3, 3), padding=(1, 1, 1, 1))
            last = sketch.conv2d(first, plain(first, 16), 16, **how)
        else:
            first = sketch.conv2d(data, values, 16, **how)
            last = sketch.depthwise(first, plain(first, 16), (3, 3), padding=(1, 1, 1, 1))
        assert taking(order).match(sketch.finish(last).group, HARDWARE) is not None


@pytest.mark.parametrize("order", ORDERS)
def test_shapes_count_both_convolutions(order: str) -> None:
    """Every operand and result passes once; what is made twice is counted; the registers suffice."""
    case = pair(order, (1, 64, 28, 28), 64, 3, after="residual")
    expected = sum(p.answer.nbytes for p in case.parameters) + sum(o.answer.nbytes for o in case.outputs)
    for config in taking(order).configs(case.group, HARDWARE):
        shape = taking(order).shape(case.group, config, HARDWARE)
        assert shape.memory_bytes == expected
        assert shape.l1_bytes >= shape.l2_bytes > 0 and shape.l3_bytes > 0
        assert config.nb * config.mt + config.nb + 1 <= HARDWARE.vector_registers
        whole = config.hb == 28 and (order == ORDERS[1] or config.cob * config.nb == 8)
        assert (shape.recompute == 1) == whole or shape.recompute >= 1


def test_other_families_leave_pairs_alone() -> None:
    case = pair(ORDERS[0], (1, 16, 8, 8), 16, 3)
    assert [f.name for f in families() if f.match(case.group, HARDWARE) is None] == ["depthwise_pointwise"]
