"""Convolution, depthwise convolution and pooling families: what they match, what they offer, and that it is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowered_groups import LoweredGroup
from schedule_harness import HARDWARE, Case, Role, Sketch, Value, block, convolve
from tvm import relax
from tvm.relax import op as R

from autofuse.graph.model import Group, MappingType
from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.conv2d import Conv2dFamily
from autofuse.schedule.cpu.conv_pool import ConvPoolFamily
from autofuse.schedule.cpu.conv_tiling import Conv2dConfiguration
from autofuse.schedule.cpu.depthwise import DepthwiseFamily
from autofuse.schedule.cpu.pool import PoolFamily
from autofuse.schedule.family import ScheduleFamily
from autofuse.schedule.registry import families, family

FEW = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
EPILOGUES = ("none", "relu", "mish", "residual", "outputs", "anchor_output")


def epilogue(sketch: Sketch, value: Value, kind: str) -> tuple[Value, ...]:
    """Elementwise operators after an anchor's result; the group's outputs."""
    if kind == "none":
        return (value,)
    n, channels, rows, columns, lanes = value.answer.shape
    biased = sketch.add(value, sketch.source((1, channels, 1, 1, lanes), Role.CONSTANT))
    if kind == "relu":
        return (sketch.relu(biased),)
    if kind == "mish":
        return (sketch.multiply(biased, sketch.tanh(sketch.softplus(biased))),)
    if kind == "residual":
        gate = sketch.source((n, channels, 1, 1, lanes))
        other = sketch.relu(sketch.source((n, channels, rows, columns, lanes)))
        return (sketch.relu(sketch.add(sketch.multiply(biased, gate), other)),)
    if kind == "bytes":
        return (sketch.quantise(sketch.relu(biased)),)
    if kind == "outputs":
        positive = sketch.relu(biased)
        return biased, positive, sketch.sigmoid(positive), sketch.multiply(positive, biased)
    return value, sketch.relu(biased)


def start(sketch: Sketch, shape: tuple[int, ...], prologue: str, plain: bool = False) -> tuple[Value, np.ndarray]:
    """An input, maybe with an elementwise operator on it, and its values as [N, C, H, W]."""
    if prologue == "bytes":
        whole = sketch.random.integers(0, 256, shape).astype("uint8")
        made = sketch.dequantise(sketch.source((), array=whole if plain else block(whole)))
        return made, ((whole.astype("int32") - 3) * 0.05).astype("float32")
    values = sketch.uniform(shape)
    data = sketch.source((), array=values if plain else block(values))
    if prologue == "relu":
        return sketch.relu(data), np.maximum(values, 0)
    if prologue == "sigmoid":
        # Channels that only pad a block read weights of zero, so what the operator makes of them does not matter.
        return sketch.sigmoid(data), 1 / (1 + np.exp(-values))
    return data, values


def run_some(case: Case, chosen: ScheduleFamily, pick: int) -> None:
    """Check one configuration out of those offered."""
    offered = chosen.configs(case.group, HARDWARE)
    case.check(chosen, [offered[pick % len(offered)]])


extents = st.sampled_from([1, 2, 5, 7, 8, 9, 13, 14])
wide = st.sampled_from([1, 4, 7, 8, 13, 14, 29, 31])


@FEW
@given(
    n=st.sampled_from([1, 1, 3]), ic=st.sampled_from([8, 13, 16, 24]), oc=st.sampled_from([8, 17, 24, 32, 40]),
    h=extents, w=wide, kernel=st.sampled_from([(1, 1), (3, 3), (3, 3), (1, 3), (5, 5)]),
    stride=st.sampled_from([1, 1, 2, 3]), dilation=st.sampled_from([1, 1, 2]), pad=st.booleans(),
    prologue=st.sampled_from(["", "", "relu", "sigmoid"]), after=st.sampled_from(EPILOGUES), pick=st.integers(0, 11),
)  # fmt: skip
def test_conv2d_is_right_on_any_shape(
    n: int, ic: int, oc: int, h: int, w: int, kernel: tuple[int, int], stride: int, dilation: int, pad: bool,
    prologue: str, after: str, pick: int,
) -> None:  # fmt: skip
    """Primes, one pixel, batches, strides, dilation, with work before and after: any configuration is right."""
    reach = [(k - 1) * dilation for k in kernel]
    pad = pad or h <= reach[0] or w <= reach[1]
    padding = (reach[0] // 2, reach[1] // 2, reach[0] - reach[0] // 2, reach[1] - reach[1] // 2) if pad else (0,) * 4
    sketch = Sketch(pick)
    data, values = start(sketch, (n, ic, h, w), prologue)
    result = sketch.conv2d(
        data, values, oc, kernel, strides=(stride, stride), padding=padding, dilation=(dilation, dilation)
    )
    run_some(sketch.finish(*epilogue(sketch, result, after)), Conv2dFamily(), pick)


@pytest.mark.parametrize("after", EPILOGUES)
def test_configurations_of_a_padded_conv2d_are_right(after: str) -> None:
    """A width that no tile divides and padding computed in each of its three ways."""
    sketch = Sketch()
    data, values = start(sketch, (1, 16, 6, 13), "")
    result = sketch.conv2d(data, values, 32, (3, 3), padding=(1, 1, 1, 1))
    case = sketch.finish(*epilogue(sketch, result, after))
    offered = Conv2dFamily().configs(case.group, HARDWARE)
    case.check(Conv2dFamily(), offered[::2] if after == "outputs" else offered[::4])


def test_configurations_of_the_first_layer_are_right() -> None:
    """Data in NCHW with three channels, stride 2."""
    sketch = Sketch()
    data, values = start(sketch, (2, 3, 15, 17), "", plain=True)
    result = sketch.conv2d(data, values, 16, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    case = sketch.finish(*epilogue(sketch, result, "relu"))
    case.check(Conv2dFamily(), Conv2dFamily().configs(case.group, HARDWARE)[::2])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_an_image_of_bytes_is_dequantised_by_the_first_layer(dtype: str) -> None:
    weight = np.random.default_rng(1).standard_normal((16, 3, 3, 3)).astype("float32")

    def build(emit: Any, x: Any) -> Any:
        x = emit(R.dequantize(x, relax.const(np.float32(0.02)), relax.const(3, dtype), 1))
        return R.nn.relu(emit(R.nn.conv2d(x, relax.const(weight), strides=2, padding=1)))

    case = LoweredGroup(build, [(2, 3, 15, 17)], whole={0: (dtype, 0, 127)})
    assert case.family() == "conv2d"
    image = (case.arrays[0].astype("float32") - 3) * np.float32(0.02)
    answer = np.maximum(convolve(image, weight, (2, 2), (1, 1, 1, 1), (1, 1)), 0)
    case.check(Conv2dFamily(), answer, Conv2dFamily().configs(case.group, HARDWARE)[::2])


@pytest.mark.parametrize("prologue", ["", "sigmoid"])
@pytest.mark.parametrize(("n", "inputs", "channels", "rows", "columns"), [(1, 40, 56, 7, 7), (2, 24, 40, 3, 5)])
def test_tiles_of_places_are_right(n: int, inputs: int, channels: int, rows: int, columns: int, prologue: str) -> None:
    """1x1 convolutions whose tiles divide neither places nor channels nor tasks, data read, staged or made before."""
    sketch = Sketch()
    data, values = start(sketch, (n, inputs, rows, columns), prologue)
    case = sketch.finish(*epilogue(sketch, sketch.conv2d(data, values, channels, (1, 1)), "residual"))
    offered = [c for c in Conv2dFamily().configs(case.group, HARDWARE) if c.ht == 0]
    assert offered
    pads = (1, 2) if prologue else (0,)
    odd = [Conv2dConfiguration(3, 0, 4, 2, 2, pad, 1, 1) for pad in pads]
    case.check(Conv2dFamily(), [*offered[:2], *odd])


def test_tiles_of_places_need_results_of_single_places() -> None:
    """Strides, windows, and padding keep tiles within rows."""
    for kernel, how in (((3, 3), {"padding": (1, 1, 1, 1)}), ((1, 1), {"strides": (2, 2)}), ((1, 1), {"groups": 2})):
        sketch = Sketch()
        data, values = start(sketch, (1, 16, 7, 7), "")
        case = sketch.finish(sketch.conv2d(data, values, 32, kernel, **how))
        assert all(c.ht for c in Conv2dFamily().configs(case.group, HARDWARE))


def test_a_first_choice_fills_small_images() -> None:
    """7 x 7 places in tiles of five, channels in tiles of two: nothing is left over but a tile of four places."""
    sketch = Sketch()
    data, values = start(sketch, (1, 1024, 7, 7), "")
    case = sketch.finish(sketch.conv2d(data, values, 1024, (1, 1)))
    first = Conv2dFamily().configs(case.group, HARDWARE)[0]
    assert (first.nb, first.ht, first.mt) == (2, 0, 5)


def test_grouped_conv2d_keeps_to_its_groups() -> None:
    """A register tile never spans two groups."""
    sketch = Sketch()
    data, values = start(sketch, (1, 32, 5, 6), "relu")
    result = sketch.conv2d(data, values, 48, (3, 3), padding=(1, 1, 1, 1), groups=2)
    case = sketch.finish(*epilogue(sketch, result, "mish"))
    assert all(3 % config.nb == 0 for config in Conv2dFamily().configs(case.group, HARDWARE))
    case.check(Conv2dFamily(), Conv2dFamily().configs(case.group, HARDWARE)[::3])


def test_input_channels_in_chunks_are_right() -> None:
    """Many input channels: partial sums go through memory, whatever follows."""
    sketch = Sketch()
    data, values = start(sketch, (1, 512, 4, 7), "relu")
    result = sketch.conv2d(data, values, 16, (3, 3), padding=(1, 1, 1, 1))
    case = sketch.finish(*epilogue(sketch, result, "outputs"))
    chunked = [c for c in Conv2dFamily().configs(case.group, HARDWARE) if c.chunk > 1]
    assert chunked
    case.check(Conv2dFamily(), chunked[:4], tolerance=1e-4)


@pytest.mark.parametrize(("inputs", "channels"), [(16, 47), (512, 32)])
def test_a_layout_change_at_the_end_is_stored_from_the_tile(inputs: int, channels: int) -> None:
    """The result also leaves as NCHW, with a channel count that blocks do not divide; `apply` spares its argument."""
    sketch = Sketch()
    data, values = start(sketch, (1, inputs, 4, 6), "")
    result = sketch.relu(sketch.conv2d(data, values, channels, (3, 3), padding=(1, 1, 1, 1)))
    case = sketch.finish(result, sketch.unblock(result, channels))
    before = case.func.script()
    case.check(Conv2dFamily(), Conv2dFamily().configs(case.group, HARDWARE)[::4], tolerance=1e-4)
    assert case.func.script() == before


def test_a_layout_change_ends_a_depthwise_group() -> None:
    """The same after a depthwise convolution; nothing may follow it."""
    sketch = Sketch()
    data, values = start(sketch, (2, 17, 5, 9), "")
    last = sketch.unblock(sketch.relu(sketch.depthwise(data, values, (3, 3), padding=(1, 1, 1, 1))), 17)
    case = sketch.finish(last)
    case.check(DepthwiseFamily(), DepthwiseFamily().configs(case.group, HARDWARE)[::3])
    more = sketch.finish(sketch.relu(last))
    refusal = DepthwiseFamily().match(more.group, HARDWARE)
    assert refusal is not None and refusal.rule == "layout"


def test_accumulators_fit_the_registers() -> None:
    """No configuration needs more vector registers than there are."""
    for channels, width in ((64, 56), (40, 28), (24, 7), (512, 14), (17, 31)):
        sketch = Sketch()
        data, values = start(sketch, (1, 16, 4, width), "")
        case = sketch.finish(sketch.conv2d(data, values, channels, (1, 1)))
        for config in Conv2dFamily().configs(case.group, HARDWARE):
            shape = Conv2dFamily().shape(case.group, config, HARDWARE)
            assert shape.accumulators + config.nb + 1 <= HARDWARE.vector_registers


def test_kernel_shape_counts_the_whole_group() -> None:
    """Compulsory traffic is every operand and result once; tasks are what the pool gets."""
    sketch = Sketch()
    data, values = start(sketch, (1, 64, 28, 28), "")
    result = sketch.conv2d(data, values, 64, (3, 3), padding=(1, 1, 1, 1))
    case = sketch.finish(*epilogue(sketch, result, "residual"))
    expected = sum(p.answer.nbytes for p in case.parameters) + sum(o.answer.nbytes for o in case.outputs)
    for config in Conv2dFamily().configs(case.group, HARDWARE):
        shape = Conv2dFamily().shape(case.group, config, HARDWARE)
        assert shape.memory_bytes == expected
        assert shape.l1_bytes >= shape.l2_bytes > 0 and shape.l3_bytes > 0
        assert shape.tasks == (config.parallel or shape.tasks) * shape.tasks


@FEW
@given(
    n=st.sampled_from([1, 1, 3]), channels=st.sampled_from([8, 17, 24]), h=extents, w=wide,
    kernel=st.sampled_from([3, 3, 5, 7]), stride=st.sampled_from([1, 1, 2, 3]), dilation=st.sampled_from([1, 1, 2]),
    prologue=st.sampled_from(["", "", "relu", "sigmoid"]), after=st.sampled_from(EPILOGUES), pick=st.integers(0, 11),
)  # fmt: skip
def test_depthwise_is_right_on_any_shape(
    n: int, channels: int, h: int, w: int, kernel: int, stride: int, dilation: int, prologue: str, after: str,
    pick: int,
) -> None:  # fmt: skip
    """Any configuration is right, with padding on all sides or, where the data are large enough, on two."""
    reach = (kernel - 1) * dilation
    padding = (reach // 2,) * 4 if pick % 3 else (0, 0, reach, reach)
    sketch = Sketch(pick)
    data, values = start(sketch, (n, channels, h, w), prologue if channels % 8 == 0 else "")
    result = sketch.depthwise(
        data, values, (kernel, kernel), strides=(stride, stride), padding=padding, dilation=(dilation, dilation)
    )
    run_some(sketch.finish(*epilogue(sketch, result, after)), DepthwiseFamily(), pick)


@pytest.mark.parametrize(("n", "stride", "prologue"), [(1, 1, ""), (2, 2, "relu"), (1, 2, "sigmoid")])
def test_large_planes_are_shared_by_rows(n: int, stride: int, prologue: str) -> None:
    """The first choice gives each thread the rows that a convolution by rows left it; any other one is right too."""
    sketch = Sketch()
    data, values = start(sketch, (n, 16, 38 * stride, 32 * stride), prologue)
    result = sketch.depthwise(data, values, (3, 3), strides=(stride, stride), padding=(1, 1, 1, 1))
    case = sketch.finish(sketch.relu(result))
    offered = DepthwiseFamily().configs(case.group, HARDWARE)
    parallel = [c for c in offered if c.parallel]
    assert parallel[0].rows and not all(c.rows for c in parallel)
    shapes = {c.rows: DepthwiseFamily().shape(case.group, c, HARDWARE).l3_bytes for c in reversed(parallel)}
    assert shapes[1] < shapes[0]
    case.check(DepthwiseFamily(), [c for c in parallel if c.rows])


def test_small_planes_are_not_shared() -> None:
    """A thread's rows and the next one's would lie in the same pages."""
    for size in (7, 14):
        sketch = Sketch()
        data, values = start(sketch, (1, 64, size, size), "")
        case = sketch.finish(sketch.depthwise(data, values, (3, 3), padding=(1, 1, 1, 1)))
        assert not any(c.rows for c in DepthwiseFamily().configs(case.group, HARDWARE))


def test_rows_of_a_convolution_keep_all_cores_busy() -> None:
    """28 rows in four tasks of seven or fourteen of two, not seven of four."""
    for rows in (14, 28, 56):
        sketch = Sketch()
        data, values = start(sketch, (1, 64, rows, 28), "")
        group = sketch.finish(sketch.conv2d(data, values, 64, (1, 1))).group
        tasks = [Conv2dFamily().shape(group, c, HARDWARE).tasks for c in Conv2dFamily().configs(group, HARDWARE)]
        assert tasks[0] % HARDWARE.cores == 0 and tasks[0] > 1


@FEW
@given(
    n=st.sampled_from([1, 2]), channels=st.sampled_from([3, 8, 17]), h=extents, w=wide, blocked=st.booleans(),
    kind=st.sampled_from(["max", "avg"]), window=st.sampled_from([(2, 2), (3, 3), (1, 3), (5, 5)]),
    stride=st.sampled_from([1, 2, 3]), pad=st.booleans(), ceil=st.booleans(), counted=st.booleans(),
    prologue=st.sampled_from(["", "relu"]), follow=st.booleans(), pick=st.integers(0, 11),
)  # fmt: skip
def test_pool_is_right_on_any_shape(
    n: int, channels: int, h: int, w: int, blocked: bool, kind: str, window: tuple[int, int], stride: int, pad: bool,
    ceil: bool, counted: bool, prologue: str, follow: bool, pick: int,
) -> None:  # fmt: skip
    """Max and average, both layouts, ceil mode, padding counted or not."""
    pad = pad or h < window[0] or w < window[1]
    padding = (window[0] // 2, window[1] // 2) * 2 if pad else (0,) * 4
    sketch = Sketch(pick)
    data, _ = start(sketch, (n, channels, h, w), prologue, plain=not blocked)
    result = sketch.pool(
        data, kind, window, strides=(stride, stride), padding=padding, ceil=ceil, count_include_pad=counted
    )
    if follow:
        result = sketch.relu(sketch.add(result, sketch.source(result.answer.shape)))
    run_some(sketch.finish(result), PoolFamily(), pick)


@settings(FEW, max_examples=8)
@given(
    n=st.sampled_from([1, 1, 3]), ic=st.sampled_from([3, 8, 24]), oc=st.sampled_from([8, 17, 32]),
    h=st.sampled_from([4, 7, 9, 12]), w=st.sampled_from([4, 8, 13, 14]), kernel=st.sampled_from([1, 3]),
    window=st.sampled_from([2, 3]), stride=st.sampled_from([1, 2]), kind=st.sampled_from(["max", "avg"]),
    prologue=st.sampled_from(["", "relu"]), between=st.sampled_from(["none", "relu", "mish", "residual"]),
    after=st.sampled_from(["", "add", "unblock"]), edge=st.booleans(), pick=st.integers(0, 11),
)  # fmt: skip
def test_convolution_and_pool_in_one_kernel_are_right(
    n: int, ic: int, oc: int, h: int, w: int, kernel: int, window: int, stride: int, kind: str, prologue: str,
    between: str, after: str, edge: bool, pick: int,
) -> None:  # fmt: skip
    """Rows in a buffer, windows that overlap, rows that none needs, work before, between and after."""
    sketch = Sketch(pick)
    data, values = start(sketch, (n, ic, h, w), prologue, plain=ic == 3)
    result = sketch.conv2d(data, values, oc, (kernel, kernel), padding=(kernel // 2,) * 4)
    rows = epilogue(sketch, result, between)[0]
    padding = (window // 2,) * 4 if edge else (0,) * 4
    result = sketch.pool(rows, kind, (window, window), strides=(stride, stride), padding=padding)
    if after == "add":
        result = sketch.relu(sketch.add(result, sketch.source(result.answer.shape)))
    if after == "unblock":
        result = sketch.unblock(result, oc)
    run_some(sketch.finish(result), ConvPoolFamily(), pick)


def test_three_blocks_of_a_first_layer_come_first_before_a_pool() -> None:
    """Data that are not in blocks: the larger tile is offered, and every configuration is right."""
    sketch = Sketch()
    data, values = start(sketch, (1, 3, 25, 28), "", plain=True)
    result = sketch.relu(sketch.conv2d(data, values, 24, (3, 3), strides=(2, 2), padding=(1,) * 4))
    case = sketch.finish(sketch.pool(result, "max", (3, 3), strides=(2, 2), padding=(1,) * 4))
    offered = ConvPoolFamily().configs(case.group, HARDWARE)
    assert (offered[0].nb, offered[0].mt) == (3, 4)
    case.check(ConvPoolFamily(), offered)


def test_convolution_and_pool_refuse_what_needs_the_rows_elsewhere() -> None:
    """The convolution's result may not leave the kernel, the windows leave nothing out and stay inside."""
    sketch = Sketch()
    data, values = start(sketch, (1, 8, 6, 6), "")
    rows = sketch.relu(sketch.conv2d(data, values, 8, (1, 1)))
    padded = sketch.pool(rows, "max", (3, 3), strides=(2, 2), padding=(0, 0, 0, 0), ceil=True)
    whole = sketch.finish(padded).group
    refusal = ConvPoolFamily().match(whole, HARDWARE)
    assert refusal is not None and refusal.rule == "padding" and refusal.where == (2,)
    both = ConvPoolFamily().match(Group.of(whole.graph, (0, 1, 2), (rows.index, padded.index)), HARDWARE)
    assert both is not None and both.rule == "output"
    sparse = sketch.pool(rows, "max", (1, 1), strides=(2, 2))
    skipping = ConvPoolFamily().match(Group.of(sketch.finish(sparse).group.graph, (0, 1, 3), (sparse.index,)), HARDWARE)
    assert skipping is not None and skipping.rule == "stride"
    alone = ConvPoolFamily().match(Group.of(whole.graph, (2,)), HARDWARE)
    assert alone is not None and alone.rule == "anchor"


def test_refusals_say_why() -> None:
    """Groups that a family cannot schedule get a rule and the operators it concerns."""
    sketch = Sketch()
    data, values = start(sketch, (1, 8, 4, 4), "relu")
    first = sketch.conv2d(data, values, 8, (1, 1))
    second = sketch.conv2d(first, values, 8, (1, 1))
    case = sketch.finish(second)
    conv, depthwise, pool = Conv2dFamily(), DepthwiseFamily(), PoolFamily()
    two = conv.match(case.group, HARDWARE)
    assert two is not None and two.rule == "anchor" and two.where == (1, 2)
    one = Group.of(case.group.graph, (0, 1), (data.index, first.index))
    written = conv.match(one, HARDWARE)
    assert written is not None and written.rule == "prologue-output"
    variant = depthwise.match(Group.of(case.group.graph, (1,)), HARDWARE)
    assert variant is not None and variant.rule == "variant"
    none = pool.match(case.group, HARDWARE)
    assert none is not None and none.rule == "anchor"


def test_operators_that_are_not_elementwise_are_refused() -> None:
    """A reduction after the convolution is another family's business."""
    sketch = Sketch()
    data, values = start(sketch, (1, 8, 4, 4), "")
    result = sketch.conv2d(data, values, 8, (1, 1))
    reduced = sketch.op("mean", lambda t: t, [result], result.answer, mappings=[MappingType.MANY_TO_ONE])
    refusal = Conv2dFamily().match(sketch.finish(reduced).group, HARDWARE)
    assert refusal is not None and refusal.rule == "not-elementwise" and refusal.where == (1,)


def test_tir_without_the_promised_anchor_is_an_error() -> None:
    """apply checks what match promised."""
    sketch = Sketch()
    data, _ = start(sketch, (1, 8, 4, 4), "relu")
    other = sketch.finish(data)
    sketch = Sketch()
    data, values = start(sketch, (1, 8, 4, 4), "")
    case = sketch.finish(sketch.conv2d(data, values, 8, (1, 1)))
    config = Conv2dFamily().configs(case.group, HARDWARE)[0]
    with pytest.raises(ScheduleError, match="conv"):
        Conv2dFamily().apply(other.func, case.group, config, HARDWARE)


def test_families_are_registered_by_name() -> None:
    """The registry gives each family under its own name."""
    for one in families("cpu"):
        assert family(one.name) is one
    with pytest.raises(KeyError, match="no-such"):
        family("no-such")


def test_rows_that_more_than_the_pooling_reads_are_not_fused() -> None:
    """The convolution's rows stay in a buffer: nothing behind the pooling may read them again."""
    sketch = Sketch()
    data, values = start(sketch, (1, 16, 8, 8), "")
    made = sketch.conv2d(data, values, 16, (3, 3), padding=(1, 1, 1, 1))
    pooled = sketch.pool(made, "max", (3, 3), padding=(1, 1, 1, 1))
    refusal = ConvPoolFamily().match(sketch.finish(sketch.add(pooled, made)).group, HARDWARE)
    assert refusal is not None and refusal.rule == "output"
