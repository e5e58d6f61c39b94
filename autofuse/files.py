"""Files that appear whole or not at all: a new file beside the one meant, for its writer to fill and rename."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

NO_FILE = "it is there and no regular file"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be filled that takes the place of `path` at the end; `path` is as it was, whatever is raised.

    Raises OSError where there can be no such file.
    """
    handle, name = open_beside(path)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_whole(path: Path, text: str) -> None:
    """`whole_file` with a text, in UTF-8."""
    with whole_file(path) as out:
        out.write(text.encode())


def open_beside(path: Path, mode: int = 0o666) -> tuple[int, str]:
    """A new, hidden file in the folder of `path`: its descriptor, open for writing, and its name.

    OSError as `os.open`, and where `path` is there and no regular file: renaming would put a file in a device's place.
    Unlike tempfile's, which are for their owner alone, it has the permissions of any new file: `mode` without those
    that the process's umask takes away.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        name = str(path.parent / f".{path.name}.{secrets.token_hex(4)}")
        try:
            return os.open(name, flags, mode), name
        except FileExistsError:
            continue
