"""Channel shuffles between convolutions → their weights: a Relax module and the lanes of a vector → a Relax module.

A shuffle (reshape, transpose, reshape), a split and a concat along the channels only say which channel stands where,
and a convolution with constant weights can give its channels in any order and read them from any place. So every
convolution whose channels meet a shuffle is made to give them in an order in which each reader's channels fill whole
blocks of `lanes`, readers take those blocks, and the shuffle is gone. What is left to move are whole blocks:

    relu(conv(x, W)) → split → concat → shuffle → split → conv(_, V)      becomes
    relu(conv(x, W')) → slices of blocks → concat of blocks → conv(_, V')

Slots that no channel needs are zero in W' and meet zeros in V'. Values between the two, whose order changes, may be
functions of one channel alone that are finite at zero. A value that anything else reads keeps its shuffle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from autofuse.frontend.constants import array_of, constant, is_constant
from autofuse.frontend.walk import abandon, bindings, dtype_of, op_name, static_shape, with_main
from autofuse.lower.arguments import integers

_UNARY = {"nn.relu", "nn.relu6", "nn.leakyrelu", "clip", "sigmoid", "tanh", "nn.silu", "nn.gelu", "nn.gelu_tanh"}
_BINARY = {"add", "subtract", "multiply"}
_MOVING = {"reshape", "permute_dims", "concat", "strided_slice", "split"}

#: Of each place, row by row, which value and which of its channels stand there: [..., 2].
Route = NDArray[np.int64]
#: Of each stored channel the channel that it holds, -1 for none.
Slots = NDArray[np.int64]


def route_channels(module: tvm.IRModule, lanes: int) -> tvm.IRModule:
    """`module` without the channel shuffles that lie between convolutions with constant weights."""
    function = module["main"]
    if not any(op_name(b.value) == "relax.permute_dims" for b in bindings(function)):
        return module
    found = _Flow(function)
    routed = found.routed()
    return _Rewriting(found, routed, lanes).run(module) if routed else module


@dataclass
class _Flow:
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
                parts = [static_shape_of(f)[1] for f in source.ty.fields]
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
        if name in _BINARY and _data_of(call) is not None:
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


def static_shape_of(ty: Any) -> tuple[int, ...]:
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


def _data_of(call: Any) -> int | None:
    """Position of the tensor operand of an operation with a constant for each channel; None if it is no such thing."""
    constants = [is_constant(a) for a in call.args]
    if constants not in ([False, True], [True, False]):
        return None
    position = constants.index(False)
    data, other = call.args[position], call.args[1 - position]
    shape, spread = static_shape(data), static_shape(other)
    fits = isinstance(data, relax.Var) and shape == static_shape(call) and shape is not None and len(shape) == 4
    return position if fits and spread is not None and len(spread) <= 4 else None


def _moved(flow: _Flow, kind: str, call: Any) -> Route | None:
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


def arrange(sets: Sequence[frozenset[int]], lanes: int) -> Slots:
    """An order of channels, in blocks of `lanes`, in which each set of readers finds its channels in blocks of its own.

    sets: who reads each channel. What is left of a set beyond whole blocks shares a block with what is left of others;
    channels that nobody reads are left out.
    """
    groups: dict[frozenset[int], list[int]] = defaultdict(list)
    for channel, readers in enumerate(sets):
        if readers:
            groups[readers].append(channel)
    slots: list[int] = []
    tails: list[list[int]] = []
    for _, members in sorted(groups.items(), key=lambda item: sorted(item[0])):
        whole = len(members) // lanes * lanes
        slots += members[:whole]
        if whole < len(members):
            tails.append(members[whole:])
    shared: list[list[int]] = []
    for tail in sorted(tails, key=len, reverse=True):
        home = next((block for block in shared if len(block) + len(tail) <= lanes), None)
        if home is None:
            shared.append(list(tail))
        else:
            home += tail
    for block in shared:
        slots += block + [-1] * (lanes - len(block))
    # A value that nobody reads still has to have a block.
    return np.array(slots or [0] + [-1] * (lanes - 1), np.int64)


class _Rewriting:
    """Emits a function again with the channels of `routed` variables stored in other orders."""

    def __init__(self, flow: _Flow, routed: set[Any], lanes: int) -> None:
        self._flow, self._routed, self._lanes = flow, routed, lanes
        self._builder = relax.BlockBuilder()
        self._new: dict[Any, Any] = {}
        self._slots: dict[int, Slots] = {}
        self._gathered: dict[tuple[tuple[int, int, int], ...], Any] = {}
        self._wanted = self._readers_of_channels()

    def run(self, module: tvm.IRModule) -> tvm.IRModule:
        """The module with `main` emitted again."""
        function, builder = module["main"], self._builder
        try:
            with builder.function("main", params=list(function.params)):
                with builder.dataflow():
                    for binding in bindings(function):
                        self._bind(binding)
                    output = builder.emit_output(builder.normalize(self._mapped(function.body.body)))
                builder.emit_func_output(output)
        except Exception:
            abandon(builder)
            raise
        return with_main(module, builder)

    def _base(self, var: Any) -> Any:
        """What decides the order of a variable's channels: the convolution behind it, or what reads moved channels."""
        flow = self._flow
        while flow.kind(var) != "dense":
            data = _data_operand(flow.calls[var])
            if flow.moves(data):
                return var
            var = data
        return var

    def _readers_of_channels(self) -> dict[Any, list[set[int]]]:
        """By dense convolution: for each of its channels the readers that take it from where it was moved to."""
        flow = self._flow
        wanted: dict[Any, list[set[int]]] = {}
        for var in flow.variables:
            if var in self._routed and flow.kind(var) == "dense":
                shape = static_shape(var)
                assert shape is not None
                wanted[var] = [set() for _ in range(shape[1])]
        for var in flow.variables:
            if var in self._routed and not flow.moves(var):
                direct = [r for r in flow.readers[var] if flow.kind(r) == "dense"]
                base = self._base(var)
                for sets in wanted.get(base, ()) if direct else ():
                    sets.add(-1)
            if flow.kind(var) not in ("dense", "depthwise", "maps"):
                continue
            data = _data_operand(flow.calls[var])
            if data in self._routed and flow.moves(data):
                for source, channel in flow.routes[data]:
                    base = self._base(flow.variables[source])
                    if base in wanted:
                        wanted[base][channel].add(flow.numbers[var])
        return wanted

    # -- emission ----------------------------------------------------------------------------------------------

    def _mapped(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return self._new.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._mapped(f) for f in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._mapped(expr.tuple_value), expr.index)
        return expr

    def _bind(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        data = _data_operand(value) if self._flow.kind(var) in ("dense", "depthwise", "maps") else None
        if var in self._routed and self._flow.moves(var):
            return
        if var in self._routed or data in self._routed:
            self._new[var] = self._emit(var, value, data)
        elif isinstance(value, relax.Call):
            args = [self._mapped(a) for a in value.args]
            self._new[var] = self._builder.emit(relax.Call(value.op, args, value.attrs, value.ty_args), var.name)
        else:
            self._new[var] = self._builder.emit(self._mapped(value), var.name)

    def _emit(self, var: Any, call: Any, data: Any) -> Any:
        """A convolution or a function of single channels, on channels in their new order."""
        source, slots = self._taken(data)
        kind = self._flow.kind(var)
        made = slots
        if kind == "dense":
            weight = array_of(call.args[1])
            if slots is not None:
                weight = _picked(weight, slots, 1)
            if var in self._routed:
                made = arrange([frozenset(s) for s in self._wanted[var]], self._lanes)
                weight = _picked(weight, made, 0)
            new = relax.Call(call.op, [source, constant(weight)], call.attrs, call.ty_args)
        elif kind == "depthwise":
            assert slots is not None
            a = call.attrs
            new = relax.op.nn.conv2d(
                source, constant(_picked(array_of(call.args[1]), slots, 0)), strides=[int(s) for s in a.strides],
                padding=[int(p) for p in a.padding], dilation=[int(d) for d in a.dilation], groups=len(slots),
            )  # fmt: skip
        else:
            new = relax.Call(call.op, self._arguments(call, source, slots), call.attrs, call.ty_args)
        if var in self._routed:
            assert made is not None
            self._slots[self._flow.numbers[var]] = made
        return self._builder.emit(new, var.name)

    def _arguments(self, call: Any, source: Any, slots: Slots | None) -> list[Any]:
        """The arguments of a function of single channels."""
        assert slots is not None
        if op_name(call).removeprefix("relax.") not in _BINARY:
            return [source, *call.args[1:]]
        position = _data_of(call)
        assert position is not None
        array = array_of(call.args[1 - position])
        if array.ndim >= 3 and array.shape[-3] > 1:
            array = _picked(array, slots, array.ndim - 3)
        other = constant(array)
        return [source, other] if position == 0 else [other, source]

    def _taken(self, data: Any) -> tuple[Any, Slots | None]:
        """What a reader of `data` takes in its place, and which channel of it stands where; None: all as they are."""
        flow = self._flow
        if data not in self._routed:
            return self._mapped(data), None
        if not flow.moves(data):
            return self._new[data], self._slots[flow.numbers[data]]
        places = {(int(s), int(c)): i for i, (s, c) in enumerate(flow.routes[data])}
        runs: list[tuple[int, int, int]] = []
        slots: list[int] = []
        lanes = self._lanes
        for source in dict.fromkeys(s for s, _ in places):
            stored = self._slots[source]
            for block in range(0, len(stored), lanes):
                held = [places.get((source, int(c)), -1) for c in stored[block : block + lanes]]
                if max(held) < 0:
                    continue
                slots += held
                if runs and runs[-1][0] == source and runs[-1][2] == block:
                    runs[-1] = (source, runs[-1][1], block + lanes)
                else:
                    runs.append((source, block, block + lanes))
        return self._gather(tuple(runs)), np.array(slots, np.int64)

    def _gather(self, runs: tuple[tuple[int, int, int], ...]) -> Any:
        """The runs of whole blocks (value, from, to) one after another."""
        if runs not in self._gathered:
            parts = [self._run(*run) for run in runs]
            self._gathered[runs] = parts[0] if len(parts) == 1 else self._builder.emit(relax.op.concat(parts, axis=1))
        return self._gathered[runs]

    def _run(self, source: int, begin: int, end: int) -> Any:
        whole = self._new[self._flow.variables[source]]
        if begin == 0 and end == len(self._slots[source]):
            return whole
        return self._builder.emit(relax.op.strided_slice(whole, [1], [begin], [end], [1]))


def _data_operand(call: Any) -> Any:
    """The tensor that a convolution or a function of single channels works on."""
    return next(a for a in call.args if isinstance(a, relax.Var))


def _picked(array: NDArray[Any], slots: Slots, axis: int) -> NDArray[Any]:
    """`array` with its places along `axis` in the order of `slots`, zeros where there is none."""
    picked = np.take(array, np.maximum(slots, 0), axis=axis)
    shape = [-1 if i == axis else 1 for i in range(array.ndim)]
    zeroed: NDArray[Any] = picked * (slots >= 0).astype(array.dtype).reshape(shape)
    return zeroed
