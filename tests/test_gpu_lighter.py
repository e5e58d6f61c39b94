"""Kernels whose code spills are made in another configuration: which, until when, and that what was measured stays."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_harness import HARDWARE, TARGET, GpuCase
from isa_harness import _affine
from onnx import TensorProto, helper, numpy_helper

import autofuse
from autofuse.codegen.gpu_executable import GpuExecutable
from autofuse.codegen.kernels import Assignment, Kernel, KernelBuilder
from autofuse.codegen.lighter import Lighter, spilled
from autofuse.cost.gpu import GpuCostModel
from autofuse.cost.model import Candidate, CostModel
from autofuse.schedule.registry import family

FITS = {"vgpr_spills": 0, "scratch_bytes": 0, "sgpr_spills": 3}
SPILLS = {"vgpr_spills": 93, "scratch_bytes": 1216, "sgpr_spills": 0}
CASE = GpuCase(family("gpu_gemm", "gpu"), _affine(32, 48), [(64, 32)])


class Measured(CostModel):
    """Says of every kernel that it was measured."""

    name = "measured"

    def costs(self, candidates: Sequence[Candidate]) -> Any:
        return GpuCostModel(HARDWARE).costs(candidates)

    def sources(self, candidates: Sequence[Candidate]) -> list[str]:
        return ["record"] * len(candidates)


def by_cost() -> list[str]:
    """Configurations, the cheapest first."""
    configs = CASE.configs()
    costs = GpuCostModel(HARDWARE).costs([Candidate(CASE.group, CASE.family, c) for c in configs])
    return [configs[i].text for i in costs.argsort(kind="stable")]


def made(costs: CostModel) -> tuple[Lighter, Kernel]:
    builder = KernelBuilder(CASE.made.fuser, HARDWARE, lambda _: None, costs)
    config = type(CASE.configs()[0]).parse(by_cost()[0])
    return Lighter(builder, costs), builder.schedule(Assignment(CASE.group, CASE.family, config))


def texts(kernels: Sequence[Kernel]) -> list[str]:
    return [kernel.assignment.config.text for kernel in kernels]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], ""),
        ([FITS, FITS], ""),
        ([FITS, SPILLS], "93 registers spill, 1216 bytes of scratch memory a lane"),
        ([{**FITS, "scratch_bytes": 16}], "0 registers spill, 16 bytes of scratch memory a lane"),
    ],
)
def test_what_code_keeps_in_memory_is_told(rows: list[Mapping[str, int]], says: str) -> None:
    assert spilled(rows) == says


def test_kernels_that_fit_stay() -> None:
    lighter, kernel = made(GpuCostModel(HARDWARE))
    (same,) = lighter.again([kernel], {kernel.name: [FITS]})
    assert same is kernel


def test_the_cheapest_other_configuration_is_next_and_equal_kernels_stay_equal() -> None:
    lighter, kernel = made(GpuCostModel(HARDWARE))
    order = by_cost()
    first = lighter.again([kernel, kernel], {kernel.name: [SPILLS]})
    assert texts(first) == [order[1], order[1]] and first[0].name == first[1].name != kernel.name
    second = lighter.again(first, {first[0].name: [FITS]})
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, True]
    third = lighter.again(first, {first[0].name: [SPILLS]})
    assert texts(third) == [order[2], order[2]]


def test_where_every_configuration_spills_the_first_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    lighter, kernel = made(GpuCostModel(HARDWARE))
    seen, now = [], kernel
    for _ in range(len(by_cost()) + 1):
        seen.append(now.assignment.config.text)
        (now,) = lighter.again([now], {now.name: [SPILLS]})
    assert seen == [*by_cost(), by_cost()[0]] and now is kernel
    assert "whatever the configuration" in caplog.text


def test_what_was_measured_stays() -> None:
    lighter, kernel = made(Measured())
    assert lighter.again([kernel], {kernel.name: [SPILLS]})[0] is kernel


def test_a_plan_whose_kernel_spills_is_built_without_spills(caplog: pytest.LogCaptureFixture) -> None:
    """Sizes that nothing divides, in two buffers: the compiler needs far more registers than is estimated."""
    value = helper.make_tensor_value_info
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (37, 45)), ("b", (45,)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Tanh", ["s"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "odd", [value("x", TensorProto.FLOAT, [13, 37])],
                              [value("y", TensorProto.FLOAT, [13, 45])], weights)  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    found = autofuse.compile(model, target=TARGET).plan
    heavy = "rows=16,columns=64,depth=16,micro_rows=4,micro_columns=4,buffers=2"
    groups = tuple(replace(g, config=heavy) if g.family == "gpu_gemm" else g for g in found.groups)
    assert groups != found.groups
    with caplog.at_level(logging.INFO, "autofuse"):
        built = autofuse.compile(model, target=TARGET, plan=replace(found, groups=groups))
    assert isinstance(built, GpuExecutable) and "registers spill" in caplog.text
    assert {g.config for g in built.plan.groups if g.family == "gpu_gemm"}.isdisjoint({heavy})
    assert all(spilled(rows) == "" for rows in built.package.program.resources.values())
