"""`autofuse run`."""

from __future__ import annotations

import zipfile
import zlib
from typing import Any

import click

from autofuse.cli.options import check_writable
from autofuse.errors import InputError
from autofuse.files import whole_file


@click.command("run")
@click.argument("compiled")
@click.option("--input", "source", required=True, metavar="X.npz", help="Arrays by input name.")
@click.option("--output", required=True, metavar="Y.npz", help="Where the outputs are written, by name.")
@click.option("--device", metavar="DEVICE", help="For a GPU's model: opencl:NAME, rocm, cuda (default: the first GPU).")
def command(compiled: str, source: str, output: str, device: str | None) -> None:
    """Run COMPILED, a file (for a GPU a folder) that `autofuse compile -o` wrote."""
    import numpy as np

    import autofuse

    try:
        archive = np.load(source, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{source} holds one array without a name: write it with numpy.savez('x.npz', NAME=array)")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"no file {source}: give arrays by name, e.g. numpy.savez('x.npz', input=array)") from None
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        raise InputError(
            f"{source} is damaged or no .npz archive of plain arrays: write it with numpy.savez('x.npz', NAME=array)"
        ) from None
    target = check_writable(output, InputError).resolve()
    executable = _on(autofuse.load(compiled), device)
    results = executable(**arrays)
    named = dict(zip(executable.output_names, results, strict=True))
    try:
        with whole_file(target) as out:
            np.savez(out, **named)
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}; choose another --output") from None
    shapes = ", ".join(f"{n} {list(r.shape)}" for n, r in zip(executable.output_names, results, strict=True))
    click.echo(f"wrote {output}: {shapes}")


def _on(executable: Any, device: str | None) -> Any:
    """The model for a device, which is said on stderr: what stands in for a GPU is no GPU."""
    from autofuse.codegen.gpu_executable import GpuExecutable

    if not isinstance(executable, GpuExecutable):
        if device is not None:
            raise InputError(f"--device {device!r} is for models of GPUs: this one runs on the CPU")
        return executable
    made = executable.on(device or "")
    click.echo(f"on {made.device.title}", err=True)
    return made
