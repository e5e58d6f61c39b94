"""Object files of a target → a shared library, for this machine's architecture or another. No TVM at import.

Kernels call nothing that has to be there when they are linked (the runtime brings its functions along when the library
is loaded), so that a bare linker does where there is no cross compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autofuse.errors import TargetError
from autofuse.target.architecture import architecture_of

#: Architecture → its name in Debian's packages, where it is another.
_PACKAGES = {"x86_64": "x86-64"}
_EMULATIONS = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}


def linker_command(triple: str = "") -> list[str]:
    """The command that makes a shared library for `triple` ("" for this machine), without objects and output.

    Raises TargetError, naming the package to install, where there is none.
    """
    wanted = architecture_of(triple)
    if wanted == architecture_of():
        from tvm.support import cc

        compiler = cc.get_cc()
        if compiler:
            return [str(compiler), "-shared", "-fPIC"]
        raise TargetError("no C compiler is installed, which links compiled models: install g++ (Debian) or clang")
    for name in (f"{wanted}-linux-gnu-gcc", f"{wanted}-linux-gnu-g++"):
        if found := shutil.which(name):
            return [found, "-shared", "-fPIC"]
    for name in (f"{wanted}-linux-gnu-ld", "ld.lld"):
        if found := shutil.which(name):
            return [found, "-shared", "-m", _EMULATIONS[wanted]]
    package = f"gcc-{_PACKAGES.get(wanted, wanted)}-linux-gnu"
    raise TargetError(
        f"no linker for {wanted} is installed, which this target needs: install {package} or lld (Debian)"
    )


def linker(triple: str = "") -> Callable[..., None]:
    """What TVM's `export_library` takes as `fcompile`. Raises TargetError as `linker_command` does."""
    command = linker_command(triple)

    def link(output: str, objects: Sequence[str], options: Sequence[str] = (), **_: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            # A response file: a command line has no room for hundreds of paths.
            arguments = Path(folder) / "objects"
            arguments.write_text("".join(f'"{path}"\n' for path in objects), encoding="utf-8")
            done = subprocess.run(
                [*command, "-o", output, f"@{arguments}", *options], capture_output=True, text=True, errors="replace"
            )
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            raise TargetError(f"{command[0]} cannot link for {architecture_of(triple)}: {lines[-1]}")

    return link
