"""The hardware row: what a record or a calibration was measured on, as plain data with a stable digest. No TVM."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from autofuse.errors import RecordError
from autofuse.target.host import processors, read_host

#: Architectures of rows that are no CPU's: GPUs of AMD's and NVIDIA's lines, and what runs kernels in a GPU's place.
AMD_GPU, NVIDIA_GPU, STAND_IN = "amdgcn", "nvptx", "stand-in"
GPU_ARCHITECTURES = frozenset((AMD_GPU, NVIDIA_GPU, STAND_IN))


@dataclass(frozen=True)
class HardwareRow:
    """CPU family, model, stepping, instruction sets, caches (bytes), pool size and TVM version (DESIGN: hardware row).

    `code` names the CPU that code is compiled for where it is not this one ("nehalem"), and `features` are then what
    such code uses. A GPU's `vendor` is its card, or what code is for. `model_name` is for people and takes no part in
    the digest: hypervisors rename the same CPU.
    """

    architecture: str
    vendor: str
    family: int
    model: int
    stepping: int
    features: tuple[str, ...]
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    threads: int
    tvm_version: str
    model_name: str = ""
    code: str = ""

    @property
    def digest(self) -> str:
        """16 hex digits that depend on every field but `model_name`; the same in every process."""
        content = asdict(self)
        del content["model_name"]
        if not self.code:
            del content["code"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def beside(self, other: HardwareRow) -> bool:
        """Whether both are of one machine: they differ in the size of the pool at most."""
        return replace(self, threads=other.threads).digest == other.digest

    def to_json(self) -> dict[str, object]:
        """Fields as JSON types; `code` only where it says something."""
        content = {**asdict(self), "features": list(self.features)}
        if not self.code:
            del content["code"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> HardwareRow:
        """The inverse of `to_json`. RecordError if a field is missing, unknown or of another type."""
        values = dict(content)
        values["features"] = tuple(str(f) for f in values.get("features") or ())  # type: ignore[attr-defined]
        try:
            row = cls(**values)  # type: ignore[arg-type]
        except TypeError as error:
            raise RecordError(f"a hardware row does not have the expected fields: {error}") from None
        for f in fields(cls):
            value = getattr(row, f.name)
            if f.type in {"int", "str"} and type(value).__name__ != f.type:
                raise RecordError(f"a hardware row's {f.name} is {value!r}, expected {f.type}")
        return row


def tvm_version() -> str:
    """Version of the installed TVM, without importing it; "" if there is none."""
    import importlib.metadata  # 50 ms

    try:
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        return ""


def fingerprint(threads: int | None = None) -> HardwareRow:
    """The row of this machine with a pool of `threads` (default: the physical processors available)."""
    host = read_host()
    return HardwareRow(
        architecture=host.architecture,
        vendor=host.vendor,
        family=host.family,
        model=host.model,
        stepping=host.stepping,
        features=host.features,
        l1_bytes=host.l1_bytes,
        l2_bytes=host.l2_bytes,
        l3_bytes=host.l3_bytes,
        threads=threads or processors(),
        tvm_version=tvm_version(),
        model_name=host.model_name,
    )
