"""Mapping types and counts of random operators, against enumerations made from each operator's definition alone.

The enumerations know nothing of TVM: for each output index they list, in plain Python, the operand indices that the
operator's definition reads there.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autofuse.graph.build import build_graph
from autofuse.graph.model import Access, MappingType

tvm = pytest.importorskip("tvm")
from tvm import relax  # noqa: E402
from tvm.relax import op as R  # noqa: E402

Index = tuple[int, ...]
Reads = Callable[[Index], Iterable[Index]]

quick = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
extents = st.integers(1, 5)


def accesses(make: Callable[..., Any], *shapes: Index) -> tuple[Access, ...]:
    parameters = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(make(*parameters)))
        builder.emit_func_output(output)
    module = relax.transform.LegalizeOps()(builder.get())
    return build_graph(module, "random").graph.operators[-1].accesses


def indices(shape: Index) -> Iterable[Index]:
    return itertools.product(*(range(e) for e in shape))


def flat(index: Index, shape: Index) -> int:
    n = 0
    for i, extent in zip(index, shape, strict=True):
        n = n * extent + i
    return n


def expected(shape: Index, out: Index, reads: Reads) -> tuple[MappingType, int, int]:
    """Type and counts by the definitions in docs/mapping-types.md; windows are told by the caller."""
    uses: Counter[Index] = Counter()
    most = 0
    pairs = []
    for o in indices(out):
        needed = set(reads(o))
        most = max(most, len(needed))
        uses.update(needed)
        pairs.extend((flat(o, out), flat(n, shape)) for n in needed)
    widest = max(uses.values(), default=0)
    if most > 1:
        return (MappingType.MANY_TO_MANY if widest > 1 else MappingType.MANY_TO_ONE), most, widest
    if widest > 1:
        return MappingType.ONE_TO_MANY, most, widest
    if shape == out and all(a == b for a, b in pairs):
        return MappingType.ONE_TO_ONE, most, widest
    moved = [b for _, b in sorted(pairs)]
    ordered = all(a < b for a, b in itertools.pairwise(moved))
    return (MappingType.REORGANIZE if ordered else MappingType.SHUFFLE), most, widest


def check(access: Access, shape: Index, out: Index, reads: Reads, *, stride: bool = True) -> None:
    found = (access.mapping, access.reads_per_output, access.uses_per_element)
    assert found == expected(shape, out, reads)
    assert not stride or access.stride in plausible_strides(shape, out, reads)


def plausible_strides(shape: Index, out: Index, reads: Reads) -> set[int]:
    """What one single-read operand's stride may be: the common step, or -1 where no step is common."""
    steps: Counter[int] = Counter()
    axis = max((d for d, e in enumerate(out) if e > 1), default=None)
    if axis is None:
        return {0}
    for o in indices(out):
        if o[axis] + 1 < out[axis]:
            after = (*o[:axis], o[axis] + 1, *o[axis + 1 :])
            here, there = list(reads(o)), list(reads(after))
            if len(here) == len(there) == 1:
                steps[flat(there[0], shape) - flat(here[0], shape)] += 1
    if not steps:
        return {-1}
    common = {step for step, n in steps.items() if 4 * n >= 3 * steps.total()}
    return common or {-1}


@quick
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 2), "groups")
    per_group, out_per_group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    kh, kw = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    step, pad, dilation = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 1)), data.draw(st.integers(1, 2))
    h, w = data.draw(st.integers(3, 6)), data.draw(st.integers(3, 6))
    oh = (h + 2 * pad - dilation * (kh - 1) - 1) // step + 1
    ow = (w + 2 * pad - dilation * (kw - 1) - 1) // step + 1
    assume(oh > 0 and ow > 0)
    shape, weight = (1, groups * per_group, h, w), (groups * out_per_group, per_group, kh, kw)
    out = (1, groups * out_per_group, oh, ow)

    def taps(o: Index) -> Iterable[tuple[Index, Index]]:
        group = o[1] // out_per_group
        for c, y, x in itertools.product(range(per_group), range(kh), range(kw)):
            row, column = o[2] * step + y * dilation - pad, o[3] * step + x * dilation - pad
            yield (0, group * per_group + c, row, column), (o[1], c, y, x)

    def inside(place: Index) -> bool:
        return 0 <= place[2] < h and 0 <= place[3] < w

    found = accesses(
        lambda x, k: R.nn.conv2d(x, k, strides=step, padding=pad, dilation=dilation, groups=groups), shape, weight
    )
    type_, reads, uses = expected(shape, out, lambda o: [p for p, _ in taps(o) if inside(p)])
    assert (found[0].reads_per_output, found[0].uses_per_element) == (reads, uses)
    if reads > 1:
        # With one read it depends on whether the rest of the window is padding, which is no matter of indices.
        assert found[0].mapping is type_
    # A weight is read wherever its window is laid, padding or not.
    type_, reads, uses = expected(weight, out, lambda o: [k for _, k in taps(o)])
    assert (found[1].reads_per_output, found[1].uses_per_element) == (reads, uses)


@quick
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
def test_matmuls(batch: int, m: int, n: int, k: int) -> None:
    left, right, out = (batch, m, k), (batch, k, n), (batch, m, n)
    found = accesses(R.matmul, left, right)
    rows: Reads = lambda o: [(o[0], o[1], j) for j in range(k)]  # noqa: E731
    columns: Reads = lambda o: [(o[0], j, o[2]) for j in range(k)]  # noqa: E731
    for access, shape, reads in ((found[0], left, rows), (found[1], right, columns)):
        type_, most, widest = expected(shape, out, reads)
        assert (access.reads_per_output, access.uses_per_element) == (most, widest)
        if most > 1 or widest > 1:
            assert access.mapping is type_


@quick
@given(st.data())
def test_pools(data: st.DataObject) -> None:
    size, step, pad = data.draw(st.integers(2, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(0, 1))
    h, w = data.draw(st.integers(3, 6)), data.draw(st.integers(3, 6))
    kind = data.draw(st.sampled_from([R.nn.max_pool2d, R.nn.avg_pool2d]))
    shape = (1, 2, h, w)
    out = (1, 2, (h + 2 * pad - size) // step + 1, (w + 2 * pad - size) // step + 1)

    def window(o: Index) -> Iterable[Index]:
        for y, x in itertools.product(range(size), range(size)):
            row, column = o[2] * step + y - pad, o[3] * step + x - pad
            if 0 <= row < h and 0 <= column < w:
                yield (o[0], o[1], row, column)

    (access,) = accesses(lambda x: kind(x, (size, size), (step, step), (pad, pad)), shape)
    type_, reads, uses = expected(shape, out, window)
    assert (access.reads_per_output, access.uses_per_element) == (reads, uses)
    assert reads == 1 or access.mapping is type_


@quick
@given(st.data())
def test_transposes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(extents, min_size=2, max_size=4)))
    axes = data.draw(st.permutations(range(len(shape))))
    out = tuple(shape[a] for a in axes)

    def reads(o: Index) -> list[Index]:
        place = [0] * len(shape)
        for position, axis in enumerate(axes):
            place[axis] = o[position]
        return [tuple(place)]

    (access,) = accesses(lambda x: R.permute_dims(x, list(axes)), shape)
    check(access, shape, out, reads)


@quick
@given(st.data())
def test_reshapes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3)))
    left = math.prod(shape)
    target = []
    while left > 1:
        factor = data.draw(st.sampled_from([f for f in range(2, left + 1) if left % f == 0]))
        target.append(factor)
        left //= factor
    out = (*target, *([1] * data.draw(st.integers(0 if target else 1, 1))))

    def reads(o: Index) -> list[Index]:
        n, place = flat(o, out), []
        for extent in reversed(shape):
            place.append(n % extent)
            n //= extent
        return [tuple(reversed(place))]

    (access,) = accesses(lambda x: R.reshape(x, out), shape)
    check(access, shape, out, reads)


@quick
@given(st.data())
def test_slices_and_pads_are_windows(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    first = data.draw(st.integers(1, shape[axis] - 1))
    step = data.draw(st.integers(1, 2))
    (sliced,) = accesses(lambda x: R.strided_slice(x, [axis], [first], [shape[axis]], [step]), shape)
    widths = [data.draw(st.integers(0, 2)) for _ in range(2 * len(shape))]
    assume(any(widths))
    (padded,) = accesses(lambda x: R.nn.pad(x, widths), shape)
    for access in (sliced, padded):
        assert access.mapping is MappingType.ONE_TO_ONE
        assert (access.reads_per_output, access.uses_per_element) == (1, 1)


@quick
@given(st.data())
def test_concatenations_are_windows(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))
    axis = data.draw(st.integers(0, len(shape) - 1))
    parts = []
    for extent in data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)):
        parts.append(tuple(extent if d == axis else e for d, e in enumerate(shape)))
    for access in accesses(lambda *xs: R.concat(list(xs), axis), *parts):
        assert access.mapping is MappingType.ONE_TO_ONE
        assert (access.reads_per_output, access.uses_per_element) == (1, 1)


@quick
@given(st.data())
def test_broadcasts(data: st.DataObject) -> None:
    out = tuple(data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=4)))
    kept = [data.draw(st.booleans()) for _ in out]
    dropped = data.draw(st.integers(0, len(out) - 1))
    shape = tuple(e if k else 1 for e, k in zip(out, kept, strict=True))[dropped:]

    def reads(o: Index) -> list[Index]:
        return [tuple(i if e > 1 else 0 for i, e in zip(o[dropped:], shape, strict=True))]

    full, other = accesses(R.add, out, shape)
    assert full.mapping is MappingType.ONE_TO_ONE
    check(other, shape, out, reads)


@quick
@given(st.data())
def test_reductions(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=3)))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    keep = data.draw(st.booleans())
    kind = data.draw(st.sampled_from([R.sum, R.mean, R.max]))
    out = tuple(1 if d in axes else e for d, e in enumerate(shape) if keep or d not in axes)
    kept = [d for d in range(len(shape)) if d not in axes]

    def reads(o: Index) -> Iterable[Index]:
        fixed = dict(zip(kept, [i for d, i in enumerate(o) if not keep or d in kept], strict=True))
        return (p for p in indices(shape) if all(p[d] == i for d, i in fixed.items()))

    (access,) = accesses(lambda x: kind(x, axes, keepdims=keep), shape)
    check(access, shape, out, reads, stride=False)
    assert access.mapping is MappingType.MANY_TO_ONE


@quick
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9))
def test_nearest_resizes(h: int, w: int, oh: int, ow: int) -> None:
    shape, out = (1, 2, h, w), (1, 2, oh, ow)

    def reads(o: Index) -> list[Index]:
        return [(o[0], o[1], min(o[2] * h // oh, h - 1), min(o[3] * w // ow, w - 1))]

    (access,) = accesses(
        lambda x: R.image.resize2d(
            x, (oh, ow), layout="NCHW", method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric", rounding_method="floor"),
        shape,
    )  # fmt: skip
    type_, most, widest = expected(shape, out, reads)
    # The run-time division is in float32, which rounds to the neighbour at a few ratios: one output moves.
    assert access.reads_per_output == most == 1
    assert abs(access.uses_per_element - widest) <= max(oh, ow)
    if oh % h == 0 and ow % w == 0:
        assert access.uses_per_element == widest == (oh // h) * (ow // w)
        assert access.mapping is type_
