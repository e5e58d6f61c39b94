"""A model in any accepted form → `PreparedModel` (a Relax module ready for the operator graph).

Public: `prepare`, `PreparedModel`; the model zoo is `autofuse.frontend.zoo`. Both names load TVM when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.frontend.pipeline import prepare as prepare
    from autofuse.frontend.prepared import PreparedModel as PreparedModel

__all__ = ["PreparedModel", "prepare"]


def __getattr__(name: str) -> Any:
    # Deferred so that `import autofuse` stays quick: TVM alone takes seconds to load.
    if name == "prepare":
        from autofuse.frontend import pipeline

        return pipeline.prepare
    if name == "PreparedModel":
        from autofuse.frontend.prepared import PreparedModel

        return PreparedModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
