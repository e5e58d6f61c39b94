"""Resizes: nearest and linear, of any sizes, up and down, in rows and in channel blocks, are right; who takes them."""

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
from autofuse.measure.oracle import evaluate
from autofuse.schedule.cpu.resize import ResizeFamily
from autofuse.schedule.registry import families

RESIZE = ResizeFamily()
LINEAR = ("half_pixel", "align_corners", "asymmetric")


def resized(shape: tuple[int, ...], size: tuple[int, int], method: str, coordinates: str, after: Any = None) -> Any:
    def build(emit: Any, x: Any) -> Any:
        rounding = "floor" if method == "nearest_neighbor" else ""
        made = R.image.resize2d(
            x, size, method=method, coordinate_transformation_mode=coordinates, rounding_method=rounding
        )
        return made if after is None else after(emit(made))

    return LoweredGroup(build, [shape])


def positions(count: int, source: int, coordinates: str) -> np.ndarray:
    """Where each of `count` results stands among `source` elements."""
    i = np.arange(count, dtype=np.float64)
    if coordinates == "align_corners":
        return i * ((source - 1) / (count - 1)) if count > 1 else i * 0
    return (i + 0.5) * source / count - 0.5 if coordinates == "half_pixel" else i * source / count


def linear(x: np.ndarray, axis: int, count: int, coordinates: str) -> np.ndarray:
    at = positions(count, x.shape[axis], coordinates)
    low = np.floor(at)
    share = (at - low).reshape(-1, *(1,) * (x.ndim - axis - 1))
    first, second = (np.take(x, np.clip(low + o, 0, x.shape[axis] - 1).astype(int), axis) for o in (0, 1))
    return np.asarray(first * (1 - share) + second * share)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    planes=st.sampled_from([(1, 1), (1, 3), (2, 2)]), source=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    size=st.tuples(st.integers(2, 40), st.integers(2, 40)), coordinates=st.sampled_from(LINEAR),
)  # fmt: skip
def test_linear_resizes_of_any_size(
    planes: tuple[int, int], source: tuple[int, int], size: tuple[int, int], coordinates: str
) -> None:
    case = resized((*planes, *source), size, "linear", coordinates)
    assert case.family() == "resize"
    wanted = linear(linear(case.arrays[0], 2, size[0], coordinates), 3, size[1], coordinates)
    case.check(RESIZE, wanted, tolerance=1e-4)  # positions are computed in float32
    case.check(RESIZE, case.unscheduled(), tolerance=1e-6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_nearest_resizes_of_any_size(data: st.DataObject) -> None:
    """Whole multiples, which are made of lanes of vectors, as often as all other sizes."""
    planes = data.draw(st.sampled_from([(1, 1), (1, 3), (2, 2)]), label="planes")
    source = data.draw(st.tuples(st.integers(1, 19), st.integers(1, 21)), label="source")
    sizes = [
        e * data.draw(st.integers(1, 9)) if data.draw(st.booleans()) else data.draw(st.integers(1, 40)) for e in source
    ]
    case = resized((*planes, *source), (sizes[0], sizes[1]), "nearest_neighbor", "asymmetric")
    assert case.family() == "resize"
    rows, columns = (np.arange(e) * s // e for e, s in zip(sizes, source, strict=True))
    case.check(RESIZE, case.unscheduled(), tolerance=1e-12)
    if all(e % s == 0 for e, s in zip(sizes, source, strict=True)):
        case.check(RESIZE, case.arrays[0][:, :, rows][:, :, :, columns], tolerance=1e-12)


@pytest.mark.parametrize("coordinates", LINEAR)
@pytest.mark.parametrize(("size", "channels"), [((14, 10), 16), ((5, 21), 20), ((3, 4), 8)])
def test_linear_resizes_in_channel_blocks(coordinates: str, size: tuple[int, int], channels: int) -> None:
    weight = relax.const(np.eye(channels, dtype="float32").reshape(channels, channels, 1, 1))

    def build(emit: Any, x: Any) -> Any:
        made = emit(R.nn.conv2d(x, weight))
        made = emit(R.image.resize2d(made, size, method="linear", coordinate_transformation_mode=coordinates))
        return R.nn.conv2d(made, weight)

    case = LoweredGroup(build, [(2, channels, 7, 5)])
    (op,) = (op for op in case.graph.operators if op.kind == "image.resize2d")
    group = Group.of(case.graph, [op.index])
    assert len(case.graph.tensors[op.outputs[0]].shape) == 5
    assert next(f.name for f in families() if f.match(group, HARDWARE) is None) == "resize"
    case.agrees(RESIZE, [op.index])


@pytest.mark.parametrize("method", ["linear", "nearest_neighbor"])
def test_numpy_agrees_with_the_kernel(method: str) -> None:
    for coordinates in LINEAR if method == "linear" else ("asymmetric",):
        case = resized((1, 3, 7, 5), (14, 13), method, coordinates)
        (wanted,) = evaluate(case.group, case.arrays)
        case.check(RESIZE, wanted, tolerance=1e-4)


def test_what_is_left_to_others() -> None:
    """Work around a resize fuses with it as elementwise groups do; cubic ones are taken by the plain schedule."""
    nearest = resized((1, 3, 7, 5), (14, 10), "nearest_neighbor", "asymmetric", R.nn.relu)
    assert nearest.family() == "elementwise"
    refusal = nearest.refusal(RESIZE)
    assert refusal is not None and refusal.rule == "family"
    cubic = resized((1, 3, 7, 5), (14, 10), "cubic", "half_pixel")
    refusal = cubic.refusal(RESIZE)
    assert refusal is not None and refusal.rule == "layout"
    assert cubic.family() == "plain"
