"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from autofuse.errors import AutofuseError, InputError, ModelError
from autofuse.files import NO_FILE

F = TypeVar("F", bound=Callable[..., Any])

STRATEGIES = ("dp", "greedy", "hybrid", "none", "auto", "interval")


def input_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]] | None:
    """`name=1,3,224,224` entries → shapes. InputError for anything else."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, extents = text.rpartition("=")
        try:
            if not equals or not name:
                raise ValueError
            shapes[name] = tuple(int(e) for e in extents.split(","))
            if any(e < 1 for e in shapes[name]):
                raise ValueError
        except ValueError:
            raise InputError(
                f"--input-shape {text!r} is not of the form NAME=N,N,..., e.g. --input-shape input=1,3,224,224"
            ) from None
    return shapes or None


def address(text: str, option: str) -> tuple[str, int]:
    """HOST:PORT → (host, port). InputError, which names the option, for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"{option} {text!r} is not of the form HOST:PORT, e.g. {option} 127.0.0.1:9190")
    return host.strip("[]"), int(port)


def duration(option: str, text: str) -> float:
    """ "90s", "10m", "2h" or plain seconds → seconds. InputError, which names the option, for anything else."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise InputError(f"{option} {text!r} is no time: write 90s, 10m or 2h")
    return value


def check_writable(path: str | Path, error: type[AutofuseError] = ModelError) -> Path:
    """`path` as a path that a file can be written to, found out before any work. Raises `error`."""
    target = Path(path)
    folder = target.resolve().parent
    if not str(path) or target.is_dir():
        raise error(f"cannot write {str(path)!r}: it is {'a folder' if str(path) else 'no name'}, give a file")
    if target.exists() and not target.is_file():
        raise error(f"cannot write {path}: {NO_FILE}; choose another place")
    if not folder.is_dir():
        raise error(f"cannot write {path}: the folder {folder} does not exist")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as found:
        raise error(f"cannot write {path}: {found.strerror}; choose another place") from None
    return target


def compile_options(function: F) -> F:
    """What decides how a model is compiled."""
    options = [
        click.option("--target", default="llvm", show_default=True, help="Target: llvm is this machine."),
        click.option(
            "--strategy",
            type=click.Choice(STRATEGIES),
            default="auto",
            show_default=True,
            help="How groups are chosen.",
        ),
        click.option(
            "--cost-model",
            type=click.Choice(["analytical", "learned"]),
            help="What predicts a kernel's time (default: learned where there is a predictor).",
        ),
        click.option("--predictor", metavar="DIR", help="Predictor that `autofuse train` wrote."),
        click.option("--db", metavar="FILE|none", default="none", help="Record store whose measurements are used."),
        click.option("--thresholds", metavar="FILE", help="Search thresholds that `autofuse tune` wrote."),
        click.option("--threads", type=click.IntRange(min=1), help="Threads to run with (default: all processors)."),
        click.option("--input-shape", "shapes", multiple=True, metavar="NAME=N,...", help="Fix an input's shape."),
        click.option(
            "--batch",
            type=click.IntRange(min=1),
            help="Batch size: the first axis of every other input.",
        ),
        click.option("--plan", metavar="PLAN.json", help="Build this plan instead of searching."),
        click.option("--max-memory", type=float, metavar="MB", help="Limit on the planned peak of intermediates."),
        click.option(
            "--compile-allowance",
            type=float,
            metavar="PERCENT",
            help="Extra compile time that auto may spend on search.",
        ),
        click.option("--fuel", type=click.IntRange(min=0), metavar="N", help="Fuse only the first N groups."),
        click.option("--dump-ir", metavar="DIR", help="Write the IR after each phase."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def json_option(function: F) -> F:
    """`--json`: one JSON object on stdout and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(function)


def compile_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The values of `compile_options` as keyword arguments of `autofuse.compile`."""
    arguments = {k: given[k] for k in ("target", "strategy", "cost_model", "predictor", "db", "threads", "batch")}
    arguments |= {k: given[k] for k in ("plan", "max_memory", "compile_allowance", "fuel", "dump_ir", "thresholds")}
    arguments["input_shapes"] = input_shapes(given["shapes"])
    return arguments


def print_json(content: Any) -> None:
    """One JSON object on stdout."""
    click.echo(json.dumps(content, indent=2, sort_keys=False, allow_nan=False, default=str))


@contextlib.contextmanager
def status(text: str, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """A spinner on stderr that says what is being done; where that is no terminal `lines` do, or nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda message: click.echo(f"{text}: {message}", err=True) if lines else None
        return
    with console.status(text) as spinner:
        yield lambda message: spinner.update(f"{text}: {message}")
