"""`autofuse evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofuse.cli.options import check_writable, json_option, print_json, status
from autofuse.cli.tables import table_console
from autofuse.errors import PredictorError, RecordError

if TYPE_CHECKING:
    from autofuse.learn.evaluation import Evaluation


@click.command("evaluate")
@click.option("--db", required=True, metavar="FILE", help="Record store that the predictor was trained on.")
@click.option("--unseen", metavar="FILE", help="Record store of networks that it has not seen (data/unseen.db).")
@click.option("--predictor", required=True, metavar="DIR", help="Predictor that `autofuse train` wrote.")
@click.option("--network", "networks", multiple=True, metavar="MODEL", help="Plan and run these unseen networks only.")
@click.option("--splits/--no-splits", default=True, show_default=True, help="Train on parts of the records.")
@click.option("--run/--no-run", default=True, show_default=True, help="Compile and run the unseen networks.")
@click.option("--save", is_flag=True, help="Keep the figures with the predictor: evaluation.json and evaluation.md.")
@click.option("-o", "--output", metavar="F.json", help="Write everything that was found out, too.")
@json_option
def command(
    db: str,
    unseen: str | None,
    predictor: str,
    networks: tuple[str, ...],
    splits: bool,
    run: bool,
    save: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Test a predictor on what it was not trained on, beside the analytical model and the noise of measurements.

    Errors and regrets are shares. Plan regret: how much slower the plan that the predictor chooses is than the one that
    measured latencies choose, by an independent measurement of their kernels.
    """
    for path in (db, unseen):
        if path is not None and not Path(path).is_file():
            raise RecordError(f"there is no record store {path}: make one with `autofuse collect MODEL --db {path}`")
    if output is not None:
        check_writable(output, PredictorError)
    from autofuse.learn.evaluate import evaluate

    with status("evaluating") as tell:
        found = evaluate(db, unseen, predictor, networks=networks or None, splits=splits, run=run, tell=tell)
    summary = found.summary()
    from autofuse.report.results import write_json, write_text

    if output is not None:
        write_json(Path(output), summary)
    if save:
        from autofuse.report.learning import evaluation_page

        write_json(Path(predictor) / "evaluation.json", summary)
        write_text(Path(predictor) / "evaluation.md", evaluation_page(summary))
    if as_json:
        print_json(summary)
    else:
        _print(found, summary)


def _print(found: Evaluation, summary: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    from autofuse.learn.card import metric_cells

    console = table_console()
    table = Table(title="errors on workloads not trained on", title_justify="left", box=box.SIMPLE)
    table.add_column("split", no_wrap=True)
    table.add_column("model", no_wrap=True)
    for name in ("rows", "MAPE", "in 5 %", "in 10 %", "in 20 %", "tau within", "tau across"):
        table.add_column(name, justify="right")
    tested = {**found.splits, **found.elsewhere}
    tested |= {"unseen networks": found.unseen} if found.unseen is not None else {}
    for split, result in tested.items():
        for number, (name, metrics) in enumerate(result.models.items()):
            title = "" if number else split
            table.add_row(title, name.replace("_", ", "), str(metrics.rows), *metric_cells(metrics.as_dict()))
    for digest, other in found.others.items():
        for split, part in (("workload", other.splits.get("workload")), ("unseen networks", other.unseen)):
            for number, (name, metrics) in enumerate(part.models.items() if part is not None else ()):
                title = "" if number else f"{split}, {found.names[digest]}"
                table.add_row(title, name.replace("_", ", "), str(metrics.rows), *metric_cells(metrics.as_dict()))
    if found.noise is not None:
        table.add_row("noise", "measured again", str(found.noise.rows), *metric_cells(found.noise.as_dict()))
    console.print(table)
    if found.networks:
        plans = Table(title="plans of unseen networks", title_justify="left", box=box.SIMPLE)
        plans.add_column("network", no_wrap=True)
        ways = list(found.networks[0].regrets)
        for name in (*(f"regret, {way.replace('_', ' ')}" for way in ways), "predicted, ms", "measured, ms"):
            plans.add_column(name, justify="right")
        for network in found.networks:
            cells = [f"{100 * network.regrets[way]:.2f} %" for way in ways]
            predicted, measured = network.predicted.get("learned"), network.measured
            times = ["-" if s is None else f"{1e3 * s:.3f}" for s in (predicted, measured)]
            plans.add_row(network.name, *cells, *times)
        console.print(plans)
    click.echo(json.dumps({"unseen_networks": summary["unseen_networks"], "analytical": summary["analytical"]}))
