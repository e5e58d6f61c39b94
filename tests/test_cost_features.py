"""Features: names and units, values worked out by hand, always finite, the same whatever the batch."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from test_cost_analytical import FULL, MACHINE, FakeConfiguration, FakeFamily, candidate, kernel_shapes, one, works

from autofuse.cost import FEATURE_VERSION, FEATURES, AnalyticalCostModel, Candidate, extract
from autofuse.cost.candidate_features import family_code
from autofuse.cost.features import feature_names
from autofuse.cost.group_features import KINDS, kind_of
from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.schedule.family import Configuration, KernelShape

COLUMN = {name: i for i, name in enumerate(feature_names())}


def network() -> Graph:
    """x, w → matmul → m; m + bias → a; relu(a) → r: shapes 16 × 24 by 24 × 20."""
    tensors = (
        Tensor(0, "x", (16, 24), role=Role.INPUT),
        Tensor(1, "w", (24, 20), role=Role.CONSTANT),
        Tensor(2, "m", (16, 20)),
        Tensor(3, "bias", (20,), role=Role.CONSTANT),
        Tensor(4, "a", (16, 20)),
        Tensor(5, "r", (16, 20)),
    )
    many, each, wide = MappingType.MANY_TO_MANY, MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY
    operators = (
        Operator(0, "matmul", "matmul", "", (0, 1), (2,), (Access(0, 0, many, 24, 20, 0), Access(1, 1, many, 24, 16)),
                 Work(fma=16 * 20 * 24), spatial=(16, 20), reduction=(24,)),
        Operator(1, "add", "add", "", (2, 3), (4,), (Access(0, 2, each), Access(1, 3, wide, 1, 16, 1)),
                 Work(simple=320), spatial=(16, 20)),
        Operator(2, "relu", "nn.relu", "", (4,), (5,), (Access(0, 4, each),), Work(compare=320), spatial=(16, 20)),
    )  # fmt: skip
    return Graph("network", tensors, operators, (0,), (5,))


def values(group: Group, shape: KernelShape = FULL) -> dict[str, float]:
    row = extract([candidate(group, shape)], MACHINE)[0]
    return {name: float(row[i]) for name, i in COLUMN.items()}


def log(count: float) -> float:
    return math.log2(1 + count)


def test_features_are_named_once_and_have_units_and_meanings() -> None:
    assert len(FEATURES) >= 25 and len(COLUMN) == len(FEATURES)
    assert all(f.name.isidentifier() and f.unit and f.meaning for f in FEATURES)
    assert FEATURE_VERSION >= 1


def test_group_features_of_a_whole_network() -> None:
    v = values(Group.of(network(), [0, 1, 2]))
    assert (v["operators"], v["anchors"], v["blocks"], v["arguments"], v["outputs"]) == (3, 1, 3, 4, 1)
    assert (v["mapping_many_to_many"], v["mapping_one_to_one"], v["mapping_opaque"]) == (1, 2, 0)
    assert (v["kind_matmul"], v["kind_pointwise"], v["kind_conv"]) == (1, 2, 0)
    assert v["fma"] == pytest.approx(log(7680)) and v["simple"] == v["compare"] == pytest.approx(log(320))
    assert v["special"] == 0
    assert v["bytes_in"] == pytest.approx(log(16 * 24 * 4))
    assert v["bytes_constant"] == pytest.approx(log((24 * 20 + 20) * 4))
    assert v["bytes_out"] == pytest.approx(log(1280)) and v["bytes_internal"] == pytest.approx(log(2560))
    assert v["bytes_saved"] == pytest.approx(log(2 * 2560))  # two tensors, each written once and read once
    assert v["intensity"] == pytest.approx(log((2 * 7680 + 640) / (1536 + 2000 + 1280)), rel=1e-6)
    assert v["reduction"] == pytest.approx(log(24))
    assert v["innermost"] == pytest.approx(log(20)) and v["innermost_fill"] == pytest.approx(20 / 24)
    assert (v["stride_same"], v["stride_contiguous"]) == pytest.approx((0.2, 0.8))
    assert v["reads_per_output"] == pytest.approx(log(24)) and v["uses_per_element"] == pytest.approx(log(20))


def test_the_chain_of_a_group() -> None:
    """Mapping types in order, what stands around the anchor, and where the reduction is."""
    v = values(Group.of(network(), [0, 1, 2]))
    many, each = (1 + list(MappingType).index(m) for m in (MappingType.MANY_TO_MANY, MappingType.ONE_TO_ONE))
    assert (v["chain_runs"], v["chain_0"], v["chain_1"], v["chain_2"]) == (2, many, each, 0)
    assert v["first_anchor"] == v["last_anchor"] == 1 + KINDS.index("matmul")
    assert (v["before_anchor"], v["after_anchor"], v["reduction_place"], v["reduction_inner"]) == (0, 2, 0, 0)
    alone = values(Group.of(network(), [2]))
    assert (alone["chain_runs"], alone["chain_0"], alone["first_anchor"], alone["before_anchor"]) == (1, each, 0, 1)


def windows(inside: bool) -> Group:
    """Two 3×3 convolutions, the second with stride 2 and dilation 3 in x, a mean over the last axis behind them."""
    tensors = tuple(Tensor(i, f"t{i}", (1, 8, 9, 9), role=Role.INPUT if i == 0 else Role.VALUE) for i in range(3))
    tensors += (Tensor(3, "mean", (1, 8, 9, 1)), Tensor(4, "out", (1, 8, 9, 9)))
    many, one_, wide = MappingType.MANY_TO_MANY, MappingType.MANY_TO_ONE, MappingType.ONE_TO_MANY
    window: dict[str, object] = {"kernel": [3, 3], "strides": [1, 2], "dilation": [1, 3]}
    operators = (
        Operator(0, "a", "nn.conv2d", "", (0,), (1,), (Access(0, 0, many, 72, 72),), Work(fma=9), window, (9,), (72,)),
        Operator(1, "b", "nn.conv2d", "", (1,), (2,), (Access(0, 1, many, 72, 72),), Work(fma=9), window, (9,), (72,)),
        Operator(2, "m", "mean", "", (2,), (3,), (Access(0, 2, one_, 9, 1),), Work(simple=9), {"axes": [-1]}, (9,),
                 (9,)),
        Operator(3, "s", "multiply", "", (2, 3), (4,), (Access(0, 2, MappingType.ONE_TO_ONE), Access(1, 3, wide, 1, 9)),
                 Work(simple=9)),
    )  # fmt: skip
    return Group.of(Graph("windows", tensors, operators, (0,), (4,)), range(4) if inside else [1, 2])


def test_halo_and_recompute_count_what_is_made_inside_alone() -> None:
    v = values(windows(inside=True))
    assert v["halo"] == (3 - 1) * 1 + (3 - 2) * 3
    assert v["recompute_edges"] == pytest.approx(log(9 - 1))
    assert v["reduction_inner"] == 1 and v["reduction_place"] == 0  # the convolutions reduce more
    part = values(windows(inside=False))
    assert part["halo"] == part["recompute_edges"] == 0 and part["reduction_inner"] == 1


def test_cold_weights_change_the_memory_terms_alone() -> None:
    graph = network()
    large = replace(graph, tensors=tuple(replace(t, shape=(400, 200)) if t.index == 1 else t for t in graph.tensors))
    for chosen, least in ((graph, False), (large, True)):
        candidates = [candidate(Group.of(chosen, [0, 1, 2]), FULL)]
        hot, cold = (extract(candidates, MACHINE, cold=c)[0] for c in (False, True))
        changed = {name for name, i in COLUMN.items() if hot[i] != cold[i]}
        assert changed <= {"bytes_cold", "log_total", "log_memory", "log_exposed"} and bool(changed) == least
        if least:
            assert cold[COLUMN["bytes_cold"]] == pytest.approx(log((400 * 200 + 20) * 4))
            slow = AnalyticalCostModel(MACHINE, cold=True).terms(candidates)
            assert cold[COLUMN["log_total"]] == pytest.approx(math.log(slow["total"][0]), rel=1e-5)


def test_a_smaller_group_saves_less_and_writes_what_others_need() -> None:
    v = values(Group.of(network(), [0]))
    assert v["bytes_saved"] == v["bytes_internal"] == 0 and v["bytes_out"] == pytest.approx(log(1280))


def test_shape_features() -> None:
    shape = KernelShape(6, 0.5, 8, 4, 1.5, 0.75, 1023, 511, 255, 127, 1 << 15, 2)
    v = values(Group.of(network(), [0, 1, 2]), shape)
    assert v["tasks"] == pytest.approx(log(6)) and v["wave_fill"] == pytest.approx(0.75)
    assert (v["vector_fill"], v["accumulators"], v["register_share"], v["chains"]) == (0.5, 8, 0.5, 4)
    assert (v["l1_bytes"], v["l2_bytes"], v["l3_bytes"], v["memory_bytes"]) == pytest.approx((10, 9, 8, 7))
    assert v["footprint_l1"] == pytest.approx(1.0) and v["loops"] == 2 and v["loads_per_fma"] == 0.75
    assert v["task_flops"] == pytest.approx(log((2 * 7680 + 640) / 6))


def test_saved_multiply_adds_and_added_operations_are_features() -> None:
    v = values(Group.of(network(), [0, 1, 2]), replace(FULL, fma_ratio=0.25, extra_simple=1023))
    assert v["fma_ratio"] == 0.25 and v["extra_simple"] == pytest.approx(10)
    v = values(Group.of(network(), [0, 1, 2]))
    assert v["fma_ratio"] == 1 and v["extra_simple"] == 0


def test_terms_are_logarithms_of_the_analytical_models() -> None:
    group = Group.of(network(), [0, 1, 2])
    v = values(group, replace(FULL, tasks=3))
    t = AnalyticalCostModel(MACHINE).terms([candidate(group, replace(FULL, tasks=3))])
    for name in ("total", "compute", "fma", "l1", "parallel"):
        assert v[f"log_{name}"] == pytest.approx(math.log(t[name][0]), rel=1e-5)
    assert v["log_special"] == pytest.approx(math.log(1e-12))


def test_hardware_is_described() -> None:
    v = values(one(Work()))
    assert (v["hw_lanes"], v["hw_registers"], v["hw_cores"]) == (8, 16, 4)
    assert v["hw_fma_rate"] == pytest.approx(math.log2(1e10))
    other = extract([candidate(one(Work()), FULL)], replace(MACHINE, memory_bandwidth=4e10))[0]
    assert other[COLUMN["hw_memory_bandwidth"]] == pytest.approx(v["hw_memory_bandwidth"] + 1)


@dataclass(frozen=True)
class Wide(Configuration):
    """More fields than there are slots."""

    a: int = 1
    b: int = 2
    c: int = 3
    d: int = 4
    e: int = 5
    f: int = 6
    g: int = 7
    h: int = 8
    i: int = 9


@dataclass(frozen=True)
class Empty(Configuration):
    """No field."""


class Constant(FakeFamily):
    """Any configuration has the same kernel shape."""

    name = "constant"

    def shape(self, group: Group, config: Configuration, hardware: object) -> KernelShape:
        return FULL


def test_family_and_configuration_are_told_apart() -> None:
    group = one(Work())
    batch = [
        Candidate(group, FakeFamily([FULL, FULL]), FakeConfiguration(1)),
        Candidate(group, Constant([]), Wide()),
        Candidate(group, Constant([]), Empty()),
    ]
    rows = extract(batch, MACHINE)[:, COLUMN["family"] : COLUMN["family"] + 9]
    assert list(rows[0]) == [family_code("fake"), 1, 0, 0, 0, 0, 0, 0, 0]
    assert list(rows[1]) == [family_code("constant"), 1, 2, 3, 4, 5, 6, 7, 8]
    assert list(rows[2]) == [family_code("constant"), 0, 0, 0, 0, 0, 0, 0, 0]
    assert family_code("fake") != family_code("constant")


@pytest.mark.parametrize(
    ("kind", "attrs", "reduction", "expected"),
    [
        ("nn.conv2d", {"variant": "blocked"}, (8,), "conv"),
        ("nn.conv2d", {"variant": "depthwise"}, (3, 3), "depthwise"),
        ("nn.conv2d_transpose", {}, (8,), "conv"),
        ("matmul", {}, (8,), "matmul"),
        ("nn.max_pool2d", {}, (2, 2), "pool"),
        ("nn.softmax", {}, (9,), "softmax"),
        ("nn.layer_norm", {}, (9,), "norm"),
        ("mean", {}, (9,), "reduce"),
        ("layout_change", {}, (), "movement"),
        ("image.resize2d", {}, (), "resize"),
        ("take", {}, (), "gather"),
        ("nn.relu", {}, (), "pointwise"),
    ],
)
def test_kinds(kind: str, attrs: dict[str, object], reduction: tuple[int, ...], expected: str) -> None:
    op = Operator(0, kind, kind, "", (0,), (1,), attrs=attrs, reduction=reduction)
    assert kind_of(op) == expected


@settings(max_examples=60, deadline=None)
@given(works, kernel_shapes)
def test_features_are_finite_floats(work: Work, shape: KernelShape) -> None:
    rows = extract([candidate(one(work), shape)], MACHINE)
    assert rows.shape == (1, len(FEATURES)) and rows.dtype == np.float32 and np.isfinite(rows).all()


def test_absurd_numbers_stay_finite() -> None:
    rows = extract([candidate(one(Work(fma=10**60)), replace(FULL, loads_per_fma=1e30, accumulators=10**40))], MACHINE)
    assert np.isfinite(rows).all()


def test_an_empty_batch_gives_an_empty_table() -> None:
    assert extract([], MACHINE).shape == (0, len(FEATURES))


def test_rows_do_not_depend_on_the_batch() -> None:
    graph = network()
    family = FakeFamily([FULL, replace(FULL, tasks=9)])
    groups = [Group.of(graph, m) for m in ([0], [0, 1], [1, 2], [2])]
    batch = [Candidate(g, family, FakeConfiguration(i)) for g in groups for i in (0, 1)]
    rows = extract(batch, MACHINE)
    assert np.array_equal(rows[::-1], extract(batch[::-1], MACHINE))
    assert np.array_equal(rows, np.concatenate([extract([c], MACHINE) for c in batch]))
    known = [c.family.shape(c.group, c.config, MACHINE) for c in batch]
    assert np.array_equal(rows, extract(batch, MACHINE, known))


def test_groups_of_different_graphs_are_told_apart_in_one_batch() -> None:
    batch = [candidate(Group.of(network(), [0]), FULL), candidate(one(Work(simple=7), 12), FULL)]
    batch += [candidate(Group.of(network(), [2]), FULL), candidate(one(Work(special=3), 30, (5,)), FULL)]
    assert np.array_equal(extract(batch, MACHINE), np.concatenate([extract([c], MACHINE) for c in batch]))


def test_twenty_thousand_candidates_in_one_batch() -> None:
    graph = network()
    family = FakeFamily([replace(FULL, tasks=t) for t in range(1, 11)])
    batch = [Candidate(Group.of(graph, m), family, FakeConfiguration(c)) for m in ([0], [0, 1], [2]) for c in range(10)]
    batch = (batch * 700)[:20_000]
    start = time.process_time()
    assert extract(batch, MACHINE).shape[0] == 20_000
    assert time.process_time() - start < 5.0  # takes about 0.2; a loop over columns in Python takes many
