"""Transposed convolutions with a stride: any kernel, stride, padding and remainder, with work around them, is right."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_harness import HARDWARE, Sketch
from test_schedule_conv import EPILOGUES, epilogue, run_some, start
from window_layers import transposed

from autofuse.lower.geometry import Phases
from autofuse.schedule.cpu.transposed import TransposedFamily

FEW = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
# kernel, stride, padding (top, left, bottom, right), output padding
GEOMETRY = (
    ((2, 2), (2, 2), (0, 0, 0, 0), (0, 0)),
    ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0)),
    ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((3, 3), (2, 2), (0, 0, 0, 0), (0, 0)),
    ((5, 4), (3, 2), (2, 0, 1, 3), (0, 1)),
    ((2, 3), (3, 4), (0, 1, 0, 0), (0, 0)),  # results that see no tap
    ((6, 3), (3, 1), (2, 1, 1, 1), (0, 0)),
    ((3, 3), (1, 2), (2, 2, 2, 2), (0, 1)),
    ((4, 6), (2, 2), (3, 4, 3, 4), (0, 0)),  # more padding than the phase has taps
)


@FEW
@given(
    geometry=st.sampled_from(GEOMETRY), n=st.sampled_from([1, 1, 2]), h=st.sampled_from([3, 4, 7]),
    w=st.sampled_from([3, 5, 8, 13]),
    channels=st.sampled_from([(8, 8, 1), (13, 20, 1), (16, 32, 2), (24, 24, 24), (16, 17, 1), (1, 9, 1)]),
    prologue=st.sampled_from(["", "", "relu"]), after=st.sampled_from(EPILOGUES), pick=st.integers(0, 11),
)  # fmt: skip
def test_transposed_convolutions_are_right_on_any_shape(
    geometry: tuple[tuple[int, ...], ...], n: int, h: int, w: int, channels: tuple[int, int, int], prologue: str,
    after: str, pick: int,
) -> None:  # fmt: skip
    kernel, strides, padding, extra = geometry
    inputs, outputs, groups = channels
    sketch = Sketch(pick)
    data, values = start(sketch, (n, inputs, h, w), prologue)
    result = transposed(sketch, data, values, outputs, kernel, strides, padding, extra, groups)  # type: ignore[arg-type]
    run_some(sketch.finish(*epilogue(sketch, result, after)), TransposedFamily(), pick)


@pytest.mark.parametrize("geometry", GEOMETRY)
def test_every_geometry_is_right(geometry: tuple[tuple[int, ...], ...]) -> None:
    """Several configurations of each, a width that no tile divides."""
    kernel, strides, padding, extra = geometry
    sketch = Sketch()
    data, values = start(sketch, (1, 16, 4, 13), "")
    result = transposed(sketch, data, values, 32, kernel, strides, padding, extra)  # type: ignore[arg-type]
    case = sketch.finish(*epilogue(sketch, result, "relu"))
    case.check(TransposedFamily(), TransposedFamily().configs(case.group, HARDWARE)[::6])


def test_a_layout_change_ends_the_group() -> None:
    """Channels past the last are left out; so after a depthwise layer."""
    for outputs, groups in ((12, 1), (16, 16)):
        sketch = Sketch()
        data, values = start(sketch, (2, 16, 3, 5), "")
        result = transposed(sketch, data, values, outputs, (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), groups)
        case = sketch.finish(sketch.unblock(sketch.relu(result), outputs))
        case.check(TransposedFamily(), TransposedFamily().configs(case.group, HARDWARE)[::5])


def test_phases_share_the_taps_among_them() -> None:
    """Every element of the kernel belongs to one phase; every row of results to one, too."""
    for extent, kernel, stride, padding, out in ((7, 3, 2, 1, 14), (5, 2, 3, 0, 14), (4, 8, 4, 2, 16), (5, 5, 2, 4, 5)):
        axis = Phases(extent, kernel, stride, padding, out)
        assert sum(axis.lengths) == kernel and sum(axis.counts) == out
        for p in range(stride):
            for i in range(axis.counts[p]):
                for t in range(axis.taps - axis.lengths[p], axis.taps):
                    at = i + axis.low[p] + t
                    # Row y meets data row `at` at kernel row y + padding - stride · at.
                    assert 0 <= stride * i + p + padding - stride * at < kernel
                    assert -axis.before <= at < extent + axis.after


def test_the_work_is_that_of_the_taps() -> None:
    """A kernel that the stride does not divide: phases with fewer taps do less."""
    sketch = Sketch()
    data, values = start(sketch, (1, 8, 8, 8), "")
    case = sketch.finish(transposed(sketch, data, values, 16, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)))
    for config in TransposedFamily().configs(case.group, HARDWARE):
        shape = TransposedFamily().shape(case.group, config, HARDWARE)
        assert shape.fma_ratio == pytest.approx(2.25 / 4)
        assert shape.accumulators + config.nb + 1 <= HARDWARE.vector_registers
