"""`autofuse profile`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofuse.cli.options import check_writable, compile_arguments, compile_options, json_option, print_json, status
from autofuse.cli.tables import table_console
from autofuse.errors import InputError

if TYPE_CHECKING:
    from autofuse.codegen.executable import Executable
    from autofuse.codegen.gpu_executable import GpuExecutable


@click.command("profile")
@click.argument("model")
@compile_options
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="Runs that are timed.")
@click.option("--device", metavar="DEVICE", help="For a GPU's model: opencl:NAME, rocm, cuda (default: the first GPU).")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show only the N longest kernels.")
@click.option("--input", "source", metavar="X.npz", help="Arrays by input name (default: random ones).")
@click.option("--html", metavar="PAGE.html", help="Write a page with the plan, the times and the roofline.")
@json_option
def command(
    model: str,
    runs: int,
    device: str | None,
    top: int | None,
    source: str | None,
    html: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Time every kernel of MODEL: a file that `autofuse compile -o` wrote, an ONNX file, or a zoo network's name."""
    from autofuse.profile import profile

    if html is not None:
        check_writable(html)
    arrays = _read(source) if source is not None else None
    with status(f"profiling {model}") as tell:
        executable = _executable(model, given, tell)
        if device is not None and "kind" not in executable.description:
            raise InputError(f"--device {device!r} is for models of GPUs: this one runs on the CPU")
        if arrays is None:
            arrays = _zoo_inputs(executable, model, given)
        result = profile(executable, inputs=arrays, runs=runs, device=device or "", progress=tell)
    if html is not None:
        from autofuse.report.profile_page import write_page

        write_page(Path(html), result, executable.description)
    if as_json:
        print_json(result.to_json())
        return

    from autofuse.profile.table import profile_table

    # A pipe has no width of its own.
    table_console().print(profile_table(result, top))
    if html is not None:
        click.echo(f"wrote {html}")


def _executable(model: str, given: dict[str, Any], tell: Any) -> Executable | GpuExecutable:
    import autofuse
    from autofuse.codegen.gpu_package import is_gpu_package
    from autofuse.codegen.package import is_package

    if is_package(Path(model)) or is_gpu_package(Path(model)):
        return autofuse.load(model)
    return autofuse.compile(model, progress=tell, **compile_arguments(given))


def _zoo_inputs(executable: Executable | GpuExecutable, model: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """The network's own inputs, as the other commands take them; None for other models."""
    from autofuse.frontend import zoo

    if model not in zoo.names() or Path(model).exists() or given["shapes"]:
        return None
    return dict(zoo.sample_inputs(model, batch=given["batch"] or 1))


def _read(source: str) -> dict[str, Any]:
    import numpy as np

    try:
        with np.load(source, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"no file {source}: give arrays by name, e.g. numpy.savez('x.npz', input=array)") from None
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{source} is not an .npz archive of arrays: {error}") from None
