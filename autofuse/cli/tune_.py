"""`autofuse tune`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofuse.cli.options import check_writable, input_shapes, json_option, print_json, status
from autofuse.cli.tables import table_console
from autofuse.errors import PlanError, RecordError

if TYPE_CHECKING:
    from autofuse.compiler import Analysed
    from autofuse.search.replay import ReplayNetwork
    from autofuse.search.tuning import TuningResult


@click.command("tune")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--db", metavar="FILE|none", default="none", help="Record store: its costs, and its models if none given."
)
@click.option("--predictor", metavar="DIR", help="Predictor that `autofuse train` wrote (default: as `compile`).")
@click.option("--trials", type=click.IntRange(min=1), default=100, show_default=True, help="Trials of the whole study.")
@click.option("--study", metavar="FILE", help="File that keeps the study; run again, it goes on where it stopped.")
@click.option("-o", "--output", metavar="F.json", help="Thresholds file (default: thresholds.json, in DIR if given).")
@click.option("--strategy", type=click.Choice(["dp", "hybrid"]), default="dp", show_default=True)
@click.option("--target", default="llvm", show_default=True, help="Target: llvm is this machine.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads that the models run with (default: all).")
@click.option("--input-shape", "shapes", multiple=True, metavar="NAME=N,...", help="Fix an input's shape.")
@click.option("--batch", type=click.IntRange(min=1), help="Batch size: the first axis of every input.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the trials.")
@click.option("--each", is_flag=True, help="Show each threshold off, at its default, as tuned, and tight.")
@click.option(
    "--check", "checked", multiple=True, metavar="MODEL", help="Try the result on this model too, untuned on."
)
@json_option
def command(
    models: tuple[str, ...],
    db: str,
    predictor: str | None,
    trials: int,
    study: str | None,
    output: str | None,
    strategy: str,
    target: str,
    threads: int | None,
    shapes: tuple[str, ...],
    batch: int | None,
    seed: int,
    each: bool,
    checked: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tune the search's thresholds on MODELs by replaying costs: nothing is compiled and nothing is timed.

    The result is the fastest search that costs no network more than 1 % of its best plan found. With a predictor and a
    record store, searches know what the predictor says, and plans cost what the records say.
    """
    given = input_shapes(shapes)
    if db != "none" and not Path(db).is_file():
        raise RecordError(f"there is no record store {db}: make one with `autofuse collect MODEL --db {db}`")
    if predictor:
        from autofuse.learn.predictor import check_predictor

        check_predictor(predictor)
    written = Path(output or (Path(predictor) / "thresholds.json" if predictor else "thresholds.json"))
    for path in (written, *([Path(study)] if study else [])):
        check_writable(path, PlanError)
    start = time.perf_counter()
    from autofuse.compiler import analyse
    from autofuse.search.problem import Thresholds
    from autofuse.search.thresholds import save_thresholds
    from autofuse.search.tuning import evaluate, tune

    _check_use(db)
    names = models or _recorded_models(db)
    with status("tuning") as tell:

        def network(name: str) -> ReplayNetwork:
            def say(step: str) -> None:
                tell(f"{name}: {step}")

            model = analyse(name, target=target, threads=threads, input_shapes=given, batch=batch, progress=say)
            return _network(name, model, db, predictor)

        networks = [network(name) for name in names]
        others = [network(name) for name in checked]
    with _bar(trials) as progress:
        result = tune(networks, trials=trials, strategy=strategy, seed=seed, study=study, progress=progress)
    others_report: dict[str, Any] = {}
    if others:
        usual, tuned = (evaluate(others, t, strategy) for t in (Thresholds(), result.chosen.thresholds))
        others_report = {"checked": {"default": usual.as_dict(usual.costs), "chosen": tuned.as_dict(usual.costs)}}
    if each:
        from autofuse.search.threshold_table import effects

        with status("each threshold") as tell:
            found = effects([*networks, *others], result.chosen.thresholds, strategy, tell)
        others_report["each"] = [effect.as_dict() for effect in found]
    origin = {
        "models": [n.name for n in networks],
        "batch": batch,
        "input_shapes": {name: list(shape) for name, shape in (given or {}).items()},
        "strategy": strategy,
        "predictor": predictor,
        "trials": result.trials,
        "plan_cost": result.chosen.ratio(result.best),
        "search_seconds": result.chosen.seconds,
    }
    save_thresholds(result.chosen.thresholds, written, origin)
    report: dict[str, Any] = {
        "output": str(written),
        "models": [n.name for n in networks],
        "strategy": strategy,
        "predictor": predictor,
        "db": None if db == "none" else db,
        "trials": result.trials,
        "new_trials": result.new_trials,
        "failed": result.failed,
        "interrupted": result.interrupted,
        "study": study,
        "chosen": result.chosen.as_dict(result.best),
        "default": result.default.as_dict(result.best),
        "pareto": [o.as_dict(result.best) for o in result.pareto],
        **others_report,
        "seconds": round(time.perf_counter() - start, 3),
    }
    if as_json:
        print_json(report)
    else:
        _print(result, report)


def _check_use(db: str) -> None:
    """RecordError for a store that is kept for evaluation: thresholds would be fitted to it."""
    if db == "none":
        return
    from autofuse.records import open_store

    with open_store(db, readonly=True) as store:
        if store.evaluation_only:
            raise RecordError(f"{db}: its records are kept for evaluation alone, nothing is tuned on them")


def _recorded_models(db: str) -> tuple[str, ...]:
    """The models of the record store that can be opened: zoo networks and files that are there."""
    if db == "none":
        raise PlanError("name at least one MODEL, or give --db FILE to tune on the models whose records it holds")
    from autofuse.frontend.zoo import names
    from autofuse.records import open_store

    with open_store(db, readonly=True) as store:
        known = store.stats().models
    found = tuple(name for name in known if name in names() or Path(name).is_file())
    if not found:
        raise PlanError(f"none of the models in {db} ({', '.join(known) or 'it has none'}) is here: name at least one")
    for name in known:
        if name not in found:
            click.echo(f"warning: model {name} of {db} is not here and is left out", err=True)
    return found


def _network(name: str, analysed: Analysed, db: str, predictor: str | None) -> ReplayNetwork:
    """The graph of a model with its costs; the model itself is let go of."""
    from autofuse.chosen import choose_cost_model
    from autofuse.codegen.fuse_ops import fuse_ops_partition
    from autofuse.graph.keys import graph_digest
    from autofuse.schedule.registry import families
    from autofuse.search.replay import ReplayedCosts, ReplayNetwork

    partition = fuse_ops_partition(analysed.lowered.module, analysed.built)
    known = ReplayedCosts(choose_cost_model(analysed, None, predictor, db))
    told = known
    if predictor is not None and db != "none":
        told = ReplayedCosts(choose_cost_model(analysed, None, predictor, None))
    return ReplayNetwork(
        name=name,
        digest=graph_digest(analysed.graph),
        graph=analysed.graph,
        costs=told,
        hardware=analysed.hardware,
        families=families(analysed.hardware.kind),
        greedy=tuple(tuple(sorted(members)) for members in partition),
        judge=known if told is not known else None,
    )


@contextmanager
def _bar(trials: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; nothing when stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("trials", total=trials)
        yield lambda finished, total: bar.update(task, completed=finished, total=total)


def _print(result: TuningResult, report: dict[str, Any]) -> None:
    from dataclasses import asdict

    from rich.table import Table

    table = Table()
    table.add_column("threshold")
    table.add_column("default", justify="right")
    table.add_column("tuned", justify="right")
    usual, tuned = asdict(result.default.thresholds), asdict(result.chosen.thresholds)
    for name, value in usual.items():
        table.add_row(name, f"{value:g}", f"{tuned[name]:g}" if tuned[name] != value else "")
    table.add_section()
    rows = [(result.default, report["default"]), (result.chosen, report["chosen"])]
    for title, cells in (
        ("plan cost over the best", [f"{r['plan_cost']:.4f}" for _, r in rows]),
        ("search effort, s", [f"{o.seconds:.3f}" for o, _ in rows]),
        ("proved optimal", [f"{len(o.proved)}/{len(o.costs)}" for o, _ in rows]),
    ):
        table.add_row(title, *cells)
    table_console().print(table)
    for name, outcome in report.get("checked", {}).items():
        click.echo(
            f"models not tuned on, {name}: plan cost {outcome['plan_cost']:.4f} of the default's, search effort"
            f" {outcome['search_seconds']:.3f} s"
        )
    if "each" in report:
        _print_each(report["each"])
    if result.interrupted:
        click.echo(f"interrupted after {result.trials} trials")
    if tuned["abort_factor"] < 1:
        click.echo("an abort factor below 1 means that plans are no longer proved optimal")
    click.echo(f"{result.trials} trials ({result.new_trials} new), {len(result.pareto)} on the Pareto front")
    click.echo(f"wrote {report['output']}")


def _print_each(effects: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("threshold", "", title="each threshold by itself, plan cost over the default's")
    for heading in ("value", "plan cost", "search effort, s"):
        table.add_column(heading, justify="right")
    for effect in effects:
        title = effect["name"] + ("" if effect["matters"] else " (changes nothing)")
        for name in ("off", "default", "tuned", "tight"):
            cost, seconds = effect[name]["plan_cost"], effect[name]["search_seconds"]
            known = ("no plan", "") if cost is None or seconds is None else (f"{cost:.4f}", f"{seconds:.3f}")
            table.add_row(title, name, f"{effect[name]['value']:g}", *known, end_section=name == "tight")
            title = ""
    table_console().print(table)
