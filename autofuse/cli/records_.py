"""`autofuse records ls | show | stats | noise | export | import | merge | prune | verify | revalidate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from autofuse.cli.options import input_shapes, json_option, print_json, status
from autofuse.cli.tables import table_console
from autofuse.errors import InputError, RecordError
from autofuse.records.record import record_to_dict

if TYPE_CHECKING:
    from autofuse.records.store import RecordStore


@click.group("records")
def command() -> None:
    """Look into, exchange, check and clean record stores."""


@command.command("stats")
@click.argument("db")
@json_option
def stats(db: str, as_json: bool) -> None:
    """Counts of what DB holds."""
    from autofuse.records import open_store

    with open_store(db, readonly=True) as store:
        counts = store.stats().as_dict()
    if as_json:
        print_json(counts)
        return
    click.echo(f"{counts['ok']} records and {counts['failed']} failures of {counts['workloads']} workloads")
    if counts["evaluation_only"]:
        click.echo("kept for evaluation: nothing is learned from it")
    click.echo(f"models    {', '.join(counts['models']) or 'none'}")
    click.echo(f"hardware  {', '.join(counts['hardware']) or 'none'}")
    for name, count in counts["families"].items():
        click.echo(f"{name:12s}{count}")


@command.command("ls")
@click.argument("db")
@click.option("--family", help="Only records of this schedule family.")
@click.option("--status", "wanted", help="Only records with this status: ok, wrong, build_failed, crashed, ...")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@json_option
def ls(db: str, family: str | None, wanted: str | None, limit: int, as_json: bool) -> None:
    """List records."""
    from autofuse.records import open_store

    rows: list[dict[str, Any]] = []
    with open_store(db, readonly=True) as store:
        labels = {w.key: w.label for w in store.workloads()}
        for record in store.records():
            if (family and record.family != family) or (wanted and record.status != wanted):
                continue
            rows.append(
                {
                    "workload": record.workload,
                    "label": labels.get(record.workload, ""),
                    "family": record.family,
                    "config": record.config,
                    "status": record.status,
                    "microseconds": record.latency * 1e6 if record.latency else None,
                    "created": record.created,
                }
            )
            if len(rows) == limit:
                break
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("workload", "group", "family", "configuration", "status", "µs")
    for row in rows:
        time = "" if row["microseconds"] is None else f"{row['microseconds']:.2f}"
        table.add_row(row["workload"][:12], row["label"], row["family"], row["config"], row["status"], time)
    table_console().print(table)


@command.command("show")
@click.argument("db")
@click.argument("workload")
@json_option
def show(db: str, workload: str, as_json: bool) -> None:
    """Everything known of one workload; the start of its key is enough."""
    from autofuse.records import open_store

    with open_store(db, readonly=True) as store:
        found = [w for w in store.workloads() if w.key.startswith(workload)]
        if len(found) != 1:
            several = f"{len(found)} workloads start" if found else "no workload starts"
            raise RecordError(f"{several} with {workload!r} in {db}; `autofuse records ls {db}` lists them")
        chosen = found[0]
        records = list(store.records(workload=chosen.key))
        models = store.models(chosen.key)
    if as_json:
        print_json(
            {
                "workload": chosen.key,
                "label": chosen.label,
                "text": chosen.text,
                "models": list(models),
                "records": [record_to_dict(r) for r in records],
            }
        )
        return
    click.echo(f"{chosen.key}  {chosen.label}  in {', '.join(models)}")
    click.echo(chosen.text)
    for record in sorted(records, key=lambda r: r.latency or float("inf")):
        time = f"{record.latency * 1e6:10.2f} µs" if record.latency else f"{record.status}: {record.message}"
        time += f", {record.cold_latency * 1e6:.2f} µs with cold weights" if record.cold_latency else ""
        click.echo(f"  {record.family}[{record.config}]  {time}")


@command.command("export")
@click.argument("db")
@click.option("-o", "--output", required=True, metavar="F.jsonl")
def export(db: str, output: str) -> None:
    """Write DB as sorted JSON lines."""
    from autofuse.records import open_store

    with open_store(db, readonly=True) as store:
        count = store.export_lines(output)
    click.echo(f"wrote {count} records to {output}")


@command.command("import")
@click.argument("db")
@click.argument("source", metavar="F.jsonl")
def import_lines(db: str, source: str) -> None:
    """Add the records of a file of JSON lines to DB, all or nothing."""
    from autofuse.records import open_store

    with open_store(db) as store:
        count = store.import_lines(source)
    click.echo(f"{count} records were new")


@command.command("merge")
@click.argument("db")
@click.argument("others", nargs=-1, required=True, metavar="OTHER.db...")
def merge(db: str, others: tuple[str, ...]) -> None:
    """Take over the records of other stores into DB; doing it twice changes nothing."""
    from autofuse.records import open_store

    with open_store(db) as store:
        for other in others:
            with open_store(other, readonly=True) as source:
                count = store.merge(source)
            click.echo(f"{other}: {count} records were new")


@command.command("noise")
@click.argument("db")
@click.argument("others", nargs=-1, metavar="[OTHER.db]...")
@click.option("--hardware", metavar="DIGEST", help="Only records of this hardware; the start of its digest is enough.")
@json_option
def noise_(db: str, others: tuple[str, ...], hardware: str | None, as_json: bool) -> None:
    """How well repeated measurements of one kernel agree, in DB or across it and OTHER collections of the same kernels.

    Pairs of records of one kernel on one hardware; the difference of a pair is relative to its mean.
    """
    from autofuse.records import MemoryStore, open_store
    from autofuse.records.noise import noise

    with open_store(db, readonly=True) as store:
        if not others:
            report = noise(store, _digest(store, db, hardware))
        else:
            together = MemoryStore()
            together.keep_for_evaluation()  # nothing is learned from it
            together.merge(store)
            for other in others:
                with open_store(other, readonly=True) as more:
                    together.merge(more)
            report = noise(together, _digest(together, " ".join((db, *others)), hardware))
    if as_json:
        print_json(report.as_dict())
        return
    if not report.overall.pairs:
        click.echo("no kernel was measured twice; collect into another file and name both")
        return
    from rich.table import Table

    table = Table("family", "kernels", "pairs", "median", "95 %", "median, plain", "95 %, plain", "cold", "95 %, cold")
    for name, spread in [*sorted(report.families.items()), ("all", report.overall)]:
        assert spread.normalised is not None and spread.latency is not None
        shares = [f"{100 * d:.2f} %" for d in (*spread.normalised, *spread.latency, *(spread.cold or ()))]
        table.add_row(name, str(spread.kernels), str(spread.pairs), *shares)
    table_console().print(table)
    if report.changed:
        click.echo(f"{report.changed} kernels succeeded in one measurement and failed in another")


def _digest(store: RecordStore, said: str, start: str | None) -> str | None:
    """The digest of the hardware that begins so; None if none is named."""
    if start is None:
        return None
    known = {row.digest: row.name for row in store.hardware()}
    found = [digest for digest in known if digest.startswith(start)]
    if len(found) != 1:
        several = f"{len(found)} hardware rows start" if found else "no hardware row starts"
        there = ", ".join(f"{digest} ({name})" for digest, name in known.items()) or "none"
        raise RecordError(f"{several} with {start!r} in {said}; there: {there}")
    return found[0]


@command.command("prune")
@click.argument("db")
@click.option("--old", is_flag=True, help="Records of older versions of their family, or of families that are no more.")
@click.option("--superseded", is_flag=True, help="All but the newest record of a kernel (of what is left).")
@click.option("--failed", is_flag=True, help="Records of kernels that were not timed.")
@click.option("--yes", is_flag=True, help="Drop them; without this, only say what would be dropped.")
@json_option
def prune_(db: str, old: bool, superseded: bool, failed: bool, yes: bool, as_json: bool) -> None:
    """Drop records that are not wanted any more, and give their space back."""
    from autofuse.records import open_store
    from autofuse.records.prune import choose, prune
    from autofuse.schedule.registry import families

    if not (old or superseded or failed):
        raise InputError("say what to drop: --old, --superseded, --failed, or several of them")
    versions = {f.name: f.version for kind in ("gpu", "cpu") for f in families(kind)} if old else None
    with open_store(db, readonly=not yes) as store:
        chosen = choose(store, versions, superseded, failed)
        if yes:
            prune(store, chosen)
    if as_json:
        print_json({**chosen.as_dict(), "dropped": yes})
        return
    said = ", ".join(f"{count} {reason}" for reason, count in chosen.reasons.items())
    click.echo(f"{'dropped' if yes else 'would drop'} {len(chosen.digests)} records{f': {said}' if said else ''}")
    for name, count in chosen.families.items():
        click.echo(f"{name:12s}{count}")
    if chosen.digests and not yes:
        click.echo("--yes drops them")


@command.command("verify")
@click.argument("db")
@json_option
def verify_(db: str, as_json: bool) -> int:
    """Check the file, and compute again all that can be: exit code 1, and one line each, for what is wrong."""
    from autofuse.records import open_store
    from autofuse.records.verify import verify

    with open_store(db, readonly=True) as store:
        found = list(verify(store))
    if as_json:
        print_json({"sound": not found, "problems": found})
    else:
        for problem in found:
            click.echo(problem)
        click.echo(f"{db}: {f'{len(found)} problems' if found else 'sound'}")
    return 1 if found else 0


@command.command("revalidate")
@click.argument("db")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--target", default="llvm", show_default=True)
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads that were measured with (default: all processors)."
)
@click.option("--input-shape", "shapes", multiple=True, metavar="NAME=N,...", help="Fix an input's shape.")
@click.option("--batch", type=click.IntRange(min=1))
@click.option("--drop", is_flag=True, help="Drop the records whose code is another now.")
@click.option("--dry-run", is_flag=True, help="Say what would change, change nothing.")
@json_option
def revalidate_(
    db: str,
    models: tuple[str, ...],
    target: str,
    threads: int | None,
    shapes: tuple[str, ...],
    batch: int | None,
    drop: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Lower MODEL... again and keep the records whose scheduled code is what it was, under the present versions.

    Looks at the records of this machine. Those whose code is another are listed; their kernels have to be measured
    again.
    """
    from autofuse.chosen import choose_cost_model
    from autofuse.codegen.digest import tir_digest
    from autofuse.compiler import analyse, problem_of
    from autofuse.records import open_store
    from autofuse.records.revalidate import revalidate
    from autofuse.schedule.registry import families
    from autofuse.target import hardware_row

    with open_store(db, readonly=dry_run) as store, status("revalidating") as tell:
        fusers, groups = {}, []
        for name in models:
            tell(f"analysing {name}")
            model = analyse(name, target=target, threads=threads, batch=batch, input_shapes=input_shapes(shapes))
            problem = problem_of(model, choose_cost_model(model, "analytical", None, None))
            fusers[id(model.graph)] = model.fuser
            groups += list(dict.fromkeys(c.group for c in problem.choices if c.family))
        tell("scheduling")
        found = revalidate(
            store,
            hardware_row(model.target).digest,
            groups,
            families(model.hardware.kind),
            model.hardware,
            lambda group, family, config: tir_digest(
                family.apply(fusers[id(group.graph)].fuse(group), group, config, model.hardware)
            ),
            write=not dry_run,
        )
        if drop and not dry_run:
            store.drop(c.record.digest for c in found.changed)
    if as_json:
        print_json(found.as_dict())
        return
    click.echo(
        f"{found.same} records hold ({found.restamped} of them had another version), {len(found.changed)} have other "
        f"code now, {found.unknown} have no digest, {found.unseen} are of no group of {', '.join(models)}"
    )
    for change in found.changed:
        r = change.record
        click.echo(f"  {r.workload[:12]} {r.family} {r.family_version} [{r.config}]: {change.reason}")
    if found.unversioned:
        names = ", ".join(sorted({c.record.family for c in found.unversioned}))
        click.echo(
            f"the version of {names} should have been raised: such records are used, though their code is another"
        )
