"""The file format of a compiled model: a shared library with its weights and description behind it, in one file.

    [shared library][padding][weight 0][padding][weight 1]...[description, JSON][offset, length: 2 × uint64, magic]

A dynamic loader ignores what follows the library, weights are 64-byte aligned and mapped, not read. The description
is read before the library is loaded, so that a file built for another CPU is refused and not executed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import ModelError
from autofuse.files import open_beside

MAGIC = b"AUTOFUSE"
FORMAT = 1
_ALIGNMENT = 64
_CHUNK = 1 << 20
_FOOTER = struct.Struct("<QQ8s")


@dataclass(frozen=True)
class Package:
    """An opened file: `description` as it was written, `weights` mapped copy-on-write."""

    path: Path
    description: dict[str, Any]
    weights: tuple[NDArray[Any], ...]


def write_package(path: Path, library: Path, weights: Iterable[NDArray[Any]], description: dict[str, Any]) -> None:
    """Write `path` from a built library; it appears whole or not at all. `weights` are taken one by one.

    Raises ModelError when it cannot be written.
    """

    def fill(out: BinaryIO) -> None:
        with library.open("rb") as source:
            shutil.copyfileobj(source, out, _CHUNK)
        entries = []
        for array in weights:
            out.write(b"\0" * (-out.tell() % _ALIGNMENT))
            entries.append({"offset": out.tell(), "shape": list(array.shape), "dtype": str(array.dtype)})
            if array.size:
                out.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        text = json.dumps({**description, "format": FORMAT, "weights": entries}, sort_keys=True).encode()
        offset = out.tell()
        out.write(text)
        out.write(_FOOTER.pack(offset, len(text), MAGIC))

    _write_whole(path, fill)


def copy_package(source: Path, path: Path) -> None:
    """Write a copy of a compiled model; it appears whole or not at all.

    Raises ModelError when it cannot be written.
    """

    def fill(out: BinaryIO) -> None:
        with source.open("rb") as file:
            shutil.copyfileobj(file, out, _CHUNK)

    _write_whole(path, fill)


def _write_whole(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    try:
        handle, name = open_beside(path, mode=0o777)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}; choose another -o") from None
    try:
        with os.fdopen(handle, "wb") as out:
            fill(out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}; nothing was left behind") from None
    finally:
        if os.path.exists(name):
            os.unlink(name)


def is_package(path: Path) -> bool:
    """Whether the file ends as compiled models do."""
    try:
        with path.open("rb") as source:
            source.seek(-len(MAGIC), os.SEEK_END)
            return source.read() == MAGIC
    except OSError:
        return False


def read_package(path: str | Path) -> Package:
    """Open a compiled model. Raises ModelError when the file is missing or is no compiled model."""
    path = Path(path)
    advice = "make one with `autofuse compile MODEL -o OUT.so`"
    try:
        size = path.stat().st_size
        with path.open("rb") as source:
            source.seek(max(size - _FOOTER.size, 0))
            footer = source.read(_FOOTER.size)
            offset, length, magic = _FOOTER.unpack(footer) if len(footer) == _FOOTER.size else (0, 0, b"")
            if magic != MAGIC or offset + length + _FOOTER.size != size:
                raise ModelError(f"{path} is not a compiled model, or not all of one; {advice}")
            source.seek(offset)
            description = json.loads(source.read(length))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; {advice}") from None
    except ValueError:
        raise ModelError(f"{path} is damaged: its description cannot be read; {advice}") from None
    version = description.get("format") if isinstance(description, dict) else None
    if version != FORMAT:
        raise ModelError(f"{path} has file format {version}, this version reads {FORMAT}: compile the model again")
    try:
        weights = tuple(_weight(path, entry, offset) for entry in description["weights"])
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{path} is damaged: its weights are not where it says; {advice}") from None
    return Package(path, description, weights)


def _weight(path: Path, entry: dict[str, Any], end: int) -> NDArray[Any]:
    """One weight, mapped; it must lie before `end`."""
    shape, dtype = tuple(int(e) for e in entry["shape"]), np.dtype(entry["dtype"])
    count = math.prod(shape)
    if count == 0:
        return np.zeros(shape, dtype)
    if not 0 <= entry["offset"] <= end - count * dtype.itemsize:
        raise ValueError("outside the file")
    return np.memmap(path, dtype=dtype, mode="c", offset=entry["offset"], shape=shape)
