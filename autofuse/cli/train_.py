"""`autofuse train`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autofuse.cli.options import json_option, print_json, status
from autofuse.errors import PredictorError, RecordError


@click.command("train")
@click.option("--db", required=True, metavar="FILE", help="Record store to learn from.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Where the predictor is written.")
@click.option("--hardware", multiple=True, metavar="DIGEST", help="Records of this hardware only (may be repeated).")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of splits and trees.")
@click.option(
    "--search", type=click.IntRange(min=0), default=0, show_default=True, help="Settings of the trees to try first."
)
@json_option
def command(db: str, output: str, hardware: tuple[str, ...], seed: int, search: int, as_json: bool) -> None:
    """Train a predictor of kernel latencies on the records of a store.

    Errors are those on workloads that the model did not see, beside the analytical model's on the same ones.
    """
    if not Path(db).is_file():
        raise RecordError(f"there is no record store {db}: make one with `autofuse collect MODEL --db {db}`")
    start = time.perf_counter()
    from autofuse.learn.dataset import build_dataset
    from autofuse.learn.predictor import check_output, save_predictor
    from autofuse.learn.train import EVALUATION_ONLY, TrainSettings, train_predictor
    from autofuse.records import open_store

    check_output(output)
    with open_store(db, readonly=True) as store, status(f"training on {db}") as tell:
        if store.evaluation_only:
            raise PredictorError(f"{db}: {EVALUATION_ONLY}")
        known = {row.digest: row.name for row in store.hardware()}
        for digest in hardware:
            if digest not in known:
                there = ", ".join(f"{d} ({name})" for d, name in known.items()) or "none"
                raise PredictorError(f"{db} holds no records of hardware {digest}; it has {there}")
        tell("reading records")
        dataset = build_dataset(store, hardware=hardware or None, progress=tell)
        settings = TrainSettings(seed=seed)
        if search:
            from autofuse.learn.train import check_dataset
            from autofuse.learn.tree_search import search_trees

            check_dataset(dataset)
            trees = search_trees(dataset, search, settings.trees, seed, tell)
            settings = replace(settings, trees=trees, tried=search + 1)
        trained = train_predictor(dataset, settings, tell)
        tell("saving")
        from autofuse.learn.plots import plots

        save_predictor(trained, output, plots(dataset, trained))
    card = trained.card
    report: dict[str, Any] = {
        "output": output,
        **{name: card.data[name] for name in ("records", "cold_rows", "workloads", "models", "skipped", "failures")},
        "data_hash": card.data["hash"],
        "hardware": [
            {"digest": h.digest, "name": known.get(h.digest, h.description.name), "records": h.records}
            for h in card.hardware
        ],
        "families": dict(card.families),
        "feature_version": card.feature_version,
        "features": len(card.features),
        "seed": seed,
        "trees": sum(m.trees for m in card.members),
        "metrics": card.metrics,
        "checks": card.checks,
        "settings": card.training,
        "seconds": round(time.perf_counter() - start, 3),
    }
    if as_json:
        print_json(report)
    else:
        _print(report)


def _print(report: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from autofuse.learn.card import metric_cells

    table = Table(title="errors on workloads not trained on", title_justify="left", box=box.SIMPLE)
    table.add_column("model", no_wrap=True)
    for name in ("MAPE", "in 5 %", "in 10 %", "in 20 %", "tau within", "tau across"):
        table.add_column(name, justify="right")
    for name, row in report["metrics"].items():
        table.add_row(name.replace("_", ", "), *metric_cells(row))
    console = Console()
    console.print(table)
    skipped = ", ".join(f"{count} {reason}" for reason, count in report["skipped"].items())
    console.print(
        f"{report['records']} records of {report['workloads']} workloads"
        + (f" (left out: {skipped})" if skipped else "")
        + f", {report['trees']} trees, {report['seconds']:.1f} s",
        highlight=False,
    )
    click.echo(f"wrote {report['output']}")
