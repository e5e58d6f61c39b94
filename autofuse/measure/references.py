"""The two fixed reference kernels, written in TIR and compiled for this machine: gives callables. Needs TVM.

They must not change: ratios to them are what records hold (tests/golden_references.json has their digests). One keeps
every vector unit busy from registers alone, the other streams more memory than last-level caches hold; both use the
whole thread pool.
"""

# mypy: disable-error-code="valid-type,untyped-decorator,no-untyped-def"
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.script import tirx as T

TASKS = 32  # divides evenly over 1, 2, 4, 8, 16 and 32 threads
STEPS = 4000  # dependent multiply-adds of each of the 64 lanes of a task: 0.1 to 0.2 ms on two cores with AVX2
ROWS = 8192  # rows of 32 floats that a task of the memory kernel reads: 1 MB, 32 MB in all
# 64 tasks of 1 MB: 64 MB, twice the last-level cache of the machines that this was made on.
STREAMS = 64
NAMES = ("memory", "arithmetic")  # in the order in which they run
# Rows of 32 floats that every task of the probe reads, the same ones: 128 kB, in the second cache of every core.
PROBED = 1024
FILL = "fill"  # writes the memory kernel's data, which is much to send to another machine


@T.prim_func
def _arithmetic(seeds: T.Buffer((64,), "float32"), out: T.Buffer((TASKS, 64), "float32")):
    T.func_attr({"global_symbol": "arithmetic", "tirx.noalias": True})
    for task in T.parallel(TASKS):
        acc = T.alloc_buffer((64,), "float32", scope="local")
        for lane in T.vectorized(64):
            acc[lane] = seeds[lane]
        for _step in range(STEPS):
            for lane in T.vectorized(64):
                acc[lane] = acc[lane] * T.float32(0.999) + T.float32(0.001)
        for lane in T.vectorized(64):
            out[task, lane] = acc[lane]


@T.prim_func
def _memory(data: T.Buffer((STREAMS, ROWS, 32), "float32"), out: T.Buffer((STREAMS, 32), "float32")):
    T.func_attr({"global_symbol": "memory", "tirx.noalias": True})
    for stream in T.parallel(STREAMS):
        acc = T.alloc_buffer((32,), "float32", scope="local")
        for lane in T.vectorized(32):
            acc[lane] = T.float32(0)
        for row in range(ROWS):
            for lane in T.vectorized(32):
                acc[lane] = acc[lane] + data[stream, row, lane]
        for lane in T.vectorized(32):
            out[stream, lane] = acc[lane]


@T.prim_func
def _probe(data: T.Buffer((PROBED, 32), "float32"), out: T.Buffer((TASKS, 32), "float32")):
    T.func_attr({"global_symbol": "probe", "tirx.noalias": True})
    for task in T.parallel(TASKS):
        acc = T.alloc_buffer((32,), "float32", scope="local")
        for lane in T.vectorized(32):
            acc[lane] = T.float32(0)
        for row in range(PROBED):
            for lane in T.vectorized(32):
                acc[lane] = acc[lane] + data[row, lane]
        for lane in T.vectorized(32):
            out[task, lane] = acc[lane]


@T.prim_func
def _fill(data: T.Buffer((STREAMS, ROWS, 32), "float32")):
    T.func_attr({"global_symbol": "fill", "tirx.noalias": True})
    for stream in T.parallel(STREAMS):
        for row in range(ROWS):
            for lane in T.vectorized(32):
                data[stream, row, lane] = T.float32(1)


def build_references() -> dict[str, Callable[[], object]]:
    """Callables that run the reference kernels once: memory first, arithmetic next to the kernel that is measured."""
    module = compile_references({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})

    def bound(name: str) -> Callable[[], object]:
        kernel, tensors = module[name], [tvm.runtime.tensor(array) for array in reference_arrays(name)]
        return lambda: kernel(*tensors)

    return {name: bound(name) for name in NAMES}


def build_probe() -> Callable[[], object]:
    """A callable that reads from every core's second cache: what shares a core, or its cache, slows it down."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    kernel = tvm.compile(tvm.IRModule({"probe": _probe}), target=target)["probe"]
    data, out = (tvm.runtime.tensor(np.zeros((rows, 32), np.float32)) for rows in (PROBED, TASKS))
    return lambda: kernel(data, out)


def compile_references(target: Mapping[str, object]) -> Any:
    """The reference kernels for a target in TVM's words, as TVM's executable: functions of NAMES, and FILL."""
    module = tvm.IRModule({"arithmetic": _arithmetic, "memory": _memory, FILL: _fill})
    return tvm.compile(module, target=tvm.target.Target(dict(target)))


def reference_arrays(name: str) -> list[NDArray[np.float32]]:
    """What a reference kernel is called with; the last is its output."""
    if name == "arithmetic":
        return [np.linspace(0.5, 1.5, 64, dtype=np.float32), np.zeros((TASKS, 64), np.float32)]
    # Every page is written once: pages that were never written share one zeroed page and would sit in the caches.
    return [np.ones((STREAMS, ROWS, 32), np.float32), np.zeros((STREAMS, 32), np.float32)]
