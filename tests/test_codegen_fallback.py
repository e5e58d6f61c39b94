"""What happens when a group cannot be scheduled or built: smaller kernels, a warning, the right result."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from codegen_cases import TARGET, alone, analysed_model, of_kind, program_of, run_executable, taken, two_branches
from frontend_graphs import random_inputs, run_onnxruntime
from tvm import te, tirx

import autofuse
from autofuse.codegen import kernels as kernels_module
from autofuse.codegen.build import build_with_fallback
from autofuse.codegen.kernels import Assignment, KernelBuilder
from autofuse.compiler import Analysed
from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.keys import workload_key
from autofuse.graph.model import Group
from autofuse.records import MemoryStore, Record, RecordedHardware, Workload
from autofuse.records.identity import identity_of
from autofuse.records.model import RecordedCostModel
from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.elementwise import ElementwiseFamily
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.schedule.registry import families
from autofuse.target import Hardware


@dataclass(frozen=True)
class NoChoice(Configuration):
    pass


class Stub(ScheduleFamily):
    """Takes every group; what it makes of them, the tests say."""

    name = "stub"
    version = 1
    configuration = NoChoice

    def match(self, group: Group, hardware: Hardware) -> None:
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[NoChoice]:
        return [NoChoice()]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        return KernelShape(tasks=1)


class Raising(Stub):
    def apply(self, func: Any, group: Group, config: Any, hardware: Hardware) -> Any:
        raise ScheduleError("first line\nno such loop")


class Unbuildable(Stub):
    """Gives functions of the right parameters that call what LLVM does not have."""

    def apply(self, func: Any, group: Group, config: Any, hardware: Hardware) -> Any:
        tensors = group.graph.tensors
        inputs = [te.placeholder(tensors[t].shape, name=f"p{i}") for i, t in enumerate(group.inputs)]
        result = te.compute(
            tensors[group.outputs[0]].shape, lambda *i: tirx.call_pure_extern("float32", "llvm.no.such.thing", i[0])
        )
        wrong = te.create_prim_func([*inputs, result])
        body = tirx.Evaluate(tirx.call_llvm_pure_intrin("float32", "llvm.no.such.thing", tirx.const(1.0, "float32")))
        return wrong.with_body(body)


def split_in(analysed: Analysed, family: ScheduleFamily) -> list[Assignment]:
    """The add + sigmoid + layout change under `family`, the convolutions as they should be."""
    pairs = zip(of_kind(analysed, "nn.conv2d"), of_kind(analysed, "nn.relu"), strict=True)
    used = [taken(analysed, pair) for pair in pairs]
    covered = {m for a in used for m in a.group.members}
    rest = Group.of(analysed.graph, [op.index for op in analysed.graph.operators if op.index not in covered])
    before = [i for i in rest.members if i < min(min(a.group.members) for a in used)]
    tail = Group.of(analysed.graph, [i for i in rest.members if i not in before])
    assert len(tail.members) == 3
    return [*(taken(analysed, [i]) for i in before), *used, Assignment(tail, family, NoChoice())]


def check(analysed: Analysed, builder: KernelBuilder, assignments: Sequence[Assignment]) -> int:
    """Builds, runs and compares with ONNX Runtime; gives the number of kernels."""
    arrays = random_inputs(analysed.prepared)
    kernels = builder.kernels(assignments)
    program, executable = build_with_fallback(kernels, builder, lambda k: program_of(analysed, k), TARGET)
    (ours,) = run_executable(program, executable, arrays)
    (theirs,) = run_onnxruntime(two_branches(), analysed.prepared, arrays)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    return program.kernels


def builder_of(analysed: Analysed) -> KernelBuilder:
    return KernelBuilder(analysed.fuser, analysed.hardware, alone(analysed))


@pytest.mark.parametrize("family", [Raising(), Unbuildable()], ids=["schedule", "build"])
def test_a_group_that_fails_becomes_single_kernels(
    branches: Analysed, family: ScheduleFamily, caplog: pytest.LogCaptureFixture
) -> None:
    assignments = split_in(branches, family)
    with caplog.at_level(logging.WARNING, "autofuse"):
        count = check(branches, builder_of(branches), assignments)
    assert count == len(assignments) + 2
    named = [r.getMessage() for r in caplog.records if r.getMessage().startswith("group ")]
    assert len(named) == 1
    tail = assignments[-1].group
    assert tail.label in named[0]
    assert all(op.name in named[0] for op in tail.operators)
    assert "\n" not in named[0]


def test_equal_groups_are_built_once(branches: Analysed) -> None:
    builder = builder_of(branches)
    assignments = [
        taken(branches, pair) for pair in zip(of_kind(branches, "nn.conv2d"), of_kind(branches, "nn.relu"), strict=True)
    ]
    first, second = builder.kernels(assignments)
    assert first.name == second.name
    assert first.func.same_as(second.func)
    assert first.assignment.group != second.assignment.group


def test_an_operator_whose_schedule_fails_takes_another(branches: Analysed, caplog: pytest.LogCaptureFixture) -> None:
    (sigmoid,) = of_kind(branches, "sigmoid")
    group = Group.of(branches.graph, [sigmoid])
    (kernel,) = builder_of(branches).kernels([Assignment(group, Raising(), NoChoice())])
    assert not kernel.plain
    assert kernel.assignment.family.match(group, branches.hardware) is None
    assert "sigmoid" in caplog.text
    assert "no such loop" in caplog.text


def test_an_operator_without_any_schedule_runs_as_plain_loops(
    branches: Analysed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assignments = split_in(branches, Raising())
    monkeypatch.setattr(kernels_module, "families", lambda kind: ())
    builder = KernelBuilder(branches.fuser, branches.hardware, lambda group: None)
    count = check(branches, builder, assignments)
    assert count == len(assignments) + 2
    assert caplog.text.count("plain loops") == 3


def test_a_failure_that_no_kernel_explains_is_raised(branches: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    from autofuse.codegen import build

    def broken(module: Any, target: Any) -> Any:
        raise tvm.error.InternalError("out of luck")

    monkeypatch.setattr(build, "build_program", broken)
    monkeypatch.setattr(build, "build_kernel", lambda func, target: None)
    builder = builder_of(branches)
    (sigmoid,) = of_kind(branches, "sigmoid")
    group = Group.of(branches.graph, [sigmoid])
    family = ElementwiseFamily()
    kernels = builder.kernels([Assignment(group, family, family.configs(group, branches.hardware)[0])])

    class Nothing:
        module = None

    with pytest.raises(tvm.error.InternalError, match="out of luck"):
        build_with_fallback(kernels, builder, lambda k: Nothing(), TARGET)  # type: ignore[arg-type, return-value]


class Failing(CostModel):
    """Knows all configurations of all families but some to fail, as a store of records may."""

    name = "analytical"

    def __init__(self, *working: str) -> None:
        self.working = working

    def costs(self, candidates: Sequence[Candidate]) -> Any:
        return np.array([1e-6 if c.family.name in self.working else np.inf for c in candidates])


@pytest.mark.parametrize("working", [("plain",), ()], ids=["another family", "none"])
def test_a_schedule_that_is_known_to_fail_takes_no_other_s_place(branches: Analysed, working: tuple[str, ...]) -> None:
    """Neither where a group fails nor where an operator alone does, or has no schedule left."""
    costs = Failing(*working)
    for singles in (alone(branches), lambda group: None):
        builder = KernelBuilder(branches.fuser, branches.hardware, singles, costs)
        tail = split_in(branches, Raising())[-1].group
        split = builder.kernels([Assignment(tail, Raising(), NoChoice())])
        single = builder.kernels([Assignment(Group.of(branches.graph, tail.members[:1]), Raising(), NoChoice())])
        chosen = [k for k in split if singles(k.assignment.group) is None] + single
        assert len(split) == 3 and len(single) == 1
        assert [k.plain for k in chosen] == [not working] * len(chosen)
        assert {k.assignment.family.name for k in chosen if not k.plain} == set(working)


def test_of_the_others_the_cheapest_without_a_recorded_failure_is_taken(branches: Analysed) -> None:
    (sigmoid,) = of_kind(branches, "sigmoid")
    group, family = Group.of(branches.graph, [sigmoid]), ElementwiseFamily()
    first, second = family.configs(group, branches.hardware)[:2]
    key = workload_key(group)
    with MemoryStore() as store:
        store.add_hardware(RecordedHardware("here", "this machine"))
        store.add_workload(Workload(key, "sigmoid"))
        about = identity_of(Candidate(group, family, first), key, "here")
        failure = Record(
            key, "here", family.name, family.version, first.text, about.layouts, status="wrong", message="wrong"
        )
        store.add(failure)
        costs = RecordedCostModel(store, "here", Failing(family.name))
        builder = KernelBuilder(branches.fuser, branches.hardware, alone(branches), costs)
        (kernel,) = builder.kernels([Assignment(group, Raising(), NoChoice())])
    assert (kernel.assignment.family.name, kernel.assignment.config) == (family.name, second)


@pytest.mark.parametrize("working", [("plain",), ()], ids=["another family", "none"])
def test_a_configuration_that_is_known_to_fail_is_never_taken(
    working: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "autofuse"):
        made = autofuse.compile(two_branches(), cost_model=Failing(*working), threads=2)
    assert {entry["family"] for entry in made.description["kernel_list"]} == {*working} or {""}
    assert {(g.family, len(g.members)) for g in made.plan.groups} == {(working[0] if working else "", 1)}
    assert ("runs as plain loops" in caplog.text) == (not working)
    arrays = random_inputs(made_from := analysed_model(two_branches()).prepared)
    (theirs,) = run_onnxruntime(two_branches(), made_from, arrays)
    np.testing.assert_allclose(made(*arrays)[0], theirs, atol=1e-5)


@dataclass(frozen=True)
class Doubtful:
    """Whether a kernel fails, drawn from its family, configuration and a seed."""

    seed: int

    def fails(self, what: str, family: str, config: str) -> bool:
        return zlib.crc32(f"{what} {self.seed} {family} {config}".encode()) % 5 < 2


class DoubtfulCosts(CostModel):
    """Analytical costs; two fifths of all configurations are known to fail."""

    name = "analytical"

    def __init__(self, doubtful: Doubtful, hardware: Hardware) -> None:
        self.doubtful, self.others = doubtful, AnalyticalCostModel(hardware)

    def costs(self, candidates: Sequence[Candidate]) -> Any:
        fails = [self.doubtful.fails("known", c.family.name, c.config.text) for c in candidates]
        return np.where(fails, np.inf, self.others.costs(candidates))


@pytest.mark.parametrize(("seed", "strategy"), [(0, "dp"), (1, "greedy"), (2, "none")])
def test_nothing_that_is_known_to_fail_is_built_whatever_else_fails(
    branches: Analysed, seed: int, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fifths of the other configurations cannot be scheduled: their operators take others, never known ones."""
    doubtful = Doubtful(seed)
    before = autofuse.compile(two_branches(), threads=2, cost_model="analytical").plan
    built: set[tuple[str, str]] = set()
    for family in families():

        def apply(func: Any, group: Any, config: Any, hardware: Any, family: Any = family) -> Any:
            built.add((family.name, config.text))
            if doubtful.fails("new", family.name, config.text):
                raise ScheduleError("it does not work")
            return type(family).apply(family, func, group, config, hardware)

        monkeypatch.setattr(family, "apply", apply)
    costs = DoubtfulCosts(doubtful, branches.hardware)
    for plan in (None, before):
        made = autofuse.compile(two_branches(), cost_model=costs, strategy=strategy, plan=plan, threads=2)
        used = {(g.family, g.config) for g in made.plan.groups if g.family not in ("", "view")}
        assert used <= built and not any(doubtful.fails("known", *one) for one in built)
        assert not any(doubtful.fails("new", *one) for one in used)
        arrays = random_inputs(branches.prepared)
        (theirs,) = run_onnxruntime(two_branches(), branches.prepared, arrays)
        np.testing.assert_allclose(made(*arrays)[0], theirs, atol=1e-5)
