"""The last stages of the compiler for a GPU: a search's result → kernels → their code → a model that runs on a card.

Code is made in child processes, since TVM ends a process where LLVM cannot generate code; kernels that fail are
replaced as on a CPU.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autofuse.codegen.resources import CodeError

if TYPE_CHECKING:
    from autofuse.codegen.gpu_executable import GpuExecutable
    from autofuse.codegen.kernels import Kernel
    from autofuse.compiler import Analysed
    from autofuse.cost.model import CostModel
    from autofuse.device.session import Device
    from autofuse.measure.cross import CrossCompiler
    from autofuse.search.problem import SearchProblem, SearchResult
    from autofuse.target.registry import Target

log = logging.getLogger("autofuse")
#: Seconds that the code of one kernel may take, in all its forms: a few are usual.
_PATIENCE = 300.0


@dataclass(frozen=True)
class KernelCode:
    """A kernel's files (end of the name → content), its launches, and what each launch takes of the card."""

    files: Mapping[str, bytes]
    launches: Sequence[Mapping[str, Any]]
    resources: Sequence[Mapping[str, Any]]


def generate_gpu(
    analysed: Analysed,
    problem: SearchProblem,
    result: SearchResult,
    costs: CostModel,
    seconds: Mapping[str, float],
    began: float,
    tell: Callable[[str], None],
    folder: Path | None,
    check: Device | None = None,
    db: str | Path | None = None,
) -> GpuExecutable:
    """As `compiler.generate`, for a GPU. TargetError where the model has operators that are no tensor programs.

    check: the device that every kernel is run on, to compare it with numpy; what fails is replaced, and kept in `db`.
    """
    from autofuse.codegen.describe import as_built
    from autofuse.codegen.gpu_executable import GpuExecutable
    from autofuse.codegen.gpu_package import GpuPackage
    from autofuse.codegen.gpu_program import arrange, counted, gpu_program
    from autofuse.codegen.lighter import Lighter
    from autofuse.generation import describe, dump, scheduled
    from autofuse.measure.gpu_check import GpuKernelCheck

    start = time.perf_counter()
    graph = analysed.graph
    tell("scheduling")
    builder, kernels, opaque = scheduled(analysed, problem, result, costs)
    made: dict[str, KernelCode] = {}
    lighter = Lighter(builder, costs)
    with ExitStack() as stack:
        codes = stack.enter_context(Codes(analysed.target))
        checks = GpuKernelCheck(analysed, check) if check is not None else None
        if checks is not None:
            stack.enter_context(checks)
        while True:
            program = arrange(graph, kernels, opaque, analysed.constants)
            functions = {gv.name_hint: func for gv, func in program.module.functions.items()}
            tell(f"compiling {len(functions)} kernels")
            found = codes.of({name: func for name, func in functions.items() if name not in made})
            failures = {name: error for name, error in found.items() if isinstance(error, Exception)}
            made.update({name: code for name, code in found.items() if isinstance(code, KernelCode)})
            if not failures:
                others = lighter.again(kernels, {name: made[name].resources for name in functions})
                if any(other is not kernel for other, kernel in zip(others, kernels, strict=True)):
                    kernels = others
                    continue
            if checks is not None and not failures:
                tell("checking")
                units = [unit for unit in program.units if not isinstance(unit, int)]
                files, launches = ({n: getattr(made[n], what) for n in functions} for what in ("files", "launches"))
                failures = checks.look(units, files, launches)
            if not failures:
                break
            left: list[Kernel] = []
            for kernel in kernels:
                failure = failures.get(kernel.name) if kernel.func is not None else None
                left.extend([kernel] if failure is None else builder.replace(kernel, failure))
            kernels = left
        if checks is not None and db is not None:
            checks.keep(db)
    checked = checks.summary() if checks is not None else None
    dump(folder, "3-scheduled", program.module)
    result = as_built(program, problem, result, costs, analysed.hardware)
    runs = gpu_program(
        graph, program, {n: made[n].launches for n in functions}, {n: made[n].resources for n in functions}
    )
    description = {
        **describe(analysed, problem, result, costs, program, seconds, began, time.perf_counter() - start, checked),
        "kind": analysed.target.kind,
        "loadable": analysed.target.loadable,
        "memory": counted(runs),
    }
    files = {(name, end): text for name in functions for end, text in made[name].files.items()}
    package = GpuPackage(description, runs, files, [np.asarray(w.numpy()) for w in program.weights])
    description["forms"] = list(package.forms)
    return GpuExecutable(package)


class Codes:
    """Makes the code of kernels for a target, in as many children as there are processors."""

    def __init__(self, target: Target) -> None:
        from autofuse.measure.cross import CrossCompiler
        from autofuse.target.host import processors

        self._stack = ExitStack()
        self._target = target
        self._count = processors()
        self._idle: queue.SimpleQueue[CrossCompiler] = queue.SimpleQueue()
        for _ in range(self._count):
            self._idle.put(self._stack.enter_context(CrossCompiler(target, _PATIENCE)))

    def of(self, functions: Mapping[str, Any]) -> dict[str, KernelCode | Exception]:
        """The code of each scheduled function by name, or why there is none."""
        with ThreadPoolExecutor(self._count) as pool:
            return dict(zip(functions, pool.map(self._one, functions.values()), strict=True))

    def _one(self, func: Any) -> KernelCode | Exception:
        compiler = self._idle.get()
        try:
            own, opencl = compiler.code(func), compiler.opencl(func)
        except Exception as error:
            return error
        finally:
            self._idle.put(compiler)
        for result in (own, opencl):
            if not result.ok:
                return CodeError(f"{result.status}: {result.message}")
        ends = ("s", "co") if self._target.kind == "rocm" else ("cu", "cubin")
        files = {"cl": opencl.source.encode(), ends[0]: own.source.encode()}
        if own.code and self._target.loadable:
            files[ends[1]] = own.code
        # Names of kernels and arguments are the same in all forms.
        if [dict(launch) for launch in own.launches] != [dict(launch) for launch in opencl.launches]:
            return CodeError("the kernel is launched in another way as OpenCL C")
        return KernelCode(files, own.launches, [kernel.to_json() for kernel in own.kernels])

    def __enter__(self) -> Codes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
