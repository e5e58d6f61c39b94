"""Files that appear whole or not at all: a new file beside the one meant, for its writer to fill and rename."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def open_beside(path: Path, suffix: str = "", mode: int = 0o666) -> tuple[int, str]:
    """A new, hidden file in the folder of `path`: its descriptor, open for writing, and its name. OSError as `os.open`.

    Unlike tempfile's, which are for their owner alone, it has the permissions of any new file: `mode` without those
    that the process's umask takes away.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        name = str(path.parent / f".{path.name}.{secrets.token_hex(4)}{suffix}")
        try:
            return os.open(name, flags, mode), name
        except FileExistsError:
            continue
