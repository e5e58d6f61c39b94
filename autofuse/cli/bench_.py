"""`autofuse bench`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from autofuse.arguments import check_sources
from autofuse.cli.options import check_writable, compile_options, input_shapes, json_option, print_json
from autofuse.cli.tables import table_console
from autofuse.errors import EngineError
from autofuse.files import write_whole


@click.command("bench")
@click.argument("model")
@compile_options
@click.option(
    "--against",
    default="greedy,none,onnxruntime,openvino",
    show_default=True,
    help="Other engines: also dp, hybrid, interval, tvm-greedy, tvm-default, torch, torch-compile.",
)
@click.option(
    "--executable", "saved", multiple=True, metavar="NAME=OUT.so", help="Time a compiled model too, under a name."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds in which every engine takes its turn.")
@click.option("--budget", type=float, metavar="SECONDS", help="Time for the rounds.")
@click.option("--save", metavar="F.json", help="Write the result as JSON too.")
@json_option
def command(
    model: str,
    against: str,
    saved: tuple[str, ...],
    rounds: int | None,
    budget: float | None,
    save: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Time MODEL under autofuse and its peers, interleaved round by round in one run, and check every output."""

    from autofuse import bench

    executables = dict(_named(text) for text in saved)
    if save is not None:
        check_writable(save, EngineError)
    engines = [*executables, "autofuse", *(name for name in against.split(",") if name)]
    keys = (
        "target",
        "strategy",
        "cost_model",
        "predictor",
        "db",
        "max_memory",
        "compile_allowance",
        "fuel",
        "thresholds",
        "plan",
        "dump_ir",
    )
    options = {k: given[k] for k in keys if given[k] is not None}
    if budget is not None and not 0 < budget < math.inf:
        raise EngineError(f"--budget is {budget}: give a number of seconds over 0")
    check_sources({**options, "threads": given["threads"]})
    with _progress() as progress:
        result = bench.run(
            model,
            engines=engines,
            threads=given["threads"],
            batch=given["batch"],
            rounds=rounds,
            budget=budget,
            compile_options=options,
            executables=executables,
            input_shapes=input_shapes(given["shapes"]),
            progress=progress,
        )
    if save is not None:
        try:
            write_whole(Path(save), json.dumps(result.to_json(), indent=1) + "\n")
        except OSError as error:
            raise EngineError(f"cannot write {save}: {error.strerror}; choose another --save") from None
    if as_json:
        print_json(result.to_json())
        return
    from autofuse.bench.table import bench_table

    table_console().print(bench_table(result))


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise EngineError(f"--executable {text!r} is not of the form NAME=OUT.so")
    from autofuse.codegen.package import is_package

    if not is_package(Path(path)):
        what = "is no compiled model" if Path(path).exists() else "does not exist"
        raise EngineError(f"--executable {text!r}: {path} {what}; make one with `autofuse compile -o {path}`")
    return name, path


class _progress:
    """A bar on stderr, nothing when it is no terminal."""

    def __enter__(self) -> Any:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._bar = Progress(console=console, transient=True) if console.is_terminal else None
        if self._bar is None:
            return None
        bar = self._bar
        bar.start()
        task = bar.add_task("starting", total=None)
        return lambda text, done, total: bar.update(task, description=text, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
