"""From groups of a model to items, build requests and right outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from plain_groups import FAMILY, PlainCosts, PlainFamily, Scale, chain, graph

from autofuse.codegen.transport import from_text
from autofuse.cost.model import Candidate
from autofuse.graph.keys import canonical_text, workload_key
from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor
from autofuse.graph.reasons import Refusal
from autofuse.measure.kernels import KernelSource, index_ranges, items_of
from autofuse.schedule.family import Configuration
from autofuse.search.problem import Choice
from autofuse.target import Hardware

HARDWARE = Hardware()


class Picky(PlainFamily):
    """Takes single operators only."""

    name: ClassVar[str] = "picky"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        return None if len(group.members) == 1 else Refusal("size", "more than one operator")


class Wide(PlainFamily):
    """Has many configurations."""

    name: ClassVar[str] = "wide"

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        return [Scale(scale) for scale in range(1, 21)]


class View(PlainFamily):
    """Takes groups that compute nothing."""

    name: ClassVar[str] = "view"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        return None if group.operators[0].kind == "reshape" else Refusal("kind", "computes something")


class Doubting(PlainCosts):
    """The larger the scale, the less sure."""

    def uncertainty(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        self.asked.append(len(candidates))
        return np.array([float(c.config.text.removeprefix("scale=")) for c in candidates])


class TestItems:
    def test_take_the_first_family_that_matches_and_its_first_configurations(self) -> None:
        g = graph(["a", "b"])
        groups = [Group.of(g, [0]), Group.of(g, [0, 1])]
        items = items_of(groups, (Picky(), FAMILY), HARDWARE, "net", configs=2, plans=[Choice(groups[1], 1.0)])
        assert [(i.candidate.family.name, i.candidate.config.text, i.planned) for i in items] == [
            ("picky", "scale=1", False),
            ("picky", "scale=2", False),
            ("plain", "scale=1", True),
            ("plain", "scale=2", True),
        ]
        assert items[2].key == workload_key(groups[1]) and items[2].text == canonical_text(groups[1])
        assert all(i.model == "net" for i in items)

    def test_explore_other_configurations_the_same_ones_every_time(self) -> None:
        group = Group.of(graph(["a"]), [0])
        space = [c.text for c in Wide().configs(group, HARDWARE)]
        first, again = (items_of([group], (Wide(),), HARDWARE, "net", configs=2, explore=3) for _ in range(2))
        texts = [i.candidate.config.text for i in first]
        assert texts[:2] == space[:2] and len(texts) == len(set(texts)) == 5 and set(texts) <= set(space)
        assert texts == [i.candidate.config.text for i in again]
        assert len(items_of([group], (Wide(),), HARDWARE, "net", configs=2, explore=100)) == len(space)

    def test_the_configurations_of_present_plans_come_first(self) -> None:
        group = Group.of(graph(["a"]), [0])
        plans = [Choice(group, 1.0, "wide", "scale=9"), Choice(group, 1.0, "wide", "scale=2"),
                 Choice(group, 1.0, "other", "scale=5")]  # fmt: skip
        items = items_of([group], (Wide(),), HARDWARE, "net", configs=2, plans=plans)
        assert [i.candidate.config.text for i in items] == ["scale=2", "scale=9", "scale=1"]
        assert all(i.planned for i in items) and [i.used for i in items] == [True, True, False]

    def test_half_of_those_explored_are_what_the_costs_are_least_sure_of(self) -> None:
        groups = [chain([kind]) for kind in "ab"]
        costs = Doubting()
        items = items_of(groups, (Wide(),), HARDWARE, "net", configs=2, explore=4, costs=costs)
        for group in groups:
            texts = [i.candidate.config.text for i in items if i.candidate.group is group]
            assert texts[:4] == ["scale=1", "scale=2", "scale=20", "scale=19"]
            assert len(texts) == len(set(texts)) == 6
        assert costs.asked == [36]  # all at once
        everything = items_of(groups, (Wide(),), HARDWARE, "net", configs=2, explore=100, costs=costs)
        assert len(everything) == 40
        plain = items_of(groups, (Wide(),), HARDWARE, "net", configs=2, explore=4, costs=PlainCosts())
        assert len(plain) == 12  # a model that cannot tell

    def test_leave_out_what_nothing_schedules_and_what_computes_nothing(self) -> None:
        assert items_of([chain(["reshape"])], (View(), FAMILY), HARDWARE, "net") == []
        assert items_of([chain(["a", "b"])], (Picky(),), HARDWARE, "net") == []


def test_requests_say_which_parameters_are_the_networks_weights(source: KernelSource, group: Group) -> None:
    (item,) = items_of([group], (FAMILY,), HARDWARE, "net", configs=1)
    assert not any(a.constant for a in source.request(item, "candidate", Path("k.so")).arguments)
    tensors = tuple(replace(t, role=Role.CONSTANT if t.index == 0 else t.role) for t in group.graph.tensors)
    folded = Group.of(replace(group.graph, tensors=tensors), [0])
    other = KernelSource([model_of(folded.graph)])
    (item,) = items_of([folded], (FAMILY,), HARDWARE, "net", configs=1)
    assert [a.constant for a in other.request(item, "candidate", Path("k.so")).arguments] == [True, False]


def test_indices_stay_within_what_they_index() -> None:
    tensors = (
        Tensor(0, "table", (50, 7), role=Role.CONSTANT),
        Tensor(1, "ids", (1, 9), "int64", Role.INPUT),
        Tensor(2, "flags", (1, 9), "int32", Role.INPUT),
        Tensor(3, "out", (1, 9, 7)),
    )
    take = Operator(0, "take", "take", "take", (0, 1, 2), (3,), (Access(0, 0, MappingType.SHUFFLE),), attrs={"axis": 0})
    group = Group.of(Graph("g", tensors, (take,), (1, 2), (3,)), [0])
    assert index_ranges(group) == {1: (0.0, 49.0), 2: (0.0, 1.0)}
    unknown = replace(group.graph, operators=(replace(take, attrs={}),))
    assert index_ranges(Group.of(unknown, [0]))[1] == (0.0, 6.0)


def test_bytes_take_all_their_values_unless_they_may_be_indices() -> None:
    tensors = (
        Tensor(0, "x", (1, 9), "int8", Role.INPUT),
        Tensor(1, "y", (1, 9), "uint8", Role.INPUT),
        Tensor(2, "z", (1, 9), "int32", Role.INPUT),
        Tensor(3, "out", (1, 9)),
    )
    op = Operator(0, "add", "add", "add", (0, 1, 2), (3,), (Access(0, 0, MappingType.ONE_TO_ONE),))
    graph = Graph("g", tensors, (op,), (0, 1, 2), (3,))
    assert index_ranges(Group.of(graph, [0])) == {0: (-128.0, 127.0), 1: (0.0, 255.0), 2: (0.0, 1.0)}
    take = replace(op, name="take", kind="take", inputs=(0, 1), attrs={"axis": 1})
    assert index_ranges(Group.of(replace(graph, operators=(take,)), [0])) == {0: (0.0, 1.0), 1: (0.0, 8.0)}


def definition(group: Group) -> Any:
    """What fusing the group gives: out = x * 2 over 64 floats, as a block."""
    from tvm import te

    x = te.placeholder((64,), name="x")
    out = te.compute((64,), lambda i: x[i] * 2.0, name="out")
    return te.create_prim_func([x, out]).with_attr("global_symbol", "fused")


def loops(group: Group) -> Any:
    """The same as a loop without a block."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(x: T.Buffer((64,), "float32"), out: T.Buffer((64,), "float32")):  # type: ignore
        for i in range(64):
            out[i] = x[i] * T.float32(2)

    return kernel.with_attr("global_symbol", "fused")


@pytest.fixture(scope="module")
def group() -> Group:
    return chain(["double"])


def model_of(graph: Graph, fuse: Any = definition) -> Any:
    """As much of an analysed model as is asked for."""
    target = SimpleNamespace(description={"kind": "llvm"})
    return SimpleNamespace(graph=graph, hardware=HARDWARE, target=target, fuser=SimpleNamespace(fuse=fuse))


@pytest.fixture(scope="module")
def source(group: Group) -> KernelSource:
    return KernelSource([model_of(group.graph)])


class TestKernelSource:
    def test_requests_carry_the_scheduled_code(self, source: KernelSource, group: Group) -> None:
        (item,) = items_of([group], (FAMILY,), HARDWARE, "net", configs=1)
        made = source.request(item, "candidate", Path("k.so"))
        assert (made.key, made.candidate, made.library) == (item.key, "candidate", "k.so")
        assert [a.output for a in made.arguments] == [False, True] and made.arguments[0].shape == (64,)
        assert "T.float32(2" in from_text(made.payload).script() and made.options["s_tir.LoopPartition"]

    def test_right_outputs_of_operators_without_a_form_come_from_their_definition(
        self, source: KernelSource, group: Group
    ) -> None:
        x = np.linspace(-1, 1, 64, dtype=np.float32)
        outputs = source.reference(Candidate(group, FAMILY, Scale()), [x])
        assert len(outputs) == 1 and outputs[0].dtype == np.float32 and np.array_equal(outputs[0], x * 2)

    def test_what_numpy_cannot_compute_has_no_right_outputs(self, group: Group) -> None:
        """However small it is: collection times nothing that it cannot check."""
        source = KernelSource([model_of(group.graph, loops)])
        with pytest.raises(RuntimeError, match=r"numpy does not compute \w+ \(double\): its statements") as caught:
            source.reference(Candidate(group, FAMILY, Scale()), [np.zeros(64, np.float32)])
        assert "\n" not in str(caught.value)

    def test_what_is_too_much_for_numpy_has_none_either(
        self, source: KernelSource, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("autofuse.measure.oracle_definitions.MOST", 63)
        with pytest.raises(RuntimeError, match="64 points of its definition are too many"):
            source.reference(Candidate(group, FAMILY, Scale()), [np.zeros(64, np.float32)])
