"""The two fixed reference kernels, written in TIR and compiled for this machine: gives callables. Needs TVM.

They must not change: ratios to them are what records hold (tests/golden_references.json has their digests). One is a
matrix product, bound by arithmetic, whose operands lie in the second cache as those of most kernels do, so that it
slows down as they do when something shares a core or its caches; the other streams more memory than last-level caches
hold. Both use the whole thread pool.
"""

# mypy: disable-error-code="valid-type,untyped-decorator,no-untyped-def"
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.script import tirx as T

# The product is of 192 × 256 by 256 × 512 numbers, packed: 0.25 ms on two cores with AVX2, 12 accumulators of 8 lanes.
PANELS = 32  # of 16 columns; divides evenly over 1, 2, 4, 8, 16 and 32 threads
TILES, ROW_TILE, INNER = 32, 6, 256
ROWS = 8192  # rows of 32 floats that a task of the memory kernel reads: 1 MB
# 64 tasks of 1 MB: 64 MB, twice the last-level cache of the machines that this was made on.
STREAMS = 64
NAMES = ("memory", "product")  # in the order in which they run
FILL = "fill"  # writes the memory kernel's data, which is much to send to another machine


@T.prim_func
def _product(
    left: T.Buffer((TILES, INNER, ROW_TILE), "float32"),
    right: T.Buffer((PANELS, INNER, 16), "float32"),
    out: T.Buffer((PANELS, TILES, ROW_TILE, 16), "float32"),
):
    T.func_attr({"global_symbol": "product", "tirx.noalias": True})
    for panel in T.parallel(PANELS):
        for tile in range(TILES):
            acc = T.alloc_buffer((ROW_TILE, 16), "float32", scope="local")
            for row in T.unroll(ROW_TILE):
                for lane in T.vectorized(16):
                    acc[row, lane] = T.float32(0)
            for step in range(INNER):
                for row in T.unroll(ROW_TILE):
                    for lane in T.vectorized(16):
                        acc[row, lane] = acc[row, lane] + left[tile, step, row] * right[panel, step, lane]
            for row in T.unroll(ROW_TILE):
                for lane in T.vectorized(16):
                    out[panel, tile, row, lane] = acc[row, lane]


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
def _fill(data: T.Buffer((STREAMS, ROWS, 32), "float32")):
    T.func_attr({"global_symbol": "fill", "tirx.noalias": True})
    for stream in T.parallel(STREAMS):
        for row in range(ROWS):
            for lane in T.vectorized(32):
                data[stream, row, lane] = T.float32(1)


def build_references() -> dict[str, Callable[[], object]]:
    """Callables that run the reference kernels once: memory first, the product next to the kernel that is measured."""
    module = compile_references({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})

    def bound(name: str) -> Callable[[], object]:
        kernel, tensors = module[name], [tvm.runtime.tensor(array) for array in reference_arrays(name)]
        return lambda: kernel(*tensors)

    return {name: bound(name) for name in NAMES}


def compile_references(target: Mapping[str, object]) -> Any:
    """The reference kernels for a target in TVM's words, as TVM's executable: functions of NAMES, and FILL."""
    module = tvm.IRModule({"product": _product, "memory": _memory, FILL: _fill})
    return tvm.compile(module, target=tvm.target.Target(dict(target)))


def reference_arrays(name: str) -> list[NDArray[np.float32]]:
    """What a reference kernel is called with; the last is its output."""
    if name == "product":
        sizes = (TILES * INNER * ROW_TILE, PANELS * INNER * 16)
        left, right = (np.linspace(0.5, 1.5, size, dtype=np.float32) for size in sizes)
        return [
            left.reshape(TILES, INNER, ROW_TILE), right.reshape(PANELS, INNER, 16),
            np.zeros((PANELS, TILES, ROW_TILE, 16), np.float32),
        ]  # fmt: skip
    # Every page is written once: pages that were never written share one zeroed page and would sit in the caches.
    return [np.ones((STREAMS, ROWS, 32), np.float32), np.zeros((STREAMS, 32), np.float32)]
