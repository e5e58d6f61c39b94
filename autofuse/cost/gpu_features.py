"""Features of candidates for a GPU: from (candidates, hardware) to a float32 array (n, len(GPU_FEATURES)).

What a group is, is described as for a CPU (`group_features.py`, the first columns of both); what a configuration makes
of it, by registers, LDS, waves and their limits, by what a lane does, and by the terms of the GPU's own cost model.
Registers and instructions are those that families estimate (`GpuShape`): nothing is compiled for a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.features import family_columns
from autofuse.cost.group_features import GROUP_FEATURES, Feature, GroupTable
from autofuse.cost.model import Candidate
from autofuse.graph.model import Group, Work
from autofuse.schedule.family import KernelShape
from autofuse.schedule.gpu import roof
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.target import GpuHardware, Hardware

GPU_FEATURE_VERSION = 1

_CONFIG_SLOTS = 8
_SHAPE = (
    Feature("tasks", "log2 tasks", "workgroups"),
    Feature("tasks_per_unit", "log2 tasks", "workgroups of a compute unit"),
    Feature("unit_fill", "share", "units with work, averaged over rounds of one workgroup a unit"),
    Feature("vector_fill", "share", "lanes with work"),
    Feature("threads", "threads", "of a workgroup"),
    Feature("waves", "waves", "of a workgroup"),
    Feature("registers", "registers", "vector registers of a lane, estimated"),
    Feature("register_share", "ratio", "registers of a lane over those of a SIMD"),
    Feature("lds_bytes", "log2 bytes", "LDS of a workgroup"),
    Feature("lds_share", "ratio", "LDS of a workgroup over that of a compute unit"),
    Feature("resident", "waves", "of a compute unit: what registers, LDS and the number of workgroups leave"),
    Feature("occupancy", "share", "resident waves over the most that a compute unit holds"),
    Feature("lds_limited", "flag", "LDS leaves fewer waves than registers do"),
    Feature("rounds", "log2 rounds", "rounds of resident workgroups of the busiest unit"),
    Feature("accumulators", "registers", "that the inner tile keeps live"),
    Feature("chains", "chains", "independent accumulations of a lane"),
    Feature("recompute", "log2 ratio", "operations executed over needed"),
    Feature("loads_per_fma", "loads", "vector loads per multiply-add"),
    Feature("barriers", "log2 barriers", "that a workgroup waits at"),
    Feature("launches", "kernels", "launched one after another"),
    Feature("lds_traffic", "log2 bytes", "that all lanes move to and from LDS"),
    Feature("l1_bytes", "log2 bytes", "traffic through L1, whole lines"),
    Feature("l2_bytes", "log2 bytes", "traffic that L1 does not keep"),
    Feature("memory_bytes", "log2 bytes", "compulsory traffic"),
    Feature("footprint", "log2 bytes", "working set of one workgroup"),
    Feature("compulsory_l2", "log2 ratio", "compulsory traffic over L2"),
    Feature("fma_ratio", "ratio", "multiply-adds executed over the work's"),
    Feature("extra_simple", "log2 operations", "additions and multiplications executed beyond the work"),
)
# What one lane does: an instruction mix before there are instructions.
_LANE = (
    Feature("lane_fma", "log2 operations", "multiply-adds of a lane"),
    Feature("lane_simple", "log2 operations", "additions, multiplications, comparisons of a lane"),
    Feature("lane_divide", "log2 operations", "divisions and square roots of a lane"),
    Feature("lane_special", "log2 operations", "functions of a lane"),
    Feature("lane_lds", "log2 bytes", "that a lane moves to and from LDS"),
    Feature("lane_l1", "log2 bytes", "that a lane asks memory for, whole lines"),
)
_FAMILY = (
    Feature("family", "code", "stable code (0..1023) of the schedule family's name"),
    *(Feature(f"config_{i}", "int", f"field {i} of the configuration, 0 if none") for i in range(_CONFIG_SLOTS)),
)
_HARDWARE = (
    Feature("hw_lanes", "lanes", "float32 of the widest access of a lane"),
    Feature("hw_wave", "lanes", "lanes of a wave"),
    Feature("hw_cores", "units", "compute units"),
    Feature("hw_registers", "registers", "vector registers of a SIMD's lane"),
    Feature("hw_waves", "waves", "that a compute unit holds at most"),
    Feature("hw_lds", "log2 bytes", "LDS of a compute unit"),
    Feature("hw_fma_rate", "log2 1/s", "multiply-adds per second of a compute unit"),
    Feature("hw_special_rate", "log2 1/s", "functions per second of a compute unit"),
    Feature("hw_lds_bandwidth", "log2 bytes/s", "of a compute unit"),
    Feature("hw_l1_bandwidth", "log2 bytes/s", "of a compute unit"),
    Feature("hw_l2_bandwidth", "log2 bytes/s", "of a compute unit"),
    Feature("hw_memory_bandwidth", "log2 bytes/s", "of the card"),
    Feature("hw_l2", "log2 bytes", "size of L2"),
)
_TERM_NAMES = ("total", "compute", "lds", "l1", "l2", "memory", "waiting", "exposed")
_TERMS = tuple(Feature(f"log_{t}", "ln s", f"analytical model: {t}, at least a picosecond") for t in _TERM_NAMES)

GPU_FEATURES: tuple[Feature, ...] = GROUP_FEATURES + _SHAPE + _LANE + _FAMILY + _HARDWARE + _TERMS


def gpu_shape(shape: KernelShape) -> GpuShape:
    """A kernel's shape as a GPU's: a family that says nothing of threads is taken to have waves of its own."""
    return shape if isinstance(shape, GpuShape) else GpuShape(*[getattr(shape, f.name) for f in fields(KernelShape)])


def _shape_row(shape: GpuShape, h: GpuHardware) -> list[float]:
    """The _SHAPE features."""
    tasks, waves = max(1, shape.tasks), h.waves_of(shape.threads)
    resident = h.resident_waves(shape.registers, shape.lds_bytes, shape.threads)
    groups = max(1, resident // waves)
    each = -(-tasks // h.cores)
    busy = min(groups, each)
    log = math.log2
    return [
        log(1 + tasks),
        log(1 + tasks / h.cores),
        tasks / (each * h.cores),
        shape.vector_fill,
        shape.threads,
        waves,
        shape.registers,
        shape.registers / h.vector_registers,
        log(1 + shape.lds_bytes),
        shape.lds_bytes / h.lds_bytes,
        busy * waves,
        busy * waves / (h.simds * h.waves_per_simd),
        float(resident < h.resident_waves(shape.registers, 0, shape.threads)),
        log(1 + each / busy),
        shape.accumulators,
        shape.independent_chains,
        log(1 + shape.recompute),
        shape.loads_per_fma,
        log(1 + shape.barriers),
        shape.launches,
        log(1 + shape.lds_traffic),
        log(1 + shape.l1_bytes),
        log(1 + shape.l2_bytes),
        log(1 + shape.memory_bytes),
        log(1 + shape.footprint),
        log(1 + shape.memory_bytes / h.l2_bytes),
        shape.fma_ratio,
        log(1 + shape.extra_simple),
    ]


def _lane_row(work: Work, shape: GpuShape) -> list[float]:
    """The _LANE features, of lanes with work."""
    lanes = max(1.0, shape.tasks * shape.threads * shape.vector_fill)
    again = max(shape.recompute, 1.0) / lanes
    counts = (
        work.fma * shape.fma_ratio * again,
        (work.simple + work.compare + shape.extra_simple) * again,
        work.divide * again,
        work.special * again,
        shape.lds_traffic / lanes,
        shape.l1_bytes / lanes,
    )
    return [math.log2(1 + count) for count in counts]


def _hardware_row(h: GpuHardware) -> list[float]:
    rates = (
        h.lds_bytes, h.fma_per_second, h.special_per_second, h.lds_bandwidth, h.l1_bandwidth, h.l2_bandwidth,
        h.memory_bandwidth, h.l2_bytes,
    )  # fmt: skip
    counts = (h.lanes, h.wave, h.cores, h.vector_registers, h.simds * h.waves_per_simd)
    return [*counts, *(math.log2(1 + rate) for rate in rates)]


def extract_gpu(candidates: Sequence[Candidate], hardware: Hardware, cold: bool = False) -> NDArray[np.float32]:
    """Features of `candidates`, float32 (n, len(GPU_FEATURES)), all finite.

    cold: as of `features.extract`; a GPU's L2 holds few weights from one call to the next, and costs are those of data
    in memory wherever they do not fit: it changes nothing.
    """
    assert isinstance(hardware, GpuHardware)
    n = len(candidates)
    unique: dict[int, tuple[int, Group]] = {}
    index = np.empty(n, np.intp)
    own: list[list[float]] = []
    terms: list[list[float]] = []
    for i, candidate in enumerate(candidates):
        group = candidate.group
        index[i] = unique.setdefault(id(group), (len(unique), group))[0]
        shape = gpu_shape(candidate.family.shape(group, candidate.config, hardware))
        own.append([*_shape_row(shape, hardware), *_lane_row(group.work, shape)])
        found = roof.terms(group.work, shape, hardware)
        terms.append([math.log(max(min(found.get(name, 0.0), 1e6), 1e-12)) for name in _TERM_NAMES])
    groups = GroupTable.of([group for _, group in unique.values()], hardware.lanes)
    result = np.concatenate(
        [
            groups.features[index],
            np.array(own, np.float64).reshape(n, len(_SHAPE) + len(_LANE)),
            family_columns(candidates),
            np.broadcast_to(_hardware_row(hardware), (n, len(_HARDWARE))),
            np.array(terms, np.float64).reshape(n, len(_TERM_NAMES)),
        ],
        axis=1,
    )
    finite: NDArray[np.float32] = np.nan_to_num(result).clip(-1e30, 1e30).astype(np.float32)
    return finite
