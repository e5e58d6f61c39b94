"""From a candidate to what its record is about: workload key, layouts at the group's borders, configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.records.record import Identity

KeyOf = Callable[[Group], str]


def layouts_text(group: Group) -> str:
    """The layouts of the tensors that a group reads and writes: "NCHW8c,->NCHW8c" ("" stands for the model's own).

    Where nothing was rewritten the text is empty, so that such records do not depend on the order of the operands.
    """
    tensors = group.graph.tensors
    reads = [tensors[t].layout for t in group.inputs]
    writes = [tensors[t].layout for t in group.outputs]
    if not any(reads) and not any(writes):
        return ""
    return f"{','.join(reads)}->{','.join(writes)}"


def identity_of(candidate: Candidate, key: str, hardware: str) -> Identity:
    """What a record of `candidate` on the hardware with this digest is about; `key` is its workload key."""
    return Identity(
        key,
        hardware,
        candidate.family.name,
        candidate.family.version,
        candidate.config.text,
        layouts_text(candidate.group),
    )


@lru_cache(maxsize=1)
def default_key() -> KeyOf:
    """The workload key of `graph/keys.py`."""
    from autofuse.graph.keys import workload_key

    key: KeyOf = workload_key
    return key
