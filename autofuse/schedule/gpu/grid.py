"""Building GPU kernels statement by statement: workgroups, threads, LDS, barriers. What the GPU families share.

A kernel is one nest: blockIdx.x and threadIdx.x around statements that all threads of a workgroup run. Threads are
numbered along one axis, so that neighbours in it are neighbours in a wave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.op import tvm_storage_sync

from autofuse.schedule.cpu.loops import SERIAL, UNROLLED, Body, Nest, sequence
from autofuse.schedule.stages import Program, index


class Grid(Nest):
    """Makes the statements of one kernel; see the module's description."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._allocated: list[Any] = []

    def kernel(self, workgroups: int, threads: int, body: Callable[[Any, Any], Any]) -> Any:
        """body(workgroup, thread) for all of them; what `lds` and `private` made lives inside."""
        block = self.variable("block", workgroups)
        thread = self.variable("thread", threads)
        self._allocated = []
        made = body(block, thread)
        inner = sequence([tirx.AllocBuffer(buffer) for buffer in self._allocated], made)
        return self._bound("blockIdx.x", block, workgroups, self._bound("threadIdx.x", thread, threads, inner))

    def _bound(self, tag: str, var: Any, extent: int, body: Any) -> Any:
        domain = tvm.ir.Range(index(0), index(extent))
        axis = tirx.IterVar(domain, tirx.Var(tag, "int64"), tirx.IterVar.ThreadIndex, tag)
        return tirx.For(var, index(0), index(extent), tirx.ForKind.THREAD_BINDING, body, axis)

    def lds(self, stem: str, shape: Sequence[int], dtype: str = "float32") -> Any:
        """A buffer that the threads of a workgroup share."""
        return self._keep(self.buffer(stem, shape, dtype, "shared"))

    def private(self, stem: str, shape: Sequence[int], dtype: str = "float32") -> Any:
        """A thread's own buffer: registers where all its indices are constants, which takes unrolled loops."""
        return self._keep(self.buffer(stem, shape, dtype, "local"))

    def _keep(self, buffer: Any) -> Any:
        self._allocated.append(buffer)
        return buffer

    def barrier(self) -> Any:
        """All threads of the workgroup get here, and what they wrote to LDS is seen by the others."""
        return tirx.Evaluate(tvm_storage_sync("shared"))

    def unroll(self, extent: int, body: Body) -> Any:
        """A loop whose body is repeated in the code, so that it indexes registers."""
        return self.loop("u", extent, body, UNROLLED)

    def rolled(self, stem: str, extent: int, block: Any, body: Body) -> Any:
        """A loop that stays one: its extent is not seen to be a constant, by what is 0 for every workgroup there is.

        LLVM writes out short loops whole, brings forward what they load, and runs out of registers. TVM, which sizes
        buffers by what loops may reach, has to see that it is 0: hence the shift, by which its bound is.
        """
        var = self.variable(stem, extent)
        nothing = tirx.shift_right(tirx.bitwise_and(block, index(1 << 30)), index(20))
        return tirx.For(var, index(0), index(extent) + nothing, SERIAL, body(var))

    def guarded(self, value: Any, limit: int, extent: int, body: Callable[[], Any]) -> Any:
        """`body` where value < limit; value is in [0, extent). Without the condition where it always holds."""
        if limit >= extent:
            return body()
        return tirx.IfThenElse(value < index(limit), body(), None)
