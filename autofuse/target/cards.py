"""Cards: GPUs that are known by name. Takes the data files beside this module, gives `Card`s and their `GpuHardware`.

One JSON file a card in `cards/`: every figure stands with its source and how certain it is. No TVM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from autofuse.errors import TargetError
from autofuse.target.hardware_gpu import GpuHardware

FOLDER = Path(__file__).with_name("cards")
FORMAT, VERSION = "autofuse-card", 1
#: How certain a figure is: read from a device; stated by public material; worked out from other figures, or
#: contradicted; taken over from another card.
CERTAINTIES = ("good", "medium", "weak", "assumed")


@dataclass(frozen=True)
class Fact:
    """A figure of a card, in the unit of the `GpuHardware` field of its name (peaks: FLOP/s)."""

    value: float
    certainty: str
    source: str


@dataclass(frozen=True)
class Card:
    """A GPU. `gfx` is what it calls itself, `code` what TVM's LLVM generates code for (the same, or an older relative).

    `facts` are by name: fields of `GpuHardware`, and peaks ("peak_fp32", "peak_fp16") and "memory_bytes" for people.
    """

    name: str
    title: str
    gfx: str
    code: str
    wave: int
    facts: Mapping[str, Fact]
    note: str = ""

    @property
    def hardware(self) -> GpuHardware:
        """The card as cost models see it; figures that no fact states follow from those of the architecture."""
        known = {f.name: f.type for f in fields(GpuHardware)}
        given: dict[str, Any] = {
            name: int(fact.value) if known[name] == "int" else float(fact.value)
            for name, fact in self.facts.items()
            if name in known
        }
        return scaled(replace(GpuHardware(), name=self.title, isa=self.code, wave=self.wave), given)

    @property
    def weakest(self) -> str:
        """The least certain of the figures."""
        return max((f.certainty for f in self.facts.values()), key=CERTAINTIES.index)


def scaled(base: GpuHardware, given: Mapping[str, Any]) -> GpuHardware:
    """`base` with the fields in `given`, and the rates that depend on clock and compute units brought in line."""
    clock = float(given.get("frequency_hz", base.frequency_hz)) / base.frequency_hz
    units = int(given.get("cores", base.cores)) / base.cores
    rates = {
        name: getattr(base, name) * clock
        for name in ("fma_per_second", "simple_per_second", "divide_per_second", "special_per_second", "l1_bandwidth",
                     "lds_bandwidth")
    }  # fmt: skip
    shared = {name: getattr(base, name) * clock / units for name in ("l2_bandwidth", "l3_bandwidth")}
    made = replace(base, **{**rates, **shared, **given})
    return replace(made, l3_bytes=made.l2_bytes)


def read_card(path: Path) -> Card:
    """The card that a file describes. TargetError, naming the file, where it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {content['format']!r} {content['version']!r}, expected {FORMAT} {VERSION}")
        facts = {
            name: Fact(float(f["value"]), str(f["certainty"]), str(f["source"])) for name, f in content["facts"].items()
        }
        wrong = [name for name, f in facts.items() if f.certainty not in CERTAINTIES or not f.source or f.value <= 0]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: a positive value, a source and one of {', '.join(CERTAINTIES)}")
        return Card(
            str(content["name"]), str(content["title"]), str(content["gfx"]), str(content["code"]),
            int(content["wave"]), facts, str(content.get("note", "")),
        )  # fmt: skip
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise TargetError(f"{path} is no card description: {error}") from None


@cache
def cards() -> Mapping[str, Card]:
    """All cards by name, sorted."""
    found = [read_card(path) for path in sorted(FOLDER.glob("*.json"))]
    return {card.name: card for card in found}


def card_of_gfx(gfx: str) -> Card | None:
    """The first card that calls itself `gfx`."""
    return next((card for card in cards().values() if card.gfx == gfx), None)
