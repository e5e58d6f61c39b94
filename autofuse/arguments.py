"""The arguments of `autofuse.compile`, checked before any work: each wrong one is one line that names it.

Takes them as given; gives nothing, or raises the AutofuseError that the later stage would have meant.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autofuse.errors import AutofuseError, InputError, ModelError, PlanError, PredictorError, RecordError, TargetError

#: A file may be named by text or by a path object.
_PATH = (str, os.PathLike)
NO_PREDICTOR = "the learned cost model needs a predictor, there is none for this hardware: give --predictor DIR"


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check the keyword arguments of `autofuse.compile` that are in `given`. Raises an AutofuseError."""
    for name, value in given.items():
        _CHECKS[name](name, value)


def _is_path(value: object) -> bool:
    return isinstance(value, _PATH) and not isinstance(value, bytes)


def _described(value: object) -> str:
    """A wrong value on one line, cut where it is long."""
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _text(error: type[AutofuseError], example: str) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        if not isinstance(value, str):
            raise error(f"{name} is {_described(value)}: give a text such as {example!r}")

    return check


def _name(error: type[AutofuseError], example: str) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        if value is not None and not isinstance(value, str):
            raise error(f"{name} is {_described(value)}: give a text such as {example!r}, or None")

    return check


def _path(error: type[AutofuseError], what: str) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        if value is not None and not _is_path(value):
            raise error(f"{name} is {_described(value)}: give the path of {what}, or None")

    return check


def _path_or(error: type[AutofuseError], what: str, home: str, kind: str) -> Callable[[str, object], None]:
    """None, a path, or an object of class `kind` in module `home`, which loads only when it is needed."""

    def check(name: str, value: object) -> None:
        if value is None or _is_path(value):
            return
        import importlib

        if not isinstance(value, getattr(importlib.import_module(home), kind)):
            raise error(f"{name} is {_described(value)}: give {what}, or None")

    return check


def _whole(error: type[AutofuseError], least: int, example: str) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise error(f"{name} is {_described(value)}: give {example}, {least} or more, or None")

    return check


def _amount(name: str, value: object) -> None:
    if value is None:
        return
    right = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not right or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise InputError(f"{name.replace('_', '-')} is {_described(value)}: give a number of 0 or more")


def _shapes(name: str, value: object) -> None:
    if value is None:
        return
    example = "such as {'input': (1, 3, 224, 224)}"
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {_described(value)}: give a shape for each input's name, {example}")
    for key, shape in value.items():
        if not isinstance(key, str):
            raise InputError(f"{name} has the key {_described(key)}: give a shape for each input's name, {example}")
        if not isinstance(shape, Sequence) or isinstance(shape, str | bytes):
            raise InputError(f"{name}[{key!r}] is {_described(shape)}: give whole numbers, {example}")
        for extent in shape:
            if not isinstance(extent, numbers.Integral) or isinstance(extent, bool) or extent < 1:
                raise InputError(f"{name}[{key!r}] holds {_described(extent)}: give whole numbers of 1 or more")


def _cost_model(name: str, value: object) -> None:
    if value is None or isinstance(value, str):
        return
    from autofuse.cost.model import CostModel

    if not isinstance(value, CostModel):
        raise PlanError(f"{name} is {_described(value)}: give 'analytical', 'learned' or a CostModel, or None")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {_described(value)}: give True or False")


def _callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise InputError(f"{name} is {_described(value)}: give a function that takes a text, or None")


_CHECKS: dict[str, Callable[[str, object], None]] = {
    "target": _text(TargetError, "llvm"),
    "strategy": _text(PlanError, "dp"),
    "cost_model": _cost_model,
    "predictor": _path(PredictorError, "a predictor's directory"),
    "db": _path(RecordError, "a record store"),
    "input_shapes": _shapes,
    "batch": _whole(InputError, 1, "a batch size"),
    "threads": _whole(TargetError, 1, "a number of threads"),
    "plan": _path_or(PlanError, "a Plan or the path of one", "autofuse.search.plan", "Plan"),
    "thresholds": _path_or(PlanError, "Thresholds or the path of some", "autofuse.search.problem", "Thresholds"),
    "max_memory": _amount,
    "compile_allowance": _amount,
    "measure": _amount,
    "fuel": _whole(InputError, 0, "a number of groups"),
    "check": _flag,
    "device": _name(TargetError, "opencl:gfx906"),
    "dump_ir": _path(ModelError, "a folder"),
    "progress": _callable,
}


def check_sources(given: Mapping[str, Any]) -> None:
    """Open what the arguments name, as compiling does later: target, predictor, record store, thresholds, plan.

    For commands that compile in other processes. Raises TargetError, PredictorError, RecordError, PlanError.
    """
    check_arguments({name: value for name, value in given.items() if name in _CHECKS})
    from autofuse.target.hardware_file import load_hardware
    from autofuse.target.registry import resolve

    target = resolve(given.get("target", "llvm"), given.get("threads"))
    predictor, db, thresholds, plan = (given.get(name) for name in ("predictor", "db", "thresholds", "plan"))
    if predictor is not None:
        from autofuse.learn import load_predictor

        load_predictor(predictor, load_hardware(target))
    elif given.get("cost_model") == "learned":
        from autofuse.learn.default import default_predictor

        if default_predictor(load_hardware(target)) is None:
            raise PredictorError(NO_PREDICTOR)
    if db is not None and str(db) != "none":
        from autofuse.records import open_store

        open_store(db, readonly=True).close()
    if isinstance(thresholds, str | os.PathLike):
        from autofuse.search.thresholds import load_thresholds

        load_thresholds(os.fspath(thresholds))
    if isinstance(plan, str | os.PathLike):
        from autofuse.search.plan import Plan

        Plan.load(os.fspath(plan))
