"""Records: what was measured, where it is kept, and the cost model that reads it. SQLite loads when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.records.memory import MemoryStore
from autofuse.records.record import Form, HardwareRow, Identity, Measured, Record, StoreStats, Workload
from autofuse.records.store import RecordStore

if TYPE_CHECKING:
    from autofuse.records.model import RecordedCostModel
    from autofuse.records.sqlite import SqliteStore

__all__ = [
    "Form",
    "HardwareRow",
    "Identity",
    "Measured",
    "MemoryStore",
    "Record",
    "RecordStore",
    "RecordedCostModel",
    "SqliteStore",
    "StoreStats",
    "Workload",
]


def __getattr__(name: str) -> Any:
    if name == "SqliteStore":
        from autofuse.records.sqlite import SqliteStore

        return SqliteStore
    if name == "RecordedCostModel":
        from autofuse.records.model import RecordedCostModel

        return RecordedCostModel
    raise AttributeError(name)
