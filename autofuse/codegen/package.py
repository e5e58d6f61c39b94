"""The file format of a compiled model: a shared library with its weights and description behind it, in one file.

    [shared library][padding][weight 0][padding][weight 1]...[description, JSON][offset, length: 2 × uint64, magic]

A dynamic loader ignores what follows the library, weights are 64-byte aligned and mapped, not read. The description
is read before the library is loaded, so that a file built for another CPU is refused and not executed.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import ModelError

MAGIC = b"AUTOFUSE"
FORMAT = 1
_ALIGNMENT = 64
_FOOTER = struct.Struct("<QQ8s")


@dataclass(frozen=True)
class Package:
    """An opened file: `description` as it was written, `weights` mapped copy-on-write."""

    path: Path
    description: dict[str, Any]
    weights: tuple[NDArray[Any], ...]


def write_package(path: Path, library: Path, weights: Sequence[NDArray[Any]], description: dict[str, Any]) -> None:
    """Write `path` from a built library; it appears whole or not at all.

    Raises ModelError when it cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}; choose another -o") from None
    try:
        with os.fdopen(handle, "wb") as out:
            with library.open("rb") as source:
                while chunk := source.read(1 << 20):
                    out.write(chunk)
            entries = []
            for array in weights:
                out.write(b"\0" * (-out.tell() % _ALIGNMENT))
                entries.append({"offset": out.tell(), "shape": list(array.shape), "dtype": str(array.dtype)})
                out.write(memoryview(np.ascontiguousarray(array)).cast("B") if array.size else b"")
            text = json.dumps({**description, "format": FORMAT, "weights": entries}, sort_keys=True).encode()
            offset = out.tell()
            out.write(text)
            out.write(_FOOTER.pack(offset, len(text), MAGIC))
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, 0o755)
        os.replace(name, path)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}; nothing was left behind") from None
    finally:
        if os.path.exists(name):
            os.unlink(name)


def read_package(path: str | Path) -> Package:
    """Open a compiled model. Raises ModelError when the file is missing or is no compiled model."""
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as source:
            if size < _FOOTER.size:
                raise ModelError(f"{path} is not a compiled model: it is too short; make one with `autofuse compile`")
            source.seek(size - _FOOTER.size)
            offset, length, magic = _FOOTER.unpack(source.read(_FOOTER.size))
            if magic != MAGIC or offset + length + _FOOTER.size != size:
                raise ModelError(f"{path} is not a compiled model; make one with `autofuse compile MODEL -o {path}`")
            source.seek(offset)
            description = json.loads(source.read(length))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"cannot read {path}: {reason}") from None
    if description.get("format") != FORMAT:
        raise ModelError(
            f"{path} has file format {description.get('format')}, this version reads {FORMAT}: compile the model again"
        )
    weights = tuple(
        np.memmap(path, dtype=w["dtype"], mode="c", offset=w["offset"], shape=tuple(w["shape"]))
        if all(w["shape"])
        else np.zeros(w["shape"], w["dtype"])
        for w in description["weights"]
    )
    return Package(path, description, weights)
