"""What SQLite says went wrong, as one line that says what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from autofuse.errors import RecordError


def explain(path: Path, error: sqlite3.Error, wait: float) -> RecordError:
    """What to tell the user of `path`; `wait`: seconds that a lock was waited for."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return RecordError(f"{path}: locked by another process for over {wait:g} s; let it end, then start again")
    if "readonly" in text:
        return RecordError(f"{path}: is read-only; copy it, or change the permissions of the file and its folder")
    if "full" in text.split():
        return RecordError(f"{path}: the disk is full; nothing of the last addition was kept; free some space")
    if "disk I/O error" in text:  # also how a limit on the size of files shows itself
        return RecordError(f"{path}: cannot be read or written ({text}); is the disk full, or a file too large?")
    if "unable to open" in text:
        return RecordError(f"{path}: cannot be opened; check that the folder exists and may be written to")
    if "not a database" in text or "malformed" in text:
        return RecordError(f"{path}: is damaged or no SQLite database ({text}); restore it from a copy or an export")
    return RecordError(f"{path}: {text}")
