"""`autofuse collect`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofuse.cli.collect_bar import CollectBar
from autofuse.cli.options import address, check_writable, duration, input_shapes, json_option, print_json, status
from autofuse.errors import InputError, RecordError

if TYPE_CHECKING:
    from autofuse.compiler import Analysed
    from autofuse.cost.model import CostModel
    from autofuse.measure import Builder, CollectItem
    from autofuse.records import Identity, RecordStore
    from autofuse.target import Hardware


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
    "--explore", type=click.IntRange(min=0), default=2, show_default=True,
    help="Others a group: at random, with --predictor half of them where it is least sure.",
)  # fmt: skip
@click.option("--per-model", type=click.IntRange(min=1), help="No more than so many a model, the most useful ones.")
@click.option(
    "--cost-model", type=click.Choice(["analytical", "learned"]),
    help="What says what plans are best, where nothing is recorded (default: as `compile`).",
)  # fmt: skip
@click.option("--predictor", metavar="DIR", help="Predictor that says what plans are best, and where it is not sure.")
@click.option("--again", type=click.IntRange(min=0), default=0, help="So many kernels are measured twice: noise.")
@click.option("--evaluation", is_flag=True, help="Keep the store for evaluation: nothing is ever learned from it.")
@click.option("--rpc", metavar="HOST:PORT", help="Measure on the devices of this tracker (see `autofuse serve`).")
@click.option("--key", metavar="NAME", help="The devices' key, with --rpc.")
@click.option(
    "--device", metavar="DEVICE",
    help="For a GPU --target: opencl:NAME, rocm, cuda, rocm:1 (default: the first GPU that there is).",
)  # fmt: skip
@click.option("--opencl", metavar="NAME", help="The same as --device opencl:NAME.")
@click.option("--dask", metavar="ADDRESS", help="Build on the workers of this dask.distributed scheduler.")
@click.option(
    "--lines", metavar="TIME", help="Where there is no terminal for a bar: a line of progress every so often, e.g. 30s."
)
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
    per_model: int | None,
    cost_model: str | None,
    predictor: str | None,
    again: int,
    evaluation: bool,
    rpc: str | None,
    key: str | None,
    device: str | None,
    opencl: str | None,
    dask: str | None,
    lines: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measure candidate kernels of MODEL... into a record store, on this machine or on the devices of a tracker.

    Groups of the greedy and the present best plans come first. Run again, it goes on where it stopped. Devices of
    several hardware take turns: what is measured is what each one's own target is compiled to.
    """
    seconds = duration("--budget", budget) if budget is not None else None
    often = duration("--lines", lines) if lines is not None else None
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
    if cost_model == "analytical" and predictor is not None:
        raise InputError("--predictor is not used with --cost-model analytical: give one of them")
    if opencl is not None and device is not None:
        raise InputError("--opencl and --device name the same: give one of them")
    device = f"opencl:{opencl}" if opencl is not None else device
    if device is not None and rpc is not None:
        raise InputError("the device is the server's own with --rpc: autofuse serve --target dcu --device DEVICE")
    given = input_shapes(shapes)
    if not Path(db).exists():
        check_writable(db, RecordError)

    def candidates(place: _Place) -> tuple[list[Analysed], list[CollectItem], list[CollectItem]]:
        wanted = _Wanted(
            tuple(names), threads, batch, given, configs, explore, per_model, cost_model, predictor, db,
            often is not None,
        )  # fmt: skip
        return _candidates(wanted, place, dry_run)

    from autofuse.measure.process import MeasureError

    with ExitStack() as stack:
        places = _devices(stack, rpc, key) if rpc and key else [_here(stack, target, device)]
        if dask is not None and any(place.form for place in places):
            raise InputError("kernels for a GPU are built on this machine: leave out --dask")
        if dry_run:
            _say_candidates(names, candidates(places[0])[1], as_json)
            return
        from autofuse.measure import CollectSettings, PoolBuilder, collect
        from autofuse.measure.farm import dask_builder
        from autofuse.measure.gpu_runner import gpu_builder
        from autofuse.measure.kernels import KernelSource
        from autofuse.measure.settings import BATCH, PASSES
        from autofuse.records import RecordedHardware, open_store
        from autofuse.target.host import processors

        # The store comes last: what fails before leaves none behind.
        first = candidates(places[0])
        # The budget is for building and measuring: what a model takes to analyse does not count.
        end = None if seconds is None else time.monotonic() + seconds
        builders: dict[str, Builder] = {}
        for place in places:
            if place.form not in builders:
                if place.form:
                    made: Builder = gpu_builder(processors(), place.form)
                else:
                    made = dask_builder(dask) if dask else PoolBuilder(processors())
                builders[place.form] = stack.enter_context(made)
        store = stack.enter_context(open_store(db))
        if evaluation:
            store.keep_for_evaluation()
        done: list[tuple[str, Any]] = []
        failed: list[MeasureError] = []
        for place in places:
            analysed, ordered, found = first if place is places[0] else candidates(place)
            row, runner = place.row(analysed[0].target), place.runner(analysed[0].target)
            so_far = sum(s.done + s.skipped for _, s in done)
            settings = CollectSettings(
                budget=None if end is None else max(0.0, end - time.monotonic()),
                trials=None if trials is None else max(0, trials - so_far),
                again=again,
                batch=BATCH,
                passes=PASSES,
            )
            source = KernelSource(analysed)
            with CollectBar(settings.budget, settings.trials, often) as bar:
                try:
                    stats = collect(
                        ordered, store, runner, builders[place.form], RecordedHardware.of(row), source.request,
                        source.reference, settings, bar.update, found,
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
        skipped = f", {stats.skipped} skipped" if stats.skipped else ""
        waiting = f", {stats.again} of them to be timed again by the next run" if stats.again else ""
        click.echo(
            f"{stats.measured} measured{where}{waiting}, {stats.failed} failed, {stats.cached} already there{skipped},"
            f" {stats.left} left in {stats.seconds:.0f} s ({stats.rate:.1f}/s); {db} holds {kept['ok']} records of"
            f" {kept['workloads']} workloads"
        )
        for said in stats.skips:
            click.echo(said, err=True)
        if seconds is not None and stats.left and not (stats.measured or stats.failed or stats.interrupted):
            click.echo("time ran out before the first kernel was measured: give a longer --budget", err=True)


class _Place:
    """Where kernels are measured: `row` and `runner` give the hardware row, and the runner, for a resolved target.

    form: of the code that a GPU there takes, "" for CPUs.
    """

    def __init__(self, target: str, row: Callable[[Any], Any], runner: Callable[[Any], Any], form: str = "") -> None:
        self.target = target
        self.row = row
        self.runner = runner
        self.form = form


def _here(stack: ExitStack, target: str, wanted: str | None) -> _Place:
    from autofuse.measure import LocalRunner
    from autofuse.target import hardware_row, resolve

    chosen = resolve(target)
    if chosen.device != "gpu":
        if wanted is not None:
            raise InputError(f"a device measures kernels for a GPU: give --target, e.g. dcu, not {target!r}")
        return _Place(target, hardware_row, lambda made: stack.enter_context(LocalRunner(made.threads)))
    from autofuse.device.choose import device_of, first_device
    from autofuse.measure.gpu_runner import GpuRunner, forms_of, gpu_row
    from autofuse.target.needs import CODE_MAKERS, code_maker

    forms = [form for form in forms_of(chosen) if form not in CODE_MAKERS or code_maker(form)]
    device = device_of(wanted) if wanted is not None else first_device(chosen.kind, forms)
    return _Place(
        target,
        lambda made: gpu_row(made, device),
        lambda made: stack.enter_context(GpuRunner(device.text, made)),
        device.form,
    )


def _devices(stack: ExitStack, rpc: str, key: str) -> list[_Place]:
    """A place for each hardware among the devices."""
    from autofuse.measure.gpu_runner import form_of
    from autofuse.measure.remote import RpcRunner

    runner = RpcRunner(*address(rpc, "--rpc"), key)
    stack.enter_context(runner)

    def place(row: Any, target: str) -> _Place:
        def take(_: Any) -> RpcRunner:
            runner.select(row.digest)
            return runner

        return _Place(target, lambda _: row, take, form_of(row))

    return [place(row, target) for row, target in runner.hardware()]


@dataclass(frozen=True)
class _Wanted:
    """What is to be collected: models, how they are compiled, how much of their groups, and what is known already."""

    names: tuple[str, ...]
    threads: int | None
    batch: int | None
    shapes: Any
    configs: int
    explore: int
    per_model: int | None
    cost_model: str | None
    predictor: str | None
    db: str
    lines: bool


def _candidates(
    wanted: _Wanted, place: _Place, dry_run: bool
) -> tuple[list[Analysed], list[CollectItem], list[CollectItem]]:
    """The models as analysed for a place's target, what to measure of them, in order, and all that this is chosen from.

    The plans that are best at present come from what is known: records of this hardware, else the predictor, else the
    analytical model; or, if that is asked for, the analytical model whatever predictor is there.
    """
    from autofuse.chosen import choose_cost_model
    from autofuse.compiler import analyse, problem_of
    from autofuse.cost.weights import weights_are_cold
    from autofuse.measure.kernels import items_of
    from autofuse.measure.order import in_order, most_useful
    from autofuse.records import open_store
    from autofuse.records.model import RecordedCostModel
    from autofuse.schedule.registry import families
    from autofuse.search.strategies import strategy

    analysed: list[Analysed] = []
    items: list[CollectItem] = []
    every: list[CollectItem] = []
    hot: CostModel | None = None
    with status("collecting", wanted.lines) as tell, ExitStack() as stack:
        known = stack.enter_context(open_store(wanted.db, readonly=dry_run)) if Path(wanted.db).exists() else None
        for name in wanted.names:
            tell(f"analysing {name}")
            model = analyse(
                name, target=place.target, threads=wanted.threads, batch=wanted.batch, input_shapes=wanted.shapes,
            )  # fmt: skip
            costs = choose_cost_model(model, wanted.cost_model, wanted.predictor, None)
            digest = place.row(model.target).digest
            if known is not None:
                costs = RecordedCostModel(known, digest, costs, cold=weights_are_cold(model.graph, model.hardware))
            tell(f"planning {name}")
            problem = problem_of(model, costs)
            plans = [c for s in ("greedy", "dp") for c in strategy(s).search(problem).choices]
            groups = dict.fromkeys(c.group for c in problem.choices if c.family)
            kinds = families(model.hardware.kind)
            found = items_of(
                groups, kinds, model.hardware, model.graph.name, wanted.configs, plans, wanted.explore, costs
            )
            hot = hot or _hot_costs(model.hardware, wanted)
            every += found
            if wanted.per_model is not None:
                found = most_useful(found, hot, wanted.per_model, partial(_recorded, known, digest))
            items += found
            analysed.append(model)
        tell("ordering")
        return analysed, in_order(items, hot) if hot else [], every


def _recorded(store: RecordStore | None, hardware: str, identities: Sequence[Identity]) -> list[bool]:
    """Which of the kernels the store has a record of, on the hardware with this digest."""
    if store is None:
        return [False] * len(identities)
    return [known is not None for known in store.lookup([replace(i, hardware=hardware) for i in identities])]


def _hot_costs(hardware: Hardware, wanted: _Wanted) -> CostModel:
    """Costs with weights in the cache, which those of several networks can be compared by."""
    from autofuse.chosen import choose_predictor

    predictor = choose_predictor(hardware, wanted.cost_model, wanted.predictor)
    if predictor is not None:
        from autofuse.learn import load_predictor

        return load_predictor(predictor, hardware)
    from autofuse.cost.kinds import analytical_costs

    return analytical_costs(hardware)


def _say_candidates(names: list[str], ordered: list[CollectItem], as_json: bool) -> None:
    from autofuse.records.identity import identity_of

    keys = {identity_of(item.candidate, item.key, "") for item in ordered}
    report = {"models": names, "candidates": len(keys), "workloads": len({i.key for i in ordered})}
    if as_json:
        print_json(report)
    else:
        click.echo(f"{report['candidates']} candidates of {report['workloads']} workloads in {len(names)} models")


def _counts(stats: list[Any]) -> dict[str, Any]:
    """The counts of several runs together."""
    keys = ("measured", "failed", "cached", "skipped", "left", "again", "seconds")
    counts = {k: sum(getattr(s, k) for s in stats) for k in keys}
    return {
        **counts,
        "rate": (counts["measured"] + counts["failed"]) / counts["seconds"] if counts["seconds"] else 0.0,
        "interrupted": any(s.interrupted for s in stats),
        "failures": [f for s in stats for f in s.failures],
        "skips": [f for s in stats for f in s.skips],
    }
