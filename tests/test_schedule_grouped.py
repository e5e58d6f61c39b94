"""Grouped convolutions whose groups do not fill channel blocks: any shape, with work around them, is right."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_harness import HARDWARE, Case, Sketch
from test_schedule_conv import EPILOGUES, epilogue, run_some, start
from window_layers import grouped

from autofuse.lower.geometry import channel_ranges, shuffled
from autofuse.schedule.cpu.grouped import GroupedFamily, layer_of

FEW = settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
# (inputs, outputs) of a group, groups: rearranged within a vector, from parts of one, from two; broadcast.
CHANNELS = (
    (4, 4, 8), (2, 2, 8), (4, 4, 3), (1, 2, 16), (2, 4, 6), (8, 4, 4), (3, 3, 5), (12, 12, 4), (5, 7, 3), (20, 20, 2)
)  # fmt: skip


@FEW
@given(
    channels=st.sampled_from(CHANNELS), n=st.sampled_from([1, 1, 2]), h=st.sampled_from([1, 5, 7, 8, 14]),
    w=st.sampled_from([1, 4, 7, 13, 14, 29]), kernel=st.sampled_from([(1, 1), (3, 3), (3, 3), (1, 3), (5, 5)]),
    stride=st.sampled_from([1, 1, 2]), dilation=st.sampled_from([1, 1, 2]), pad=st.booleans(),
    prologue=st.sampled_from(["", "", "relu"]), after=st.sampled_from(EPILOGUES), pick=st.integers(0, 9),
)  # fmt: skip
def test_grouped_convolutions_are_right_on_any_shape(
    channels: tuple[int, int, int], n: int, h: int, w: int, kernel: tuple[int, int], stride: int, dilation: int,
    pad: bool, prologue: str, after: str, pick: int,
) -> None:  # fmt: skip
    inputs, outputs, groups = channels
    reach = [(k - 1) * dilation for k in kernel]
    pad = pad or h <= reach[0] or w <= reach[1]
    padding = (reach[0] // 2, reach[1] // 2, reach[0] - reach[0] // 2, reach[1] - reach[1] // 2) if pad else (0,) * 4
    sketch = Sketch(pick)
    data, values = start(sketch, (n, inputs * groups, h, w), prologue)
    result = grouped(sketch, data, values, outputs, kernel, groups, (stride, stride), padding, (dilation, dilation))
    run_some(sketch.finish(*epilogue(sketch, result, after)), GroupedFamily(), pick)


@pytest.mark.parametrize("channels", CHANNELS)
def test_every_kind_of_group_is_right(channels: tuple[int, int, int]) -> None:
    """All configurations of a padded 3×3 layer with a width that no tile divides."""
    inputs, outputs, groups = channels
    sketch = Sketch()
    data, values = start(sketch, (1, inputs * groups, 6, 13), "")
    result = grouped(sketch, data, values, outputs, (3, 3), groups, padding=(1, 1, 1, 1))
    case = sketch.finish(*epilogue(sketch, result, "relu"))
    case.check(GroupedFamily(), GroupedFamily().configs(case.group, HARDWARE)[::2])


def test_a_layout_change_ends_the_group() -> None:
    """Channels past the last are left out."""
    sketch = Sketch()
    data, values = start(sketch, (2, 12, 5, 6), "")
    last = sketch.unblock(sketch.relu(grouped(sketch, data, values, 4, (3, 3), 3, padding=(1, 1, 1, 1))), 12)
    case = sketch.finish(last)
    case.check(GroupedFamily(), GroupedFamily().configs(case.group, HARDWARE)[::2])


def _case(channels: tuple[int, int, int]) -> Case:
    inputs, outputs, groups = channels
    sketch = Sketch()
    data, values = start(sketch, (1, inputs * groups, 8, 8), "")
    return sketch.finish(grouped(sketch, data, values, outputs, (3, 3), groups, padding=(1, 1, 1, 1)))


@pytest.mark.parametrize("channels", CHANNELS)
def test_blocks_read_no_more_than_their_groups(channels: tuple[int, int, int]) -> None:
    """What is multiplied: the channels of a group where lanes are rearranged, else of the groups that a block meets."""
    inputs, outputs, groups = channels
    case = _case(channels)
    found = layer_of(case.group, HARDWARE.lanes)
    assert isinstance(found, tuple)
    layer = found[1]
    if shuffled(inputs, outputs, groups, 8):
        assert layer.exact and layer.read == inputs
    else:
        ranges = channel_ranges(inputs, outputs, groups, 8)
        met = [len({c // outputs for c in range(8 * b, min(8 * b + 8, groups * outputs))}) for b in range(layer.oc)]
        assert [(last - first) // inputs for first, last in ranges] == met
    for config in GroupedFamily().configs(case.group, HARDWARE):
        shape = GroupedFamily().shape(case.group, config, HARDWARE)
        assert shape.accumulators + (5 if layer.exact else 3) <= HARDWARE.vector_registers
        assert 0 < shape.fma_ratio <= 1 and shape.l1_bytes >= shape.l2_bytes * 0 and shape.l3_bytes > 0


def test_other_convolutions_are_refused() -> None:
    """Dense and depthwise layers belong to other families."""
    sketch = Sketch()
    data, values = start(sketch, (1, 16, 5, 5), "")
    for case in (sketch.finish(sketch.conv2d(data, values, 16, (3, 3))),):
        refusal = GroupedFamily().match(case.group, HARDWARE)
        assert refusal is not None and refusal.rule == "variant"
