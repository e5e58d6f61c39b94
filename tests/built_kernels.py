"""Scheduled functions → kernels that run here, built as the compiler builds them for this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm

from autofuse.codegen.build import PASS_CONFIG
from autofuse.codegen.intrinsics import register_intrinsics
from autofuse.codegen.stack import pipeline
from autofuse.target import resolve


def build_kernels(funcs: Sequence[Any]) -> list[Callable[..., Any]]:
    """The functions compiled, in order: all in one library, which takes less time than one for each."""
    register_intrinsics()
    names = [f"k{i}" for i in range(len(funcs))]
    module = tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in zip(names, funcs, strict=True)})
    with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
        built = tvm.compile(module, resolve("llvm", 2).tvm_target(), tir_pipeline=pipeline())
    return [built[name] for name in names]
