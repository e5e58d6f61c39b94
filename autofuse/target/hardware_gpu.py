"""The hardware description of a GPU, and how many waves of a kernel a compute unit holds. Plain data, no TVM."""

from __future__ import annotations

from dataclasses import dataclass

from autofuse.target.hardware import Hardware


@dataclass(frozen=True)
class GpuHardware(Hardware):
    """A GPU as cost models and schedules see it. Units as in `Hardware`; a core is a compute unit.

    `vector_bytes` is the widest access of one lane to memory (the block of the layouts follows from it), and
    `vector_registers` the registers that a lane of one resident wave can have (those of a SIMD). The last cache is L2,
    shared by all compute units: `l3_bytes` repeats it. `call_overhead` is one launch. Defaults are those of gfx906 with
    60 compute units at 1.319 GHz: 64 multiply-adds a cycle and unit, functions at a quarter of that rate, 64 bytes a
    cycle from L1, 16 L2 channels of 64 bytes a cycle.
    """

    name: str = "gfx906"
    kind: str = "gpu"
    isa: str = "gfx906"  # what code is generated for
    cores: int = 60
    vector_bytes: int = 16
    vector_registers: int = 256
    frequency_hz: float = 1.319e9
    fma_per_second: float = 64 * 1.319e9
    simple_per_second: float = 64 * 1.319e9
    divide_per_second: float = 6.4 * 1.319e9
    special_per_second: float = 16 * 1.319e9
    l1_bytes: int = 16 << 10
    l2_bytes: int = 8 << 20
    l3_bytes: int = 8 << 20
    l1_bandwidth: float = 64 * 1.319e9
    l2_bandwidth: float = 16 * 64 * 1.319e9 / 60
    l3_bandwidth: float = 16 * 64 * 1.319e9 / 60
    memory_bandwidth: float = 1.024e12
    parallel_overhead: float = 1.0e-6
    call_overhead: float = 2.0e-5
    wave: int = 64  # lanes that run in step
    simds: int = 4  # of a compute unit
    waves_per_simd: int = 10  # resident at most
    lane_registers: int = 256  # the most that a lane may have
    register_granule: int = 4  # registers are handed out in such steps
    lds_bytes: int = 64 << 10  # of a compute unit
    workgroup_lds: int = 64 << 10  # the most that a workgroup may have
    lds_granule: int = 512
    lds_bandwidth: float = 128 * 1.319e9  # of a compute unit
    lds_banks: int = 32
    workgroup: int = 1024  # threads at most
    line_bytes: int = 64

    @property
    def fused(self) -> bool:
        """A multiply-add is one instruction on every GPU that is described."""
        return True

    def waves_of(self, threads: int) -> int:
        """Waves of a workgroup of so many threads."""
        return -(-threads // self.wave)

    def resident_waves(self, registers: int, lds_bytes: int, threads: int) -> int:
        """Waves of a kernel that a compute unit holds at once; 0 if not even one workgroup fits.

        registers: vector registers of a lane; lds_bytes, threads: of a workgroup. A workgroup's waves are all resident
        or none is; they spread over the SIMDs evenly.
        """
        waves = self.waves_of(threads)
        granule = self.register_granule
        needed = max(granule, -(-registers // granule) * granule)
        by_registers = min(self.waves_per_simd, self.vector_registers // needed) * self.simds // waves
        lds = -(-lds_bytes // self.lds_granule) * self.lds_granule
        by_lds = self.lds_bytes // lds if lds else by_registers
        if threads > self.workgroup or lds > self.workgroup_lds or registers > self.lane_registers:
            return 0
        return min(by_registers, by_lds) * waves

    def occupancy(self, registers: int, lds_bytes: int, threads: int) -> float:
        """`resident_waves` as a share (0..1) of the most that a compute unit can hold."""
        return self.resident_waves(registers, lds_bytes, threads) / (self.simds * self.waves_per_simd)
