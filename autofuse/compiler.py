"""The whole compiler in one place: model → prepared module → operators → graph → plan → kernels → executable.

`analyse` goes as far as the graph, `problem_of` to what a search is given, `compile_model` all the way. The stages are
in the packages of the same names; nothing but their order is decided here.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.arguments import check_arguments
from autofuse.chosen import choose_cost_model, choose_predictor, choose_thresholds
from autofuse.errors import ModelError, PlanError, TargetError
from autofuse.graph.model import Graph, Group, Role
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.codegen.executable import Executable
    from autofuse.codegen.fuse import GroupFuser
    from autofuse.codegen.kernels import Assignment, Kernel
    from autofuse.codegen.program import Program
    from autofuse.cost.model import CostModel
    from autofuse.graph.build import BuiltGraph
    from autofuse.lower import LoweredModel
    from autofuse.measure.kernel_check import KernelCheck
    from autofuse.search.plan import Plan
    from autofuse.search.problem import Choice, SearchProblem, SearchResult, Thresholds
    from autofuse.target.registry import Target

log = logging.getLogger("autofuse")
Progress = Callable[[str], None]


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
    whole: bool = True,
) -> Analysed:
    """Prepare and lower a model and build its graph. Raises ModelError, InputError, TargetError.

    whole: refuse targets that whole models cannot be compiled for, only kernels.
    """
    from autofuse.target.hardware_file import load_hardware
    from autofuse.target.registry import check_whole, resolve

    chosen = resolve(target, threads)
    if whole:
        check_whole(chosen)
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
    lowered = lower(prepared, hardware.lanes)
    dump(dump_ir, "2-lowered", lowered.module)
    lowering = time.perf_counter() - start
    tell("analysing")
    start = time.perf_counter()
    built = build_graph(lowered.module, prepared.name)
    seconds = {**prepared.seconds, "lower": lowering, "graph": time.perf_counter() - start}
    return Analysed(prepared, lowered, built, target, hardware, seconds)


def dump(folder: Path | None, name: str, module: Any) -> None:
    """Write a module's text to `folder`/`name`.py, constants left out."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text(module.script(show_meta=False), encoding="utf-8")
        except OSError as error:
            raise ModelError(f"cannot write the IR to {folder}: {error.strerror}; choose another folder") from None


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
    dump_ir: str | Path | None = None,
    progress: Progress | None = None,
) -> Executable:
    """Compile a model: ONNX path or `ModelProto`, Relax module, exported PyTorch program, or a zoo network's name.

    strategy: dp, greedy, hybrid, none, auto, interval. cost_model: "analytical", "learned" (with `predictor`, or the
    one that there is for the hardware) or a CostModel; by default learned where there is a predictor. db: a record
    store whose measurements come first. measure: seconds to spend on measuring kernels that could change the plan, into
    `db`, which is made if it is not there. plan: a plan (or its file) to build instead of
    searching. max_memory: limit on the planned peak of intermediates, in MB. compile_allowance: percent of extra
    compile time that `auto` may spend on the search. fuel: fuse only the first so many groups. check: run every kernel
    on random operands and compare it with numpy; a wrong one is replaced, with a warning, and recorded in `db`.
    dump_ir: folder for the IR after each phase. The result's `description` holds what was done and how long it took.

    Raises an AutofuseError for arguments of the wrong kind, before any work, and for what the stages cannot do.
    """
    from autofuse.search.strategies import strategy as make_strategy

    began = time.perf_counter()
    given = {
        "target": target, "strategy": strategy, "cost_model": cost_model, "predictor": predictor, "db": db,
        "input_shapes": input_shapes, "batch": batch, "threads": threads, "plan": plan, "thresholds": thresholds,
        "max_memory": max_memory, "compile_allowance": compile_allowance, "measure": measure, "fuel": fuel,
        "check": check, "dump_ir": dump_ir, "progress": progress,
    }  # fmt: skip
    check_arguments(given)
    if measure:
        from autofuse.learn.ask import prepare_store

        prepare_store(db, plan)
    make_strategy(strategy)  # an unknown name fails before any work
    tell = progress or (lambda _: None)
    folder = Path(dump_ir) if dump_ir is not None else None
    if check:
        check_runs_here(target, threads)
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
    return generate(analysed, problem, result, costs, seconds, began, tell, folder, check, db)


def check_runs_here(target: str, threads: int | None) -> None:
    """TargetError where kernels for `target` cannot be run on this machine, and so not be checked."""
    from autofuse.target.hardware_file import is_host
    from autofuse.target.registry import resolve

    if not is_host(resolve(target, threads)):
        raise TargetError(f"kernels for {target} do not run on this machine: compile without check")


def follow_plan(plan: Plan | str | Path, problem: SearchProblem, analysed: Analysed, costs: CostModel) -> SearchResult:
    """The choices of a given plan, but for what is known to fail. PlanError when it was made for another graph."""
    from autofuse.schedule.registry import family as family_by_name
    from autofuse.search.plan import Plan, adapt, without_failures

    if not isinstance(plan, Plan):
        plan = Plan.load(plan)
    for number, planned in enumerate(plan.groups):
        where = f"the plan is damaged: group {number}"
        if not math.isfinite(planned.seconds):
            raise PlanError(f"{where} takes {planned.seconds} seconds; compile without --plan")
        if planned.family or len(planned.members) > 1:
            try:
                family_by_name(planned.family).configuration.parse(planned.config)
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
    cost = sum(c.cost for c in kept) + problem.call_cost * len(kept)
    return replace(result, choices=tuple(kept), cost=cost, proved_optimal=False)


def _origin(costs: CostModel) -> tuple[str, bool]:
    """Name of the cost model that was asked for, and whether records come before it."""
    from autofuse.records.model import RecordedCostModel

    return (costs.fallback.name, True) if isinstance(costs, RecordedCostModel) else (costs.name, False)


def assignment_of(group: Group, family: str, config: str) -> Assignment:
    """A group with its family and configuration by name."""
    from autofuse.codegen.kernels import Assignment
    from autofuse.schedule.registry import family as family_by_name

    chosen = family_by_name(family)
    return Assignment(group, chosen, chosen.configuration.parse(config))


def generate(
    analysed: Analysed,
    problem: SearchProblem,
    result: SearchResult,
    costs: CostModel,
    seconds: Mapping[str, float],
    began: float,
    tell: Progress,
    folder: Path | None,
    check: bool = False,
    db: str | Path | None = None,
) -> Executable:
    """Build the executable of a search's result; groups that fail fall back to smaller ones with a warning.

    What fails its check is kept in the store `db`, if there is one: no compile with these records takes it again.
    """
    from contextlib import ExitStack

    import tvm

    from autofuse.codegen.build import build_with_fallback
    from autofuse.codegen.describe import as_built, describe_kernels, describe_search
    from autofuse.codegen.executable import Executable
    from autofuse.codegen.kernels import KernelBuilder
    from autofuse.codegen.library import load_code, machine_code
    from autofuse.codegen.program import assemble
    from autofuse.cost.weights import weights_are_cold
    from autofuse.search.plan import plan_of
    from autofuse.target.hardware_file import is_host

    graph = analysed.graph
    start = time.perf_counter()

    def alone(group: Group) -> Assignment | None:
        choice = problem.choices[problem.singles[group.members[0]]]
        made = assignment_of(choice.group, choice.family, choice.config) if choice.family else None
        return replace(made, group=group) if made else None

    tell("scheduling")
    builder = KernelBuilder(analysed.fuser, analysed.hardware, alone, costs)
    opaque = [c.group.members[0] for c in result.choices if not c.family]
    for op in (graph.operators[i] for i in opaque):
        if op.fusable:
            log.warning("operator %s (%s) has no schedule: it runs as plain loops", op.name, op.kind)
    assignments = [assignment_of(c.group, c.family, c.config) for c in result.choices if c.family]
    kernels = builder.kernels(assignments)
    target = analysed.target.tvm_target()
    module = analysed.lowered.module

    def arrange(chosen: Sequence[Kernel]) -> Program:
        program = assemble(module, graph, chosen, opaque, analysed.calls, analysed.constants)
        dump(folder, "3-scheduled", program.module)
        tell("building")
        return program

    code: bytes | None = None
    checks: KernelCheck | None = None
    with ExitStack() as stack:
        if check:
            from autofuse.measure import kernel_check

            checks = stack.enter_context(kernel_check.KernelCheck(analysed))

        def look(program: Program, library: Any) -> Mapping[str, Exception]:
            nonlocal code
            code = machine_code(library, analysed.target.triple)
            tell("checking")
            assert checks is not None
            return checks([unit for unit in program.units if not isinstance(unit, int)], code)

        program, library = build_with_fallback(kernels, builder, arrange, target, look if check else None)
        if checks is not None and db is not None:
            checks.keep(db)
    result = as_built(program, problem, result, costs, analysed.hardware)
    try:
        code = code or machine_code(library, analysed.target.triple)
    except TargetError:
        code = None  # nothing links here: it runs as it is, and what is missing is said when it is to be saved
    if code is not None and is_host(analysed.target):
        library = load_code(code)
    codegen = time.perf_counter() - start
    prepared = analysed.prepared
    asked, uses_records = _origin(costs)
    plan = plan_of(result, analysed.graph, target=analysed.target.text, cost_model=asked)
    recorded = sum(c.source == "record" for c in result.choices)
    timing = {
        "import": seconds.get("import", 0.0),
        "prepare": seconds.get("prepare", 0.0) + seconds.get("lower", 0.0),
        "search": seconds["search"],
        **({"measure": seconds["measure"]} if seconds.get("measure") else {}),
        "codegen": codegen,
        "total": time.perf_counter() - began,
    }
    operators = len(graph.operators)
    description = {
        "model": prepared.name,
        "target": analysed.target.text,
        "triple": analysed.target.triple,
        "features": list(analysed.target.features),
        "threads": analysed.target.threads,
        "tvm": str(tvm.__version__),
        "strategy": result.strategy,
        "strategy_reason": result.reason,
        "cost_model": asked,
        "records": {"groups": recorded, "of": len(result.choices)} if uses_records else None,
        "cost_sources": dict(sorted(Counter(c.source for c in result.choices).items())),
        "inputs": [
            {"name": n, "shape": list(s), "dtype": d}
            for n, s, d in zip(prepared.input_names, prepared.input_shapes, prepared.input_dtypes, strict=True)
        ],
        "outputs": list(prepared.output_names),
        "operators": operators,
        "kernels": program.kernels,
        "fusion_ratio": round(operators / max(program.kernels, 1), 4),
        "seconds": {k: round(v, 4) for k, v in timing.items()},
        "search": describe_search(problem, result),
        "predicted_ms": result.cost * 1e3,
        "checked": checks.summary() if checks is not None else None,
        "cold_weights": weights_are_cold(graph, analysed.hardware),
        "peak_memory_mb": round(result.peak_memory / 1e6, 3),
        "kernel_list": describe_kernels(program, graph, (*problem.choices, *result.choices), analysed.hardware),
        "plan": plan.to_json(),
    }
    return Executable(library, program.weights, description, code=code)
