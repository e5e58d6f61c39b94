"""The end of the compiler: from a search's result to kernels, a program and an executable that says what was done.

`compiler.py` says how it comes to that result.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.errors import ModelError, TargetError
from autofuse.graph.model import Group

if TYPE_CHECKING:
    from autofuse.codegen.executable import Executable
    from autofuse.codegen.gpu_executable import GpuExecutable
    from autofuse.codegen.kernels import Assignment, Kernel, KernelBuilder
    from autofuse.codegen.program import Program
    from autofuse.compiler import Analysed
    from autofuse.cost.model import CostModel
    from autofuse.device.session import Device
    from autofuse.measure.kernel_check import KernelCheck
    from autofuse.search.problem import SearchProblem, SearchResult
    from autofuse.target.registry import Target

log = logging.getLogger("autofuse")
Progress = Callable[[str], None]


def assignment_of(group: Group, family: str, config: str) -> Assignment:
    """A group with its family and configuration by name."""
    from autofuse.codegen.kernels import Assignment
    from autofuse.schedule.registry import any_family

    chosen = any_family(family)
    return Assignment(group, chosen, chosen.configuration.parse(config))


def check_device(target: Target, device: str | None) -> Device:
    """The device that kernels for a GPU are checked on, by default the first GPU. TargetError where there is none."""
    from autofuse.measure.gpu_runner import device_here

    return device_here(target, device or "")


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
    device: str | None = None,
) -> Executable | GpuExecutable:
    """Build the executable of a search's result; groups that fail fall back to smaller ones with a warning.

    What fails its check is kept in the store `db`, if there is one: no compile with these records takes it again.
    """
    from contextlib import ExitStack

    from autofuse.codegen.build import build_with_fallback
    from autofuse.codegen.describe import as_built
    from autofuse.codegen.executable import Executable
    from autofuse.codegen.library import load_code, machine_code
    from autofuse.codegen.program import assemble
    from autofuse.target.hardware_file import is_host

    if analysed.target.device == "gpu":
        from autofuse.gpu_compiler import generate_gpu

        place = check_device(analysed.target, device) if check else None
        return generate_gpu(analysed, problem, result, costs, seconds, began, tell, folder, place, db)
    graph = analysed.graph
    start = time.perf_counter()
    tell("scheduling")
    builder, kernels, opaque = scheduled(analysed, problem, result, costs)
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
    description = describe(
        analysed, problem, result, costs, program, seconds, began, time.perf_counter() - start,
        checks.summary() if checks is not None else None,
    )  # fmt: skip
    return Executable(library, program.weights, description, code=code)


def scheduled(
    analysed: Analysed, problem: SearchProblem, result: SearchResult, costs: CostModel
) -> tuple[KernelBuilder, list[Kernel], list[int]]:
    """The kernels of a search's result, what makes others in their place, and the operators outside every group."""
    from autofuse.codegen.kernels import KernelBuilder

    graph = analysed.graph

    def alone(group: Group) -> Assignment | None:
        choice = problem.choices[problem.singles[group.members[0]]]
        made = assignment_of(choice.group, choice.family, choice.config) if choice.family else None
        return replace(made, group=group) if made else None

    builder = KernelBuilder(analysed.fuser, analysed.hardware, alone, costs)
    opaque = [c.group.members[0] for c in result.choices if not c.family]
    for op in (graph.operators[i] for i in opaque):
        if op.fusable:
            log.warning("operator %s (%s) has no schedule: it runs as plain loops", op.name, op.kind)
    assignments = [assignment_of(c.group, c.family, c.config) for c in result.choices if c.family]
    return builder, builder.kernels(assignments), opaque


def describe(
    analysed: Analysed,
    problem: SearchProblem,
    result: SearchResult,
    costs: CostModel,
    program: Program,
    seconds: Mapping[str, float],
    began: float,
    codegen: float,
    checked: Mapping[str, int] | None,
) -> dict[str, Any]:
    """What an executable says of itself: what was compiled and how, and how long it took."""
    import tvm

    from autofuse.codegen.describe import describe_kernels, describe_search
    from autofuse.cost.weights import weights_are_cold
    from autofuse.search.plan import plan_of

    graph = analysed.graph
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
    return {
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
        "checked": checked,
        "cold_weights": weights_are_cold(graph, analysed.hardware),
        "peak_memory_mb": round(result.peak_memory / 1e6, 3),
        "kernel_list": describe_kernels(program, graph, (*problem.choices, *result.choices), analysed.hardware),
        "plan": plan.to_json(),
    }


def _origin(costs: CostModel) -> tuple[str, bool]:
    """Name of the cost model that was asked for, and whether records come before it."""
    from autofuse.records.model import RecordedCostModel

    return (costs.fallback.name, True) if isinstance(costs, RecordedCostModel) else (costs.name, False)


def dump(folder: Path | None, name: str, module: Any) -> None:
    """Write a module's text to `folder`/`name`.py, constants left out."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text(module.script(show_meta=False), encoding="utf-8")
        except OSError as error:
            raise ModelError(f"cannot write the IR to {folder}: {error.strerror}; choose another folder") from None
