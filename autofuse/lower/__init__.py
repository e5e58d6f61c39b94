"""Prepared module → operators that the schedules know: blocked layouts, packed weights, one `call_tir` an operator."""

from autofuse.lower.lowering import LoweredModel, lower

__all__ = ["LoweredModel", "lower"]
