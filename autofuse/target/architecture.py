"""Processor architectures: of this machine, of a target's triple, of a file of machine code. No TVM."""

from __future__ import annotations

import platform
from pathlib import Path

_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
# ELF: bytes 4 to 6 are word size and byte order, 18 to 20 the machine.
_ELF_MACHINES = {62: "x86_64", 183: "aarch64", 40: "arm", 3: "i386", 243: "riscv64", 21: "ppc64", 22: "s390x"}


def architecture_of(triple: str = "") -> str:
    """x86_64 or aarch64 for LLVM triples and operating systems' names alike; this machine's for ""."""
    name = (triple or platform.machine()).partition("-")[0].lower()
    return _NAMES.get(name, name)


def architecture_of_file(path: Path) -> str:
    """What the code of an ELF file runs on; "" where it is no ELF file or cannot be read."""
    try:
        with path.open("rb") as source:
            head = source.read(20)
    except OSError:
        return ""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    machine = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
    return _ELF_MACHINES.get(machine, f"ELF machine {machine}")
