"""The whole compiler in one place: model → prepared module → operators → graph → plan → kernels → executable.

`analyse` goes as far as the graph, `problem_of` to what a search is given, `compile_model` all the way, the end of it
in `generation.py`. The stages are in the packages of the same names; nothing but their order is decided here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.arguments import check_arguments
from autofuse.chosen import choose_cost_model, choose_predictor, choose_thresholds
from autofuse.errors import PlanError, TargetError
from autofuse.generation import Progress, check_device, dump, generate
from autofuse.graph.model import Graph, Role
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.codegen.executable import Executable
    from autofuse.codegen.fuse import GroupFuser
    from autofuse.codegen.gpu_executable import GpuExecutable
    from autofuse.cost.model import CostModel
    from autofuse.graph.build import BuiltGraph
    from autofuse.lower import LoweredModel
    from autofuse.search.plan import Plan
    from autofuse.search.problem import Choice, SearchProblem, SearchResult, Thresholds
    from autofuse.target.registry import Target


@dataclass(frozen=True)
class Analysed:
    """A model as far as its graph. `seconds` of the stages so far: import, prepare, lower, graph."""

    prepared: Any
    lowered: LoweredModel
    built: BuiltGraph
    target: Target
    hardware: Hardware
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The operator graph that the search works on."""
        return self.built.graph

    @cached_property
    def calls(self) -> dict[int, Any]:
        """Operator → its Relax call."""
        values = {b.var: b.value for block in self.lowered.module["main"].body.blocks for b in block.bindings}
        return {op.index: values[self.built.variables[op.index]] for op in self.graph.operators}

    @cached_property
    def constants(self) -> dict[int, Any]:
        """Tensor → its data, for the graph's constants."""
        return {t.index: self.built.values[t.index].value for t in self.graph.tensors if t.role is Role.CONSTANT}

    @cached_property
    def fuser(self) -> GroupFuser:
        """Makes unscheduled kernels of groups."""
        from autofuse.codegen.fuse import GroupFuser

        return GroupFuser(self.lowered.module, self.calls)


def analyse(
    model: Any,
    *,
    target: str = "llvm",
    threads: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
    dump_ir: Path | None = None,
) -> Analysed:
    """Prepare and lower a model and build its graph. Raises ModelError, InputError, TargetError."""
    from autofuse.target.hardware_file import load_hardware
    from autofuse.target.registry import resolve

    chosen = resolve(target, threads)
    return _analyse(model, chosen, load_hardware(chosen), input_shapes, batch, progress or (lambda _: None), dump_ir)


def analyse_for(model: Any, hardware: Hardware) -> Analysed:
    """The same for the CPU that a description describes, which need not be here: to plan, not to compile.

    The result's `target` names no CPU of LLVM's. Raises ModelError, InputError.
    """
    from autofuse.target.registry import Target

    return _analyse(model, Target(threads=hardware.cores), hardware, None, None, lambda _: None, None)


def _analyse(
    model: Any,
    target: Target,
    hardware: Hardware,
    input_shapes: Mapping[str, Sequence[int]] | None,
    batch: int | None,
    tell: Progress,
    dump_ir: Path | None,
) -> Analysed:
    tell("importing")
    from autofuse.frontend import prepare
    from autofuse.graph.build import build_graph
    from autofuse.lower import lower

    prepared = prepare(model, input_shapes=input_shapes, batch=batch)
    dump(dump_ir, "1-prepared", prepared.module)
    tell("lowering")
    start = time.perf_counter()
    lowered = lower(prepared, hardware.lanes, norms_by_lanes=hardware.kind == "cpu")
    dump(dump_ir, "2-lowered", lowered.module)
    lowering = time.perf_counter() - start
    tell("analysing")
    start = time.perf_counter()
    built = build_graph(lowered.module, prepared.name)
    seconds = {**prepared.seconds, "lower": lowering, "graph": time.perf_counter() - start}
    return Analysed(prepared, lowered, built, target, hardware, seconds)


def problem_of(
    analysed: Analysed, cost_model: CostModel, thresholds: Thresholds | None = None, max_memory: int = 0
) -> SearchProblem:
    """Enumerate the candidate groups and cost them. `max_memory` in bytes, 0 for no limit."""
    from autofuse.codegen.fuse_ops import fuse_ops_partition
    from autofuse.graph.collector import paused_collector
    from autofuse.schedule.registry import families
    from autofuse.search.candidates import search_problem

    with paused_collector():
        partition = fuse_ops_partition(analysed.lowered.module, analysed.built)
    return search_problem(
        analysed.graph,
        cost_model,
        hardware=analysed.hardware,
        families=families(analysed.hardware.kind),
        thresholds=thresholds,
        greedy=partition,
        max_memory=max_memory,
    )


def compile_model(
    model: Any,
    *,
    target: str = "llvm",
    strategy: str = "auto",
    cost_model: str | CostModel | None = None,
    predictor: str | Path | None = None,
    db: str | Path | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    threads: int | None = None,
    plan: Plan | str | Path | None = None,
    thresholds: Thresholds | str | Path | None = None,
    max_memory: float | None = None,
    compile_allowance: float | None = None,
    measure: float | None = None,
    fuel: int | None = None,
    check: bool = False,
    device: str | None = None,
    dump_ir: str | Path | None = None,
    progress: Progress | None = None,
) -> Executable | GpuExecutable:
    """Compile a model: ONNX path or `ModelProto`, Relax module, exported PyTorch program, or a zoo network's name.

    strategy: dp, greedy, hybrid, none, auto, interval. cost_model: "analytical", "learned" (with `predictor`, or the
    one that there is for the hardware) or a CostModel; by default learned where there is a predictor. db: a record
    store whose measurements come first. measure: seconds to spend on measuring kernels that could change the plan, into
    `db`, which is made if it is not there. plan: a plan (or its file) to build instead of
    searching. max_memory: limit on the planned peak of intermediates, in MB. compile_allowance: percent of extra
    compile time that `auto` may spend on the search. fuel: fuse only the first so many groups. check: run every kernel
    on random operands and compare it with numpy; a wrong one is replaced, with a warning, and recorded in `db`.
    device: what kernels for a GPU are checked on ("opencl:gfx906", "rocm"), by default the first GPU.
    dump_ir: folder for the IR after each phase. The result's `description` holds what was done and how long it took.

    Raises an AutofuseError for arguments of the wrong kind, before any work, and for what the stages cannot do.
    """
    from autofuse.search.strategies import strategy as make_strategy

    began = time.perf_counter()
    given = {
        "target": target, "strategy": strategy, "cost_model": cost_model, "predictor": predictor, "db": db,
        "input_shapes": input_shapes, "batch": batch, "threads": threads, "plan": plan, "thresholds": thresholds,
        "max_memory": max_memory, "compile_allowance": compile_allowance, "measure": measure, "fuel": fuel,
        "check": check, "device": device, "dump_ir": dump_ir, "progress": progress,
    }  # fmt: skip
    check_arguments(given)
    if measure:
        from autofuse.learn.ask import prepare_store

        check_measures(target, threads)
        prepare_store(db, plan)
    if device is not None:
        check_is_gpu(target, threads, device)
    make_strategy(strategy)  # an unknown name fails before any work
    tell = progress or (lambda _: None)
    folder = Path(dump_ir) if dump_ir is not None else None
    if check:
        check_runs_here(target, threads, device)
    analysed = analyse(
        model,
        target=target,
        threads=threads,
        input_shapes=input_shapes,
        batch=batch,
        progress=progress,
        dump_ir=folder,
    )
    tell("searching")
    start = time.perf_counter()
    thresholds = choose_thresholds(thresholds, choose_predictor(analysed.hardware, cost_model, predictor))
    chosen = make_strategy(strategy, hardware=analysed.hardware, compile_allowance=compile_allowance)

    def posed() -> tuple[CostModel, SearchProblem]:
        costs = choose_cost_model(analysed, cost_model, predictor, db)
        return costs, problem_of(analysed, costs, thresholds, int((max_memory or 0) * 1e6))

    costs, problem = posed()
    asked = 0.0
    if measure:
        from autofuse.learn.ask import measure_doubtful

        assert db is not None
        began_asking = time.perf_counter()
        if measure_doubtful(analysed, problem, costs, chosen, db, measure, tell):
            costs, problem = posed()
        asked = time.perf_counter() - began_asking
    result = follow_plan(plan, problem, analysed, costs) if plan is not None else chosen.search(problem)
    if fuel is not None:
        result = limit_fuel(result, problem, fuel)
    searching = time.perf_counter() - start - asked + analysed.seconds.get("graph", 0.0)
    seconds = {**analysed.seconds, "search": searching, "measure": asked}
    return generate(analysed, problem, result, costs, seconds, began, tell, folder, check, db, device)


def check_is_gpu(target: str, threads: int | None, device: str) -> None:
    """TargetError where a device is named for a target that is no GPU's."""
    from autofuse.target.registry import resolve

    if resolve(target, threads).device != "gpu":
        raise TargetError(f"device {device!r} is for kernels of a GPU, {target} is a CPU: give target dcu")


def check_runs_here(target: str, threads: int | None, device: str | None = None) -> None:
    """TargetError where kernels for `target` cannot be run on this machine, and so not be checked."""
    from autofuse.target.hardware_file import is_host
    from autofuse.target.registry import resolve

    chosen = resolve(target, threads)
    if chosen.device == "gpu":
        check_device(chosen, device)
    elif not is_host(chosen):
        raise TargetError(f"kernels for {target} do not run on this machine: compile without check")


def check_measures(target: str, threads: int | None) -> None:
    """TargetError where a compile cannot measure kernels for `target` itself."""
    from autofuse.target.registry import resolve

    if resolve(target, threads).device == "gpu":
        raise TargetError(f"kernels for {target} are measured by autofuse collect: compile with its records, --db")


def follow_plan(plan: Plan | str | Path, problem: SearchProblem, analysed: Analysed, costs: CostModel) -> SearchResult:
    """The choices of a given plan, but for what is known to fail. PlanError when it was made for another graph."""
    from autofuse.schedule.registry import any_family
    from autofuse.search.plan import Plan, adapt, without_failures

    if not isinstance(plan, Plan):
        plan = Plan.load(plan)
    for number, planned in enumerate(plan.groups):
        where = f"the plan is damaged: group {number}"
        if not math.isfinite(planned.seconds):
            raise PlanError(f"{where} takes {planned.seconds} seconds; compile without --plan")
        if planned.family or len(planned.members) > 1:
            try:
                any_family(planned.family).configuration.parse(planned.config)
            except KeyError:
                raise PlanError(f"{where} has an unknown family {planned.family!r}; compile without --plan") from None
            except ValueError:
                raise PlanError(
                    f"{where}: {planned.config!r} is no configuration of {planned.family}; compile without --plan"
                ) from None
    return without_failures(adapt(plan, problem, target=analysed.target.text), problem, costs)


def limit_fuel(result: SearchResult, problem: SearchProblem, fuel: int) -> SearchResult:
    """Keep the first `fuel` groups of several operators, take the others apart: to find the group that is wrong."""
    kept: list[Choice] = []
    written: set[int] = set()
    for choice in result.choices:
        if len(choice.group.members) > 1 and fuel <= 0:
            for member in choice.group.members:
                single = problem.choices[problem.singles[member]]
                if not written.intersection(single.group.outputs):
                    kept.append(single)
                    written.update(single.group.outputs)
            continue
        fuel -= len(choice.group.members) > 1
        if not set(choice.group.outputs) <= written:
            kept.append(choice)
            written.update(choice.group.outputs)
    return replace(result, choices=tuple(kept), cost=problem.seconds(kept), proved_optimal=False)
