"""Scheduled programs and kernels → machine code, through LLVM; with a way back where LLVM takes a kernel not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from autofuse.codegen.intrinsics import register_intrinsics
from autofuse.codegen.kernels import Kernel, KernelBuilder, last_line
from autofuse.codegen.program import Program

log = logging.getLogger("autofuse")

#: Loops that carry the partition hint are split into a main part without conditions and a remainder.
PASS_CONFIG = {"s_tir.LoopPartition": {"partition_const_loop": True}}


def build_program(module: tvm.IRModule, target: Any) -> Any:
    """A Relax program with scheduled kernels → VM executable (TVM's)."""
    register_intrinsics()
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        return tvm.compile(module, target, relax_pipeline=relax.get_pipeline("default_build"))


def build_kernel(func: Any, target: Any, name: str = "main") -> Any:
    """One scheduled PrimFunc → runtime module with a function `name`."""
    register_intrinsics()
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        return tvm.compile(module, target)


def build_with_fallback(
    kernels: Sequence[Kernel], builder: KernelBuilder, arrange: Callable[[Sequence[Kernel]], Program], target: Any
) -> tuple[Program, Any]:
    """The program that `arrange` makes of the kernels, and its executable.

    Where building fails, the kernels that cannot be built are replaced by smaller ones, with a warning that names them.
    """
    program = arrange(kernels)
    while True:
        try:
            return program, build_program(program.module, target)
        except Exception as error:
            log.warning("building the whole program failed (%s): building kernel by kernel", last_line(error))
            smaller = _split_failing(kernels, builder, target)
            if smaller is None:
                raise
            kernels, program = smaller, arrange(smaller)


def _split_failing(kernels: Sequence[Kernel], builder: KernelBuilder, target: Any) -> list[Kernel] | None:
    """The kernels with those that do not build alone taken apart; None when they all do."""
    verdicts: dict[str, Exception | None] = {}
    left: list[Kernel] = []
    for kernel in kernels:
        if kernel.func is not None and kernel.name not in verdicts:
            try:
                build_kernel(kernel.func, target)
                verdicts[kernel.name] = None
            except Exception as error:
                verdicts[kernel.name] = error
        failure = verdicts.get(kernel.name)
        left.extend([kernel] if failure is None else builder.replace(kernel, failure))
    return left if any(verdicts.values()) else None
