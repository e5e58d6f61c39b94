"""Features of candidates for learned cost models: from (candidates, hardware) to a float32 array (n, len(FEATURES)).

The columns are named, have units, and are versioned: a predictor trained on one FEATURE_VERSION refuses another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autofuse.cost import candidate_features as common
from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.group_features import GROUP_FEATURES, Feature
from autofuse.cost.model import Candidate
from autofuse.cost.weights import LEAST_COLD_BYTES
from autofuse.schedule.family import SHAPE_COLUMN, KernelShape, shape_matrix
from autofuse.target import Hardware

# 3: fma_ratio and extra_simple, for algorithms that save multiply-adds. 4: the chain of mapping types, anchors, halo,
# place of the reduction, and bytes_cold: latencies with cold weights are learned too.
FEATURE_VERSION = 4

_SHAPE = (
    Feature("tasks", "log2 tasks", "independent pieces"),
    Feature("tasks_per_core", "log2 tasks", "pieces per core"),
    Feature("wave_fill", "share", "cores busy, averaged over the waves of tasks"),
    Feature("vector_fill", "share", "useful lanes over the main loops"),
    Feature("accumulators", "registers", "vector registers that the inner tile keeps live"),
    Feature("register_share", "ratio", "accumulators over registers"),
    Feature("chains", "chains", "independent accumulations"),
    common.RECOMPUTE,
    Feature("loads_per_fma", "loads", "vector loads per vector FMA"),
    Feature("l1_bytes", "log2 bytes", "traffic registers/L1"),
    Feature("l2_bytes", "log2 bytes", "traffic L1/L2"),
    Feature("l3_bytes", "log2 bytes", "traffic L2/L3"),
    common.MEMORY_BYTES,
    Feature("footprint", "log2 bytes", "working set of one task"),
    Feature("loops", "loop nests", "loop nests executed one after another"),
    Feature("scattered", "log2 elements", "elements moved one by one"),
    Feature("exposed", "share", "traffic whose time no computation hides"),
    common.FMA_RATIO,
    common.EXTRA_SIMPLE,
    Feature("footprint_l1", "log2 ratio", "working set over L1"),
    Feature("footprint_l2", "log2 ratio", "working set over L2"),
    Feature("footprint_l3", "log2 ratio", "working sets of all running tasks over L3"),
    Feature("compulsory_l3", "log2 ratio", "compulsory traffic over L3"),
    Feature("task_flops", "log2 operations", "floating point operations of one task"),
)
_HARDWARE = (
    Feature("hw_lanes", "lanes", "float32 lanes of a vector register"),
    Feature("hw_registers", "registers", "vector registers"),
    Feature("hw_cores", "cores", "threads in the pool"),
    Feature("hw_fma_rate", "log2 1/s", "scalar multiply-adds per second of a core"),
    Feature("hw_special_rate", "log2 1/s", "exponentials per second of a core"),
    Feature("hw_l1_bandwidth", "log2 bytes/s", "of a core"),
    Feature("hw_l2_bandwidth", "log2 bytes/s", "of a core"),
    Feature("hw_l3_bandwidth", "log2 bytes/s", "of a core"),
    Feature("hw_memory_bandwidth", "log2 bytes/s", "of the chip"),
    Feature("hw_l2", "log2 bytes", "size of L2"),
    Feature("hw_l3", "log2 bytes", "size of L3"),
    Feature("hw_parallel_overhead", "ln s", "entering and leaving a parallel region"),
)
_STATE = (
    Feature("bytes_cold", "log2 bytes", "constants that come from memory in every run, whatever the caches hold"),
)
_SIZES = ("l3_bytes", "memory_bytes", "footprint", "scattered")
_TERM_NAMES = (
    "total", "compute", "fma", "simple", "compare", "divide", "special", "scatter", "exposed", "recompute",
    "l1", "l2", "l3", "memory", "parallel",
)  # fmt: skip

FEATURES: tuple[Feature, ...] = (
    GROUP_FEATURES + _SHAPE + common.FAMILY_FEATURES + _HARDWARE + _STATE + common.term_features(_TERM_NAMES)
)


def feature_names() -> list[str]:
    """Names of the columns in order."""
    return [f.name for f in FEATURES]


def _shape_rows(shapes: NDArray[np.float64], flops: NDArray[np.float64], h: Hardware) -> NDArray[np.float64]:
    """The _SHAPE features, from rows of `shape_matrix` and each candidate's flops."""
    columns, tasks, fill = common.shape_columns(shapes, h.cores)
    l3, compulsory, footprint, scattered = (shapes[:, SHAPE_COLUMN[name]] for name in _SIZES)
    log = np.log2
    columns |= {
        "tasks_per_core": log(1 + tasks / h.cores),
        "wave_fill": fill,
        "register_share": columns["accumulators"] / h.vector_registers,
        "l3_bytes": log(1 + l3),
        "loops": shapes[:, SHAPE_COLUMN["loops"]],
        "scattered": log(1 + scattered),
        "exposed": shapes[:, SHAPE_COLUMN["exposed"]],
        "footprint_l1": log(1 + footprint / h.l1_bytes),
        "footprint_l2": log(1 + footprint / h.l2_bytes),
        "footprint_l3": log(1 + footprint * np.minimum(tasks, h.cores) / h.l3_bytes),
        "compulsory_l3": log(1 + compulsory / h.l3_bytes),
        "task_flops": log(1 + flops / tasks),
    }
    return common.in_order(_SHAPE, columns)


def _hardware_row(h: Hardware) -> list[float]:
    rates = (h.fma_per_second, h.special_per_second, h.l1_bandwidth, h.l2_bandwidth, h.l3_bandwidth)
    sizes = (h.memory_bandwidth, h.l2_bytes, h.l3_bytes)
    counts = (h.lanes, h.vector_registers, h.cores)
    return [*counts, *(math.log2(1 + v) for v in (*rates, *sizes)), math.log(max(h.parallel_overhead, 1e-12))]


def extract(
    candidates: Sequence[Candidate],
    hardware: Hardware,
    shapes: Sequence[KernelShape] | None = None,
    cold: bool = False,
) -> NDArray[np.float32]:
    """Features of `candidates`, float32 (n, len(FEATURES)), all finite; `shapes` if their kernel shapes are known.

    cold: in a network whose weights do not stay in the last cache (`weights.py`). It changes rows of candidates with at
    least LEAST_COLD_BYTES of constants: fewer are read in no time from anywhere, and records have no cold latencies of
    such kernels. What depends on the group alone is worked out once for each group object of the batch.
    """
    n = len(candidates)
    model = AnalyticalCostModel(hardware)
    rows = model.shapes(candidates) if shapes is None else shape_matrix(shapes)
    groups, index = common.groups_of(candidates, hardware.lanes)
    terms = model.terms(candidates, rows)
    cold_bytes = np.zeros(n)
    if cold:
        constant = groups.constant[index]
        affected = constant >= LEAST_COLD_BYTES
        cold_bytes = np.where(affected, constant, 0.0)
        slower = AnalyticalCostModel(hardware, cold=True).terms(candidates, rows)
        terms = {name: np.where(affected, slower[name], terms[name]) for name in _TERM_NAMES}
    return common.joined(
        [
            groups.features[index],
            _shape_rows(rows, groups.flops[index], hardware),
            common.family_columns(candidates),
            np.broadcast_to(_hardware_row(hardware), (n, len(_HARDWARE))),
            np.log2(1 + cold_bytes)[:, None],
            common.log_seconds(np.column_stack([terms[t] for t in _TERM_NAMES])),
        ]
    )
