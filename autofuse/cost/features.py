"""Features of candidates for learned cost models: from (candidates, hardware) to a float32 array (n, len(FEATURES)).

The columns are named, have units, and are versioned: a predictor trained on one FEATURE_VERSION refuses another.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.model import Candidate
from autofuse.graph.model import Graph, Group, MappingType, Operator, Role
from autofuse.schedule.family import Configuration, KernelShape, shape_matrix
from autofuse.target import Hardware

FEATURE_VERSION = 3  # 3: fma_ratio and extra_simple, for algorithms that save multiply-adds


class Feature(NamedTuple):
    """A column: `unit` "log2 x" means log2(1 + x), "ln s" the natural logarithm of seconds."""

    name: str
    unit: str
    meaning: str


_MAPPINGS = tuple(MappingType)
_KINDS = (
    "conv", "depthwise", "matmul", "pool", "softmax", "norm", "reduce", "movement", "resize", "gather", "pointwise",
)  # fmt: skip
_MOVEMENT = frozenset(
    ["layout_change", "permute_dims", "reshape", "concat", "strided_slice", "split", "expand_dims", "squeeze",
     "broadcast_to", "flatten", "tile", "repeat", "flip", "nn.pad", "pad", "stack"]
)  # fmt: skip
_CONFIG_SLOTS = 8

_GROUP = (
    *(Feature(f"mapping_{m.name.lower()}", "operators", f"members whose mapping type is {m.value}") for m in _MAPPINGS),
    *(Feature(f"kind_{k}", "operators", f"members that are {k}") for k in _KINDS),
    Feature("operators", "operators", "members"),
    Feature("anchors", "operators", "Many-to-Many members"),
    Feature("blocks", "loop nests", "loop nests of the members before scheduling"),
    Feature("arguments", "tensors", "tensors read from outside and written"),
    Feature("outputs", "tensors", "tensors written"),
    Feature("fma", "log2 operations", "multiply-adds"),
    Feature("simple", "log2 operations", "additions, multiplications, casts"),
    Feature("compare", "log2 operations", "minima, maxima, comparisons, selects"),
    Feature("divide", "log2 operations", "divisions and square roots"),
    Feature("special", "log2 operations", "exponentials and friends"),
    Feature("bytes_in", "log2 bytes", "activations read from outside"),
    Feature("bytes_constant", "log2 bytes", "constants read (weights, tables)"),
    Feature("bytes_out", "log2 bytes", "tensors written"),
    Feature("bytes_internal", "log2 bytes", "tensors made inside and not written"),
    Feature("bytes_saved", "log2 bytes", "what the members as kernels of their own would write and read of those"),
    Feature("intensity", "log2 flops/byte", "floating point operations per byte read or written"),
    Feature("reduction", "log2 elements", "largest reduction extent of a member"),
    Feature("output_elements", "log2 elements", "elements of the largest output"),
    Feature("innermost", "log2 elements", "innermost extent of the largest output"),
    Feature("innermost_fill", "share", "innermost extent over its next multiple of the lanes"),
    Feature("stride_same", "share", "accesses whose innermost stride is 0"),
    Feature("stride_contiguous", "share", "accesses whose innermost stride is 1"),
    Feature("stride_apart", "share", "accesses with another constant innermost stride"),
    Feature("stride_irregular", "share", "accesses whose innermost stride is not constant"),
    Feature("reads_per_output", "log2 elements", "most input elements that one output element needs"),
    Feature("uses_per_element", "log2 elements", "most output elements that read one input element"),
)
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
_TERM_NAMES = (
    "total", "compute", "fma", "simple", "compare", "divide", "special", "scatter", "exposed", "recompute",
    "l1", "l2", "l3", "memory", "parallel",
)  # fmt: skip
_TERMS = tuple(Feature(f"log_{t}", "ln s", f"analytical model: {t}, at least a picosecond") for t in _TERM_NAMES)

FEATURES: tuple[Feature, ...] = _GROUP + _SHAPE + _FAMILY + _HARDWARE + _TERMS


def feature_names() -> list[str]:
    """Names of the columns in order."""
    return [f.name for f in FEATURES]


def kind_of(op: Operator) -> str:
    """Which of the coarse kinds an operator is (names of the kind_* features)."""
    kind = op.kind
    if "conv" in kind:
        return "depthwise" if op.attrs.get("variant") == "depthwise" else "conv"
    if kind == "matmul" or kind.endswith(("dense", "batch_matmul")):
        return "matmul"
    for name, mark in (("pool", "pool"), ("softmax", "softmax"), ("norm", "_norm"), ("resize", "resize")):
        if mark in kind:
            return name
    if kind == "take" or "gather" in kind:
        return "gather"
    if kind in _MOVEMENT:
        return "movement"
    return "reduce" if op.reduction else "pointwise"


def _operator_rows(op: Operator) -> tuple[list[float], list[float]]:
    """An operator's share of its group's sums and maxima.

    Sums: mapping types, kinds, blocks, five classes of work, accesses, their four strides.
    Maxima: reduction, reads, uses.
    """
    strides = [0, 0, 0, 0]
    for a in op.accesses:
        strides[a.stride if a.stride in (0, 1) else 3 if a.stride == -1 else 2] += 1
    kind, work = kind_of(op), op.work
    sums = [
        *(float(op.mapping is m) for m in _MAPPINGS),
        *(float(kind == k) for k in _KINDS),
        op.blocks,
        *map(float, (work.fma, work.simple, work.compare, work.divide, work.special)),
        len(op.accesses),
        *strides,
    ]
    reads = max((a.reads_per_output for a in op.accesses), default=1)
    uses = max((a.uses_per_element for a in op.accesses), default=1)
    return sums, [math.prod(op.reduction), reads, uses]


@dataclass(frozen=True)
class _Sizes:
    """A graph's tensors as lists: bytes, bytes if constant else 0, elements, innermost extent."""

    bytes: list[int]
    constant: list[int]
    elements: list[int]
    innermost: list[int]

    @classmethod
    def of(cls, graph: Graph) -> _Sizes:
        size = [t.bytes for t in graph.tensors]
        constant = [b if t.role is Role.CONSTANT else 0 for b, t in zip(size, graph.tensors, strict=True)]
        elements = [t.elements for t in graph.tensors]
        return cls(size, constant, elements, [t.shape[-1] if t.shape else 1 for t in graph.tensors])


def _traffic_row(group: Group, sizes: _Sizes) -> tuple[float, ...]:
    """(members, arguments, outputs, bytes in, constant, out, internal, saved, elements, innermost) of a group."""
    size, inputs, outputs, internal = sizes.bytes, group.inputs, group.outputs, group.internal
    constant = sum(map(sizes.constant.__getitem__, inputs))
    read = sum(map(size.__getitem__, inputs)) - constant
    kept = saved = 0
    for t in internal:
        kept += size[t]
        saved += size[t] * (1 + sum(group.mask >> user & 1 for user in group.graph.users.get(t, ())))
    largest = max(outputs or group.operators[-1].outputs, key=sizes.elements.__getitem__)
    written = sum(map(size.__getitem__, outputs))
    counts = (len(group.members), len(inputs) + len(outputs), len(outputs))
    return (*counts, read, constant, written, kept, saved, sizes.elements[largest], sizes.innermost[largest])


def _group_table(groups: Sequence[Group], lanes: int) -> NDArray[np.float64]:
    """The _GROUP features of each group, counts not yet in logarithms. Operators and tensors are looked at once."""
    rows: dict[int, int] = {}
    sums: list[list[float]] = []
    maxima: list[list[float]] = []
    graphs: dict[int, _Sizes] = {}
    members: list[int] = []
    starts: list[int] = []
    traffic: list[tuple[float, ...]] = []
    for group in groups:
        sizes = graphs.get(id(group.graph))
        if sizes is None:
            sizes = graphs[id(group.graph)] = _Sizes.of(group.graph)
        starts.append(len(members))
        for op in group.operators:
            row = rows.get(id(op))
            if row is None:
                row = rows[id(op)] = len(sums)
                total, largest = _operator_rows(op)
                sums.append(total)
                maxima.append(largest)
            members.append(row)
        traffic.append(_traffic_row(group, sizes))
    if not groups:
        return np.empty((0, len(_GROUP)))
    total_of = np.add.reduceat(np.array(sums, np.float64)[members], starts, axis=0)
    largest_of = np.maximum.reduceat(np.array(maxima, np.float64)[members], starts, axis=0)
    count, arguments, outputs, read, constant, written, kept, saved, elements, innermost = np.array(
        traffic, np.float64
    ).T
    histograms = len(_MAPPINGS) + len(_KINDS)
    blocks, work = total_of[:, histograms], total_of[:, histograms + 1 : histograms + 6]
    accesses, strides = total_of[:, histograms + 6], total_of[:, histograms + 7 :]
    flops = work @ _FLOPS
    return np.column_stack(
        [
            total_of[:, :histograms],
            count,
            total_of[:, _MAPPINGS.index(MappingType.MANY_TO_MANY)],
            *(blocks, arguments, outputs),
            work,
            *(read, constant, written, kept, saved),
            flops / np.maximum(1, read + constant + written),
            largest_of[:, 0],
            *(elements, innermost, innermost / np.maximum(1, np.ceil(innermost / lanes) * lanes)),
            strides / np.maximum(1, accesses)[:, None],
            largest_of[:, 1:],
        ]
    )


_FLOPS = np.array([2.0, 1, 1, 1, 1])  # of fma, simple, compare, divide, special
_FMA = next(i for i, f in enumerate(_GROUP) if f.name == "fma")  # the five classes of work stand side by side
_GROUP_LOGS = np.array([f.unit.startswith("log2") for f in _GROUP])


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


def _family_columns(candidates: Sequence[Candidate]) -> NDArray[np.float64]:
    """The _FAMILY features."""
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
    candidates: Sequence[Candidate], hardware: Hardware, shapes: Sequence[KernelShape] | None = None
) -> NDArray[np.float32]:
    """Features of `candidates`, float32 (n, len(FEATURES)), all finite; `shapes` if their kernel shapes are known.

    What depends on the group alone is worked out once for each group object of the batch.
    """
    n = len(candidates)
    model = AnalyticalCostModel(hardware)
    rows = model.shapes(candidates) if shapes is None else shape_matrix(shapes)
    terms = model.terms(candidates, rows)
    unique: dict[int, tuple[int, Group]] = {}
    index = np.empty(n, np.intp)
    for i, candidate in enumerate(candidates):
        group = candidate.group
        index[i] = unique.setdefault(id(group), (len(unique), group))[0]
    groups = _group_table([group for _, group in unique.values()], hardware.lanes)
    flops = groups[:, _FMA : _FMA + 5] @ _FLOPS
    groups[:, _GROUP_LOGS] = np.log2(1 + groups[:, _GROUP_LOGS])
    result = np.concatenate(
        [
            groups[index],
            _shape_columns(rows, flops[index], hardware),
            _family_columns(candidates),
            np.broadcast_to(_hardware_row(hardware), (n, len(_HARDWARE))),
            np.column_stack([np.log(np.maximum(terms[t], 1e-12)) for t in _TERM_NAMES]),
        ],
        axis=1,
    )
    finite: NDArray[np.float32] = np.nan_to_num(result).clip(-1e30, 1e30).astype(np.float32)
    return finite
