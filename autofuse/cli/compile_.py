"""`autofuse compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autofuse.cli.options import compile_arguments, compile_options, json_option, print_json, status
from autofuse.errors import ModelError


@click.command("compile")
@click.argument("model")
@click.option("-o", "--output", metavar="OUT.so", help="The compiled model: one file with its weights.")
@compile_options
@click.option("--save-plan", metavar="PLAN.json", help="Write the plan that was built.")
@json_option
def command(model: str, output: str | None, save_plan: str | None, as_json: bool, **given: Any) -> None:
    """Compile MODEL, an ONNX file or the name of a zoo network (`autofuse zoo list`)."""
    for path in (output, save_plan):
        if path is not None and not Path(path).resolve().parent.is_dir():
            raise ModelError(f"cannot write {path}: the folder {Path(path).resolve().parent} does not exist")
    arguments = compile_arguments(given)
    import autofuse

    with status(f"compiling {model}") as tell:
        executable = autofuse.compile(model, progress=tell, **arguments)
        if output is not None:
            tell("saving")
            executable.save(output)
    if save_plan is not None:
        executable.plan.save(save_plan)
    report = summary(executable.description, output)
    if as_json:
        print_json(report)
        return
    seconds = report["seconds"]
    click.echo(
        f"{report['model']}: {report['operators']} operators in {report['kernels']} kernels"
        f" (fusion ratio {report['fusion_ratio']:.2f}), predicted {report['predicted_ms']:.3f} ms"
    )
    if executable.description["strategy_reason"]:
        click.echo(f"strategy {executable.description['strategy_reason']}")
    click.echo(
        f"compiled in {seconds['total']:.1f} s: import {seconds['import']:.1f}, prepare {seconds['prepare']:.1f},"
        f" search {seconds['search']:.2f}, code generation {seconds['codegen']:.1f}"
    )
    if output:
        click.echo(f"wrote {output}")


def summary(description: dict[str, Any], output: str | None) -> dict[str, Any]:
    """What `--json` prints."""
    keys = ("model", "target", "strategy", "cost_model", "operators", "kernels", "fusion_ratio", "seconds", "search")
    report = {k: description[k] for k in keys}
    report |= {k: description[k] for k in ("predicted_ms", "peak_memory_mb")}
    report["output"] = output
    return report
