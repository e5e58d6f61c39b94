"""Search thresholds as a JSON file: what `autofuse tune` writes and `autofuse compile --thresholds` takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from autofuse.errors import PlanError
from autofuse.files import write_whole
from autofuse.search.problem import Thresholds

FORMAT = "autofuse-thresholds"
VERSION = 1


def save_thresholds(thresholds: Thresholds, path: str | Path, origin: Mapping[str, Any] | None = None) -> Path:
    """Write `thresholds` to `path`, all or nothing; `origin` (plain JSON values) says where they come from."""
    target = Path(path)
    content = {"format": FORMAT, "version": VERSION, "thresholds": asdict(thresholds), "origin": dict(origin or {})}
    try:
        write_whole(target, json.dumps(content, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise PlanError(f"cannot write the thresholds to {target}: {error.strerror or error}") from None
    return target


def load_thresholds(path: str | Path) -> Thresholds:
    """The thresholds in a file of `save_thresholds`; those that it does not name have their defaults.

    PlanError if the file is missing, damaged, of another version, or names a threshold that there is not.
    """
    source = Path(path)
    advice = "write it with `autofuse tune`"
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read thresholds from {source}: {error.strerror or error}; {advice}") from None
    except ValueError:
        raise PlanError(f"thresholds file {source} is damaged (not JSON); {advice} again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise PlanError(f"{source} is no thresholds file; {advice}")
    if content.get("version") != VERSION:
        raise PlanError(
            f"thresholds file {source} is of version {content.get('version')!r}, this program reads {VERSION}; "
            f"{advice} again"
        )
    try:
        return thresholds_of(content.get("thresholds"))
    except ValueError as error:
        raise PlanError(f"thresholds file {source} is damaged: {error}; {advice} again") from None


def thresholds_of(values: Any) -> Thresholds:
    """Thresholds from plain values by name. ValueError that names the one that is unknown or out of bounds."""
    if not isinstance(values, dict):
        raise ValueError("it has no thresholds")
    types = {f.name: str(f.type) for f in fields(Thresholds)}
    for name, value in values.items():
        if name not in types:
            raise ValueError(f"there is no threshold {name!r}, known: {', '.join(types)}")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (types[name] == "int" and value != int(value)):
            raise ValueError(f"{name} is {value!r}, expected a {'whole ' if types[name] == 'int' else ''}number >= 0")
    exact: dict[str, Any] = {n: int(v) if types[n] == "int" else float(v) for n, v in values.items()}
    return Thresholds(**exact)
