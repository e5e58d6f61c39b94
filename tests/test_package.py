"""The file of a compiled model: what is written is read, and what is not one is refused."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autofuse.codegen import package
from autofuse.codegen.package import FORMAT, MAGIC, copy_package, read_package, write_package
from autofuse.errors import ModelError

LIBRARY = b"\x7fELF not really" * 7


def write(folder: Path, weights: Any = (), **description: Any) -> Path:
    library = folder / "library"
    library.write_bytes(LIBRARY)
    path = folder / "model.so"
    write_package(path, library, weights, description)
    return path


def rewritten(path: Path, change: Any) -> Path:
    """The same file with another description."""
    content = path.read_bytes()
    offset, length, magic = struct.unpack("<QQ8s", content[-24:])
    text = json.dumps(change(json.loads(content[offset : offset + length]))).encode()
    path.write_bytes(content[:offset] + text + struct.pack("<QQ8s", offset, len(text), magic))
    return path


WEIGHTS = [
    np.arange(12, dtype="float32").reshape(3, 4),
    np.float32(2.5).reshape(()),
    np.zeros((0, 3), "float32"),
    np.array([True, False, True]),
    np.arange(5, dtype="int64"),
    np.arange(6, dtype="float16").reshape(2, 3).T,
    np.arange(3, dtype="uint8"),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    opened = read_package(write(tmp_path, iter(WEIGHTS), model="m", names=["é", "b"]))
    assert opened.description["model"] == "m"
    assert opened.description["names"] == ["é", "b"]
    assert len(opened.weights) == len(WEIGHTS)
    for found, given in zip(opened.weights, WEIGHTS, strict=True):
        assert (found.shape, found.dtype) == (given.shape, given.dtype)
        np.testing.assert_array_equal(found, given)
    assert opened.path.read_bytes().startswith(LIBRARY)


def test_weights_are_mapped_at_multiples_of_64_bytes(tmp_path: Path) -> None:
    opened = read_package(write(tmp_path, WEIGHTS))
    for found in opened.weights:
        if found.size:
            assert isinstance(found, np.memmap)
            assert found.ctypes.data % 64 == 0


def test_writing_to_a_mapped_weight_leaves_the_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path, WEIGHTS)
    before = path.read_bytes()
    read_package(path).weights[0][...] = 7
    assert path.read_bytes() == before


def test_a_file_can_be_replaced_while_it_is_open(tmp_path: Path) -> None:
    first = read_package(write(tmp_path, [np.ones(4, "float32")]))
    second = read_package(write(tmp_path, [np.zeros(4, "float32")]))
    np.testing.assert_array_equal(first.weights[0], np.ones(4))
    np.testing.assert_array_equal(second.weights[0], np.zeros(4))


def test_a_copy_is_the_same_and_executable(tmp_path: Path) -> None:
    path = write(tmp_path, WEIGHTS, model="m")
    copy_package(path, tmp_path / "copy.so")
    assert (tmp_path / "copy.so").read_bytes() == path.read_bytes()
    assert os.access(tmp_path / "copy.so", os.X_OK)


@pytest.mark.parametrize("kept", [0, 10, 23, 24, 200, -1, -24, -60])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path, WEIGHTS)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="is not a compiled model") as caught:
        read_package(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x7fELF" + bytes(4000), bytes(24)])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.so"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is not a compiled model"):
        read_package(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_package(tmp_path / "none.so")
    with pytest.raises(ModelError, match=r"cannot read|not a compiled model"):
        read_package(tmp_path)


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    path = rewritten(write(tmp_path, WEIGHTS), lambda d: {**d, "format": FORMAT + 1})
    with pytest.raises(ModelError, match=rf"file format {FORMAT + 1}, this version reads {FORMAT}"):
        read_package(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: [],
        lambda d: {**d, "weights": None},
        lambda d: {**d, "weights": [{"offset": 0}]},
        lambda d: {**d, "weights": [{"offset": 64, "shape": [1 << 40], "dtype": "float32"}]},
        lambda d: {**d, "weights": [{"offset": -64, "shape": [1], "dtype": "float32"}]},
        lambda d: {**d, "weights": [{"offset": 64, "shape": [1], "dtype": "no type"}]},
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, change: Any) -> None:
    path = rewritten(write(tmp_path, WEIGHTS), change)
    with pytest.raises(ModelError, match=r"damaged|file format") as caught:
        read_package(path)
    assert "\n" not in str(caught.value)


def test_a_description_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(LIBRARY + b"{nope" + struct.pack("<QQ8s", len(LIBRARY), 5, MAGIC))
    with pytest.raises(ModelError, match="damaged"):
        read_package(path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.write_bytes(LIBRARY)
    with pytest.raises(ModelError, match=r"cannot write .*none.*No such file"):
        write_package(tmp_path / "none" / "model.so", library, [], {})


def test_a_full_disk_leaves_nothing_behind_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, WEIGHTS, model="old")
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(package.os, "fsync", full)
    with pytest.raises(ModelError, match=r"No space left.*nothing was left behind"):
        write(tmp_path, WEIGHTS, model="new")
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert read_package(path).description["model"] == "old"


def test_a_weight_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing() -> Any:
        yield WEIGHTS[0]
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        write(tmp_path, failing())
    assert [p.name for p in tmp_path.iterdir()] == ["library"]
