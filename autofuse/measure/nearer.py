"""Which reference kernel a candidate is more like: takes a group and the size of the last cache, gives the name."""

from __future__ import annotations

from autofuse.cost.model import Candidate
from autofuse.records.record import RecordedHardware

# Operations a byte above which a kernel is taken to be bound by arithmetic; machines of today lie between 2 and 20.
_BALANCE = 4.0


def nearer_reference(candidate: Candidate, last_cache: int = 0, arithmetic: str = "product") -> str:
    """The reference kernel that a candidate is more like: memory where its time goes into waiting for that.

    `arithmetic` is the runner's name of the other one.

    It reads and writes many bytes for each operation, and more of them than half of the last cache (bytes; 0: unknown)
    holds. What stays in a cache slows down with its core, not with memory.
    """
    group = candidate.group
    tensors = group.graph.tensors
    moved = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
    return "memory" if group.work.flops <= _BALANCE * moved and 2 * moved > last_cache else arithmetic


def last_cache(hardware: RecordedHardware) -> int:
    """Bytes of the outermost cache that a CPU's hardware row names; 0 if it names none."""
    sizes = (hardware.detail.get(name) for name in ("l3_bytes", "l2_bytes"))
    return next((size for size in sizes if isinstance(size, int) and size > 0), 0)
