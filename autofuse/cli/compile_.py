"""`autofuse compile`."""

from __future__ import annotations

import time
from typing import Any

import click

from autofuse.cli.options import (
    check_writable,
    compile_arguments,
    compile_options,
    duration,
    json_option,
    print_json,
    status,
)


@click.command("compile")
@click.argument("model")
@click.option(
    "-o", "--output", metavar="OUT.so", help="The compiled model: one file with its weights; for a GPU a folder."
)
@compile_options
@click.option("--check", is_flag=True, help="Compare every kernel with numpy first; what fails is kept in --db.")
@click.option("--device", metavar="DEVICE", help="For a GPU: what --check runs kernels on (default: the first GPU).")
@click.option(
    "--measure", metavar="TIME", help="Spend so long (30s, 5m) on kernels that could change the plan; kept in --db."
)
@click.option("--save-plan", metavar="PLAN.json", help="Write the plan that was built.")
@json_option
def command(
    model: str,
    output: str | None,
    check: bool,
    device: str | None,
    measure: str | None,
    save_plan: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Compile MODEL, an ONNX file or the name of a zoo network (`autofuse zoo list`)."""
    gpu = _for_gpu(given)
    for path in (None if gpu else output, save_plan):
        if path is not None:
            check_writable(path)
    arguments = {**compile_arguments(given), "check": check, "device": device}
    arguments["measure"] = duration("--measure", measure) if measure is not None else None
    import autofuse

    if output is not None:
        if gpu:
            _check_folder(output)
        else:
            _check_linker(arguments)
    with status(f"compiling {model}") as tell:
        executable = autofuse.compile(model, progress=tell, **arguments)
        if output is not None:
            tell("saving")
            # Machine code is written out here.
            start = time.perf_counter()
            executable.save(output)
            seconds = executable.description["seconds"]
            for part in ("codegen", "total"):
                seconds[part] = round(seconds[part] + time.perf_counter() - start, 4)
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
    known = executable.description["cost_sources"]
    if known.keys() - {"analytical"}:
        sources = ", ".join(f"{count} {source}" for source, count in known.items())
        click.echo(f"costs of its groups: {sources}")
    if executable.description["strategy_reason"]:
        click.echo(f"strategy {executable.description['strategy_reason']}")
    click.echo(
        f"compiled in {seconds['total']:.1f} s: import {seconds['import']:.1f}, prepare {seconds['prepare']:.1f},"
        f" search {seconds['search']:.2f}, code generation {seconds['codegen']:.1f}"
        + (f", measuring {seconds['measure']:.1f}" if "measure" in seconds else "")
    )
    checked = executable.description["checked"]
    if checked is not None:
        click.echo(
            f"checked {sum(checked.values())} kernels: {checked['right']} right, {checked['wrong']} wrong and replaced,"
            f" {checked['unchecked']} not known to numpy"
        )
    if gpu:
        _print_gpu(executable.description)
    if output:
        click.echo(f"wrote {output}")


def _print_gpu(description: dict[str, Any]) -> None:
    """What a model for a GPU holds, and what of it could not be made here."""
    memory, forms = description["memory"], description["forms"]
    click.echo(
        f"{memory['launches']} launches, {memory['weight_bytes'] / 1e6:.1f} MB of weights,"
        f" {memory['buffer_bytes'] / 1e6:.1f} MB of buffers; code: {', '.join(forms)}"
    )
    if "amdgcn" not in forms and description["kind"] == "rocm":
        why = "nothing here links them (install lld)" if description["loadable"] else "they take DTK's own compiler"
        click.echo(f"no code objects: {why}; the card's OpenCL runs the model")


def _for_gpu(given: dict[str, Any]) -> bool:
    if str(given["target"]).lstrip().startswith("llvm"):
        return False
    from autofuse.target import resolve

    return resolve(given["target"], given["threads"]).device == "gpu"


def _check_folder(output: str) -> None:
    """A folder that cannot be written is said before the work."""
    from pathlib import Path

    from autofuse.codegen.gpu_package import check_gpu_folder

    check_gpu_folder(Path(output))


def _check_linker(arguments: dict[str, Any]) -> None:
    """A missing linker is said before the work, not after it."""
    from autofuse.codegen.link import linker_command
    from autofuse.target import resolve

    linker_command(resolve(arguments["target"], arguments["threads"]).triple)


def summary(description: dict[str, Any], output: str | None) -> dict[str, Any]:
    """What `--json` prints; `checked` only where that was asked for."""
    keys = (
        "model", "target", "strategy", "cost_model", "records", "operators", "kernels", "fusion_ratio", "seconds",
        "search", "predicted_ms", "peak_memory_mb",
    )  # fmt: skip
    checked = {"checked": description["checked"]} if description["checked"] is not None else {}
    return {**{k: description[k] for k in keys}, **checked, "output": output}
