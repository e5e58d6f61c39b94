"""autofuse: operator fusion by measuring, learning and searching, on top of Apache TVM (Relax).

`autofuse.compile(model)` gives an executable, `autofuse.load(path)` one that was saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autofuse.errors import AutofuseError

if TYPE_CHECKING:
    from autofuse.codegen.executable import Executable as Executable
    from autofuse.codegen.executable import load as load
    from autofuse.compiler import compile_model as compile

__version__ = "0.1.0"
__all__ = ["AutofuseError", "Executable", "__version__", "compile", "load"]


def __getattr__(name: str) -> Any:
    # TVM takes seconds to import: only what is used is loaded.
    if name == "compile":
        from autofuse.compiler import compile_model

        return compile_model
    if name in ("load", "Executable"):
        from autofuse.codegen import executable

        return getattr(executable, name)
    raise AttributeError(f"module 'autofuse' has no attribute {name!r}")
