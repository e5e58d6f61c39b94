"""Scheduled programs and kernels → machine code, through LLVM."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from autofuse.codegen.intrinsics import register_intrinsics

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
