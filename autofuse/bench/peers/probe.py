"""Fixed kernels that say how disturbed the machine was: one bound by arithmetic, one by memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from autofuse.bench.peer import Array, Peer, Workload

ARITHMETIC_SIZE = 512  # an sgemm of 512^3 multiply-adds a thread: 2 to 6 ms
MEMORY_BYTES = 64 << 20  # of all threads together: beyond the last-level cache of most machines


class ProbePeer(Peer):
    """Options: `kind`, "arithmetic" (a square sgemm in each thread) or "memory" (copying `MEMORY_BYTES`, in shares).

    Start it with one BLAS thread. The threads are these ones: a BLAS pool waits by yielding, which on a busy machine
    takes scheduler ticks that say nothing about how fast the processors are.
    """

    def prepare(self, workload: Workload) -> float:
        kind, threads = workload.options["kind"], workload.threads
        makers = {"arithmetic": _sgemm, "memory": _copy}
        if kind not in makers:
            raise ValueError(f"no probe named {kind!r}: arithmetic or memory")
        self._results, self._jobs = zip(*(makers[kind](index, threads) for index in range(threads)), strict=True)
        self._pool = ThreadPoolExecutor(threads)
        return 0.0

    def run_once(self) -> None:
        # One share stays in this thread, as in the pools of the engines.
        others = [self._pool.submit(job) for job in self._jobs[1:]]
        self._jobs[0]()
        for other in others:
            other.result()

    def outputs(self) -> list[Array]:
        return [result[:1].copy() for result in self._results]


def _sgemm(index: int, threads: int) -> tuple[Array, Callable[[], object]]:
    random = np.random.default_rng(index)
    left, right = (random.standard_normal((ARITHMETIC_SIZE, ARITHMETIC_SIZE), dtype=np.float32) for _ in range(2))
    result = np.empty_like(left)
    return result, lambda: np.matmul(left, right, out=result)


def _copy(index: int, threads: int) -> tuple[Array, Callable[[], object]]:
    source = np.full(MEMORY_BYTES // 4 // threads, index, dtype=np.float32)
    result = np.empty_like(source)
    return result, lambda: np.copyto(result, source)
