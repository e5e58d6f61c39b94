"""Which channel stands where in a function's values: a Relax function → `ChannelFlow`, which `channel_routes.py` asks.

A split, a concat, a reshape and a transpose along the channels only say which channel stands where; convolutions with
constant weights and functions of single channels do not care in which order channels are stored.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from autofuse.frontend.constants import is_constant
from autofuse.frontend.walk import bindings, dtype_of, op_name, static_shape
from autofuse.lower.arguments import integers

_UNARY = {"nn.relu", "nn.relu6", "nn.leakyrelu", "clip", "sigmoid", "tanh", "nn.silu", "nn.gelu", "nn.gelu_tanh"}
BINARY = {"add", "subtract", "multiply"}
_MOVING = {"reshape", "permute_dims", "concat", "strided_slice", "split"}

#: Of each place, row by row, which value and which of its channels stand there: [..., 2].
Route = NDArray[np.int64]


@dataclass
class ChannelFlow:
    """The calls of a function by variable, who reads them, and what moves channels where."""

    function: Any
    calls: dict[Any, Any] = field(default_factory=dict)
    readers: dict[Any, list[Any]] = field(default_factory=lambda: defaultdict(list))
    routes: dict[Any, Route] = field(default_factory=dict)
    numbers: dict[Any, int] = field(default_factory=dict)
    variables: list[Any] = field(default_factory=list)
    kinds: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for binding in bindings(self.function):
            var, value = binding.var, binding.value
            self.calls[var] = value
            self.numbers[var] = len(self.variables)
            self.variables.append(var)
            for operand in _operands(value):
                self.readers[operand].append(var)
            self._follow(var, value)
        for result in _operands(self.function.body.body):
            self.readers[result].append(None)

    def route(self, var: Any) -> Route | None:
        """Where the channels of a variable come from; its own, for one that does not move any. None without channels"""
        if var in self.routes:
            return self.routes[var]
        shape = static_shape(var)
        if shape is None or len(shape) != 4 or dtype_of(var) != "float32" or var not in self.numbers:
            return None
        return np.stack([np.full(shape[1], self.numbers[var]), np.arange(shape[1])], axis=1)

    def moves(self, var: Any) -> bool:
        """Whether a variable only rearranges channels."""
        return var in self.routes

    def _follow(self, var: Any, value: Any) -> None:
        kind = op_name(value).removeprefix("relax.")
        if kind in _MOVING:
            made = _moved(self, kind, value)
            if made is not None:
                self.routes[var] = made
        elif isinstance(value, relax.TupleGetItem):
            source = value.tuple_value
            call = self.calls.get(source)
            if op_name(call) == "relax.split" and source in self.routes:
                parts = [_extents(f)[1] for f in source.ty.fields]
                start = sum(parts[: value.index])
                self.routes[var] = self.routes[source][start : start + parts[value.index]]

    def kind(self, var: Any) -> str:
        """ "moves"; "dense" and "depthwise" convolutions; "maps" channel by channel; "" for anything else."""
        if var not in self.kinds:
            self.kinds[var] = self._kind(var)
        return self.kinds[var]

    def _kind(self, var: Any) -> str:
        if self.moves(var):
            return "moves"
        call = self.calls.get(var)
        name = op_name(call).removeprefix("relax.")
        if call is None:
            return ""
        if name == "nn.conv2d":
            return _convolution(call)
        if name in _UNARY and isinstance(call.args[0], relax.Var):
            return "maps"
        if name in BINARY and data_position(call) is not None:
            return "maps"
        return ""

    def routed(self) -> set[Any]:
        """All variables whose channels change places: around shuffles, as far as they can be followed."""
        done: set[Any] = set()
        seen: set[Any] = set()
        for var in self.variables:
            if self.moves(var) and op_name(self.calls[var]) == "relax.permute_dims" and var not in seen:
                region, legal = self._region(var)
                seen |= region
                done |= region if legal else set()
        return done

    def _region(self, start: Any) -> tuple[set[Any], bool]:
        region: set[Any] = set()
        queue = [start]
        legal = True
        while queue:
            var = queue.pop()
            if var in region:
                continue
            region.add(var)
            kind = self.kind(var)
            if not kind:
                legal = False
                continue
            if kind != "dense":
                queue += _operands(self.calls[var])
            for reader in self.readers[var]:
                if reader is None or not self.kind(reader):
                    legal = False
                elif self.kind(reader) != "dense":
                    queue.append(reader)
        legal = legal and all(self._channels_whole(var) for var in region)
        return region, legal

    def _channels_whole(self, var: Any) -> bool:
        """Whether no channel stands twice in what a reader takes."""
        if not self.moves(var) or all(self.moves(r) for r in self.readers[var]):
            return True
        route = self.routes[var]
        return route.ndim == 2 and len(np.unique(route, axis=0)) == len(route)


def _extents(ty: Any) -> tuple[int, ...]:
    """The extents of a tensor type."""
    return tuple(int(e) for e in ty.shape.values)


def _operands(expr: Any) -> list[Any]:
    """The variables that an expression reads, tuples flattened."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Call):
        return [v for a in expr.args for v in _operands(a)]
    if isinstance(expr, relax.Tuple):
        return [v for a in expr.fields for v in _operands(a)]
    return _operands(expr.tuple_value) if isinstance(expr, relax.TupleGetItem) else []


def _convolution(call: Any) -> str:
    data, weight = call.args
    attrs = call.attrs
    shape = static_shape(data)
    plain = (str(attrs.data_layout), str(attrs.kernel_layout)) == ("NCHW", "OIHW")
    plain = plain and str(attrs.out_layout or "NCHW") == "NCHW"
    if shape is None or not plain or not is_constant(weight) or dtype_of(call) != "float32":
        return ""
    kernel = static_shape(weight)
    if kernel is None or not isinstance(data, relax.Var):
        return ""
    groups = int(attrs.groups)
    if groups == 1:
        return "dense"
    return "depthwise" if groups == shape[1] == kernel[0] and kernel[1] == 1 else ""


def data_position(call: Any) -> int | None:
    """Position of the tensor operand of an operation with a constant for each channel; None if it is no such thing."""
    constants = [is_constant(a) for a in call.args]
    if constants not in ([False, True], [True, False]):
        return None
    position = constants.index(False)
    data, other = call.args[position], call.args[1 - position]
    shape, spread = static_shape(data), static_shape(other)
    fits = isinstance(data, relax.Var) and shape == static_shape(call) and shape is not None and len(shape) == 4
    return position if fits and spread is not None and len(spread) <= 4 else None


def _moved(flow: ChannelFlow, kind: str, call: Any) -> Route | None:
    """The route of a call that moves channels alone; None if it does more than that."""
    parts = _operands(call.args[0])
    routes = [flow.route(p) for p in parts]
    if not routes or any(r is None for r in routes):
        return None
    first = routes[0]
    assert first is not None
    shape = static_shape(parts[0])
    if shape is None:
        return None
    out = static_shape(call)
    if kind == "reshape":
        if out is None or len(out) < 4 or (out[0], *out[-2:]) != (shape[0], *shape[-2:]):
            return None
        return first.reshape(*out[1:-2], 2)
    if kind == "permute_dims":
        rank = len(shape)
        axes = [int(a) % rank for a in call.attrs.axes] if call.attrs.axes is not None else list(range(rank))[::-1]
        kept = axes[0] == 0 and axes[-2:] == [rank - 2, rank - 1]
        return first.transpose(*[a - 1 for a in axes[1:-2]], rank - 3) if kept else None
    if len(shape) != 4:
        return None
    if kind == "concat":
        whole = [r for r in routes if r is not None and r.ndim == 2]
        if len(whole) < len(routes) or call.attrs.axis is None or int(call.attrs.axis) % 4 != 1:
            return None
        return np.concatenate(whole)
    if kind == "split":
        return first if int(call.attrs.axis) % 4 == 1 else None
    lists = [integers(a) for a in call.args[1:]]
    if any(entry is None for entry in lists) or [a % 4 for a in lists[0] or []] != [1]:
        return None
    begin, end = (lists[1] or [0])[0], (lists[2] or [0])[0]
    step = (lists[3] or [1])[0] if len(lists) > 3 else 1
    return first[begin:end:step] if step > 0 else None


def data_operand(call: Any) -> Any:
    """The tensor that a convolution or a function of single channels works on."""
    return next(a for a in call.args if isinstance(a, relax.Var))
