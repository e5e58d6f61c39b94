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
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from autofuse.frontend.constants import array_of, constant
from autofuse.frontend.walk import abandon, bindings, op_name, static_shape, with_main
from autofuse.lower.channel_flow import BINARY, ChannelFlow, data_operand, data_position

#: Of each stored channel the channel that it holds, -1 for none.
Slots = NDArray[np.int64]


def route_channels(module: tvm.IRModule, lanes: int) -> tvm.IRModule:
    """`module` without the channel shuffles that lie between convolutions with constant weights."""
    function = module["main"]
    if not any(op_name(b.value) == "relax.permute_dims" for b in bindings(function)):
        return module
    found = ChannelFlow(function)
    routed = found.routed()
    return _Rewriting(found, routed, lanes).run(module) if routed else module


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

    def __init__(self, flow: ChannelFlow, routed: set[Any], lanes: int) -> None:
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
            data = data_operand(flow.calls[var])
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
            data = data_operand(flow.calls[var])
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
        data = data_operand(value) if self._flow.kind(var) in ("dense", "depthwise", "maps") else None
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
        if op_name(call).removeprefix("relax.") not in BINARY:
            return [source, *call.args[1:]]
        position = data_position(call)
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


def _picked(array: NDArray[Any], slots: Slots, axis: int) -> NDArray[Any]:
    """`array` with its places along `axis` in the order of `slots`, zeros where there is none."""
    picked = np.take(array, np.maximum(slots, 0), axis=axis)
    shape = [-1 if i == axis else 1 for i in range(array.ndim)]
    zeroed: NDArray[Any] = picked * (slots >= 0).astype(array.dtype).reshape(shape)
    return zeroed
