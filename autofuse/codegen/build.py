"""Scheduled programs and kernels → machine code, through LLVM; with a way back where LLVM takes a kernel not.

A program's kernels are built by several threads, a library of some kernels each: TVM's passes and LLVM run outside
Python's lock, and a library has an LLVM context of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build

from autofuse.codegen.intrinsics import register_intrinsics
from autofuse.codegen.kernels import Kernel, KernelBuilder, last_line
from autofuse.codegen.program import Program
from autofuse.codegen.stack import pipeline
from autofuse.target.host import processors

log = logging.getLogger("autofuse")

#: Loops that carry the partition hint are split into a main part without conditions and a remainder. A kernel does not
#: check its arguments' shapes and types, which the program's own function did: a dozen checks an argument, which LLVM
#: took as long for as for the loops.
PASS_CONFIG: dict[str, Any] = {
    "s_tir.LoopPartition": {"partition_const_loop": True},
    "tirx.disable_assert": True,
}


def build_program(module: tvm.IRModule, target: Any) -> Any:
    """A Relax program with scheduled kernels → VM executable (TVM's)."""
    register_intrinsics()
    with _passes(), target:
        lowered = relax.get_pipeline("default_build")(module)
    builder = relax.ExecBuilder()
    with _passes():
        functions = vm_build._vmcodegen(builder, lowered, "bytecode")
    parts = [tvm.IRModule(part) for part in _shares(functions, processors())]
    with ThreadPoolExecutor(max(1, len(parts))) as pool:
        first, *others = list(pool.map(lambda part: _build_part(part, target), parts)) or [None]
    return vm_build.VMExecutable(vm_build._ffi_api.VMLink(builder, target, first, others, {}))


def _passes() -> Any:
    return tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG)


def _build_part(part: tvm.IRModule, target: Any) -> Any:
    with _passes():  # the context belongs to a thread
        return tirx.build(part, target=target, pipeline=pipeline())


def _shares(module: tvm.IRModule, count: int) -> list[dict[Any, Any]]:
    """The module's PrimFuncs in at most `count` shares that take about as long to build, the longest first."""
    functions = [(gv, f) for gv, f in module.functions.items() if isinstance(f, tirx.PrimFunc)]
    costs = {gv.name_hint: _statements(f) for gv, f in functions}
    shares: list[tuple[int, dict[Any, Any]]] = [(0, {}) for _ in range(min(count, len(functions)))]
    for gv, f in sorted(functions, key=lambda item: (-costs[item[0].name_hint], item[0].name_hint)):
        least = min(range(len(shares)), key=lambda i: shares[i][0])
        total, share = shares[least]
        shares[least] = (total + costs[gv.name_hint], {**share, gv: f})
    return [share for _, share in sorted(shares, key=lambda item: -item[0])]


def _statements(func: Any) -> int:
    """How long a kernel takes to build, roughly: its stores and bindings, unrolled loops counted in full."""
    count = 0

    def visit(_: Any) -> None:
        nonlocal count
        count += 1

    tvm_ffi.structural_walk(func.body, ((tirx.BufferStore, tirx.Bind), visit))
    return count


def build_kernel(func: Any, target: Any, name: str = "main") -> Any:
    """One scheduled PrimFunc → runtime module with a function `name`."""
    register_intrinsics()
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        return tvm.compile(module, target, tir_pipeline=pipeline())


Check = Callable[[Program, Any], Mapping[str, Exception]]
"""Looks at a program that was built: the names of kernels that do not do what they should → why."""


def build_with_fallback(
    kernels: Sequence[Kernel],
    builder: KernelBuilder,
    arrange: Callable[[Sequence[Kernel]], Program],
    target: Any,
    check: Check | None = None,
) -> tuple[Program, Any]:
    """The program that `arrange` makes of the kernels, and its executable.

    Where building fails, or `check` finds kernels wrong, these are replaced by smaller ones, with a warning that names
    them.
    """
    while True:
        program = arrange(kernels)
        failures: Mapping[str, Exception]
        try:
            built = build_program(program.module, target)
        except Exception as error:
            log.warning("building the whole program failed (%s): building kernel by kernel", last_line(error))
            failures = _failing(kernels, target)
            if not failures:
                raise
        else:
            failures = check(program, built) if check is not None else {}
            if not failures:
                return program, built
        left: list[Kernel] = []
        for kernel in kernels:
            failure = failures.get(kernel.name)
            left.extend([kernel] if failure is None else builder.replace(kernel, failure))
        kernels = left


def _failing(kernels: Sequence[Kernel], target: Any) -> dict[str, Exception]:
    """The kernels that do not build alone, by name."""
    failures: dict[str, Exception] = {}
    for name, func in {k.name: k.func for k in kernels if k.func is not None}.items():
        try:
            build_kernel(func, target)
        except Exception as error:
            failures[name] = error
    return failures
