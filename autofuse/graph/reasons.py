"""Refusals: why operators may not share a kernel. Legality and schedule families return them; `explain` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Refusal:
    """Why a group is not legal: `rule` is a stable short name, `detail` a sentence for a person, `where` operators."""

    rule: str
    detail: str
    where: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


def matched(found: T | Refusal) -> T:
    """What was found in a group that is known to match. ValueError for the reason why it does not."""
    if isinstance(found, Refusal):
        raise ValueError(f"group does not match: {found}")
    return found
