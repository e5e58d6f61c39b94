"""Errors that a user can cause and can act on: each is one line that says what is wrong, where, and what to do."""

from __future__ import annotations


class AutofuseError(Exception):
    """Base of every error shown to a user as a single line; the command line exits with code 2 on it."""


class ModelError(AutofuseError):
    """The model cannot be read, imported or prepared (missing file, not ONNX, unsupported operator)."""


class InputError(AutofuseError):
    """An input's name, shape or dtype does not fit the model."""


class TargetError(AutofuseError):
    """The target is unknown, or this machine cannot run code built for it."""


class PlanError(AutofuseError):
    """A plan cannot be read, or was made for another graph."""


class RecordError(AutofuseError):
    """The record store is locked, damaged, read-only, full, or of a newer version."""


class PredictorError(AutofuseError):
    """A predictor cannot be loaded: missing, damaged, or of another version or target."""


class EngineError(AutofuseError):
    """An engine in a side-by-side run is missing or failed."""
