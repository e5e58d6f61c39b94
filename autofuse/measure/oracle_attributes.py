"""What the oracle reads of an operator: takes one, gives its numbers, extents and operands; or says that it cannot."""

from __future__ import annotations

import json
import re
from typing import Any

from numpy.typing import NDArray

from autofuse.graph.model import Operator

Array = NDArray[Any]


class NotEvaluated(Exception):
    """The group has an operator, or a variant of one, that this module does not know."""


def form(op: Operator) -> tuple[str, list[list[Any]]]:
    """Attributes of the operator's form as text, and its operands, scalars that are no tensors among them.

    A form whose operator text is a kind alone has its attributes beside it.
    """
    try:
        text = json.loads(op.form)["op"]
        if not text.startswith("["):
            return "", []
        _, attributes, operands = json.loads(text)
    except (ValueError, KeyError, TypeError) as error:
        raise NotEvaluated(f"{op.name} ({op.kind}) has no form to read") from error
    return str(attributes), operands


def number(op: Operator, name: str) -> float:
    """The number that the form's attributes give as `name`."""
    found = re.search(rf"\b{name}=(-?[\d.e+-]+)", form(op)[0])
    if found is None:
        raise NotEvaluated(f"{op.name} ({op.kind}) has no {name}")
    return float(found[1])


def number_of(op: Operator, name: str) -> float:
    """The number that the operator's own attributes hold as `name`."""
    value = op.attrs.get(name)
    if not isinstance(value, int | float):
        raise NotEvaluated(f"{op.name} ({op.kind}) has no {name}")
    return float(value)


def ints(op: Operator, name: str) -> tuple[int, ...]:
    """The integers that the operator's own attributes hold as `name`; one of them may stand alone."""
    value = op.attrs.get(name)
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, list | tuple):
        raise NotEvaluated(f"{op.name} ({op.kind}) has no {name}")
    return tuple(int(v) for v in value)


def logical(op: Operator) -> tuple[int, ...]:
    """The result's extents without padding."""
    return ints(op, "out_logical")
