"""Records: what was measured, where it is kept, and the cost model that reads it. SQLite loads when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.records.memory import MemoryStore
from autofuse.records.record import Form, Identity, Measured, Record, RecordedHardware, StoreStats, Workload
from autofuse.records.store import RecordStore

if TYPE_CHECKING:
    from autofuse.records.model import RecordedCostModel
    from autofuse.records.sqlite import SqliteStore

__all__ = [
    "Form",
    "Identity",
    "Measured",
    "MemoryStore",
    "Record",
    "RecordStore",
    "RecordedCostModel",
    "RecordedHardware",
    "SqliteStore",
    "StoreStats",
    "Workload",
    "open_store",
]


def open_store(path: str | Path, *, readonly: bool = False) -> RecordStore:
    """The store in the SQLite file `path`, created if it is not there (unless `readonly`). RecordError."""
    from autofuse.records.sqlite import SqliteStore

    return SqliteStore(path, readonly=readonly)


def __getattr__(name: str) -> Any:
    if name == "SqliteStore":
        from autofuse.records.sqlite import SqliteStore

        return SqliteStore
    if name == "RecordedCostModel":
        from autofuse.records.model import RecordedCostModel

        return RecordedCostModel
    raise AttributeError(name)
