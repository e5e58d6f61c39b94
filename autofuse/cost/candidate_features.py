"""What features of candidates have in common, whatever hardware they are for: columns, and how a table is made of them.

What stands for a kind of hardware (`features.py`, `gpu_features.py`) names its columns and adds those of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.group_features import Feature, GroupTable
from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.schedule.family import SHAPE_COLUMN, Configuration

Array = NDArray[np.float64]

_CONFIG_SLOTS = 8
FAMILY_FEATURES = (
    Feature("family", "code", "stable code (0..1023) of the schedule family's name"),
    *(Feature(f"config_{i}", "int", f"field {i} of the configuration, 0 if none") for i in range(_CONFIG_SLOTS)),
)
RECOMPUTE = Feature("recompute", "log2 ratio", "operations executed over needed")
MEMORY_BYTES = Feature("memory_bytes", "log2 bytes", "compulsory traffic")
FMA_RATIO = Feature("fma_ratio", "ratio", "multiply-adds executed over the work's")
EXTRA_SIMPLE = Feature("extra_simple", "log2 operations", "additions and multiplications executed beyond the work")

# Columns of a kernel's shape that are features as they are, and those whose logarithms are.
_PLAIN = {
    "vector_fill": "vector_fill", "accumulators": "accumulators", "chains": "independent_chains",
    "loads_per_fma": "loads_per_fma", "fma_ratio": "fma_ratio",
}  # fmt: skip
_LOGARITHMS = ("recompute", "l1_bytes", "l2_bytes", "memory_bytes", "footprint", "extra_simple")


def shape_columns(shapes: Array, cores: int) -> tuple[dict[str, Array], Array, Array]:
    """(features by name, tasks, share of the cores with work) of kernel shapes (rows of `shape_matrix`), each (n,).

    The features are those that every kind of hardware has; the share is the average over rounds of a task a core.
    """
    tasks = np.maximum(shapes[:, SHAPE_COLUMN["tasks"]], 1.0)
    columns = {name: shapes[:, SHAPE_COLUMN[field]] for name, field in _PLAIN.items()}
    columns |= {name: np.log2(1 + shapes[:, SHAPE_COLUMN[name]]) for name in _LOGARITHMS}
    columns["tasks"] = np.log2(1 + tasks)
    return columns, tasks, tasks / (np.ceil(tasks / cores) * cores)


def in_order(features: Sequence[Feature], columns: Mapping[str, Array]) -> Array:
    """The columns (n,) of `features` by their names, as a table (n, len(features)). KeyError where one is missing."""
    return np.column_stack([columns[feature.name] for feature in features])


def term_features(names: Sequence[str]) -> tuple[Feature, ...]:
    """The features of an analytical model's terms."""
    return tuple(Feature(f"log_{name}", "ln s", f"analytical model: {name}, at least a picosecond") for name in names)


def log_seconds(seconds: Array) -> Array:
    """Seconds as `term_features` have them."""
    found: Array = np.log(np.maximum(seconds, 1e-12))
    return found


def groups_of(candidates: Sequence[Candidate], lanes: int) -> tuple[GroupTable, NDArray[np.intp]]:
    """A table of the different groups, for vectors of `lanes` elements, and the row of each candidate's in it."""
    unique: dict[int, tuple[int, Group]] = {}
    index = np.empty(len(candidates), np.intp)
    for i, candidate in enumerate(candidates):
        group = candidate.group
        index[i] = unique.setdefault(id(group), (len(unique), group))[0]
    return GroupTable.of([group for _, group in unique.values()], lanes), index


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


def family_columns(candidates: Sequence[Candidate]) -> Array:
    """FAMILY_FEATURES, (n, len(FAMILY_FEATURES))."""
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
    return np.array(flat, np.float64).reshape(-1, len(FAMILY_FEATURES))


def joined(tables: Sequence[Array]) -> NDArray[np.float32]:
    """Tables of the same rows side by side, float32, all finite."""
    result = np.concatenate(tables, axis=1)
    finite: NDArray[np.float32] = np.nan_to_num(result).clip(-1e30, 1e30).astype(np.float32)
    return finite
