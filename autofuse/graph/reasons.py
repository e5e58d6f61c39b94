"""Refusals: why operators may not share a kernel. Legality and schedule families return them; `explain` prints them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why a group is not legal: `rule` is a stable short name, `detail` a sentence for a person, `where` operators."""

    rule: str
    detail: str
    where: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"
