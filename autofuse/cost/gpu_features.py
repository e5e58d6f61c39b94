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

from autofuse.cost import candidate_features as common
from autofuse.cost.group_features import GROUP_FEATURES, Feature
from autofuse.cost.model import Candidate
from autofuse.graph.model import Work
from autofuse.schedule.family import SHAPE_COLUMN, KernelShape, shape_matrix
from autofuse.schedule.gpu import roof
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.target import GpuHardware, Hardware

GPU_FEATURE_VERSION = 1

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
    common.RECOMPUTE,
    Feature("loads_per_fma", "loads", "vector loads per multiply-add"),
    Feature("barriers", "log2 barriers", "that a workgroup waits at"),
    Feature("launches", "kernels", "launched one after another"),
    Feature("lds_traffic", "log2 bytes", "that all lanes move to and from LDS"),
    Feature("l1_bytes", "log2 bytes", "traffic through L1, whole lines"),
    Feature("l2_bytes", "log2 bytes", "traffic that L1 does not keep"),
    common.MEMORY_BYTES,
    Feature("footprint", "log2 bytes", "working set of one workgroup"),
    Feature("compulsory_l2", "log2 ratio", "compulsory traffic over L2"),
    common.FMA_RATIO,
    common.EXTRA_SIMPLE,
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
#: No kernel that fits takes longer; one that does not takes for ever.
_MOST_SECONDS = 1e6
_TERM_NAMES = ("total", "compute", "lds", "l1", "l2", "memory", "waiting", "exposed")

GPU_FEATURES: tuple[Feature, ...] = (
    GROUP_FEATURES + _SHAPE + _LANE + common.FAMILY_FEATURES + _HARDWARE + common.term_features(_TERM_NAMES)
)
# Of the _SHAPE features those that are worked out for a kernel at a time.
_LIMITS = (
    "threads", "waves", "registers", "register_share", "lds_bytes", "lds_share", "resident", "occupancy",
    "lds_limited", "rounds", "barriers", "launches", "lds_traffic",
)  # fmt: skip


def gpu_shape(shape: KernelShape) -> GpuShape:
    """A kernel's shape as a GPU's: a family that says nothing of threads is taken to have waves of its own."""
    return shape if isinstance(shape, GpuShape) else GpuShape(*[getattr(shape, f.name) for f in fields(KernelShape)])


def _limits(shape: GpuShape, h: GpuHardware) -> list[float]:
    """The _LIMITS features of a kernel."""
    tasks, waves = max(1, shape.tasks), h.waves_of(shape.threads)
    resident = h.resident_waves(shape.registers, shape.lds_bytes, shape.threads)
    each = -(-tasks // h.cores)
    busy = min(max(1, resident // waves), each)
    log = math.log2
    return [
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
        log(1 + shape.barriers),
        shape.launches,
        log(1 + shape.lds_traffic),
    ]


def _shape_rows(shapes: Sequence[GpuShape], h: GpuHardware) -> NDArray[np.float64]:
    """The _SHAPE features."""
    rows = shape_matrix(shapes)
    columns, tasks, fill = common.shape_columns(rows, h.cores)
    columns |= {
        "tasks_per_unit": np.log2(1 + tasks / h.cores),
        "unit_fill": fill,
        "compulsory_l2": np.log2(1 + rows[:, SHAPE_COLUMN["memory_bytes"]] / h.l2_bytes),
        **dict(zip(_LIMITS, np.array([_limits(shape, h) for shape in shapes], np.float64).T, strict=True)),
    }
    return common.in_order(_SHAPE, columns)


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
    if not n:
        return np.empty((0, len(GPU_FEATURES)), np.float32)
    shapes = [gpu_shape(c.family.shape(c.group, c.config, hardware)) for c in candidates]
    terms = [roof.terms(c.group.work, shape, hardware) for c, shape in zip(candidates, shapes, strict=True)]
    seconds = [[min(found.get(name, 0.0), _MOST_SECONDS) for name in _TERM_NAMES] for found in terms]
    groups, index = common.groups_of(candidates, hardware.lanes)
    return common.joined(
        [
            groups.features[index],
            _shape_rows(shapes, hardware),
            np.array([_lane_row(c.group.work, shape) for c, shape in zip(candidates, shapes, strict=True)]),
            common.family_columns(candidates),
            np.broadcast_to(_hardware_row(hardware), (n, len(_HARDWARE))),
            common.log_seconds(np.array(seconds)),
        ]
    )
