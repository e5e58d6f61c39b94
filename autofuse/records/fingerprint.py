"""What this machine is, as records know it: everything that changes how fast a kernel runs and can be read cheaply."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from autofuse.records.record import HardwareRow, canonical

# What code generation can make use of; the dozens of other flags change with kernels and microcode, not with speed.
_ISA = ("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
        "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "asimd", "asimddp", "sve", "sve2")  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of TVM and autofuse, read from their metadata (nothing is imported)."""
    found = {}
    for name, distribution in (("tvm", "apache-tvm"), ("autofuse", "autofuse")):
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def row(name: str, detail: dict[str, Any]) -> HardwareRow:
    """A hardware row whose digest is that of `detail`."""
    return HardwareRow(hashlib.sha256(canonical(detail).encode()).hexdigest()[:16], name, detail)


def local_hardware(threads: int) -> HardwareRow:
    """This machine's CPU with a thread pool of `threads`, and the TVM that compiles for it."""
    info = _cpuinfo()
    flags = set(info.get("flags", info.get("Features", "")).split())
    model = info.get("model name") or platform.processor() or platform.machine()
    detail = {
        "kind": "cpu",
        "architecture": platform.machine(),
        "vendor": info.get("vendor_id", info.get("CPU implementer", "")),
        "family": info.get("cpu family", info.get("CPU architecture", "")),
        "model": info.get("model", info.get("CPU part", "")),
        "stepping": info.get("stepping", info.get("CPU revision", "")),
        "name": model,
        "isa": [name for name in _ISA if name in flags],
        "caches": _caches(),
        "threads": threads,
        "tvm": versions()["tvm"],
    }
    return row(f"{model}, {threads} threads", detail)


def _cpuinfo() -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def _caches() -> dict[str, str]:
    """Data and unified caches of processor 0: level → size as the kernel writes it ("32K")."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() != "Instruction":
                found[f"l{(index / 'level').read_text().strip()}"] = (index / "size").read_text().strip()
        except OSError:
            continue
    return found
