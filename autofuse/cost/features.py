"""Features of candidates for learned cost models: from (candidates, hardware) to a float32 array (n, len(FEATURES)).

The columns are named, have units, and are versioned: a predictor trained on one FEATURE_VERSION refuses another.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.group_features import GROUP_FEATURES, GroupTable
from autofuse.cost.group_features import Feature as Feature
from autofuse.cost.group_features import kind_of as kind_of
from autofuse.cost.model import Candidate
from autofuse.cost.weights import LEAST_COLD_BYTES
from autofuse.graph.model import Group
from autofuse.schedule.family import Configuration, KernelShape, shape_matrix
from autofuse.target import Hardware

# 3: fma_ratio and extra_simple, for algorithms that save multiply-adds. 4: the chain of mapping types, anchors, halo,
# place of the reduction, and bytes_cold: latencies with cold weights are learned too.
FEATURE_VERSION = 4

_CONFIG_SLOTS = 8

_SHAPE = (
    Feature("tasks", "log2 tasks", "independent pieces"),
    Feature("tasks_per_core", "log2 tasks", "pieces per core"),
    Feature("wave_fill", "share", "cores busy, averaged over the waves of tasks"),
    Feature("vector_fill", "share", "useful lanes over the main loops"),
    Feature("accumulators", "registers", "vector registers that the inner tile keeps live"),
    Feature("register_share", "ratio", "accumulators over registers"),
    Feature("chains", "chains", "independent accumulations"),
    Feature("recompute", "log2 ratio", "operations executed over needed"),
    Feature("loads_per_fma", "loads", "vector loads per vector FMA"),
    Feature("l1_bytes", "log2 bytes", "traffic registers/L1"),
    Feature("l2_bytes", "log2 bytes", "traffic L1/L2"),
    Feature("l3_bytes", "log2 bytes", "traffic L2/L3"),
    Feature("memory_bytes", "log2 bytes", "compulsory traffic"),
    Feature("footprint", "log2 bytes", "working set of one task"),
    Feature("loops", "loop nests", "loop nests executed one after another"),
    Feature("scattered", "log2 elements", "elements moved one by one"),
    Feature("exposed", "share", "traffic whose time no computation hides"),
    Feature("fma_ratio", "ratio", "multiply-adds executed over the work's"),
    Feature("extra_simple", "log2 operations", "additions and multiplications executed beyond the work"),
    Feature("footprint_l1", "log2 ratio", "working set over L1"),
    Feature("footprint_l2", "log2 ratio", "working set over L2"),
    Feature("footprint_l3", "log2 ratio", "working sets of all running tasks over L3"),
    Feature("compulsory_l3", "log2 ratio", "compulsory traffic over L3"),
    Feature("task_flops", "log2 operations", "floating point operations of one task"),
)
_FAMILY = (
    Feature("family", "code", "stable code (0..1023) of the schedule family's name"),
    *(Feature(f"config_{i}", "int", f"field {i} of the configuration, 0 if none") for i in range(_CONFIG_SLOTS)),
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
_TERM_NAMES = (
    "total", "compute", "fma", "simple", "compare", "divide", "special", "scatter", "exposed", "recompute",
    "l1", "l2", "l3", "memory", "parallel",
)  # fmt: skip
_TERMS = tuple(Feature(f"log_{t}", "ln s", f"analytical model: {t}, at least a picosecond") for t in _TERM_NAMES)

FEATURES: tuple[Feature, ...] = GROUP_FEATURES + _SHAPE + _FAMILY + _HARDWARE + _STATE + _TERMS


def feature_names() -> list[str]:
    """Names of the columns in order."""
    return [f.name for f in FEATURES]


def _shape_columns(shape: NDArray[np.float64], flops: NDArray[np.float64], h: Hardware) -> NDArray[np.float64]:
    """The _SHAPE features, from the columns of `shape_matrix` and each candidate's flops."""
    tasks, fill, accumulators, chains, recompute, loads, l1, l2, l3, compulsory, footprint = shape.T[:11]
    loops, scattered, exposed, fma_ratio, extra_simple = shape.T[11:]
    tasks = np.maximum(tasks, 1.0)
    waves = np.ceil(tasks / h.cores)
    log = np.log2
    return np.column_stack(
        [
            log(1 + tasks),
            log(1 + tasks / h.cores),
            tasks / (waves * h.cores),
            fill,
            accumulators,
            accumulators / h.vector_registers,
            chains,
            log(1 + recompute),
            loads,
            *(log(1 + column) for column in (l1, l2, l3, compulsory, footprint)),
            loops,
            log(1 + scattered),
            exposed,
            fma_ratio,
            log(1 + extra_simple),
            log(1 + footprint / h.l1_bytes),
            log(1 + footprint / h.l2_bytes),
            log(1 + footprint * np.minimum(tasks, h.cores) / h.l3_bytes),
            log(1 + compulsory / h.l3_bytes),
            log(1 + flops / tasks),
        ]
    )


def family_code(name: str) -> int:
    """A number 0..1023 that stands for a family's name, the same everywhere."""
    return zlib.crc32(name.encode()) % 1024


def _config_reader(kind: type[Configuration]) -> Callable[[Configuration], tuple[int, ...]]:
    """A function that gives the first _CONFIG_SLOTS fields of a configuration, filled up with zeros."""
    names = [f.name for f in fields(kind)][:_CONFIG_SLOTS]
    zeros = (0,) * (_CONFIG_SLOTS - len(names))
    if len(names) > 1:
        get = attrgetter(*names)
        return lambda config: (*get(config), *zeros)
    return lambda config: (*(getattr(config, name) for name in names), *zeros)


def family_columns(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
    """The features of families and configurations: a code, then the first _CONFIG_SLOTS fields."""
    codes: dict[str, int] = {}
    readers: dict[type[Configuration], Callable[[Configuration], tuple[int, ...]]] = {}
    flat: list[float] = []
    for candidate in candidates:
        name, config = candidate.family.name, candidate.config
        code = codes.get(name)
        if code is None:
            code = codes[name] = family_code(name)
        reader = readers.get(type(config))
        if reader is None:
            reader = readers[type(config)] = _config_reader(type(config))
        flat.append(code)
        flat.extend(reader(config))
    return np.array(flat, np.float64).reshape(-1, 1 + _CONFIG_SLOTS)


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
    unique: dict[int, tuple[int, Group]] = {}
    index = np.empty(n, np.intp)
    for i, candidate in enumerate(candidates):
        group = candidate.group
        index[i] = unique.setdefault(id(group), (len(unique), group))[0]
    groups = GroupTable.of([group for _, group in unique.values()], hardware.lanes)
    terms = model.terms(candidates, rows)
    cold_bytes = np.zeros(n)
    if cold:
        constant = groups.constant[index]
        affected = constant >= LEAST_COLD_BYTES
        cold_bytes = np.where(affected, constant, 0.0)
        slower = AnalyticalCostModel(hardware, cold=True).terms(candidates, rows)
        terms = {name: np.where(affected, slower[name], terms[name]) for name in _TERM_NAMES}
    result = np.concatenate(
        [
            groups.features[index],
            _shape_columns(rows, groups.flops[index], hardware),
            family_columns(candidates),
            np.broadcast_to(_hardware_row(hardware), (n, len(_HARDWARE))),
            np.log2(1 + cold_bytes)[:, None],
            np.column_stack([np.log(np.maximum(terms[t], 1e-12)) for t in _TERM_NAMES]),
        ],
        axis=1,
    )
    finite: NDArray[np.float32] = np.nan_to_num(result).clip(-1e30, 1e30).astype(np.float32)
    return finite
