"""Features of candidates for learned cost models: from (candidates, hardware) to a float32 array (n, len(FEATURES)).

The columns are named, have units, and are versioned: a predictor trained on one FEATURE_VERSION refuses another.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.analytical import AnalyticalCostModel, shape_matrix
from autofuse.cost.model import Candidate
from autofuse.graph.model import Group, MappingType, Operator, Role
from autofuse.schedule.family import Configuration, KernelShape
from autofuse.target import Hardware

FEATURE_VERSION = 1


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
    "total", "compute", "fma", "simple", "compare", "divide", "special", "recompute",
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


def _group_row(group: Group, lanes: int) -> list[float]:
    """The _GROUP features of one group; counts not yet in logarithms."""
    tensors, ops = group.graph.tensors, group.operators
    mapping = dict.fromkeys(_MAPPINGS, 0)
    kinds = dict.fromkeys(_KINDS, 0)
    inside_reads: dict[int, int] = {}
    strides = [0, 0, 0, 0]
    accesses = blocks = 0
    reads = uses = reduction = 1
    for op in ops:
        mapping[op.mapping] += 1
        kinds[kind_of(op)] += 1
        blocks += op.blocks
        reduction = max(reduction, math.prod(op.reduction))
        for t in set(op.inputs):
            inside_reads[t] = inside_reads.get(t, 0) + 1
        for a in op.accesses:
            accesses += 1
            strides[a.stride if a.stride in (0, 1) else 3 if a.stride == -1 else 2] += 1
            reads, uses = max(reads, a.reads_per_output), max(uses, a.uses_per_element)
    inputs, outputs, internal = group.inputs, group.outputs, group.internal
    constant = sum(tensors[t].bytes for t in inputs if tensors[t].role is Role.CONSTANT)
    read = sum(tensors[t].bytes for t in inputs) - constant
    written = sum(tensors[t].bytes for t in outputs)
    work = group.work
    largest = max((tensors[t] for t in outputs or ops[-1].outputs), key=lambda t: t.elements)
    innermost = largest.shape[-1] if largest.shape else 1
    return [
        *mapping.values(),
        *kinds.values(),
        len(ops),
        mapping[MappingType.MANY_TO_MANY],
        blocks,
        len(inputs) + len(outputs),
        len(outputs),
        *(work.fma, work.simple, work.compare, work.divide, work.special),
        read,
        constant,
        written,
        sum(tensors[t].bytes for t in internal),
        sum(tensors[t].bytes * (1 + inside_reads.get(t, 0)) for t in internal),
        work.flops / max(1, read + constant + written),
        reduction,
        largest.elements,
        innermost,
        innermost / max(1, -(-innermost // lanes) * lanes),
        *(s / max(1, accesses) for s in strides),
        reads,
        uses,
    ]


_FMA = next(i for i, f in enumerate(_GROUP) if f.name == "fma")  # the five classes of work stand side by side
_GROUP_LOGS = np.array([f.unit.startswith("log2") for f in _GROUP])


def _shape_columns(shape: NDArray[np.float64], flops: NDArray[np.float64], h: Hardware) -> NDArray[np.float64]:
    """The _SHAPE features, from the columns of `shape_matrix` and each candidate's flops."""
    tasks, fill, accumulators, chains, recompute, loads, l1, l2, l3, compulsory, footprint, loops = shape.T
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
    shapes = model.shapes(candidates) if shapes is None else shapes
    terms = model.terms(candidates, shapes)
    rows: dict[int, int] = {}
    table: list[list[float]] = []
    index = np.empty(n, np.intp)
    for i, group in enumerate(map(attrgetter("group"), candidates)):
        row = rows.get(id(group))
        if row is None:
            row = rows[id(group)] = len(table)
            table.append(_group_row(group, hardware.lanes))
        index[i] = row
    groups = np.fromiter(itertools.chain.from_iterable(table), np.float64).reshape(-1, len(_GROUP))
    flops = groups[:, _FMA : _FMA + 5] @ np.array([2.0, 1, 1, 1, 1])
    groups[:, _GROUP_LOGS] = np.log2(1 + groups[:, _GROUP_LOGS])
    result = np.concatenate(
        [
            groups[index],
            _shape_columns(shape_matrix(shapes), flops[index], hardware),
            _family_columns(candidates),
            np.broadcast_to(_hardware_row(hardware), (n, len(_HARDWARE))),
            np.column_stack([np.log(np.maximum(terms[t], 1e-12)) for t in _TERM_NAMES]),
        ],
        axis=1,
    )
    finite: NDArray[np.float32] = np.nan_to_num(result).clip(-1e30, 1e30).astype(np.float32)
    return finite
