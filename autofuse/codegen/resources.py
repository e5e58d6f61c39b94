"""What a kernel takes of a GPU: parsed from the assembly text that LLVM's AMDGPU code generation writes. No TVM.

Registers, spills, LDS and scratch stand in the metadata at the end; instructions are counted in the code, those of the
deepest loops apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from autofuse.errors import AutofuseError


class CodeError(AutofuseError):
    """Code of a kernel cannot be read, or the compiler did not make any."""


@dataclass(frozen=True)
class InstructionMix:
    """Instructions by class, as they stand in the code (not as often as they run).

    fma: multiply-adds of float32; valu: other vector arithmetic; transcendental: exp, log, reciprocal, square root (a
    quarter of the rate); loads, stores: of memory; load_bytes: what the loads give a lane; lds_reads, lds_writes;
    scalar: scalar arithmetic and loads; branches; barriers; scratch: loads and stores of spilled values.
    """

    fma: int = 0
    valu: int = 0
    transcendental: int = 0
    loads: int = 0
    load_bytes: int = 0
    stores: int = 0
    lds_reads: int = 0
    lds_writes: int = 0
    scalar: int = 0
    branches: int = 0
    barriers: int = 0
    scratch: int = 0


@dataclass(frozen=True)
class KernelResources:
    """One kernel. vgprs, sgprs: registers of a lane, of a wave; spills of both; lds_bytes of a workgroup, scratch_bytes
    of a lane; wave: lanes that run in step; threads: most of a workgroup. `mix` counts all of the code, `inner` what
    stands in the deepest loops (all of it where there is no loop).
    """

    name: str
    vgprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    wave: int
    threads: int
    mix: InstructionMix
    inner: InstructionMix

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> KernelResources:
        """The inverse of `to_json`."""
        mixes = {name: InstructionMix(**content[name]) for name in ("mix", "inner")}
        return cls(**{**content, **mixes})


# Keys of the metadata → fields.
_METADATA = {
    "name": "name", "vgpr_count": "vgprs", "sgpr_count": "sgprs", "vgpr_spill_count": "vgpr_spills",
    "sgpr_spill_count": "sgpr_spills", "group_segment_fixed_size": "lds_bytes",
    "private_segment_fixed_size": "scratch_bytes", "wavefront_size": "wave", "max_flat_workgroup_size": "threads",
}  # fmt: skip
_QUARTER_RATE = ("v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_")
_FMA = ("v_fma", "v_mac", "v_mad_f32", "v_pk_fma", "v_dot", "v_mfma", "v_dual_fmac")
_CONTROL = ("s_waitcnt", "s_nop", "s_endpgm", "s_sleep", "s_delay", "s_clause", "s_setprio", "s_code_end", "s_inst")
_WIDTHS = {"dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "b64": 8, "b96": 12, "b128": 16}
_LABEL = re.compile(r"^(?P<name>[A-Za-z_.$][\w.$]*):")
# What an instruction's name begins with: v_, s_, ds_, global_, flat_, buffer_, scratch_.
_FIRST = "vsdgfb"


def kernels_of(assembly: str) -> tuple[KernelResources, ...]:
    """The kernels of a module's assembly text, in the order of its metadata. CodeError if it has none."""
    found = []
    for entry in _entries(assembly):
        missing = set(_METADATA.values()) - set(entry)
        if missing:
            raise CodeError(f"the metadata of kernel {entry.get('name', '?')} lacks {', '.join(sorted(missing))}")
        name = entry.pop("name")
        mix, inner = _count(assembly, name)
        numbers = {key: int(value) for key, value in entry.items()}
        found.append(KernelResources(name=name, mix=mix, inner=inner, **numbers))
    if not found:
        raise CodeError("the assembly holds no metadata of kernels: is it AMDGPU code?")
    return tuple(found)


def _entries(assembly: str) -> Iterator[dict[str, str]]:
    """The metadata of each kernel, by field: a list of YAML mappings, of which a kernel's own keys are at one depth."""
    _, _, rest = assembly.partition("amdhsa.kernels:")
    entry: dict[str, str] = {}
    for line in rest.splitlines() if rest else ():
        if line.startswith("  - "):  # a kernel begins with its first key
            if entry:
                yield entry
            entry = {}
        elif not line.startswith("    "):
            if line.strip():
                break
            continue
        key, _, value = line[4:].partition(":")
        if key.startswith(".") and key[1:] in _METADATA:
            entry[_METADATA[key[1:]]] = value.strip().strip("'\"")
    if entry:
        yield entry


def _count(assembly: str, name: str) -> tuple[InstructionMix, InstructionMix]:
    """The mixes of a kernel's whole code, and of its deepest loops.

    A loop is what lies between a label and the last branch back to it.
    """
    code: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    inside = False
    for line in assembly.splitlines():
        text = line.partition(";")[0].strip()
        label = _LABEL.match(text)
        if label:
            if inside and label["name"].startswith(".Lfunc_end"):
                break
            inside = inside or label["name"] == name
            labels[label["name"]] = len(code)
        elif inside and (mnemonic := text.partition(" ")[0].partition("\t")[0]) and mnemonic[0] in _FIRST:
            code.append((mnemonic, text))
    if not code:
        raise CodeError(f"the assembly has no code of kernel {name}")
    ends: dict[int, int] = {}
    for place, (mnemonic, text) in enumerate(code):
        if mnemonic.startswith(("s_branch", "s_cbranch")):
            start = labels.get(text.split()[-1], place + 1)
            if start <= place:
                ends[start] = place
    depths = [sum(start <= place <= end for start, end in ends.items()) for place in range(len(code))]
    total, inner = Counter[str](), Counter[str]()
    for (mnemonic, text), depth in zip(code, depths, strict=True):
        found = dict(_classes(mnemonic, text))
        total.update(found)
        if depth == max(depths):
            inner.update(found)
    return InstructionMix(**total), InstructionMix(**inner)


def _classes(mnemonic: str, text: str) -> list[tuple[str, int]]:
    """The counts that an instruction adds to."""
    if mnemonic.startswith(("ds_read", "ds_load", "ds_bpermute", "ds_swizzle")):
        return [("lds_reads", 1)]
    if mnemonic.startswith("ds_"):
        return [("lds_writes", 1)]
    if mnemonic.startswith("scratch_") or (mnemonic.startswith("buffer_") and "s[0:3]" in text):
        return [("scratch", 1)]
    if mnemonic.startswith(("global_load", "flat_load", "buffer_load")):
        width = next((w for key, w in _WIDTHS.items() if mnemonic.endswith(key)), 4)
        return [("loads", 1), ("load_bytes", width)]
    if mnemonic.startswith(("global_", "flat_", "buffer_")):
        return [("stores", 1)]
    if mnemonic.startswith("v_"):
        if mnemonic.startswith(_QUARTER_RATE):
            return [("transcendental", 1)]
        return [("fma" if mnemonic.startswith(_FMA) else "valu", 1)]
    if mnemonic.startswith(("s_branch", "s_cbranch")):
        return [("branches", 1)]
    if mnemonic.startswith("s_barrier"):
        return [("barriers", 1)]
    if mnemonic.startswith("s_") and not mnemonic.startswith(_CONTROL):
        return [("scalar", 1)]
    return []
