"""The analytical cost model: terms worked out by hand, what may never get cheaper, speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.cost import AnalyticalCostModel, Candidate
from autofuse.cost.analytical import ENTRY_SECONDS, SPILL_SLOWDOWN, outside
from autofuse.cost.weights import weight_bytes, weights_are_cold
from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

# Round numbers: 4 cores, 8 lanes, 1e10 of everything a second.
MACHINE = Hardware(
    cores=4, vector_bytes=32, vector_registers=16, fma_per_second=1e10, simple_per_second=1e10, divide_per_second=1e9,
    special_per_second=1e8, l1_bytes=1 << 15, l2_bytes=1 << 19, l3_bytes=1 << 24, l1_bandwidth=4e10, l2_bandwidth=2e10,
    l3_bandwidth=1e10, memory_bandwidth=2e10, parallel_overhead=1e-6, call_overhead=5e-7,
)  # fmt: skip
FULL = KernelShape(tasks=1, independent_chains=8, accumulators=8)


@dataclass(frozen=True)
class FakeConfiguration(Configuration):
    """Selects one of a FakeFamily's shapes."""

    shape: int = 0


class FakeFamily(ScheduleFamily):
    """Matches everything; its kernel shapes are given."""

    name = "fake"
    version = 1
    configuration = FakeConfiguration

    def __init__(self, shapes: Sequence[KernelShape]) -> None:
        self.known = tuple(shapes)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        return [FakeConfiguration(i) for i in range(len(self.known))]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        assert isinstance(config, FakeConfiguration)
        return self.known[config.shape]

    def apply(self, func: Any, group: Group, config: Any, hardware: Hardware) -> Any:
        return func


def one(work: Work, elements: int = 64, reduction: tuple[int, ...] = (), kind: str = "add") -> Group:
    """A group of one operator that does `work` on vectors of `elements` float32."""
    tensors = (Tensor(0, "x", (elements,), role=Role.INPUT), Tensor(1, "y", (elements,)))
    access = Access(0, 0, MappingType.MANY_TO_MANY if work.fma else MappingType.ONE_TO_ONE)
    op = Operator(0, kind, kind, kind, (0,), (1,), (access,), work, spatial=(elements,), reduction=reduction)
    return Group.of(Graph("one", tensors, (op,), (0,), (1,)), [0])


def candidate(group: Group, shape: KernelShape) -> Candidate:
    return Candidate(group, FakeFamily([shape]), FakeConfiguration())


def terms(group: Group, shape: KernelShape, hardware: Hardware = MACHINE) -> dict[str, float]:
    return {k: float(v[0]) for k, v in AnalyticalCostModel(hardware).terms([candidate(group, shape)]).items()}


def cost(group: Group, shape: KernelShape, hardware: Hardware = MACHINE) -> float:
    return float(AnalyticalCostModel(hardware).costs([candidate(group, shape)])[0])


def test_serial_multiply_adds_run_at_the_fma_rate() -> None:
    # 1e6 multiply-adds at 1e10 a second; 512 bytes moved are nothing beside that.
    t = terms(one(Work(fma=1_000_000), reduction=(64,)), FULL)
    assert t["fma"] == t["compute"] == pytest.approx(1e-4)
    assert t["parallel"] == 0.0 and t["recompute"] == 0.0
    assert t["total"] == pytest.approx(1e-4 + ENTRY_SECONDS)


def test_each_class_of_operation_has_its_rate() -> None:
    t = terms(one(Work(fma=1000, simple=2000, divide=300, special=40, compare=5000), reduction=(8,)), FULL)
    assert (t["fma"], t["simple"], t["compare"]) == pytest.approx((1e-7, 2e-7, 5e-7))
    assert (t["divide"], t["special"]) == pytest.approx((3e-7, 4e-7))
    assert t["compute"] == pytest.approx(1.5e-6)


def test_few_chains_do_not_hide_the_latency() -> None:
    group = one(Work(fma=1000), reduction=(8,))
    assert terms(group, replace(FULL, independent_chains=2))["fma"] == pytest.approx(4e-7)
    assert terms(group, replace(FULL, independent_chains=12))["fma"] == pytest.approx(1e-7)
    # A sum waits for itself too; an addition of two tensors does not.
    assert terms(one(Work(simple=1000), reduction=(10,)), replace(FULL, independent_chains=1))[
        "simple"
    ] == pytest.approx(8e-7)
    assert terms(one(Work(simple=1000)), replace(FULL, independent_chains=1))["simple"] == pytest.approx(1e-7)


def test_loads_beyond_one_per_fma_slow_it_down() -> None:
    group = one(Work(fma=1000), reduction=(8,))
    assert terms(group, replace(FULL, loads_per_fma=0.75))["fma"] == pytest.approx(1e-7)
    assert terms(group, replace(FULL, loads_per_fma=2.0))["fma"] == pytest.approx(2e-7)


def test_accumulators_beyond_the_registers_spill() -> None:
    group = one(Work(fma=1000), reduction=(8,))
    fits, spills = (terms(group, replace(FULL, accumulators=n, independent_chains=8))["fma"] for n in (13, 14))
    assert fits == pytest.approx(1e-7) and spills >= SPILL_SLOWDOWN * 1e-7
    wide = replace(MACHINE, vector_registers=32)
    assert terms(group, replace(FULL, accumulators=14), wide)["fma"] == pytest.approx(1e-7)


def test_scalar_code_uses_one_lane() -> None:
    group = one(Work(simple=8000))
    assert terms(group, replace(FULL, vector_fill=1 / 8))["simple"] == pytest.approx(6.4e-6)
    assert terms(group, replace(FULL, vector_fill=0.0))["simple"] == pytest.approx(6.4e-6)


def test_scalar_accesses_use_a_lane_of_l1s_bandwidth() -> None:
    full, scalar = (terms(one(Work(), 4096), replace(FULL, vector_fill=f)) for f in (1.0, 1 / 8))
    assert scalar["l1"] == pytest.approx(8 * full["l1"]) and scalar["l2"] == full["l2"]


def test_a_view_costs_no_more_than_its_entry() -> None:
    shape = KernelShape(tasks=1, loops=0)
    assert cost(one(Work(), 1 << 24), shape) == pytest.approx(ENTRY_SECONDS)
    assert cost(one(Work(), 1 << 24), replace(shape, loops=1)) > 1e-3


def test_parallel_work_is_divided_and_the_tail_counts() -> None:
    group = one(Work(fma=8_000_000), reduction=(64,))
    even, tail, two = (terms(group, replace(FULL, tasks=n)) for n in (8, 5, 2))
    assert even["speedup"] == 4 and even["compute"] == pytest.approx(2e-4)
    assert tail["speedup"] == 2.5 and tail["compute"] == pytest.approx(3.2e-4)
    assert two["speedup"] == 2 and two["compute"] == pytest.approx(4e-4)
    assert even["parallel"] == pytest.approx(1e-6)
    assert terms(group, replace(FULL, tasks=8, loops=3))["parallel"] == pytest.approx(3e-6)
    assert terms(group, replace(FULL, tasks=8), replace(MACHINE, cores=1))["parallel"] == 0.0


def test_recompute_is_paid_on_top() -> None:
    t = terms(one(Work(fma=1_000_000), reduction=(64,)), replace(FULL, recompute=1.25))
    assert t["recompute"] == pytest.approx(2.5e-5)
    assert t["total"] == pytest.approx(1.25e-4 + ENTRY_SECONDS)


def test_half_of_small_tensors_stays_in_l2() -> None:
    # 16 KiB in and out: far inside L2; what another core wrote comes through L3 all the same, nothing from memory.
    t = terms(one(Work(simple=1), 4096), FULL)
    assert t["l1"] == pytest.approx(32768 / 4e10) and t["l2"] == pytest.approx(32768 / 2e10)
    assert t["l3"] == pytest.approx(0.5 * 32768 / 1e10) and t["memory"] == 0.0
    assert t["total"] == pytest.approx(max(t["l2"], t["l3"]) + ENTRY_SECONDS)


def test_larger_tensors_come_from_l3() -> None:
    # 2 MiB each way: beyond twice the L2 of one core, within half of L3.
    t = terms(one(Work(simple=1), 1 << 19), FULL)
    assert t["l3"] == pytest.approx((4 << 20) / 1e10) and t["memory"] == 0.0
    # On four cores at once the bandwidth is four cores', the L2s are four (4 MiB against 2 MiB is the edge).
    assert terms(one(Work(simple=1), 1 << 19), replace(FULL, tasks=4))["l3"] == pytest.approx((4 << 20) / 4e10)


def test_tensors_beyond_l3_stream_from_memory() -> None:
    group = one(Work(simple=1), 1 << 24)  # 64 MiB in, 64 MiB out
    serial, parallel = terms(group, FULL), terms(group, replace(FULL, tasks=4))
    assert serial["memory"] == pytest.approx((128 << 20) / 1e10)  # one core draws no more than from L3
    assert parallel["memory"] == pytest.approx((128 << 20) / 2e10)  # the chip's limit
    assert parallel["total"] == pytest.approx(parallel["memory"] + 1e-6 + ENTRY_SECONDS)


def test_repeated_traffic_stays_in_l3_unless_the_tasks_overflow_it() -> None:
    group = one(Work(simple=1), 1 << 16)
    shape = replace(FULL, l3_bytes=1 << 28, footprint=1 << 20)
    fits, overflows = terms(group, shape), terms(group, replace(shape, footprint=1 << 26))
    assert fits["l3"] == pytest.approx((1 << 28) / 1e10) and fits["memory"] == 0.0
    assert overflows["memory"] == pytest.approx((1 << 28) / 1e10)


def test_tasks_share_what_they_read() -> None:
    # Four tasks of 8 MiB each in a kernel that reads and writes 1 MiB: they cannot all be different bytes.
    group = one(Work(simple=1), 1 << 17)
    shape = replace(FULL, tasks=4, l3_bytes=1 << 28)
    assert terms(group, replace(shape, footprint=1 << 23))["memory"] == 0.0
    assert terms(group, replace(shape, footprint=1 << 26))["memory"] > 0.0


def test_stated_compulsory_traffic_replaces_the_tensors_sizes() -> None:
    # A gather reads a few rows of a large table.
    group = one(Work(simple=1), 1 << 24)
    assert terms(group, replace(FULL, memory_bytes=4096))["memory"] == 0.0


def weighted(elements: int, weights: int, role: Role = Role.CONSTANT) -> Group:
    """`one` of no work to speak of, with an operand of `weights` float32 more."""
    tensors = (
        Tensor(0, "x", (elements,), role=Role.INPUT), Tensor(1, "w", (weights,), role=role), Tensor(2, "y", (elements,))
    )  # fmt: skip
    accesses = (Access(0, 0, MappingType.ONE_TO_ONE), Access(1, 1, MappingType.ONE_TO_MANY))
    op = Operator(0, "scale", "multiply", "scale", (0, 1), (2,), accesses, Work(simple=1), spatial=(elements,))
    return Group.of(Graph("weighted", tensors, (op,), (0,), (2,)), [0])


def cold_terms(group: Group, shape: KernelShape) -> dict[str, float]:
    model = AnalyticalCostModel(MACHINE, cold=True)
    return {k: float(v[0]) for k, v in model.terms([candidate(group, shape)]).items()}


def test_cold_weights_come_from_memory_and_nothing_else_does() -> None:
    # 8 KiB of activations and 1 MiB of weights, in a last cache of 16 MiB.
    group = weighted(1 << 10, 1 << 18)
    assert terms(group, FULL)["memory"] == 0.0
    assert cold_terms(group, FULL)["memory"] == pytest.approx((1 << 20) / 1e10)  # one core draws what L3 would give
    assert cold_terms(group, replace(FULL, tasks=4))["memory"] == pytest.approx((1 << 20) / 2e10)
    hot, cold = terms(group, replace(FULL, tasks=4)), cold_terms(group, replace(FULL, tasks=4))
    assert hot.keys() == cold.keys()
    assert {k for k in hot if hot[k] != cold[k]} == {"memory", "total"} and cold["total"] > hot["total"]


def test_cold_weights_make_no_difference_to_a_kernel_without_any() -> None:
    for group in (one(Work(simple=1), 1 << 20), weighted(1 << 10, 1 << 18, Role.INPUT)):
        assert cold_terms(group, replace(FULL, memory_bytes=1 << 22)) == terms(
            group, replace(FULL, memory_bytes=1 << 22)
        )
    view = KernelShape(tasks=1, loops=0)
    assert cold_terms(weighted(1 << 10, 1 << 18), view)["memory"] == 0.0


def test_cold_weights_count_in_the_form_in_which_they_are_read() -> None:
    # Activations of 8 KiB; the family says 4 MiB in all for transformed weights, 12 KiB for some rows of a table.
    group = weighted(1 << 10, 1 << 18)
    larger = cold_terms(group, replace(FULL, memory_bytes=(1 << 22) + 8192))
    assert larger["memory"] == pytest.approx((1 << 22) / 1e10)
    table = weighted(1 << 10, 1 << 26)
    assert cold_terms(table, replace(FULL, memory_bytes=12 << 10))["memory"] == pytest.approx((4 << 10) / 1e10)
    assert cold_terms(table, replace(FULL, memory_bytes=1 << 10))["memory"] == 0.0


def test_weights_beyond_the_last_cache_are_cold_anyway() -> None:
    group = weighted(1 << 10, 1 << 24)  # 64 MiB
    assert (
        cold_terms(group, FULL)["memory"] == terms(group, FULL)["memory"] == pytest.approx(((64 << 20) + 8192) / 1e10)
    )
    edge = weighted(1 << 10, (1 << 22) - (1 << 11))  # 16 MiB with its activations: half of it is outside
    assert terms(edge, FULL)["memory"] == pytest.approx(0.5 * (1 << 24) / 1e10)
    assert cold_terms(edge, FULL)["memory"] == pytest.approx(((1 << 24) - 4096) / 1e10)


def test_weights_of_a_network_are_cold_from_half_of_the_last_cache_on() -> None:
    limit = (16 << 20) // 2 // 4
    assert not weights_are_cold(weighted(1 << 24, limit).graph, MACHINE)
    assert weights_are_cold(weighted(8, limit + 1).graph, MACHINE)
    assert weight_bytes(weighted(8, 100, Role.INPUT).graph) == 0


def test_of_a_table_only_what_is_looked_up_counts_and_unused_constants_do_not() -> None:
    tensors = (
        Tensor(0, "ids", (8,), "int64", Role.INPUT), Tensor(1, "table", (1000, 16), role=Role.CONSTANT),
        Tensor(2, "found", (8, 16)), Tensor(3, "unused", (500,), role=Role.CONSTANT), Tensor(4, "y", (8, 1000)),
    )  # fmt: skip
    take = Operator(0, "take", "take", "take", (1, 0), (2,), (Access(0, 1, MappingType.SHUFFLE),))
    tied = Operator(1, "logits", "matmul", "matmul", (2, 1), (4,), (Access(0, 2, MappingType.MANY_TO_MANY),))
    assert weight_bytes(Graph("lookup", tensors, (take,), (0,), (2,))) == 8 * 16 * 4
    assert weight_bytes(Graph("tied", tensors, (take, tied), (0,), (4,))) == 1000 * 16 * 4


def test_cache_border_is_a_slope() -> None:
    shares = outside(np.array([0.0, 500.0, 1000.0, 2000.0, 1e9]), 1000.0)
    assert shares == pytest.approx([0, 0, 0.5, 1, 1])


def test_a_noisy_calibration_never_makes_far_memory_fast() -> None:
    odd = replace(MACHINE, l2_bandwidth=9e10, l3_bandwidth=8e10, memory_bandwidth=7e11)
    t = terms(one(Work(simple=1), 1 << 24), FULL, odd)
    assert t["memory"] >= t["l3"] >= t["l2"] >= t["l1"] > 0


def test_call_cost_is_the_machines_call_overhead_and_not_in_the_costs() -> None:
    model = AnalyticalCostModel(MACHINE)
    assert model.call_cost == 5e-7
    assert cost(one(Work()), FULL) < 5e-7


counts = st.integers(0, 10**12)
works = st.builds(Work, fma=counts, simple=counts, divide=counts, special=counts, compare=counts)
sizes = st.integers(0, 10**11)
kernel_shapes = st.builds(
    KernelShape,
    tasks=st.integers(1, 10**5),
    vector_fill=st.floats(0, 1),
    accumulators=st.integers(0, 64),
    independent_chains=st.integers(0, 64),
    recompute=st.floats(1, 50),
    loads_per_fma=st.floats(0, 20),
    l1_bytes=sizes,
    l2_bytes=sizes,
    l3_bytes=sizes,
    memory_bytes=sizes,
    footprint=sizes,
    loops=st.integers(0, 20),
)
# Equal but for rounding in the last places.
NOT_CHEAPER = 1 - 1e-9


@settings(max_examples=60, deadline=None)
@given(works, kernel_shapes, st.integers(1, 10**6), st.booleans())
def test_costs_and_terms_are_finite_and_positive(work: Work, shape: KernelShape, elements: int, reduces: bool) -> None:
    t = terms(one(work, elements, (4,) if reduces else ()), shape)
    assert all(np.isfinite(v) and v >= 0 for v in t.values())
    assert t["total"] >= max(t["compute"], t["l1"], t["l2"], t["l3"], t["memory"]) + ENTRY_SECONDS


@settings(max_examples=60, deadline=None)
@given(works, works, kernel_shapes)
def test_more_work_is_never_cheaper(work: Work, more: Work, shape: KernelShape) -> None:
    assert cost(one(work + more, reduction=(4,)), shape) >= NOT_CHEAPER * cost(one(work, reduction=(4,)), shape)


@settings(max_examples=100, deadline=None)
@given(works, kernel_shapes, st.sampled_from(["l1", "l2", "l3", "memory"]), st.integers(1, 10**10))
def test_more_bytes_are_never_cheaper(work: Work, shape: KernelShape, level: str, more: int) -> None:
    shape = replace(shape, memory_bytes=max(1, shape.memory_bytes))  # 0 stands for "the tensors' sizes"
    name = f"{level}_bytes"
    assert cost(one(work), replace(shape, **{name: getattr(shape, name) + more})) >= NOT_CHEAPER * cost(
        one(work), shape
    )
    bigger = replace(shape, footprint=shape.footprint + more)
    assert cost(one(work), bigger) >= NOT_CHEAPER * cost(one(work), shape)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**7), st.integers(1, 10**6), kernel_shapes)
def test_larger_tensors_are_never_cheaper(elements: int, more: int, shape: KernelShape) -> None:
    shape = replace(shape, memory_bytes=0)
    assert cost(one(Work(), elements + more), shape) >= NOT_CHEAPER * cost(one(Work(), elements), shape)


@settings(max_examples=60, deadline=None)
@given(works, kernel_shapes, st.floats(0, 5), st.integers(1, 20))
def test_worse_tiles_are_never_cheaper(work: Work, shape: KernelShape, more: float, count: int) -> None:
    group = one(work, reduction=(4,))
    base = NOT_CHEAPER * cost(group, shape)
    assert cost(group, replace(shape, recompute=shape.recompute + more)) >= base
    assert cost(group, replace(shape, loads_per_fma=shape.loads_per_fma + more)) >= base
    assert cost(group, replace(shape, accumulators=shape.accumulators + count)) >= base
    assert cost(group, replace(shape, loops=shape.loops + count)) >= base
    assert cost(group, replace(shape, independent_chains=shape.independent_chains // 2)) >= base
    assert cost(group, replace(shape, vector_fill=shape.vector_fill / 2)) >= base


def test_a_hundred_thousand_candidates_in_one_batch() -> None:
    groups = [one(Work(fma=1000 * i), reduction=(8,)) for i in range(1, 101)]
    family = FakeFamily([replace(FULL, tasks=t) for t in range(1, 11)])
    batch = [Candidate(g, family, FakeConfiguration(c)) for g in groups for c in range(10)] * 100
    start = time.process_time()
    costs = AnalyticalCostModel(MACHINE).costs(batch)
    # About half a second of processor time; an implementation that works candidate by candidate takes many.
    assert time.process_time() - start < 5.0
    assert costs.shape == (100_000,) and np.array_equal(costs[:1000], costs[-1000:])


def test_traffic_of_what_fits_l2_crosses_its_border_half() -> None:
    group = one(Work(simple=1), 1 << 10)
    small = replace(FULL, l3_bytes=1 << 28, footprint=1 << 10)
    large = replace(small, footprint=1 << 24)
    assert terms(group, small)["l3"] == pytest.approx(0.5 * terms(group, large)["l3"])


def test_scattered_elements_are_moved_one_by_one() -> None:
    group = one(Work(), 1 << 10)
    apart = terms(group, replace(FULL, scattered=1 << 10))
    assert apart["scatter"] == pytest.approx(0.6 * (1 << 10) / MACHINE.frequency_hz)
    assert apart["compute"] == pytest.approx(terms(group, FULL)["compute"] + apart["scatter"])


def test_a_copy_before_the_main_loop_is_not_hidden() -> None:
    group = one(Work(fma=1000), 1 << 20)
    hidden, bare = terms(group, FULL), terms(group, replace(FULL, exposed=0.5))
    traffic = max(bare["l2"], bare["l3"], bare["memory"])
    assert bare["exposed"] == pytest.approx(0.5 * min(traffic, bare["compute"]))
    assert bare["total"] == pytest.approx(hidden["total"] + bare["exposed"])


def test_a_fast_algorithm_trades_multiply_adds_for_additions() -> None:
    group = one(Work(fma=1 << 20), 1 << 10)
    plain = terms(group, FULL)
    fast = terms(group, replace(FULL, fma_ratio=0.25, extra_simple=1 << 16))
    assert fast["fma"] == pytest.approx(plain["fma"] / 4)
    assert plain["simple"] == 0 and fast["simple"] == pytest.approx((1 << 16) / MACHINE.simple_per_second)
    assert fast["total"] < plain["total"]
    view = terms(group, replace(FULL, loops=0, extra_simple=1 << 16))
    assert view["compute"] == 0
