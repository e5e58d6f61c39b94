"""How long a kernel takes on a GPU by its shape: what GPU families order their configurations by, and the cost model's
formula.

    busy = max(compute, lds, l1, l2, memory)
    time = busy + what of waiting it does not cover + one memory latency + further launches

compute, lds and l1 (whole lines of it) are what the busiest compute unit takes, since the last round of workgroups may
leave others idle; l2 and memory are shared by all. waiting are the latencies of a workgroup, one after another: rounds
of resident workgroups, each at least a memory latency and its barriers long. A wave that is alone on its SIMD waits for
all of them; one of m works while the others wait, so that busy covers up to (1 - 1/m) of itself.

Sources: the roofline of Williams, Waterman, Patterson (CACM 52(4), 2009); occupancy from AMD's description of gfx9
(waves, registers, LDS of a unit). No card was at hand: the latencies are judged, nothing is fitted.
"""

from __future__ import annotations

import math

from autofuse.graph.model import Work
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.target import GpuHardware

#: Cycles from a load to its use where it comes from memory or L2, and from a barrier to what follows it (judged).
MEMORY_CYCLES = 600.0
BARRIER_CYCLES = 100.0
# Seconds below which no kernel runs: an empty one's time on the card.
_EMPTY = 1.0e-6


def terms(work: Work, shape: GpuShape, hardware: GpuHardware) -> dict[str, float]:
    """The named terms of a kernel's time in seconds, and "occupancy", the waves of a unit as a share of the most.

    "total" is inf where not even one workgroup fits a compute unit.
    """
    h = hardware
    waves = h.waves_of(shape.threads)
    resident = h.resident_waves(shape.registers, shape.lds_bytes, shape.threads) // waves
    if resident == 0:
        return {"occupancy": 0.0, "total": float("inf")}
    each = -(-shape.tasks // h.cores)  # workgroups of the busiest unit
    busy = min(resident, each)
    # The busiest unit's share of the kernel, and how many of its SIMDs have a wave.
    share = each / shape.tasks
    issue = min(1.0, busy * waves / h.simds)
    result = {
        "occupancy": busy * waves / (h.simds * h.waves_per_simd),
        "compute": _work(work, shape, h) * share / issue,
        "lds": shape.lds_traffic * share / h.lds_bandwidth,
        "l1": shape.l1_bytes * share / h.l1_bandwidth,
        "l2": shape.l2_bytes / (h.l2_bandwidth * min(h.cores, shape.tasks)),
        "memory": shape.memory_bytes * _outside(shape.memory_bytes, h.l2_bytes) / h.memory_bandwidth,
        "waiting": -(-each // busy) * (MEMORY_CYCLES + shape.barriers * BARRIER_CYCLES) / h.frequency_hz,
    }
    roof = max(result[name] for name in ("compute", "lds", "l1", "l2", "memory"))
    beside = max(1.0, busy * waves / h.simds)
    result["exposed"] = max(0.0, result["waiting"] - roof * (1.0 - 1.0 / beside))
    launches = (shape.launches - 1) * h.call_overhead
    result["total"] = max(_EMPTY, roof + result["exposed"] + MEMORY_CYCLES / h.frequency_hz) + launches
    return result


def _work(work: Work, shape: GpuShape, h: GpuHardware) -> float:
    """Seconds that one compute unit would take for all operations, lanes without work and repetitions included."""
    seconds = (
        work.fma * shape.fma_ratio / h.fma_per_second
        + (work.simple + work.compare + shape.extra_simple) / h.simple_per_second
        + work.divide / h.divide_per_second
        + work.special / h.special_per_second
    )
    return seconds * max(shape.recompute, 1.0) / max(shape.vector_fill, 1.0 / h.wave)


def _outside(size: int, capacity: int) -> float:
    """Share (0..1) of what a cache does not hold: none up to half its size, all from twice it, between by logarithm."""
    return min(1.0, max(0.0, (math.log2(max(1, size) / capacity) + 1.0) / 2.0))
