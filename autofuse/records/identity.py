"""From a candidate to what its record is about: workload key, layouts at the group's borders, configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.cost.model import Candidate
from autofuse.graph.keys import canonical_layouts
from autofuse.graph.model import Group
from autofuse.records.record import Identity

KeyOf = Callable[[Group], str]
_LAYOUTS = "records.layouts_text"


def layouts_text(group: Group) -> str:
    """The layouts of the tensors that a group reads and writes: "NCHW8c,->NCHW8c" ("" stands for the model's own).

    In the order of the workload's canonical text, so that the order of equal operators does not matter. Where nothing
    was rewritten the text is empty.
    """
    kept = group.__dict__.get(_LAYOUTS)  # asked for again with every configuration of the group
    if kept is None:
        kept = group.__dict__[_LAYOUTS] = _layouts_text(group)
    return str(kept)


def _layouts_text(group: Group) -> str:
    tensors = group.graph.tensors
    if not any(tensors[t].layout for t in (*group.inputs, *group.outputs)):
        return ""
    reads, writes = canonical_layouts(group)
    return f"{','.join(reads)}->{','.join(writes)}"


def identity_of(candidate: Candidate, key: str, hardware: str) -> Identity:
    """What a record of `candidate`, made now on the hardware with this digest, is about; `key` is its workload key."""
    return Identity(
        key,
        hardware,
        candidate.family.name,
        candidate.family.version,
        candidate.config.text,
        layouts_text(candidate.group),
        CODEGEN_VERSION,
    )


@lru_cache(maxsize=1)
def default_key() -> KeyOf:
    """The workload key of `graph/keys.py`."""
    from autofuse.graph.keys import workload_key

    key: KeyOf = workload_key
    return key
