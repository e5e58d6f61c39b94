"""The cases of public bug reports about fusion: right under every strategy, few kernels, nothing computed in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import fusion_cases
import numpy as np
import pytest
from fusion_cases import FusionCase

from autofuse.codegen import build
from autofuse.codegen.executable import Executable
from autofuse.compiler import Analysed, analyse, analyse_for, choose_cost_model, problem_of
from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.generation import generate
from autofuse.graph.model import Group, Role
from autofuse.schedule.registry import family
from autofuse.search.check import fault, runs_in_order
from autofuse.search.problem import Choice, SearchProblem, SearchResult
from autofuse.search.strategies import strategy as strategy_of
from autofuse.target import Hardware

STRATEGIES = ("dp", "greedy", "none", "hybrid", "auto", "interval")
# Where the size decides nothing but the time that a test takes.
SIZES: dict[str, dict[str, int]] = {
    "exp_chain_broadcast": {"n": 256},
    "wide_concat": {"parts": 96},
    "long_chain": {"links": 200},
    "two_reductions_big_input": {"n": 512},
}


@dataclass(frozen=True)
class Built:
    """One case under one strategy: the plan, the executable, and the scheduled module that machine code is made of."""

    result: SearchResult
    executable: Executable
    module: Any

    @property
    def functions(self) -> list[Any]:
        """The scheduled kernels, each once."""
        from tvm import tirx

        return [f for f in self.module.functions.values() if isinstance(f, tirx.PrimFunc)]


class Bench:
    """A case taken through the compiler once as far as the search, then by each strategy asked for."""

    def __init__(self, case: FusionCase) -> None:
        self.case = case
        self.arrays = case.inputs()
        self.expected = fusion_cases.onnxruntime_outputs(case, self.arrays)
        self.analysed: Analysed = analyse(case.model, threads=2)
        self.costs = choose_cost_model(self.analysed, None, None, None)
        self.problem: SearchProblem = problem_of(self.analysed, self.costs)
        self._built: dict[Any, Built] = {}

    def built(self, name: str) -> Built:
        """Plans that are the same are built once."""
        result = strategy_of(name, hardware=self.analysed.hardware).search(self.problem)
        key = tuple((c.group.members, c.group.outputs, c.family, c.config) for c in result.choices)
        if key not in self._built:
            self._built[key] = self._build(result)
        return self._built[key]

    def _build(self, result: SearchResult) -> Built:
        seen: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            real: Callable[..., Any] = build.build_program

            def build_and_note(module: Any, target: Any) -> Any:
                seen.append(module)
                return real(module, target)

            patch.setattr(build, "build_program", build_and_note)
            executable = generate(
                self.analysed, self.problem, result, self.costs, {"search": 0.0}, 0.0, lambda _: None, None
            )
        return Built(result, executable, seen[-1])


@cache
def bench(name: str) -> Bench:
    return Bench(fusion_cases.build(name, **SIZES.get(name, {})))


def executions(function: Any, *names: str) -> int:
    """How often calls of the functions called `names` (without prefix) are executed by a scheduled kernel at most.

    The product of the extents of the loops around each, times its vector's lanes.
    """
    return _walk(function.body, 1, names)


def _walk(node: Any, times: int, names: tuple[str, ...]) -> int:
    from tvm import tirx

    if isinstance(node, tirx.For):
        return _walk(node.body, times * int(node.extent), names)
    if isinstance(node, tirx.SeqStmt):
        return sum(_walk(part, times, names) for part in node.seq)
    if isinstance(node, tirx.BufferStore):
        return times * _calls(node.value, names)
    if isinstance(node, tirx.IfThenElse):
        parts = [node.then_case, *([node.else_case] if node.else_case is not None else [])]
        return sum(_walk(part, times, names) for part in parts)
    below = [getattr(node, field) for field in ("block", "body", "init") if getattr(node, field, None) is not None]
    assert below or type(node).__name__ in ("AllocBuffer", "Evaluate", "DeclBuffer"), f"{type(node)} is not understood"
    return sum(_walk(part, times, names) for part in below)


def _calls(expression: Any, names: tuple[str, ...]) -> int:
    import tvm_ffi
    from tvm import tirx
    from tvm.ir import Call

    count = 0

    def visit(found: Any) -> None:
        nonlocal count
        name = str(found.op.name).rpartition(".")[2] if isinstance(found, Call) else type(found).__name__
        if name in names and not str(found.ty).startswith("int"):
            count += int(str(found.ty).partition("x")[2] or 1)

    tvm_ffi.structural_walk(expression, ((Call, tirx.Add, tirx.Mul), visit))
    return count


@pytest.mark.parametrize("name", fusion_cases.BUILDERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_gives_what_onnxruntime_gives(name: str, strategy: str) -> None:
    case = bench(name)
    outputs = case.built(strategy).executable(**case.arrays)
    assert len(outputs) == len(case.expected)
    for mine, theirs in zip(outputs, case.expected, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        scale = max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("name", fusion_cases.BUILDERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_plan_is_a_partition_without_a_cycle(name: str, strategy: str) -> None:
    case = bench(name)
    groups = [choice.group for choice in case.built(strategy).result.choices]
    assert fault(case.analysed.graph, groups) is None
    assert runs_in_order(case.analysed.graph, groups)


@pytest.mark.parametrize("name", fusion_cases.BUILDERS)
def test_kernels_are_counted_as_emitted(name: str) -> None:
    """The description's count is that of the calls in the program, and no fallback took a planned group apart."""
    from tvm import relax

    built = bench(name).built("dp")
    bindings = [b.value for block in built.module["main"].body.blocks for b in block.bindings]
    calls = [v for v in bindings if isinstance(v, relax.Call) and str(getattr(v.op, "name", "")) == "relax.call_tir"]
    assert built.executable.kernels == len(calls)
    planned = [c for c in built.result.choices if c.family != "view"]
    assert built.executable.kernels == len(planned)


@pytest.mark.parametrize("name", fusion_cases.BUILDERS)
def test_kernel_arguments_are_limited(name: str) -> None:
    """An operator alone may need more (a concatenation of very many); a group never does."""
    case = bench(name)
    limit = case.problem.thresholds.max_arguments
    widest = max(len(op.inputs) + len(op.outputs) for op in case.analysed.graph.operators)
    for strategy in STRATEGIES:
        built = case.built(strategy)
        for choice in built.result.choices:
            arguments = len(choice.group.inputs) + len(choice.group.outputs)
            assert len(choice.group.members) == 1 or arguments <= limit
        assert all(len(f.params) <= max(limit, widest) for f in built.functions)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("pool_reshape", 1),
        ("shared_exp", 1),
        ("reduce_then_elementwise", 1),
        ("transpose_matmul", 2),
        ("same_tensor_twice", 1),
        ("take_then_elementwise", 1),
        ("uneven_split", 1),
        ("diamond_cycle", 4),
        ("conv_odd_sizes", 2),
    ],
)
def test_kernels_of_small_cases(name: str, kernels: int) -> None:
    assert bench(name).built("dp").executable.kernels <= kernels


def test_the_chain_is_computed_once_a_row_and_not_once_an_element() -> None:
    case = bench("exp_chain_broadcast")
    rows = case.arrays["x"].shape[0]
    for strategy in STRATEGIES:
        built = case.built(strategy)
        assert sum(executions(f, "exp") for f in built.functions) <= 16 * rows
    assert case.built("dp").executable.kernels <= 2


def test_cheap_operators_are_not_repeated_under_a_broadcast() -> None:
    """250 operators on a column and one addition an element: no more than a few spare ones for each element."""
    case = bench("cheap_ops_under_broadcast")
    rows, columns = case.arrays["b"].shape
    built = case.built("dp")
    arithmetic = {id(f): executions(f, "Add", "Mul") for f in built.functions}
    # Equal kernels are one function: each is taken as often as it is called.
    assert max(arithmetic.values()) <= 4 * rows * columns + 250 * rows
    assert built.executable.kernels <= 5


def test_counting_executions_sees_a_repeated_chain() -> None:
    """The unscheduled kernel of the whole chain, all inlined, computes it once an element: the count must say so."""
    from autofuse.schedule import blocks

    case = bench("exp_chain_broadcast")
    graph = case.analysed.graph
    last = graph.operators[-1].index
    function = case.analysed.fuser.fuse(Group.of(graph, [last - 1, last]))
    schedule = blocks.open_schedule(function)
    schedule.compute_inline(blocks.blocks(schedule)[0])
    n = case.arrays["x"].shape[0]
    assert executions(function, "exp") == n
    assert executions(blocks.close_schedule(schedule, function), "exp") == n * n


def test_a_transpose_in_front_of_a_matmul_is_not_materialised() -> None:
    """No kernel that takes it along holds it: the product packs its operand, which it does anyway, straight from w."""
    case = bench("transpose_matmul")
    n, k = case.arrays["w"].shape
    graph = case.analysed.graph
    (transposed,) = [t.index for t in graph.tensors if t.shape == (k, n) and t.role is Role.VALUE]
    (product,) = [op.index for op in graph.operators if op.kind == "matmul"]
    both = {graph.producer[transposed], product}
    taken = [choice for choice in case.problem.choices if both <= set(choice.group.members)]
    assert {len(choice.group.members) for choice in taken} == {2, 3}  # without the softmax behind it, and with it
    for choice in taken:
        shapes = allocations(scheduled(case.analysed, choice))
        assert transposed not in choice.group.outputs and shapes and (k, n) not in shapes
        # A copy beside the packed panels would be a second buffer of that size.
        assert sum(int(np.prod(shape)) >= n * k for shape in shapes) <= 1


def test_taking_a_transpose_along_costs_no_more_than_a_copy() -> None:
    """By the figures of one machine, whatever this one's are: they are a few per cent apart."""
    analysed = analyse_for(bench("transpose_matmul").case.model, Hardware())
    problem = problem_of(analysed, AnalyticalCostModel(analysed.hardware))
    everything = tuple(range(len(analysed.graph.operators)))
    whole = min(choice.cost for choice in problem.choices if choice.group.members == everything)
    assert whole <= 1.02 * strategy_of("dp", hardware=analysed.hardware).search(problem).cost


def scheduled(analysed: Analysed, choice: Choice) -> Any:
    """A choice's function, in its configuration."""
    which = family(choice.family)
    config = which.configuration.parse(choice.config)
    return which.apply(analysed.fuser.fuse(choice.group), choice.group, config, analysed.hardware)


def allocations(function: Any) -> list[tuple[int, ...]]:
    """The shape of each buffer that a scheduled kernel allocates."""
    import tvm_ffi
    from tvm import s_tir, tirx

    buffers: list[Any] = []

    def visit(node: Any) -> None:
        buffers.extend([node.buffer] if isinstance(node, tirx.AllocBuffer) else node.alloc_buffers)

    tvm_ffi.structural_walk(function.body, ((s_tir.SBlock, tirx.AllocBuffer), visit))
    return [tuple(int(extent) for extent in buffer.shape) for buffer in buffers]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_reductions_need_no_more_memory_than_unfused(strategy: str) -> None:
    case = bench("two_reductions_big_input")
    peak = case.built(strategy).executable.description["peak_memory_mb"]
    assert 0 < peak <= case.built("none").executable.description["peak_memory_mb"]


def test_long_chains_become_few_kernels() -> None:
    case = bench("long_chain")
    operators = len(case.analysed.graph.operators)
    for strategy in ("dp", "greedy", "hybrid", "auto", "interval"):
        assert case.built(strategy).executable.kernels <= operators // 40


def test_a_chain_short_enough_to_depend_on_its_input() -> None:
    """The long one's values run into a fixed point, whatever comes in."""
    short = Bench(fusion_cases.build("long_chain", links=8))
    assert float(np.ptp(short.expected[0])) > 1e-3
    built = short.built("dp")
    assert built.executable.kernels == 1
    np.testing.assert_allclose(built.executable(**short.arrays)[0], short.expected[0], rtol=0, atol=1e-6)


def test_wide_concatenations_become_few_kernels() -> None:
    case = bench("wide_concat")
    assert case.built("dp").executable.kernels <= len(case.analysed.graph.operators) // 16


def test_the_cycle_of_the_diamond_is_refused() -> None:
    from autofuse.graph.legality import check_structure

    graph = bench("diamond_cycle").analysed.graph
    (first,) = [op.index for op in graph.operators if op.kind == "exp"]
    (last,) = [op.index for op in graph.operators if op.kind == "add"]
    refusal = check_structure(Group.of(graph, [first, last]), max_arguments=48, max_group_size=64)
    assert refusal is not None and (refusal.rule == "convex" or "convex" in refusal.detail), refusal
