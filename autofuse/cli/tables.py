"""Where commands print their tables."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Columns of text where there is no terminal: rich would take 80, and fold or drop columns of what goes to a file.
_PIPE_WIDTH = 160


def table_console() -> Console:
    """Standard output, as wide as its terminal; into a file or a pipe wide enough for every table, or COLUMNS."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH)
