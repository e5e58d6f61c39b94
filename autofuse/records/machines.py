"""What pages call hardware: takes rows of record stores or descriptions of hardware, gives short names for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autofuse.errors import RecordError
from autofuse.records.record import RecordedHardware
from autofuse.target import Hardware
from autofuse.target.fingerprint import HardwareRow
from autofuse.target.host import isa_of


def machine_name(name: str, isa: str, threads: int) -> str:
    """A CPU, its instruction set and the size of the pool: CPUs with one name may differ in the second."""
    return f"{name} ({isa}), {threads} thread{'' if threads == 1 else 's'}"


def description_name(hardware: Hardware) -> str:
    """The name of what a predictor's card or a calibration describes."""
    return machine_name(hardware.name, hardware.isa, hardware.cores)


def row_names(rows: Iterable[RecordedHardware]) -> dict[str, str]:
    """Digest → name; where two would be the same, the digest stands behind each."""
    names = {row.digest: _row_name(row) for row in rows}
    often = Counter(names.values())
    return {digest: name if often[name] == 1 else f"{name}, {digest}" for digest, name in names.items()}


def _row_name(row: RecordedHardware) -> str:
    try:
        known = HardwareRow.from_json(row.detail)
    except RecordError:  # of another kind
        return row.name
    return machine_name(known.model_name or known.vendor, isa_of(known.features), known.threads)
