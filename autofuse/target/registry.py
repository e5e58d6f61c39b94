"""Targets: from what a user writes ("llvm", "llvm -mcpu=znver3", "dcu", JSON) to a checked `Target`.

`KINDS` says what there is for each kind of target. TVM is imported only when LLVM has to be asked: the host's CPU name,
whether a name is known, a CPU's features.
"""

from __future__ import annotations

import difflib
import functools
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autofuse.errors import TargetError
from autofuse.target.cards import cards
from autofuse.target.fingerprint import AMD_GPU, NVIDIA_GPU, HardwareRow, fingerprint, tvm_version
from autofuse.target.gpu import GpuChoice, choose, described, hardware_of, is_card, kind_of_code
from autofuse.target.hardware_gpu import GpuHardware
from autofuse.target.host import ISA_FEATURES, VECTOR_UNITS, isa_of, processors, read_host

if TYPE_CHECKING:
    import tvm.target

_OPTIONS = ("mcpu", "mtriple", "mattr", "num-cores")
_FORMS = (
    'known: "llvm" (this machine), "llvm -mcpu=NAME", "dcu", "dcu-z100", "rocm -mcpu=gfx906", "cuda -arch=sm_90",'
    ' {"kind": "llvm", "mcpu": "NAME"}'
)


@dataclass(frozen=True)
class TargetKind:
    """What there is for a kind of target. `device`: "cpu" or "gpu", which schedule families and cost models go by.

    `builder`: the module that makes code of one scheduled kernel (a GPU's by `compile_device`). `runs`: how kernels
    are run and timed, for people.
    """

    name: str
    device: str
    builder: str
    runs: str


#: By the name that a target has in TVM.
KINDS = {
    "llvm": TargetKind("llvm", "cpu", "autofuse.codegen.build", "in a child process here, or through RPC"),
    "rocm": TargetKind("rocm", "gpu", "autofuse.codegen.amdgpu", "by ROCm's (DTK's) runtime or OpenCL"),
    "cuda": TargetKind("cuda", "gpu", "autofuse.codegen.nvidia", "by CUDA's driver or OpenCL"),
}


@dataclass(frozen=True)
class Target:
    """A CPU or GPU to compile for. `triple` "" is this machine's.

    `features` are the instruction sets that its code may use (LLVM names, sorted); `attributes` are LLVM's "+name" or
    "-name" corrections to what `mcpu` implies, e.g. where a hypervisor hides AVX-512. Of a GPU, `mcpu` is what code is
    generated for, `wave` the lanes that run in step, `card` its description's name, and `threads` the host's.
    """

    kind: str = "llvm"
    mcpu: str = "generic"
    features: tuple[str, ...] = ()
    threads: int = 1
    attributes: tuple[str, ...] = ()
    triple: str = ""
    wave: int = 0
    card: str = ""

    @property
    def device(self) -> str:
        """ "cpu" or "gpu"."""
        return KINDS[self.kind].device

    @property
    def isa(self) -> str:
        """sse4, avx2, avx512 or neon; of a GPU what code is generated for, e.g. gfx906 or sm_90."""
        return isa_of(self.features) if self.device == "cpu" else self.mcpu

    @property
    def gpu(self) -> GpuChoice:
        """The GPU of a GPU target."""
        return GpuChoice(self.mcpu, self.wave, self.card)

    @property
    def gpu_hardware(self) -> GpuHardware:
        """The description of a GPU target's hardware."""
        return hardware_of(self.gpu)

    @property
    def loadable(self) -> bool:
        """Whether machine code made here is for the GPU itself, and not for an older relative that LLVM knows."""
        card = cards().get(self.card)
        return card is None or card.gfx == card.code

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register; of a GPU, of the widest access of a lane."""
        return VECTOR_UNITS[self.isa][0] if self.device == "cpu" else self.gpu_hardware.vector_bytes

    @property
    def vector_registers(self) -> int:
        """Number of vector registers."""
        return VECTOR_UNITS[self.isa][1] if self.device == "cpu" else self.gpu_hardware.vector_registers

    @property
    def description(self) -> dict[str, object]:
        """What TVM's Target takes; `resolve` takes it back as JSON, for a card that of `text`."""
        if self.device == "gpu":
            return described(self.gpu)
        content: dict[str, object] = {"kind": self.kind, "mcpu": self.mcpu, "num-cores": self.threads}
        if self.attributes:
            content["mattr"] = list(self.attributes)
        if self.triple:
            content["mtriple"] = self.triple
        return content

    @property
    def text(self) -> str:
        """`description`, and the card, as one line of JSON, keys sorted."""
        content = {**self.description, **({"card": self.card} if self.card else {})}
        if self.device == "gpu":
            content["num-cores"] = self.threads
        return json.dumps(content, sort_keys=True)

    def tvm_target(self) -> tvm.target.Target:
        """The same as TVM's own object (imports TVM)."""
        import tvm.target

        return tvm.target.Target(self.description)


@functools.lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """Instruction sets of this machine (LLVM names); empty where neither the system nor LLVM can tell."""
    found = read_host().features
    if found:
        return frozenset(found)
    import tvm

    ask = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    answer = ask() if ask is not None else None
    return frozenset(str(name) for name, have in (answer or {}).items() if have) & ISA_FEATURES


def missing_features(required: Iterable[str]) -> list[str]:
    """Which of the required instruction sets this machine lacks, sorted: code that uses one dies of SIGILL.

    Names outside ISA_FEATURES are tuning hints or instructions that kernels never contain, and are passed over.
    Empty where the machine's own cannot be found out.
    """
    have = host_features()
    return sorted((set(required) & ISA_FEATURES) - have) if have else []


def _split(text: str) -> dict[str, Any]:
    """The options that `text` states, "kind" included."""
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise TargetError(f"target {text!r} is not valid JSON: {error}") from None
        options = {str(k): v for k, v in content.items() if k not in {"tag", "keys"}}
    else:
        try:
            kind, *rest = shlex.split(text) or [""]
        except ValueError as error:
            raise TargetError(f"target {text!r} cannot be read ({error}); {_FORMS}") from None
        options = {"kind": kind}
        for word in rest:
            name, equals, value = word.partition("=")
            if not name.startswith("-") or not equals:
                raise TargetError(f"target {text!r}: {word!r} is not of the form -name=value; {_FORMS}")
            options[name.lstrip("-")] = value
    kind = str(options.get("kind"))
    if is_card(kind):
        if len(options) > 1:
            raise TargetError(f"target {text!r}: a card takes no options; for others write rocm -mcpu=NAME")
        return options
    if kind not in KINDS:
        raise TargetError(f"target kind {options.get('kind')!r} is unknown; {_FORMS}")
    if kind != "llvm":
        return options
    for name in options:
        if name != "kind" and name not in _OPTIONS:
            raise TargetError(f"target option {name!r} is unknown; known: {', '.join(_OPTIONS)}")
    return options


def _attributes(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(n, str) and n[:1] in "+-" and n[1:] for n in names):
        raise TargetError(f'target option mattr is {value!r}, expected names with + or - before them, e.g. "-avx512f"')
    return tuple(names)


def _check_cpu(mcpu: str, triple: str, description: dict[str, Any]) -> None:
    """TargetError unless LLVM knows the CPU: TVM itself would only log it and compile generic code."""
    import tvm
    from tvm.target import codegen

    known_triples = "known: x86_64-linux-gnu, aarch64-linux-gnu"
    if triple.split("-")[0] not in {"x86_64", "aarch64", "arm64"}:
        raise TargetError(f"target triple {triple!r} is unknown; {known_triples}")
    if description.get("mtriple") and "linux" not in triple.split("-"):
        raise TargetError(f"target triple {triple!r} is not of Linux, which libraries are linked for; {known_triples}")
    if codegen.llvm_is_valid_cpu(mcpu, triple):
        return
    known = [str(n) for n in codegen.llvm_get_cpu_archlist(tvm.target.Target({**description, "mcpu": "generic"}))]
    near = difflib.get_close_matches(mcpu, known, 5, 0.5) or ["generic"]
    raise TargetError(f"CPU {mcpu!r} is unknown to LLVM for {triple}; {len(known)} known, nearest: {', '.join(near)}")


def resolve(text: str = "llvm", threads: int | None = None) -> Target:
    """The target that `text` names, with a pool of `threads` (else its num-cores, else the processors available).

    "llvm" without a CPU (or with mcpu "native") is this machine; instruction sets that LLVM takes for granted in a CPU
    of this name but the machine lacks are switched off. "dcu" is this machine's card, else the oldest one; a card's
    name, "rocm -mcpu=GFX" or "cuda -arch=SM" names a GPU. Raises TargetError on anything unknown.
    """
    options = _split(text)
    count = threads if threads is not None else options.get("num-cores", 0)
    try:
        count = int(count)
    except (TypeError, ValueError):
        raise TargetError(f"target option num-cores is {count!r}, expected a whole number") from None
    if count < 0 or (threads is not None and count == 0):
        raise TargetError(f"the number of threads is {count}, expected 1 or more")
    if options["kind"] != "llvm":
        gpu = choose(str(options["kind"]), options)
        return Target(gpu.kind, gpu.code, threads=count or processors(), wave=gpu.wave, card=gpu.card)
    return _resolve(
        str(options.get("mcpu", "native")),
        str(options.get("mtriple", "")),
        _attributes(options["mattr"]) if "mattr" in options else (),
        count or processors(),
    )


@functools.lru_cache(maxsize=64)
def _resolve(mcpu: str, triple: str, attributes: tuple[str, ...], threads: int) -> Target:
    from tvm.target import codegen

    native = mcpu == "native"
    if native:
        mcpu = "generic" if triple else str(codegen.llvm_get_system_cpu())
    description: dict[str, Any] = {"kind": "llvm"} | ({"mtriple": triple} if triple else {})
    _check_cpu(mcpu, triple or str(codegen.llvm_get_system_triple()), description)
    import tvm.target

    asked = tvm.target.Target({**description, "mcpu": mcpu})
    features = {str(name) for name in codegen.llvm_get_cpu_features(asked)} & ISA_FEATURES
    if native and not triple:
        attributes = (*(f"-{name}" for name in missing_features(features)), *attributes)
    for attribute in attributes:
        (features.add if attribute[0] == "+" else features.discard)(attribute[1:])
    return Target("llvm", mcpu, tuple(sorted(features & ISA_FEATURES)), threads, attributes, triple)


def gpu_of_row(row: HardwareRow) -> Target:
    """The target of a GPU's hardware row, or of what stood in for one. TargetError where its card is unknown."""
    option = {"rocm": "-mcpu", "cuda": "-arch"}
    kind = kind_of_code(row.code)
    return resolve(f"{kind} {option[kind]}={row.code}" if row.vendor == row.code else row.vendor)


def hardware_row(target: Target) -> HardwareRow:
    """The row that a kernel's time on this machine, or on the target's GPU, belongs to: it, and what code is for."""
    if target.device == "gpu":
        gpu, name = target.gpu_hardware, target.card or target.mcpu
        line = NVIDIA_GPU if target.kind == "cuda" else AMD_GPU
        return HardwareRow(
            line, name, 0, 0, 0, (f"wave{gpu.wave}",), gpu.l1_bytes, gpu.l2_bytes, 0, gpu.cores, tvm_version(),
            gpu.name, target.mcpu,
        )  # fmt: skip
    row, own = fingerprint(target.threads), _resolve("native", "", (), target.threads)
    if target == own:
        return row
    code = " ".join((*([target.triple] if target.triple else ()), target.mcpu, *target.attributes))
    return replace(row, code=code, features=target.features)
