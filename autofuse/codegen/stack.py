"""The TIR pipeline of the compiler's kernels: TVM's, and then small private buffers are put on the stack.

TVM asks the runtime for the memory of every buffer of scope "local", the accumulators of a register tile among them.
LLVM keeps them in registers inside the loops, but must write them back when a task ends, as others might read that
memory: until then they occupy their registers, and what follows the loops spills. On the stack they end with their last
use (convolutions with a swish: 0.78 of the time), and a task saves two calls of the runtime for each.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import compilation_pipeline

PIPELINE = "autofuse"
#: Larger buffers stay with the runtime: a thread's stack is finite, and they do not fit registers anyway.
MOST_BYTES = 4096
_BASE = "s_tir"
# TVM's pass that turns allocations into calls of the runtime leaves those with this annotation to the stack.
_KEEP = "disable_lower_builtin"


def pipeline() -> str:
    """The name under which TVM knows the pipeline (`tvm.compile(…, tir_pipeline=…)`), registered at the first call."""
    if PIPELINE not in compilation_pipeline.PIPELINE_MAP:
        compilation_pipeline.register_tir_pipeline(PIPELINE, _factory)
    return PIPELINE


def _factory() -> tuple[Any, Any, Any]:
    passes, finalize_host, finalize_device = compilation_pipeline.get_tir_pipeline(_BASE)
    ours = tirx.transform.prim_func_pass(_on_stack, opt_level=0, name="autofuse.SmallBuffersOnStack")
    return tvm.ir.transform.Sequential([passes, ours]), finalize_host, finalize_device


def _on_stack(func: Any, _module: Any, _context: Any) -> Any:
    def keep(statement: Any) -> Any:
        buffer = statement.buffer
        if buffer.scope() != "local" or _bytes(buffer) > MOST_BYTES:
            return statement
        annotations = {**(statement.annotations or {}), _KEEP: tirx.IntImm("int32", 1)}
        return tirx.AllocBuffer(buffer, annotations)

    body = tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, keep))
    return tirx.PrimFunc(func.params, body, func.ret_type, attrs=func.attrs)


def _bytes(buffer: Any) -> int:
    """Size of a buffer whose elements may be vectors; more than any limit where an extent is not known."""
    if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return MOST_BYTES + 1
    kind = tvm.DataType(str(buffer.dtype))
    each: int = (kind.bits * kind.lanes + 7) // 8
    return each * prod(int(extent) for extent in buffer.shape)
