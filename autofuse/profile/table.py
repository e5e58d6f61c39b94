"""`Profile` → a rich table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autofuse.profile.result import Profile

if TYPE_CHECKING:
    from rich.table import Table


def profile_table(profile: Profile, top: int | None = None) -> Table:
    """One row a kernel, the longest first; `top`: only so many, the others summed up in one row."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=f"{escape(profile.model)}, {profile.threads} threads, {profile.runs} runs",
        caption=_caption(profile),
    )
    table.add_column("kernel", overflow="fold", min_width=24)
    table.add_column("schedule", min_width=9)
    for heading in ("calls", "ms", "share", "GFLOP/s", "GB/s", "roofline", "predicted", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = profile.kernels if top is None else profile.kernels[:top]
    for kernel in shown:
        predicted, ratio = "-", "-"
        if kernel.predicted_ms is not None:
            predicted = f"{kernel.predicted_ms:.3f}"
            ratio = f"{kernel.total_ms / kernel.predicted_ms:.2f}" if kernel.predicted_ms else "-"
        known = bool(kernel.labels)
        table.add_row(
            escape(", ".join(kernel.labels) or kernel.name),
            escape(kernel.family),
            str(kernel.calls),
            f"{kernel.total_ms:.3f}",
            f"{kernel.share:.1%}",
            f"{kernel.gflops:.1f}" if known else "-",
            f"{kernel.gbytes:.1f}" if known else "-",
            f"{kernel.roofline:.0%}" if known else "-",
            predicted,
            ratio,
        )
    rest = profile.kernels[len(shown) :]
    if rest:
        table.add_row(
            f"{len(rest)} more",
            "",
            str(sum(k.calls for k in rest)),
            f"{sum(k.total_ms for k in rest):.3f}",
            f"{sum(k.share for k in rest):.1%}",
            style="dim",
        )
    return table


def _caption(profile: Profile) -> str:
    beside = profile.latency_ms - profile.kernels_ms
    return (
        f"kernels {profile.kernels_ms:.3f} ms, whole {profile.latency_ms:.3f} ms"
        f" ({beside:+.3f} ms beside them), predicted {profile.predicted_ms:.3f} ms"
    )
