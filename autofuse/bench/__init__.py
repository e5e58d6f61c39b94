"""A model and a list of engines → how fast each one is, side by side in one run, and how far its outputs are.

Public: `run` and what it returns (`BenchResult`, `EngineResult`); `known_engines`, the names that `run` takes.
Every engine lives in a process of its own (`worker`, `child`); the engines take turns round by round (`interleave`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.bench.engines import known_engines as known_engines
    from autofuse.bench.result import BenchResult as BenchResult
    from autofuse.bench.result import EngineResult as EngineResult
    from autofuse.bench.runner import run as run

__all__ = ["BenchResult", "EngineResult", "known_engines", "run"]

_HOMES = {"BenchResult": "result", "EngineResult": "result", "known_engines": "engines", "run": "runner"}


def __getattr__(name: str) -> Any:
    # Deferred: each engine's process imports this package too, and must load nothing but its own engine.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"autofuse.bench.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
