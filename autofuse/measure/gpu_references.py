"""The two reference kernels of GPUs that take no OpenCL C, written in TIR: gives their code for a target. Needs TVM.

They do what those in `gpu_worker.py` do, which are OpenCL C: one keeps every lane busy from registers alone, the other
reads more memory than an L2 holds. They must not change: ratios to them are what records hold.
"""

# mypy: disable-error-code="valid-type,untyped-decorator,no-untyped-def"
from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

STEPS, LANES, GROUP = 128, 1 << 18, 256
FLOATS = 1 << 24
NAMES = ("memory", "arithmetic")  # in the order in which they run
_ROUNDS = FLOATS // 4 // LANES


@T.prim_func
def _arithmetic(seed: T.Buffer((4,), "float32"), out: T.Buffer((LANES,), "float32")):
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    for block in T.thread_binding(LANES // GROUP, thread="blockIdx.x"):
        for thread in T.thread_binding(GROUP, thread="threadIdx.x"):
            acc = T.alloc_buffer((4,), "float32", scope="local")
            for chain in T.unroll(4):
                acc[chain] = seed[chain]
            for _step in range(STEPS):
                for chain in T.unroll(4):
                    acc[chain] = acc[chain] * T.float32(0.999) + T.float32(0.001)
            out[block * GROUP + thread] = acc[0] + acc[1] + acc[2] + acc[3]


@T.prim_func
def _memory(data: T.Buffer((FLOATS,), "float32"), out: T.Buffer((LANES,), "float32")):
    T.func_attr({"global_symbol": "main", "tirx.noalias": True})
    for block in T.thread_binding(LANES // GROUP, thread="blockIdx.x"):
        for thread in T.thread_binding(GROUP, thread="threadIdx.x"):
            acc = T.alloc_buffer((4,), "float32", scope="local")
            for lane in T.unroll(4):
                acc[lane] = T.float32(0)
            for turn in range(_ROUNDS):
                for lane in T.vectorized(4):
                    acc[lane] = acc[lane] + data[(turn * LANES + block * GROUP + thread) * 4 + lane]
            out[block * GROUP + thread] = acc[0] + acc[1] + acc[2] + acc[3]


def references() -> dict[str, Any]:
    """The kernels by name: functions of (data, out)."""
    return {"memory": _memory, "arithmetic": _arithmetic}
