"""Hardware descriptions on disk: `load_hardware(target)` gives the calibrated one, else defaults for what is detected.

One JSON file a hardware row, in AUTOFUSE_HOME, else XDG_CACHE_HOME/autofuse, else ~/.cache/autofuse.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from autofuse.errors import TargetError
from autofuse.files import write_whole
from autofuse.target.architecture import architecture_of
from autofuse.target.fingerprint import HardwareRow, fingerprint
from autofuse.target.hardware import Hardware
from autofuse.target.host import VECTOR_UNITS, HostCpu, read_host
from autofuse.target.registry import Target, missing_features

FORMAT = "autofuse-hardware"
VERSION = 1

# Bytes of L1, L2 (a core) and L3 where nothing is known but the instruction set: those of a usual machine that has it
# (Nehalem, Zen 3, Skylake-SP, Cortex-A72; the last has no L3, which an "L3" no larger than the L2s says).
_CACHES = {
    "sse4": (32 << 10, 256 << 10, 8 << 20),
    "avx2": (32 << 10, 512 << 10, 32 << 20),
    "avx512": (32 << 10, 1 << 20, 22 << 20),
    "neon": (32 << 10, 512 << 10, 0),
}


def home() -> Path:
    """The folder that this machine's files are kept in (not created)."""
    if chosen := os.environ.get("AUTOFUSE_HOME"):
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "autofuse"


def hardware_path(row: HardwareRow) -> Path:
    """Where the calibration of `row` is kept."""
    return home() / f"hardware-{row.digest}.json"


def save_hardware(hardware: Hardware, row: HardwareRow) -> Path:
    """Write a calibration (whole or not at all) and return its path. TargetError if the folder cannot be written."""
    path = hardware_path(row)
    content = {"format": FORMAT, "version": VERSION, "row": row.to_json(), "hardware": asdict(hardware)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
    except OSError as error:
        raise TargetError(f"cannot write {path}: {error.strerror}; set AUTOFUSE_HOME to a folder that can be") from None
    return path


def read_hardware(path: Path) -> Hardware:
    """The description in a file that `save_hardware` wrote. TargetError if missing, damaged or newer."""
    advice = "delete it, or run: autofuse doctor --calibrate"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise TargetError(f"{path} is damaged (not JSON); {advice}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TargetError(f"{path} is not a hardware description; {advice}")
    if content.get("version") != VERSION:
        raise TargetError(f"{path} is of version {content.get('version')}, this program reads {VERSION}; {advice}")
    values = content.get("hardware")
    if not isinstance(values, dict):
        raise TargetError(f"{path} is damaged (no hardware); {advice}")
    types: dict[str, Any] = {"str": str, "int": int, "float": (int, float)}
    for f in fields(Hardware):
        value: Any = values.get(f.name)
        wrong = not isinstance(value, types[str(f.type)]) or isinstance(value, bool)
        if wrong or (not isinstance(value, str) and not (math.isfinite(value) and value > 0)):
            raise TargetError(f"{path} is damaged ({f.name} is {value!r}); {advice}")
    return Hardware(**{f.name: values[f.name] for f in fields(Hardware)})


def default_hardware(target: Target, host: HostCpu | None = None) -> Hardware:
    """A description from instruction set, caches and cores alone, for a target that was never calibrated.

    Round figures for a core with two arithmetic units, which a calibration replaces: 2 × lanes multiply-adds a cycle,
    half as many where they are two instructions; a vector and a half a cycle from L1 (two loads and a store at best),
    32 bytes from L2, 13 from L3; memory 10 GB/s a core, at least 20 and at most 80. `host` is given only if the target
    is this machine. A GPU's description is its card's.
    """
    if target.device == "gpu":
        return target.gpu_hardware
    base = Hardware()
    host = host or HostCpu()
    hertz = max(host.frequency_hz, 2.0e9) if host.frequency_hz else base.frequency_hz
    vector_bytes, registers = VECTOR_UNITS[target.isa]
    lanes = vector_bytes // 4
    l1, l2, l3 = _CACHES[target.isa]
    if host.l2_bytes:
        l1, l2, l3 = host.l1_bytes or l1, host.l2_bytes, host.l3_bytes
    described = replace(
        base,
        name=host.model_name or target.mcpu,
        isa=target.isa,
        cores=target.threads,
        vector_bytes=vector_bytes,
        vector_registers=registers,
        frequency_hz=hertz,
        simple_per_second=2 * lanes * hertz,
        divide_per_second=0.2 * lanes * hertz,
        special_per_second=0.11 * lanes * hertz,
        l1_bytes=l1,
        l2_bytes=l2,
        # A machine without an L3 keeps what leaves L2 in memory: an "L3" no larger than its L2s says so.
        l3_bytes=l3 or l2 * target.threads,
        l1_bandwidth=1.5 * vector_bytes * hertz,
        l2_bandwidth=min(32.0, 1.5 * vector_bytes) * hertz,
        l3_bandwidth=13.0 * hertz,
        memory_bandwidth=min(80e9, 10e9 * max(2, target.threads)),
    )
    return replace(described, fma_per_second=(2 if described.fused else 1) * lanes * hertz)


def is_host(target: Target) -> bool:
    """Whether this machine's CPU runs the target's code: architecture and instruction sets."""
    if target.device == "gpu":
        return False
    here = architecture_of(target.triple) == architecture_of()
    return here and bool(target.features) and not missing_features(target.features)


def load_hardware(target: Target) -> Hardware:
    """The calibrated description of `target` if this machine is it and was calibrated, else `default_hardware`.

    A damaged file is passed over with one warning. A calibration for another instruction set (the target names an older
    CPU than the machine's) does not count.
    """
    if not is_host(target):
        return default_hardware(target)
    path = hardware_path(fingerprint(target.threads))
    if path.exists():
        try:
            hardware = read_hardware(path)
        except TargetError as error:
            warnings.warn(f"{error} (default figures are used)", stacklevel=2)
        else:
            if hardware.isa == target.isa:
                return hardware
    return default_hardware(target, read_host())
