"""The arguments of a Relax call: which are tensors, and the same call on other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from autofuse.lower.lowering import Lowering
from autofuse.lower.values import Value


def tensor_args(state: Lowering, call: Any) -> tuple[list[Value], list[str]]:
    """The call's tensor operands, tuples flattened, and the text of its other arguments."""
    values: list[Value] = []
    literals: list[str] = []
    for arg in call.args:
        ty = getattr(arg, "ty", None)
        if isinstance(ty, relax.TensorType):
            values.append(state.value(arg))
        elif isinstance(ty, relax.TupleType) and all(isinstance(f, relax.TensorType) for f in ty.fields):
            values.extend(state.fields(arg))
        else:
            literals.append(str(arg))
    return values, literals


def with_tensors(call: Any, tensors: Sequence[Any]) -> list[Any]:
    """The call's arguments with its tensor operands (flattened) replaced by `tensors`."""
    left = list(tensors)
    args = []
    for arg in call.args:
        ty = getattr(arg, "ty", None)
        if isinstance(ty, relax.TensorType):
            args.append(left.pop(0))
        elif isinstance(ty, relax.TupleType) and all(isinstance(f, relax.TensorType) for f in ty.fields):
            args.append(relax.Tuple([left.pop(0) for _ in ty.fields]))
        else:
            args.append(arg)
    return args


def integers(arg: Any) -> list[int] | None:
    """A tuple or shape of integer literals; None for anything else."""
    fields = getattr(arg, "fields", None)
    if fields is None or not all(hasattr(f, "value") for f in fields):
        return None
    return [int(f.value) for f in fields]
