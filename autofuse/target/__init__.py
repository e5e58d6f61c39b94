"""Targets and hardware descriptions."""

from autofuse.target.hardware import Hardware

__all__ = ["Hardware"]
