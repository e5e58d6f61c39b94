"""Fixed kernels that say how disturbed the machine was: one bound by arithmetic, one by memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from autofuse.bench.peer import Array, Peer, Workload

ARITHMETIC_SIZE = 512  # an sgemm of 512^3 multiply-adds: 1.5 to 6 ms on two cores of today
MEMORY_BYTES = 64 << 20  # beyond any last-level cache of a desktop


class ProbePeer(Peer):
    """Options: `kind`, "arithmetic" (a square sgemm by numpy's BLAS) or "memory" (copying `MEMORY_BYTES`)."""

    def prepare(self, workload: Workload) -> float:
        kind = workload.options["kind"]
        if kind == "arithmetic":
            random = np.random.default_rng(0)
            shape = (ARITHMETIC_SIZE, ARITHMETIC_SIZE)
            left, right = (random.standard_normal(shape, dtype=np.float32) for _ in range(2))
            self._result: Any = np.empty(shape, dtype=np.float32)
            self._call: Any = lambda: np.matmul(left, right, out=self._result)
        elif kind == "memory":
            source = np.ones(MEMORY_BYTES // 4, dtype=np.float32)
            self._result = np.empty_like(source)
            self._call = lambda: np.copyto(self._result, source)
        else:
            raise ValueError(f"no probe named {kind!r}: arithmetic or memory")
        return 0.0

    def run_once(self) -> None:
        self._call()

    def outputs(self) -> list[Array]:
        return [self._result]
