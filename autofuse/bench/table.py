"""`BenchResult` → a rich table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.bench.result import BenchResult, EngineResult

if TYPE_CHECKING:
    from rich.table import Table

# Beyond it an engine's outputs are shown as wrong.
TOLERANCE = 1e-3


def bench_table(result: BenchResult) -> Table:
    """One row an engine, the fastest in bold; an engine that failed shows why in place of its figures."""
    from rich.markup import escape
    from rich.table import Table

    batch = "" if result.batch is None else f", batch {result.batch}"
    table = Table(title=f"{escape(result.model)}, {result.threads} threads{batch}", caption=_caption(result))
    table.add_column("engine")
    for heading in ("median ms", "iqr", "min", "ratio", "kernels", "compile s", "max rel err"):
        table.add_column(heading, justify="right")
    timed = [row.median_ms for row in result.results if row.median_ms is not None]
    fastest = min(timed, default=None)
    with_notes = any(row.error for row in result.results)
    if with_notes:
        table.add_column("note", overflow="fold")
    for row in result.results:
        cells = [escape(row.engine), *_figures(row), *([escape(row.error or "")] if with_notes else [])]
        table.add_row(*cells, style="bold" if row.median_ms is not None and row.median_ms == fastest else None)
    return table


def _figures(row: EngineResult) -> list[str]:
    ratio = _number(row.ratio, "{:.2f}")
    if row.ratio is not None and row.ratio_iqr:
        ratio += f" ±{row.ratio_iqr / 2:.2f}"
    error = _number(row.max_rel_err, "{:.1e}")
    if row.max_rel_err is not None and row.max_rel_err > TOLERANCE:
        error = f"[red]{error}[/red]"
    return [
        _number(row.median_ms, "{:.3f}"),
        _number(row.iqr_ms, "{:.3f}"),
        _number(row.min_ms, "{:.3f}"),
        ratio,
        _number(row.kernels, "{:d}"),
        _number(row.compile_s, "{:.1f}"),
        error,
    ]


def _number(value: float | int | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _caption(result: BenchResult) -> str:
    against = "no reference for the outputs" if result.reference is None else f"outputs against {result.reference}"
    noise = [f"{kind} {probe.median_ms:.2f} ±{probe.iqr_ms / 2:.2f} ms" for kind, probe in result.probe.items()]
    return "; ".join([against, *(["probe: " + ", ".join(noise)] if noise else [])])
