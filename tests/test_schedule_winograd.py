"""The Winograd family and prepared constants: what is taken, that it is right within its bound, that weights arrive."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schedule_harness import HARDWARE, Case, Role, Sketch, Value, block

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.model import Candidate
from autofuse.graph.model import Group, MappingType, Work
from autofuse.measure.jobs import ArgumentSpec, MeasureJob, fill_inputs
from autofuse.schedule.cpu.conv2d import Conv2dFamily
from autofuse.schedule.cpu.winograd import ERROR, MOST_CHANNELS, WinogradConfiguration, WinogradFamily
from autofuse.schedule.family import beside
from autofuse.schedule.preparations import WINOGRAD_WEIGHTS, prepare, prepared_shape, winograd_text
from autofuse.schedule.registry import families, family

FAMILY = WinogradFamily()
FEW = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=40)


def layer(
    shape: tuple[int, int, int, int] = (1, 16, 12, 12),
    channels: int = 16,
    padding: tuple[int, int, int, int] = (1, 1, 1, 1),
    behind: str = "relu",
    before: str = "",
    seed: int = 0,
) -> Case:
    """A 3x3 convolution with something around it."""
    sketch = Sketch(seed)
    plain = sketch.uniform(shape)
    data = sketch.source((), array=block(plain))
    if before == "relu":
        data, plain = sketch.relu(data), np.maximum(plain, 0)
    value = sketch.conv2d(data, plain, channels, (3, 3), padding=padding)
    return sketch.finish(*_behind(sketch, value, behind, channels))


def _behind(sketch: Sketch, value: Value, kind: str, channels: int) -> tuple[Value, ...]:
    n, blocks, rows, columns, lanes = value.answer.shape
    if kind == "none":
        return (value,)
    biased = sketch.add(value, sketch.source((1, blocks, 1, 1, lanes), Role.CONSTANT))
    if kind == "relu":
        return (sketch.relu(biased),)
    if kind == "residual":
        other = sketch.relu(sketch.source((n, blocks, rows, columns, lanes)))
        return (sketch.relu(sketch.add(biased, other)),)
    if kind == "swish":
        return (sketch.multiply(biased, sketch.sigmoid(biased)),)
    if kind == "plain layout":
        return (sketch.unblock(sketch.relu(biased), channels),)
    assert kind == "outputs"
    return value, sketch.relu(biased)


def pick(case: Case, m: int, split: int, number: int) -> WinogradConfiguration:
    """One of the configurations offered with this m and split."""
    offered = [c for c in FAMILY.configs(case.group, HARDWARE) if (c.m, c.split) == (m, split)]
    return offered[number % len(offered)]


@FEW
@given(
    st.integers(1, 2),
    st.integers(25, 48),
    st.integers(25, 56),
    st.integers(9, 15),
    st.integers(9, 15),
    st.tuples(*[st.integers(0, 1)] * 4),
    st.sampled_from(["none", "relu", "residual", "swish", "outputs"]),
    st.sampled_from(["", "relu"]),
    st.tuples(st.sampled_from([2, 4]), st.sampled_from([0, 1]), st.integers(0, 7)),
)
def test_any_size_is_right(
    n: int, inner: int, outer: int, height: int, width: int, padding: tuple[int, int, int, int], behind: str,
    before: str, which: tuple[int, int, int],
) -> None:  # fmt: skip
    """Remainders of tiles, rows and blocks, batches, paddings of each side, operators before and behind."""
    case = layer((n, inner, height, width), outer, padding, behind, before)
    config = pick(case, *which)
    case.check(FAMILY, [config], tolerance=ERROR[config.m])


@pytest.mark.parametrize(
    "text",
    [
        # ragged tiles of channels, data and groups; a ragged task
        "m=4,nb=2,mt=5,cols=3,rows=2,cob=2,split=0,ahead=0,parallel=1",
        "m=4,nb=3,mt=4,cols=3,rows=2,cob=1,split=1,ahead=1,parallel=1",
        "m=2,nb=2,mt=6,cols=6,rows=4,cob=3,split=1,ahead=1,parallel=0",
        "m=2,nb=4,mt=3,cols=6,rows=3,cob=1,split=0,ahead=0,parallel=0",
        # parts of rows
        "m=2,nb=2,mt=5,cols=2,rows=4,cob=2,split=0,ahead=1,parallel=1",
        "m=4,nb=2,mt=5,cols=1,rows=5,cob=1,split=0,ahead=0,parallel=1",
        "m=2,nb=1,mt=6,cols=3,rows=7,cob=2,split=1,ahead=0,parallel=1",
    ],
)
def test_tiles_that_divide_nothing(text: str) -> None:
    case = layer((2, 24, 9, 11), 40, behind="residual")
    config = WinogradConfiguration.parse(text)
    case.check(FAMILY, [config], tolerance=ERROR[config.m])


@FEW
@given(
    st.integers(1, 2),
    st.integers(25, 40),
    st.integers(25, 40),
    st.integers(4, 8),
    st.integers(4, 8),
    st.sampled_from(["none", "relu", "residual", "swish"]),
    st.tuples(st.sampled_from([2, 4]), st.sampled_from([0, 1]), st.integers(0, 7)),
)
def test_a_pool_behind_is_taken_from_the_tiles(
    n: int, inner: int, outer: int, height: int, width: int, behind: str, which: tuple[int, int, int]
) -> None:
    case = pooled((n, inner, 2 * height, 2 * width), outer, behind)
    config = pick(case, *which)
    case.check(FAMILY, [config], tolerance=ERROR[config.m])


def test_other_pools_are_refused() -> None:
    ok = pooled((1, 16, 12, 12), 16, "relu")
    assert FAMILY.match(ok.group, HARDWARE) is None
    for case in (
        pooled((1, 16, 12, 12), 16, "relu", window=(3, 3)),
        pooled((1, 16, 12, 12), 16, "relu", strides=(1, 1)),
        pooled((1, 16, 12, 12), 16, "relu", pads=(1, 1, 1, 1)),
        pooled((1, 16, 13, 12), 16, "relu"),
    ):
        assert FAMILY.match(case.group, HARDWARE) is not None


def pooled(
    shape: tuple[int, int, int, int],
    channels: int,
    behind: str,
    window: tuple[int, int] = (2, 2),
    strides: tuple[int, int] = (2, 2),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Case:
    """A 3x3 convolution, something behind it, then a max pool."""
    sketch = Sketch(3)
    plain = sketch.uniform(shape)
    value = sketch.conv2d(sketch.source((), array=block(plain)), plain, channels, (3, 3), padding=(1, 1, 1, 1))
    (value,) = _behind(sketch, value, behind, channels)
    return sketch.finish(sketch.pool(value, "max", window, strides=strides, padding=pads))


@pytest.mark.parametrize("lanes", [4, 16])
def test_vectors_of_other_widths(lanes: int) -> None:
    hardware = replace(HARDWARE, vector_bytes=4 * lanes)
    sketch = Sketch()
    plain = sketch.uniform((1, 32, 11, 9))
    data = sketch.source((), array=block(plain, lanes))
    value = sketch.conv2d(data, plain, 48, (3, 3), padding=(1, 1, 1, 1), lanes=lanes)
    case = sketch.finish(sketch.relu(value))
    offered = FAMILY.configs(case.group, hardware)
    for m, split in ((4, 0), (2, 1)):
        config = next(c for c in offered if (c.m, c.split) == (m, split))
        case.check(FAMILY, [config], hardware, tolerance=ERROR[m])


def test_large_batches_do_not_transform_everything_before() -> None:
    """All transformed data would not fit the last cache, and no plan of memory knows of it."""
    hardware = replace(HARDWARE, l3_bytes=1 << 20)

    def splits(batch: int) -> set[int]:
        sketch = Sketch()
        zeros = np.zeros((batch, 8, 112, 112, 8), "float32")
        weight = sketch.source((8, 8, 3, 3, 8, 8), Role.CONSTANT)
        value = sketch.op(
            "nn.conv2d", lambda *_: None, [sketch.source((), array=zeros), weight], zeros,
            mappings=[MappingType.MANY_TO_MANY] * 2, work=Work(fma=zeros.size * 64 * 9),
            attrs={"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1, "variant": "blocked"},
        )  # fmt: skip
        return {c.split for c in FAMILY.configs(sketch.finish(value).group, hardware)}

    assert splits(1) == {0, 1}
    assert splits(8) == {0}


def test_the_layout_can_change_behind() -> None:
    case = layer((1, 16, 10, 9), 24, behind="plain layout")
    case.check(FAMILY, [pick(case, 4, 0, 0)], tolerance=ERROR[4])


def test_channels_that_fill_no_block_keep_their_layout() -> None:
    refusal = FAMILY.match(layer(channels=20, behind="plain layout").group, HARDWARE)
    assert refusal is not None and refusal.rule == "layout"


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("before", ["", "relu"])
def test_errors_of_the_longest_sums_stay_within_the_bound(m: int, before: str) -> None:
    """As many input channels as F(4x4) is offered for, against float64; data of either sign, or of one."""
    case = layer((1, MOST_CHANNELS, 8, 8), 16, behind="none", before=before)
    case.check(FAMILY, [pick(case, m, 0, 0)], tolerance=ERROR[m])


def test_longer_sums_are_left_to_the_smaller_tiles() -> None:
    case = layer((1, MOST_CHANNELS + 8, 8, 8), 8, behind="none")
    assert {c.m for c in FAMILY.configs(case.group, HARDWARE)} == {2}
    case.check(FAMILY, [pick(case, 2, 0, 0)], tolerance=ERROR[2])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"strides": (2, 2)}, "strides"),
        ({"dilation": (2, 2)}, "strides"),
        ({"kernel": (1, 1), "padding": (0, 0, 0, 0)}, "kernel"),
        ({"groups": 2}, "groups"),
    ],
)
def test_other_convolutions_are_refused(change: dict[str, object], rule: str) -> None:
    sketch = Sketch()
    plain = sketch.uniform((1, 32, 16, 16))
    how = {"kernel": (3, 3), "padding": (1, 1, 1, 1), **change}
    value = sketch.conv2d(sketch.source((), array=block(plain)), plain, 32, **how)  # type: ignore[arg-type]
    refusal = FAMILY.match(sketch.finish(value).group, HARDWARE)
    assert refusal is not None and refusal.rule == rule


def test_weights_have_to_be_a_constant() -> None:
    group = layer().group
    tensors = tuple(replace(t, role=Role.INPUT) if t.role is Role.CONSTANT else t for t in group.graph.tensors)
    given_weights = Group(replace(group.graph, tensors=tensors), group.members, group.outputs)
    refusal = FAMILY.match(given_weights, HARDWARE)
    assert refusal is not None and refusal.rule == "weights"


def test_it_stands_beside_direct_convolution() -> None:
    group = layer().group
    first = next(f for f in families() if f.match(group, HARDWARE) is None)
    assert first.name == "conv2d"
    assert [f.name for f in beside(families(), first, group, HARDWARE)] == ["winograd"]
    assert beside(families(), FAMILY, group, HARDWARE) == []
    assert beside([Conv2dFamily()], first, group, HARDWARE) == []


def test_large_layers_are_predicted_to_gain_and_small_ones_not() -> None:
    model = AnalyticalCostModel(HARDWARE)

    def best(which: Conv2dFamily | WinogradFamily, group: Group) -> float:
        return float(min(model.costs([Candidate(group, which, c) for c in which.configs(group, HARDWARE)])))

    large = layer((1, 64, 28, 28), 64).group
    assert best(FAMILY, large) < best(Conv2dFamily(), large)


# -- preparations --------------------------------------------------------------------------------------------------


@MANY
@given(st.integers(1, 5), st.integers(1, 3), st.sampled_from([2, 4]), st.integers(1, 4), st.sampled_from([4, 8]))
def test_transformed_weights_are_g_w_gt(outer: int, inner: int, m: int, nb: int, lanes: int) -> None:
    """Element by element, with zeros for missing blocks."""
    rng = np.random.default_rng(outer * 100 + inner)
    raw = rng.normal(size=(outer, inner, 3, 3, lanes, lanes)).astype("float32")
    text = winograd_text(m, nb)
    made = prepare(text, raw)
    assert made.shape == prepared_shape(text, raw.shape) and made.dtype == raw.dtype
    g = np.array(WINOGRAD_WEIGHTS[m])
    a = m + 2
    for block_, channel in ((0, 0), (outer - 1, inner - 1)):
        i, o = lanes - 1, lanes // 2
        want = g @ raw[block_, channel, :, :, i, o].astype("float64") @ g.T
        got = made[block_ // nb, :, channel * lanes + i, block_ % nb * lanes + o].reshape(a, a)
        np.testing.assert_array_equal(got, want.astype("float32"))
    assert not made[-1, :, :, (outer - 1) % nb * lanes + lanes :].any()


@pytest.mark.parametrize("text", ["", "fourier,m=4,nb=1", "winograd", "winograd,m=3,nb=1", "winograd,m=4,nb=0",
                                  "winograd,m=4,nb=x", "winograd,m=4,nb=1,nb=2"])  # fmt: skip
def test_unknown_preparations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"preparation|must be"):
        prepared_shape(text, (1, 1, 3, 3, 8, 8))


def test_only_three_by_three_weights_are_prepared() -> None:
    with pytest.raises(ValueError, match="3x3"):
        prepare("winograd,m=4,nb=1", np.zeros((1, 1, 5, 5, 8, 8), "float32"))


def test_a_job_says_how_an_input_is_prepared() -> None:
    """The description survives JSON; inputs are filled in the shape that the model has."""
    from autofuse.measure.worker import kernel_inputs

    raw = (2, 1, 3, 3, 8, 8)
    text = winograd_text(4, 2)
    specs = (ArgumentSpec((3,)), ArgumentSpec(raw, preparation=text), ArgumentSpec((5,), output=True))
    job = MeasureJob("w", "c", "x.so", "main", specs)
    again = MeasureJob.from_dict(json.loads(json.dumps(job.to_dict())))
    assert again.arguments == specs
    plain, given_inputs = fill_inputs(specs, 3), kernel_inputs(specs, 3)
    assert plain[1].shape == raw and given_inputs[1].shape == prepared_shape(text, raw)
    np.testing.assert_array_equal(given_inputs[0], plain[0])
    np.testing.assert_array_equal(given_inputs[1], prepare(text, plain[1]))


def test_the_registry_knows_it() -> None:
    assert family("winograd").prepared(layer().group, pick(layer(), 4, 0, 0))
