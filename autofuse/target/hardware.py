"""Hardware descriptions: what schedules and analytical cost models know of a machine. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """A CPU as cost models see it. Bandwidths in bytes/second, sizes in bytes, times in seconds, rates per core.

    Defaults are those of a two-core Zen 3 with AVX2 (figures from the calibration of such a machine).
    """

    name: str = "default"
    kind: str = "cpu"  # "cpu" or "gpu"
    isa: str = "avx2"  # sse4, avx2, avx512, neon
    cores: int = 2  # threads in the pool
    vector_bytes: int = 32
    vector_registers: int = 16
    frequency_hz: float = 3.0e9
    fma_per_second: float = 4.8e10  # scalar multiply-adds per second on one core, vector units full
    simple_per_second: float = 4.8e10  # other vectorised arithmetic, elements per second
    divide_per_second: float = 5.0e9
    special_per_second: float = 2.8e9  # exp and friends behind a register tile, elements per second
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10
    l3_bytes: int = 32 << 20
    l1_bandwidth: float = 1.5e11  # per core
    l2_bandwidth: float = 8.0e10  # per core
    l3_bandwidth: float = 4.0e10  # per core
    memory_bandwidth: float = 2.0e10  # whole chip
    parallel_overhead: float = 2.0e-6  # entering and leaving a parallel region
    call_overhead: float = 5.0e-7  # one kernel call from the VM

    @property
    def lanes(self) -> int:
        """float32 lanes of a vector register."""
        return self.vector_bytes // 4

    @property
    def fused(self) -> bool:
        """Whether a multiply-add is one instruction; else it is two, and the product needs a register."""
        return self.isa != "sse4"
