"""What the pages of results share: a description of the machine, tables, means, and bytes that kernels hand on.

Takes plain numbers and graphs, gives Markdown and JSON files; scripts/bench_zoo.py and scripts/bench_cases.py use it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autofuse.files import write_whole
from autofuse.graph.model import Graph, Group, Role

_PACKAGES = ("apache-tvm", "onnxruntime", "openvino", "torch", "numpy", "onnx")


def machine() -> dict[str, Any]:
    """This machine, and what is installed on it: as the operating system, the calibration and the packages say."""
    from autofuse.target.fingerprint import fingerprint
    from autofuse.target.hardware_file import hardware_path, load_hardware
    from autofuse.target.host import available_cpus, processors, read_host
    from autofuse.target.registry import resolve

    host = read_host()
    target = resolve("llvm", None)
    hardware = load_hardware(target)
    return {
        "cpu": host.model_name,
        "isa": hardware.isa,
        "cores": processors(),
        "processors": len(available_cpus()),
        "l1_bytes": host.l1_bytes,
        "l2_bytes": host.l2_bytes,
        "l3_bytes": hardware.l3_bytes,
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "calibrated": hardware_path(fingerprint(target.threads)).exists(),
        "fma_per_second": hardware.fma_per_second,
        "memory_bandwidth": hardware.memory_bandwidth,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def machine_text(found: Mapping[str, Any]) -> str:
    """One paragraph that says what the machine is and how that is known."""
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    source = (
        "measured here by `autofuse doctor --calibrate`"
        if found["calibrated"]
        else "defaults for this kind of CPU: it was not calibrated"
    )
    return (
        f"{found['cpu']} ({found['isa']}), {found['cores']} cores, {found['processors']} processors within reach; L1"
        f" {found['l1_bytes'] >> 10} KB, L2 {found['l2_bytes'] >> 10} KB, L3 {found['l3_bytes'] / 2**20:.0f} MB,"
        f" memory {found['memory_bytes'] / 2**30:.0f} GB; {found['system']}; Python {found['python']}; {packages}."
        f" CPU, caches and system are what /proc and /sys say."
        f" The cost model reckons with {2 * found['fma_per_second'] / 1e9:.0f} GFLOP/s a core and"
        f" {found['memory_bandwidth'] / 1e9:.0f} GB/s of memory bandwidth ({source})."
    )


def has_package(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def handed_on(graph: Graph, groups: Sequence[Group]) -> int:
    """Bytes that kernels hand on to kernels: each intermediate once where it is written and once for every reader.

    A tensor that only the caller reads, or only the caller wrote, is not counted; nor are constants.
    """
    read = {t for group in groups for t in group.inputs}
    total = 0
    for group in groups:
        total += sum(graph.tensors[t].bytes for t in group.inputs if graph.tensors[t].role is Role.VALUE)
        total += sum(graph.tensors[t].bytes for t in group.outputs if t in read)
    return total


def batch_beyond(graph: Graph, cache_bytes: int) -> int:
    """The smallest power of two as batch at which most traffic between unfused kernels cannot stay in the cache.

    `graph` is at batch 1. Activations grow with the batch. Each operator alone is a kernel; what it reads and writes
    (constants aside) counts as beyond the cache when it is larger than `cache_bytes`, and over half of all bytes must
    be. At most 256.
    """
    sizes = []
    for op in graph.operators:
        tensors = {t for t in (*op.inputs, *op.outputs) if graph.tensors[t].role is not Role.CONSTANT}
        sizes.append(sum(graph.tensors[t].bytes for t in tensors))
    batch = 1
    while batch < 256 and 2 * sum(s for s in sizes if s * batch > cache_bytes) <= sum(sizes):
        batch *= 2
    return batch


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there and positive; None without one."""
    logs = [math.log(v) for v in values if v is not None and v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else None


def number(value: float | int | None, form: str = "{:.2f}") -> str:
    """A cell: the formatted number, or a dash."""
    return "–" if value is None else form.format(value)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(headings) + " |", "| --- |" + " ---: |" * (len(headings) - 1)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write_text(path: Path, text: str) -> None:
    """Whole or not at all; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def write_json(path: Path, content: Any) -> None:
    """As `write_text`."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
