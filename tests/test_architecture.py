"""What docs/architecture.md says of the stages holds of the code: all folders are listed, each uses those above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conftest import LONGEST

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def stages() -> list[list[str]]:
    """The folders of each row of the table of stages, in its order."""
    table = PAGE.split("| stage | folder |")[1].split("\n\n")[0]
    return [re.findall(r"`autofuse/(\w+)/`", row.split("|")[2]) for row in table.splitlines()[2:]]


def used(tree: ast.AST) -> Iterator[str]:
    """The folders that a module imports from when it runs, at its top or inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in modules if name.startswith("autofuse."))
        yield from used(node)


def test_every_folder_is_a_stage() -> None:
    folders = {path.parent.name for path in (ROOT / "autofuse").glob("*/__init__.py")}
    assert sorted(folder for row in stages() for folder in row) == sorted(folders)


def test_a_stage_depends_on_those_above_it_only() -> None:
    place = {folder: number for number, row in enumerate(stages()) for folder in row}
    assert set(used(ast.parse("import autofuse.cost\ndef f():\n    from autofuse.graph.model import Group"))) == {
        "cost", "graph"
    }  # fmt: skip
    wrong = [
        f"{path.relative_to(ROOT)} uses {name}"
        for folder in place
        for path in sorted((ROOT / "autofuse" / folder).rglob("*.py"))
        for name in used(ast.parse(path.read_text(encoding="utf-8")))
        if place.get(name, -1) > place[folder]
    ]
    assert not wrong


def test_files_that_the_page_names_are_there() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md|json))`", PAGE)
    assert len(named) > 40
    assert not [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "autofuse"))]


def test_modules_that_are_tested_first_are_there() -> None:
    assert not [name for name in LONGEST if not (ROOT / "tests" / f"{name}.py").exists()]
