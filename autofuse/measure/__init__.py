"""Measuring candidates: builders and runners in child processes, and the collection that drives them.

Nothing here imports TVM; the child processes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.measure.builder import Builder, BuildRequest, BuildResult, PoolBuilder, module_request
    from autofuse.measure.collection import collect
    from autofuse.measure.jobs import ArgumentSpec, MeasureJob, MeasureLimits, MeasureResult
    from autofuse.measure.local import LocalRunner
    from autofuse.measure.order import CollectItem, in_order
    from autofuse.measure.process import MeasureError
    from autofuse.measure.replay import ReplayBuilder, ReplayRunner
    from autofuse.measure.runner import Runner
    from autofuse.measure.settings import CollectSettings, CollectStats

_WHERE = {
    "ArgumentSpec": "jobs",
    "BuildRequest": "builder",
    "BuildResult": "builder",
    "Builder": "builder",
    "CollectItem": "order",
    "CollectSettings": "settings",
    "CollectStats": "settings",
    "LocalRunner": "local",
    "MeasureError": "process",
    "MeasureJob": "jobs",
    "MeasureLimits": "jobs",
    "MeasureResult": "jobs",
    "PoolBuilder": "builder",
    "ReplayBuilder": "replay",
    "ReplayRunner": "replay",
    "Runner": "runner",
    "collect": "collection",
    "in_order": "order",
    "module_request": "builder",
}

__all__ = [
    "ArgumentSpec",
    "BuildRequest",
    "BuildResult",
    "Builder",
    "CollectItem",
    "CollectSettings",
    "CollectStats",
    "LocalRunner",
    "MeasureError",
    "MeasureJob",
    "MeasureLimits",
    "MeasureResult",
    "PoolBuilder",
    "ReplayBuilder",
    "ReplayRunner",
    "Runner",
    "collect",
    "in_order",
    "module_request",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"autofuse.measure.{_WHERE[name]}"), name)
