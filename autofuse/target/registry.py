"""Targets: from what a user writes ("llvm", "llvm -mcpu=znver3", JSON) to a checked `Target`.

TVM is imported only when LLVM has to be asked: the host's CPU name, whether a name is known, a CPU's features.
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
from autofuse.target.fingerprint import HardwareRow, fingerprint
from autofuse.target.host import ISA_FEATURES, VECTOR_UNITS, isa_of, processors, read_host

if TYPE_CHECKING:
    import tvm.target

_OPTIONS = ("mcpu", "mtriple", "mattr", "num-cores")
_FORMS = 'known: "llvm" (this machine), "llvm -mcpu=NAME", {"kind": "llvm", "mcpu": "NAME"}'


@dataclass(frozen=True)
class Target:
    """A CPU to compile for. `triple` "" is this machine's.

    `features` are the instruction sets that its code may use (LLVM names, sorted); `attributes` are LLVM's "+name" or
    "-name" corrections to what `mcpu` implies, e.g. where a hypervisor hides AVX-512.
    """

    kind: str = "llvm"
    mcpu: str = "generic"
    features: tuple[str, ...] = ()
    threads: int = 1
    attributes: tuple[str, ...] = ()
    triple: str = ""

    @property
    def isa(self) -> str:
        """sse4, avx2, avx512 or neon."""
        return isa_of(self.features)

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register."""
        return VECTOR_UNITS[self.isa][0]

    @property
    def vector_registers(self) -> int:
        """Number of vector registers."""
        return VECTOR_UNITS[self.isa][1]

    @property
    def description(self) -> dict[str, object]:
        """What TVM's Target takes; `resolve` takes it back as JSON."""
        content: dict[str, object] = {"kind": self.kind, "mcpu": self.mcpu, "num-cores": self.threads}
        if self.attributes:
            content["mattr"] = list(self.attributes)
        if self.triple:
            content["mtriple"] = self.triple
        return content

    @property
    def text(self) -> str:
        """`description` as one line of JSON, keys sorted."""
        return json.dumps(self.description, sort_keys=True)

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
    if options.get("kind") != "llvm":
        raise TargetError(f"target kind {options.get('kind')!r} is unknown; {_FORMS}")
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
    of this name but the machine lacks are switched off. Raises TargetError on anything unknown.
    """
    options = _split(text)
    count = threads if threads is not None else options.get("num-cores", 0)
    try:
        count = int(count)
    except (TypeError, ValueError):
        raise TargetError(f"target option num-cores is {count!r}, expected a whole number") from None
    if count < 0 or (threads is not None and count == 0):
        raise TargetError(f"the number of threads is {count}, expected 1 or more")
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


def hardware_row(target: Target) -> HardwareRow:
    """The row that a kernel's time on this machine belongs to: the machine, and what code is compiled for."""
    row, own = fingerprint(target.threads), _resolve("native", "", (), target.threads)
    if target == own:
        return row
    code = " ".join((*([target.triple] if target.triple else ()), target.mcpu, *target.attributes))
    return replace(row, code=code, features=target.features)
