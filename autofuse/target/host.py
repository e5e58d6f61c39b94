"""This machine's CPU: from /proc/cpuinfo and /sys to `HostCpu` and to the number of processors a pool should use.

No TVM here. Where Linux's files are missing, what cannot be known is empty or 0, never an error.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

# Kernel names of CPU flags → LLVM's, where they differ by more than an underscore after "avx512".
_FLAG_NAMES = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "abm": "lzcnt", "bmi1": "bmi", "avx_vnni": "avxvnni",
    "asimd": "neon", "fp": "fp-armv8", "asimddp": "dotprod", "asimdhp": "fullfp16", "asimdrdm": "rdm",
    "atomics": "lse", "crc32": "crc",
}  # fmt: skip

# Instruction sets that LLVM picks on its own for tensor code; the rest (aes, pku, rdseed ...) is in no kernel.
_ISA = """
    cmov sse sse2 sse3 ssse3 sse4.1 sse4.2 sse4a avx avx2 fma fma4 xop tbm f16c bmi bmi2 lzcnt popcnt movbe gfni
    avxvnni avxifma avxneconvert avxvnniint8 avxvnniint16 avx10.1 avx10.2 avx512f avx512cd avx512bw avx512dq avx512vl
    avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg avx512vpopcntdq avx512bf16 avx512fp16
    neon fp-armv8 dotprod fullfp16 rdm lse crc i8mm bf16 sve sve2"""
ISA_FEATURES = frozenset(_ISA.split())

# Instruction set → (bytes of a vector register, number of them).
VECTOR_UNITS = {"sse4": (16, 16), "avx2": (32, 16), "avx512": (64, 32), "neon": (16, 32)}


@dataclass(frozen=True)
class HostCpu:
    """What the operating system says of a CPU. Sizes in bytes; l3_bytes is the sum over the L3s within reach.

    `features` are LLVM's names of the instruction sets in ISA_FEATURES that this CPU has, sorted.
    """

    architecture: str = ""  # x86_64, aarch64
    vendor: str = ""
    family: int = 0
    model: int = 0
    stepping: int = 0
    model_name: str = ""
    features: tuple[str, ...] = ()
    frequency_hz: float = 0.0
    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0


def isa_of(features: Iterable[str]) -> str:
    """The vector instruction set that code may use, given LLVM feature names: avx512, avx2, neon or sse4."""
    have = set(features)
    if {"avx512f", "avx512vl", "avx512dq", "avx512bw"} <= have:
        return "avx512"
    if {"avx2", "fma"} <= have:
        return "avx2"
    return "neon" if "neon" in have else "sse4"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpu_list(text: str) -> frozenset[int]:
    """Linux's list form "0-3,8" as a set."""
    cpus: set[int] = set()
    for part in text.split(","):
        if match := re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part):
            cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(cpus)


def available_cpus() -> tuple[int, ...]:
    """Logical processors that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def places(root: Path = ROOT, cpus: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """One logical processor of each physical one that this process may use, ascending.

    Hardware threads of one core share its vector units: the first of them stands for the core.
    """
    found: dict[frozenset[int], int] = {}
    for cpu in available_cpus() if cpus is None else cpus:
        siblings = _cpu_list(_read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        found.setdefault(siblings or frozenset((cpu,)), cpu)
    return tuple(sorted(found.values()))


def processors(root: Path = ROOT, cpus: tuple[int, ...] | None = None) -> int:
    """Physical processors available to this process: the default size of the thread pool, at least 1.

    A container's CPU quota (cgroup v2, cpu.max) lowers the number, since threads beyond it would only be throttled.
    """
    count = len(places(root, cpus))
    if quota := re.fullmatch(r"(\d+) (\d+)", _read(root / "sys/fs/cgroup/cpu.max")):
        count = min(count, math.ceil(int(quota[1]) / max(1, int(quota[2]))))
    return max(1, count)


def _caches(root: Path, cpus: tuple[int, ...]) -> tuple[int, int, int]:
    """Bytes of the data caches: L1 and L2 of the first processor, all distinct L3s of `cpus` together."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found: dict[int, dict[str, int]] = {1: {}, 2: {}, 3: {}}
    for cpu in cpus:
        for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
            size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size"))
            level = _read(index / "level")
            if size and level in {"1", "2", "3"} and _read(index / "type") != "Instruction":
                sharers = _read(index / "shared_cpu_list") or str(cpu)
                found[int(level)].setdefault(sharers, int(size[1]) * units[size[2]])
    first = [next(iter(found[level].values()), 0) for level in (1, 2)]
    return first[0], first[1], sum(found[3].values())


def read_host(root: Path = ROOT, cpus: tuple[int, ...] | None = None) -> HostCpu:
    """The CPU that `root`'s /proc and /sys describe, as far as they do; `cpus` are the processors within reach."""
    cpus = available_cpus() if cpus is None else cpus
    fields: dict[str, str] = {}
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())

    def number(*keys: str) -> int:
        text = next((fields[k] for k in keys if k in fields), "0")
        match = re.match(r"0x[0-9a-fA-F]+|\d+", text)
        return int(match[0], 0) if match else 0

    flags = (fields.get("flags") or fields.get("features") or "").split()
    names = {_FLAG_NAMES.get(f, f.replace("avx512_", "avx512")) for f in flags}
    hertz = 1e3 * float(_read(root / f"sys/devices/system/cpu/cpu{cpus[0]}/cpufreq/cpuinfo_max_freq") or 0)
    mhz = re.match(r"[\d.]+", fields.get("cpu mhz", ""))
    l1, l2, l3 = _caches(root, cpus)
    return HostCpu(
        architecture=platform.machine(),
        vendor=fields.get("vendor_id") or fields.get("cpu implementer", ""),
        family=number("cpu family", "cpu architecture"),
        model=number("model", "cpu part"),
        stepping=number("stepping", "cpu revision"),
        model_name=fields.get("model name", "") or platform.processor() or platform.machine(),
        features=tuple(sorted(names & ISA_FEATURES)),
        frequency_hz=hertz or (1e6 * float(mhz[0]) if mhz else 0.0),
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=l3,
    )
