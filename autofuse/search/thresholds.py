"""Thresholds as a file: what `autofuse tune` writes and `autofuse compile --thresholds` takes."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, fields
from pathlib import Path

from autofuse.errors import PlanError
from autofuse.search.problem import Thresholds

SCHEMA = 1


def save_thresholds(thresholds: Thresholds, path: str | Path) -> None:
    """Write the JSON file whole or not at all. PlanError if it cannot be written."""
    goal = Path(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"schema": SCHEMA, "thresholds": asdict(thresholds)}, file, indent=1, allow_nan=False)
            file.write("\n")
        os.replace(temporary, goal)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise PlanError(f"cannot write the thresholds {goal}: {error.strerror}") from None


def load_thresholds(path: str | Path) -> Thresholds:
    """Read the file; what it leaves out keeps its default. PlanError if it is missing, damaged or of a newer schema."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read the thresholds {path}: {error.strerror}") from None
    except ValueError:
        raise PlanError(f"{path} holds no thresholds: it is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("thresholds"), dict):
        raise PlanError(f"{path} holds no thresholds: write it with autofuse tune")
    if not isinstance(content.get("schema"), int) or content["schema"] > SCHEMA:
        raise PlanError(f"{path} has another schema than the {SCHEMA} that this autofuse reads: upgrade autofuse")
    types = {f.name: f.type for f in fields(Thresholds)}
    values = {}
    for name, value in content["thresholds"].items():
        if name not in types:
            raise PlanError(f"{path}: unknown threshold {name!r}; known: {', '.join(types)}")
        number = isinstance(value, int) or (types[name] == "float" and isinstance(value, float))
        if not number or isinstance(value, bool) or value < 0:
            raise PlanError(f"{path}: threshold {name!r} is not a {types[name]} of zero or more")
        values[name] = value
    return Thresholds(**values)
