"""`autofuse collect`."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofuse.cli.options import address, check_writable, input_shapes, json_option, print_json, status
from autofuse.errors import InputError, RecordError

if TYPE_CHECKING:
    from autofuse.compiler import Analysed
    from autofuse.measure.order import CollectItem


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
@click.option(
    "--configs", type=click.IntRange(min=1), default=4, show_default=True, help="First configurations a group."
)
@click.option(
    "--explore", type=click.IntRange(min=0), default=2, show_default=True, help="Others a group, drawn at random."
)
@click.option("--rpc", metavar="HOST:PORT", help="Measure on the devices of this tracker (see `autofuse serve`).")
@click.option("--key", metavar="NAME", help="The devices' key, with --rpc.")
@click.option("--dask", metavar="ADDRESS", help="Build on the workers of this dask.distributed scheduler.")
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
    explore: int,
    rpc: str | None,
    key: str | None,
    dask: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure candidate kernels of MODEL... into a record store, on this machine or on the devices of a tracker.

    Groups of the greedy and the present best plans come first. Run again, it goes on where it stopped. Devices of
    several hardware take turns: what is measured is what each one's own target is compiled to.
    """
    seconds = _seconds(budget) if budget is not None else None
    names = list(models)
    if whole_zoo:
        from autofuse.frontend import zoo

        names += [n for n in zoo.names() if n not in names]
    if not names:
        raise InputError("name at least one model, or --zoo")
    if (rpc is None) != (key is None):
        raise InputError("--rpc and --key go together: --rpc HOST:PORT --key NAME")
    if rpc is not None and (threads is not None or target != "llvm"):
        raise InputError("--target and --threads are the devices' own with --rpc: autofuse serve --threads N")
    given = input_shapes(shapes)
    if not Path(db).exists():
        check_writable(db, RecordError)

    def candidates(goal: str) -> tuple[list[Analysed], list[CollectItem]]:
        return _candidates(names, goal, threads, batch, given, configs, explore)

    from autofuse.measure.process import MeasureError

    with ExitStack() as stack:
        places = _devices(stack, rpc, key) if rpc and key else [_here(stack, target)]
        if dry_run:
            _say_candidates(names, candidates(places[0].target)[1], as_json)
            return
        from autofuse.measure import CollectSettings, PoolBuilder, collect
        from autofuse.measure.farm import dask_builder
        from autofuse.measure.kernels import KernelSource
        from autofuse.records import RecordedHardware, open_store

        # The store comes last: what fails before leaves none behind.
        prepared = {places[0].target: candidates(places[0].target)}
        # The budget is for building and measuring: what a model takes to analyse does not count.
        end = None if seconds is None else time.monotonic() + seconds
        builder = stack.enter_context(dask_builder(dask) if dask else PoolBuilder(2))
        store = stack.enter_context(open_store(db))
        done: list[tuple[str, Any]] = []
        failed: list[MeasureError] = []
        for place in places:
            known = place.target in prepared
            analysed, ordered = prepared.pop(place.target) if known else candidates(place.target)
            row, runner = place.take(analysed[0].target)
            so_far = sum(s.done + s.skipped for _, s in done)
            settings = CollectSettings(
                budget=None if end is None else max(0.0, end - time.monotonic()),
                trials=None if trials is None else max(0, trials - so_far),
            )
            with KernelSource(analysed) as source, _Bar(len(ordered)) as bar:
                try:
                    stats = collect(
                        ordered, store, runner, builder, RecordedHardware.of(row), source.request, source.reference,
                        settings, bar.update,
                    )  # fmt: skip
                except MeasureError as error:
                    failed.append(error)
                    continue
            done.append((row.digest, stats))
            if stats.interrupted:
                break
        if failed and not done:
            raise failed[0]
        for missed in failed:
            warnings.warn(str(missed), stacklevel=2)
        kept = store.stats().as_dict()
    if as_json:
        print_json({**_counts([s for _, s in done]), "hardware": {d: _counts([s]) for d, s in done}, "store": kept})
        return
    for digest, stats in done:
        where = f" on {digest}" if len(places) > 1 else ""
        click.echo(
            f"{stats.measured} measured{where}, {stats.failed} failed, {stats.cached} already there, {stats.left} left"
            f" in {stats.seconds:.0f} s; {db} holds {kept['ok']} records of {kept['workloads']} workloads"
        )


class _Place:
    """Where kernels are measured: `take` gives the hardware row, and the runner, for a resolved target."""

    def __init__(self, target: str, take: Callable[[Any], tuple[Any, Any]]) -> None:
        self.target = target
        self.take = take


def _here(stack: ExitStack, target: str) -> _Place:
    from autofuse.measure import LocalRunner
    from autofuse.target import hardware_row

    return _Place(target, lambda chosen: (hardware_row(chosen), stack.enter_context(LocalRunner(chosen.threads))))


def _devices(stack: ExitStack, rpc: str, key: str) -> list[_Place]:
    """A place for each hardware among the devices."""
    from autofuse.measure.remote import RpcRunner

    runner = RpcRunner(*address(rpc, "--rpc"), key)
    stack.enter_context(runner)

    def place(row: Any, target: str) -> _Place:
        def take(_: Any) -> tuple[Any, RpcRunner]:
            runner.select(row.digest)
            return row, runner

        return _Place(target, take)

    return [place(row, target) for row, target in runner.hardware()]


def _candidates(
    names: list[str], target: str, threads: int | None, batch: int | None, shapes: Any, configs: int, explore: int
) -> tuple[list[Analysed], list[CollectItem]]:
    """The models as analysed for a target, and what to measure of them, in order."""
    from autofuse.compiler import analyse, choose_cost_model, problem_of
    from autofuse.measure.kernels import items_of
    from autofuse.measure.order import in_order
    from autofuse.schedule.registry import families
    from autofuse.search.strategies import strategy

    analysed, items = [], []
    with status("collecting") as tell:
        for name in names:
            tell(f"analysing {name}")
            model = analyse(name, target=target, threads=threads, batch=batch, input_shapes=shapes)
            costs = choose_cost_model(model, "analytical", None, None)
            problem = problem_of(model, costs)
            planned = {c.group for s in ("greedy", "dp") for c in strategy(s).search(problem).choices}
            groups = dict.fromkeys(c.group for c in problem.choices if c.family)
            kinds = families(model.hardware.kind)
            items += items_of(groups, kinds, model.hardware, model.graph.name, configs, planned, explore)
            analysed.append(model)
        return analysed, in_order(items, costs)


def _say_candidates(names: list[str], ordered: list[CollectItem], as_json: bool) -> None:
    keys = {(i.key, i.candidate.family.name, i.candidate.config.text) for i in ordered}
    report = {"models": names, "candidates": len(keys), "workloads": len({i.key for i in ordered})}
    if as_json:
        print_json(report)
    else:
        click.echo(f"{report['candidates']} candidates of {report['workloads']} workloads in {len(names)} models")


def _counts(stats: list[Any]) -> dict[str, Any]:
    """The counts of several runs together."""
    keys = ("measured", "failed", "cached", "skipped", "left", "seconds")
    return {
        **{k: sum(getattr(s, k) for s in stats) for k in keys},
        "interrupted": any(s.interrupted for s in stats),
        "failures": [f for s in stats for f in s.failures],
    }


def _seconds(text: str) -> float:
    """ "90s", "10m", "2h" or plain seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
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
