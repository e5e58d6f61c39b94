"""Tables that go to a file or a pipe."""

from __future__ import annotations

import pytest

from autofuse.cli.tables import table_console


def _printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    from rich.table import Table

    table = Table()
    for k in range(12):
        table.add_column(f"column {k}")
    table.add_row(*[f"{k}.000 ms" for k in range(12)])
    table_console().print(table)
    return capsys.readouterr().out.splitlines()


def test_tables_without_a_terminal_keep_their_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = _printed(capsys)
    assert any(all(f"{k}.000 ms" in line for k in range(12)) for line in lines)


def test_columns_says_how_wide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = _printed(capsys)
    assert max(map(len, lines)) == 60
