"""`autofuse zoo list | export`."""

from __future__ import annotations

import click

from autofuse.cli.options import check_writable, json_option, print_json
from autofuse.cli.tables import table_console
from autofuse.errors import ModelError
from autofuse.files import whole_file


@click.group("zoo")
def command() -> None:
    """The networks that come along, as ONNX graphs with seeded random weights."""


@command.command("list")
@json_option
def list_networks(as_json: bool) -> None:
    """Names, inputs and published sizes."""
    from autofuse.frontend import zoo

    entries = [zoo.describe(name) for name in zoo.names()]
    if as_json:
        networks = [
            {
                "name": e.name,
                "title": e.title,
                "inputs": [{"name": i.name, "shape": list(i.shape), "dtype": i.dtype} for i in e.inputs],
                "parameters": e.published_parameters,
                "macs": e.published_macs,
                "source": e.source,
            }
            for e in entries
        ]
        print_json({"networks": networks})
        return
    from rich.table import Table

    table = Table("network", "input", "parameters", "multiply-adds", "what")
    for e in entries:
        shapes = ", ".join("×".join(map(str, i.shape)) for i in e.inputs)
        table.add_row(
            e.name, shapes, f"{e.published_parameters / 1e6:.2f} M", f"{e.published_macs / 1e9:.2f} G", e.title
        )
    table_console().print(table)


@command.command("export")
@click.argument("name")
@click.option("-o", "--output", required=True, metavar="F.onnx", help="Where to write it.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the weights.")
def export(name: str, output: str, batch: int, seed: int) -> None:
    """Write network NAME as an ONNX file."""
    from autofuse.frontend import zoo

    target = check_writable(output)
    model = zoo.build(name, batch=batch, seed=seed)
    try:
        with whole_file(target) as out:
            out.write(model.SerializeToString())
    except OSError as error:
        raise ModelError(f"cannot write {output}: {error.strerror}") from None
    click.echo(f"wrote {output} ({target.stat().st_size / 1e6:.1f} MB)")
