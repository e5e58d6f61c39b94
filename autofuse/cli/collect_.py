"""`autofuse collect`."""

from __future__ import annotations

from typing import Any

import click

from autofuse.cli.options import input_shapes, json_option, print_json, status
from autofuse.errors import InputError


@click.command("collect")
@click.argument("models", nargs=-1, metavar="MODEL...")
@click.option("--zoo", "whole_zoo", is_flag=True, help="All networks of the zoo.")
@click.option("--db", required=True, metavar="FILE", help="Record store; made if it is not there.")
@click.option("--target", default="llvm", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads to measure with (default: all processors).")
@click.option("--input-shape", "shapes", multiple=True, metavar="NAME=N,...", help="Fix an input's shape.")
@click.option("--batch", type=click.IntRange(min=1))
@click.option("--budget", metavar="TIME", help="Stop after this long, e.g. 90s, 10m, 2h.")
@click.option("--trials", type=click.IntRange(min=1), help="Stop after so many measurements.")
@click.option("--configs", type=click.IntRange(min=1), default=4, show_default=True, help="Configurations a group.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured, measure nothing.")
@json_option
def command(
    models: tuple[str, ...],
    whole_zoo: bool,
    db: str,
    target: str,
    threads: int | None,
    shapes: tuple[str, ...],
    batch: int | None,
    budget: str | None,
    trials: int | None,
    configs: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure candidate kernels of MODEL... on this machine into a record store.

    Groups of the greedy and the present best plans come first. Run again, it goes on where it stopped.
    """
    from autofuse.compiler import analyse, choose_cost_model, problem_of
    from autofuse.measure.collection import CollectSettings, collect
    from autofuse.measure.kernels import KernelSource, items_of
    from autofuse.measure.order import in_order
    from autofuse.records import RecordedHardware, open_store
    from autofuse.schedule.registry import families
    from autofuse.search.strategies import strategy
    from autofuse.target import fingerprint

    seconds = _seconds(budget) if budget else None
    names = list(models)
    if whole_zoo:
        from autofuse.frontend import zoo

        names += [n for n in zoo.names() if n not in names]
    if not names:
        raise InputError("name at least one model, or --zoo")
    analysed, items = [], []
    with status("collecting") as tell:
        for name in names:
            tell(f"analysing {name}")
            model = analyse(name, target=target, threads=threads, batch=batch, input_shapes=input_shapes(shapes))
            costs = choose_cost_model(model, "analytical", None, None)
            problem = problem_of(model, costs)
            planned = {c.group for s in ("greedy", "dp") for c in strategy(s).search(problem).choices}
            groups = dict.fromkeys(c.group for c in problem.choices if c.family)
            kinds = families(model.hardware.kind)
            items += items_of(groups, kinds, model.hardware, model.graph.name, configs, planned)
            analysed.append(model)
        ordered = in_order(items, costs)
    if dry_run:
        keys = {(i.key, i.candidate.family.name, i.candidate.config.text) for i in ordered}
        report = {"models": names, "candidates": len(keys), "workloads": len({i.key for i in ordered})}
        if as_json:
            print_json(report)
        else:
            click.echo(f"{report['candidates']} candidates of {report['workloads']} workloads in {len(names)} models")
        return
    from autofuse.measure import LocalRunner, PoolBuilder

    pool = analysed[0].target.threads
    with (
        open_store(db) as store,
        LocalRunner(pool) as runner,
        PoolBuilder(2) as builder,
        KernelSource(analysed) as source,
        _Bar(len(ordered)) as bar,
    ):
        stats = collect(
            ordered,
            store,
            runner,
            builder,
            RecordedHardware.of(fingerprint(pool)),
            source.request,
            source.reference,
            CollectSettings(budget=seconds, trials=trials),
            bar.update,
        )
        kept = store.stats().as_dict()
    if as_json:
        print_json({**_counts(stats), "store": kept})
        return
    click.echo(
        f"{stats.measured} measured, {stats.failed} failed, {stats.cached} already there, {stats.left} left"
        f" in {stats.seconds:.0f} s; {db} holds {kept['ok']} records of {kept['workloads']} workloads"
    )


def _counts(stats: Any) -> dict[str, Any]:
    keys = ("measured", "failed", "cached", "skipped", "left", "seconds", "interrupted", "failures")
    return {k: getattr(stats, k) for k in keys}


def _seconds(text: str) -> float:
    """ "90s", "10m", "2h" or plain seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if value <= 0:
        raise InputError(f"--budget {text!r} is no time: write 90s, 10m or 2h")
    return value


class _Bar:
    """Progress on stderr with counts, rate and time left; nothing when it is no terminal."""

    def __init__(self, total: int) -> None:
        self._total = total

    def __enter__(self) -> _Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.fields[counts]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.description}"), console=console, transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total, counts="")
        return self

    def update(self, stats: Any, text: str) -> None:
        """Show the counts so far and what was just done."""
        if self._bar is None:
            return
        done = stats.measured + stats.failed + stats.cached + stats.skipped
        counts = f"measured {stats.measured} failed {stats.failed} cached {stats.cached}"
        self._bar.update(self._task, completed=done, description=text[:60], counts=counts)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
