"""`autofuse records ls | show | stats | export | import | merge`."""

from __future__ import annotations

from typing import Any

import click

from autofuse.cli.options import json_option, print_json
from autofuse.errors import RecordError
from autofuse.records.record import record_to_dict


@click.group("records")
def command() -> None:
    """Look into, export, import and merge record stores."""


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
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "group", "family", "configuration", "status", "µs")
    for row in rows:
        time = "" if row["microseconds"] is None else f"{row['microseconds']:.2f}"
        table.add_row(row["workload"][:12], row["label"], row["family"], row["config"], row["status"], time)
    Console().print(table)


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
        records = [r for r in store.records() if r.workload == chosen.key]
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
