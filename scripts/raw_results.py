"""Where raw results are kept, a machine a folder: docs/results/ is that of the machine measured last.

A folder in it, such as docs/results/avx2/, has what another machine measured, and pages of its own
(docs/results-avx2.md). Machines are never mixed: whoever measures where another machine's results are is refused, and
so is a page of several. To make room for another machine, move the files of the last one into a folder of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Folders of docs/results/ that belong to a kind of results, not to a machine.
KINDS = ("plans", "learned", "reuse")
#: What makes a machine another one. What a calibration found may differ, and so may packages.
_SAME = ("cpu", "isa", "cores", "l1_bytes", "l2_bytes", "l3_bytes")

Machine = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """A machine's results and pages; `folder` "" is the machine measured last."""

    folder: str = ""

    def __post_init__(self) -> None:
        if self.folder in KINDS or (not self.folder.replace("-", "").replace("_", "").isalnum() and self.folder):
            raise SystemExit(f"--folder {self.folder}: give a name of letters and digits, none of {', '.join(KINDS)}")

    @property
    def raw(self) -> Path:
        """The folder of raw results."""
        return DOCS / "results" / self.folder

    @property
    def said(self) -> str:
        """`raw` as pages name it."""
        return "docs/results" + (f"/{self.folder}" if self.folder else "")

    def page(self, stem: str) -> Path:
        """The page docs/STEM.md, or docs/STEM-FOLDER.md."""
        return DOCS / f"{stem}{'-' if self.folder else ''}{self.folder}.md"

    def others(self, pattern: str) -> list[Place]:
        """The other machines that have results of this kind: files of `pattern` in their folder."""
        folders = sorted(path.name for path in (DOCS / "results").glob("*") if path.is_dir() and path.name not in KINDS)
        return [
            place
            for place in (Place(folder) for folder in ("", *folders) if folder != self.folder)
            if any(place.raw.glob(pattern))
        ]

    def elsewhere(self, pattern: str, stem: str) -> str:
        """A line on the pages of other machines with such results, "" where there are none."""
        named = []
        for place in self.others(pattern):
            page = place.page(stem).name
            named.append(f"[{page}]({page}) ({title(machine_of(next(iter(sorted(place.raw.glob(pattern))))))})")
        return f"On other machines: {', '.join(named)}." if named else ""


def machine_of(path: Path) -> Machine:
    """The machine that a file of raw results names, empty if it names none."""
    found: Machine = json.loads(path.read_text(encoding="utf-8")).get("machine", {})
    return found


def title(machine: Machine) -> str:
    """A machine's short name."""
    return f"{machine['cpu']}, {machine['isa']}" if machine else "a machine that they do not name"


def identity(machine: Machine) -> tuple[Any, ...]:
    """What tells one machine from another."""
    return tuple(machine.get(name) for name in _SAME)


def refuse_others(paths: Iterable[Path], machine: Machine | None = None) -> None:
    """SystemExit, one line, if any of these results is not of `machine` (default: this one)."""
    named = [(path, found) for path in paths if path.exists() and (found := machine_of(path))]
    if not named:
        return
    if machine is None:
        from autofuse.report.results import machine as this_machine

        machine = this_machine()
    for path, found in named:
        if identity(found) != identity(machine):
            raise SystemExit(
                f"{path} is of another machine ({title(found)}; this is {title(machine)}): move that machine's results"
                " into a folder of their own, docs/results/NAME/ (see scripts/raw_results.py)"
            )


def one_machine(raws: Iterable[Mapping[str, Any]]) -> None:
    """SystemExit, one line, if results that a page is written from are of several machines."""
    found = {identity(raw["machine"]): title(raw["machine"]) for raw in raws}
    if len(found) > 1:
        names = "; ".join(sorted(found.values()))
        raise SystemExit(f"a page is about one machine, these results are of several ({names}): give each a folder")
