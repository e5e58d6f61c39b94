"""GPU targets: from "dcu", "cuda", a card's name, a `rocm` or `cuda` target to what code is generated for.

It is checked before TVM sees it.

TVM's `Target` takes any GPU name; code generation then ends the process where LLVM does not know it.
"""

from __future__ import annotations

import difflib
import functools
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autofuse.errors import TargetError
from autofuse.target.cards import Card, card_of_gfx, cards
from autofuse.target.hardware_gpu import GpuHardware

TRIPLE = "amdgcn-amd-amdhsa-hcc"
#: What `dcu` means where no card is found: the one whose code every other card's is made from.
DEFAULT_CARD = "dcu-z100"
_NVIDIA = "nvidia-h200"
#: Threads of a workgroup that code may have: TVM's AMDGPU code generation states 256 where it finds no card, and larger
#: kernels then fail when they are launched.
MOST_THREADS = 256
#: What NVIDIA's GPUs are called: the architecture that `nvcc -arch` takes.
_ARCHITECTURE = re.compile(r"sm_([0-9]{2,3})a?")
_CUDA_OPTIONS = (
    "arch", "card", "num-cores", "thread_warp_size", "max_threads_per_block", "max_num_threads",
    "max_shared_memory_per_block",
)  # fmt: skip
_OPTIONS = ("mcpu", "card", "num-cores", "mtriple", "thread_warp_size", "max_threads_per_block", "max_num_threads")


@dataclass(frozen=True)
class GpuChoice:
    """What a GPU target names: `code`, the GPU that code is generated for; lanes of a wave; the card, "" if none."""

    code: str
    wave: int
    card: str = ""

    @property
    def kind(self) -> str:
        """The kind of target, in TVM's words: rocm or cuda."""
        return kind_of_code(self.code)


def kind_of_code(code: str) -> str:
    """rocm for gfx906 and the like, cuda for sm_90 and the like."""
    return "cuda" if _ARCHITECTURE.fullmatch(code) else "rocm"


def is_card(text: str) -> bool:
    """Whether a target is "dcu" or a card's name."""
    return text == "dcu" or text in cards()


def described(choice: GpuChoice) -> dict[str, object]:
    """What TVM's Target takes."""
    if choice.kind == "cuda":
        return {
            "kind": "cuda",
            "arch": choice.code,
            "thread_warp_size": choice.wave,
            "max_threads_per_block": MOST_THREADS,
            "max_num_threads": MOST_THREADS,
            "max_shared_memory_per_block": hardware_of(choice).workgroup_lds,
        }
    return {
        "kind": "rocm",
        "mcpu": choice.code,
        "mtriple": TRIPLE,
        "thread_warp_size": choice.wave,
        "max_threads_per_block": MOST_THREADS,
        "max_num_threads": MOST_THREADS,
    }


def choose(text: str, options: Mapping[str, Any]) -> GpuChoice:
    """The GPU of "dcu", a card's name, or of a rocm target's options. Raises TargetError on anything unknown."""
    if is_card(text):
        return _of_card(_card_here() if text == "dcu" else cards()[text])
    if text == "cuda":
        return _choose_cuda(options)
    for name in options:
        if name not in ("kind", *_OPTIONS):
            raise TargetError(f"target option {name!r} is unknown for rocm; known: {', '.join(_OPTIONS)}")
    if card := str(options.get("card", "")):
        if card not in cards():
            raise TargetError(f"card {card!r} is unknown; known: {', '.join(cards())}")
        return _of_card(cards()[card])
    gfx = str(options.get("mcpu", ""))
    if not gfx:
        here = gpus_here()
        if not here:
            raise TargetError("target rocm names no GPU and none is found here: write rocm -mcpu=gfx906, or dcu-z100")
        gfx = here[0]
    card_of_name = card_of_gfx(gfx)
    if card_of_name is not None and card_of_name.code != gfx:
        return _of_card(card_of_name)  # LLVM does not know it, the card says what to compile for
    _check_gfx(gfx)
    return GpuChoice(gfx, wave_of(gfx))


def _choose_cuda(options: Mapping[str, Any]) -> GpuChoice:
    """The GPU of a cuda target's options."""
    for name in options:
        if name not in ("kind", *_CUDA_OPTIONS):
            raise TargetError(f"target option {name!r} is unknown for cuda; known: {', '.join(_CUDA_OPTIONS)}")
    if card := str(options.get("card", "")):
        if card not in cards() or cards()[card].code != str(options.get("arch", cards()[card].code)):
            raise TargetError(f"card {card!r} is unknown; known: {', '.join(cards())}")
        return _of_card(cards()[card])
    arch = str(options.get("arch", ""))
    if not arch:
        here = nvidia_here()
        if not here:
            raise TargetError("target cuda names no GPU and none is found here: write cuda -arch=sm_90")
        arch, name = here[0]
        found = next((c for c in cards().values() if c.code == arch and c.title in name), None)
        if found is not None:
            return _of_card(found)
    if not _ARCHITECTURE.fullmatch(arch):
        raise TargetError(f"GPU {arch!r} is no architecture of NVIDIA's: write cuda -arch=sm_90, or sm_80")
    return GpuChoice(arch, 32)


def wave_of(gfx: str) -> int:
    """Lanes of a wave: 64 up to gfx9, 32 from gfx10 on (LLVM's default there)."""
    return 64 if _generation(gfx) <= 9 else 32


def hardware_of(choice: GpuChoice) -> GpuHardware:
    """The card's description; of a GPU without one, gfx906's (of NVIDIA's, the H200's) with its name and wave.

    That is good for compiling alone.
    """
    if choice.card:
        return cards()[choice.card].hardware
    if choice.kind == "cuda":
        return replace(cards()[_NVIDIA].hardware, name=choice.code, isa=choice.code)
    base = replace(GpuHardware(), name=choice.code, isa=choice.code, wave=choice.wave)
    if _generation(choice.code) <= 9:
        return base
    return replace(base, simds=2, waves_per_simd=16, vector_registers=1024, register_granule=8)


@functools.cache
def gpus_here() -> tuple[str, ...]:
    """What the GPUs of this machine call themselves, by rocminfo (ROCm's or DTK's); empty without it."""
    tool = shutil.which("rocminfo") or shutil.which("/opt/dtk/bin/rocminfo") or shutil.which("/opt/rocm/bin/rocminfo")
    if tool is None:
        return ()
    try:
        done = subprocess.run([tool], capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(dict.fromkeys(re.findall(r"^\s*Name:\s*(gfx[0-9a-f]+)\s*$", done.stdout, re.MULTILINE)))


@functools.cache
def nvidia_here() -> tuple[tuple[str, str], ...]:
    """NVIDIA's GPUs of this machine, by nvidia-smi: (sm_90, name) of each; empty without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, "--query-gpu=compute_cap,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.findall(r"^\s*([0-9]+)\.([0-9]+)\s*,\s*(.+?)\s*$", done.stdout, re.MULTILINE)
    return tuple((f"sm_{major}{minor}", name) for major, minor, name in found)


def _card_here() -> Card:
    """The card of this machine, else the default one."""
    found = [card for card in map(card_of_gfx, gpus_here()) if card is not None]
    return found[0] if found else cards()[DEFAULT_CARD]


def _of_card(card: Card) -> GpuChoice:
    if kind_of_code(card.code) == "rocm":
        _check_gfx(card.code)
    return GpuChoice(card.code, card.wave, card.name)


def _generation(gfx: str) -> int:
    """9 for gfx906 and gfx90a, 10 for gfx1030: what stands before the last two digits."""
    digits = re.fullmatch(r"gfx([0-9]+)[0-9a-f]{2}", gfx)
    return int(digits[1]) if digits else 0


@functools.cache
def known_gfx() -> tuple[str, ...]:
    """The GPUs that TVM's LLVM generates code for."""
    import tvm.target
    from tvm.target import codegen

    asked = tvm.target.Target({"kind": "llvm", "mtriple": "amdgcn-amd-amdhsa", "mcpu": "gfx906"})
    names = {str(name) for name in codegen.llvm_get_cpu_archlist(asked)}
    return tuple(sorted((n for n in names if re.fullmatch(r"gfx[0-9]+[0-9a-f]{2}", n)), key=lambda n: (len(n), n)))


def _check_gfx(gfx: str) -> None:
    """TargetError unless LLVM knows the GPU: TVM would end the process while it generates code."""
    known = known_gfx()
    if gfx not in known:
        names = ", ".join(name for name, card in cards().items() if kind_of_code(card.code) == "rocm")
        if not known:
            raise TargetError("this TVM's LLVM generates no code for AMD GPUs: install the wheel of apache-tvm")
        near = difflib.get_close_matches(gfx, known, 4, 0.5) or [known[-1]]
        raise TargetError(
            f"GPU {gfx!r} is unknown to LLVM and no card here is one; {len(known)} known, nearest: {', '.join(near)};"
            f" cards: {names}"
        )
