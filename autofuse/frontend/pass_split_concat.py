"""A concatenation of very many tensors → a tree of smaller ones, so that no kernel gets too many arguments."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from autofuse.frontend.walk import Scope, op_name, rewrite

MOST_INPUTS = 32


def split_concat(module: tvm.IRModule) -> tvm.IRModule:
    """No `concat` has more than `MOST_INPUTS` inputs afterwards; the order of the data is the same."""
    return rewrite(module, _rule)


def _rule(scope: Scope, call: Any) -> Any:
    if op_name(call) != "relax.concat" or not isinstance(call.args[0], relax.Tuple):
        return None
    parts = list(call.args[0].fields)
    if len(parts) <= MOST_INPUTS:
        return None
    axis = call.attrs.axis
    axis = 0 if axis is None else int(axis)
    while len(parts) > MOST_INPUTS:
        groups = [parts[start : start + MOST_INPUTS] for start in range(0, len(parts), MOST_INPUTS)]
        parts = [group[0] if len(group) == 1 else scope.emit(relax.op.concat(group, axis=axis)) for group in groups]
    return relax.op.concat(parts, axis=axis)
