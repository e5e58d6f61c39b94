"""LSTM, GRU and RNN, unrolled over time into matmuls and elementwise operators.

The input side of all gates and all steps is one matmul ahead of the loop; a step then costs one matmul with the
recurrent weights. Formulas and gate orders: the ONNX operator specification (LSTM: i, o, f, c; GRU: z, r, h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from autofuse.errors import ModelError
from autofuse.frontend.constants import Array
from autofuse.frontend.converters.activation import hard_sigmoid
from autofuse.frontend.converters.base import (
    Attributes,
    OnnxOpConverter,
    Params,
    constant_input,
    optional,
    scalar,
    shape_of,
    text,
)

Activation = Callable[[Any], Any]
# Every step becomes operators of its own, which a compile has to search through.
_MOST_STEPS = 1024


@dataclass(frozen=True)
class _Layer:
    """One recurrent node: sizes, and its inputs by direction."""

    bb: Any
    data: Any
    steps: int
    batch: int
    hidden: int
    directions: tuple[bool, ...]  # True: runs backwards in time
    weight: Any
    recurrence: Any
    bias: Any
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    first: bool  # layout: True when the batch comes before time

    def emit(self, expr: Any) -> Any:
        return self.bb.normalize(self.bb.emit(expr))

    def part(self, tensor: Any, direction: int) -> Any:
        """The slice of a per-direction tensor, without the direction axis."""
        if len(self.directions) > 1:
            tensor = self.emit(relax.op.strided_slice(tensor, [0], [direction], [direction + 1]))
        return self.emit(relax.op.squeeze(tensor, [0]))

    def transposed(self, tensor: Any, direction: int) -> Any:
        return self.emit(relax.op.permute_dims(self.part(tensor, direction), [1, 0]))

    def columns(self, tensor: Any, start: int, stop: int) -> Any:
        """Columns [start, stop) of a matrix, counted in hidden sizes."""
        return self.emit(relax.op.strided_slice(tensor, [1], [start * self.hidden], [stop * self.hidden]))

    def bounded(self, tensor: Any) -> Any:
        if self.clip is None:
            return tensor
        return self.emit(relax.op.clip(tensor, -self.clip, self.clip))

    def initial(self, state: Any, direction: int) -> Any:
        if state is None:
            return relax.const(np.zeros((self.batch, self.hidden), str(self.data.ty.dtype.dtype)))
        if self.first:
            state = self.emit(relax.op.permute_dims(state, [1, 0, 2]))
        return self.part(state, direction)

    def projected(self, direction: int, bias: Any) -> list[Any]:
        """Input times input weights plus `bias` for each step: [batch, gates · hidden] each."""
        flat = self.emit(relax.op.reshape(self.data, [self.steps * self.batch, shape_of(self.data)[2]]))
        product = self.emit(relax.op.matmul(flat, self.transposed(self.weight, direction)))
        if bias is not None:
            product = self.emit(relax.op.add(product, bias))
        if self.steps == 1:
            return [product]
        return [
            self.emit(relax.op.strided_slice(product, [0], [step * self.batch], [(step + 1) * self.batch]))
            for step in range(self.steps)
        ]

    def biases(self, direction: int, gates: int) -> tuple[Any, Any]:
        """The input bias and the recurrent bias of a direction, None twice where there is none."""
        if self.bias is None:
            return None, None
        both = self.part(self.bias, direction)
        size = gates * self.hidden
        return (
            self.emit(relax.op.strided_slice(both, [0], [0], [size])),
            self.emit(relax.op.strided_slice(both, [0], [size], [2 * size])),
        )

    def summed_bias(self, direction: int, gates: int) -> Any:
        of_input, of_state = self.biases(direction, gates)
        return None if of_input is None else self.emit(relax.op.add(of_input, of_state))

    def outputs(self, by_direction: list[list[Any]], *last: list[Any]) -> Any:
        """Y, then each of `last` (final states by direction) stacked, in the node's layout."""
        stacked = []
        for direction, states in enumerate(by_direction):
            ordered = states[::-1] if self.directions[direction] else states
            rows = [self.emit(relax.op.expand_dims(state, [0, 1])) for state in ordered]
            stacked.append(rows[0] if len(rows) == 1 else self.emit(relax.op.concat(rows, axis=0)))
        every = stacked[0] if len(stacked) == 1 else self.emit(relax.op.concat(stacked, axis=1))
        results = [every]
        for states in last:
            rows = [self.emit(relax.op.expand_dims(state, [0])) for state in states]
            results.append(rows[0] if len(rows) == 1 else self.emit(relax.op.concat(rows, axis=0)))
        if self.first:
            results[0] = self.emit(relax.op.permute_dims(results[0], [2, 0, 1, 3]))
            results[1:] = [self.emit(relax.op.permute_dims(state, [1, 0, 2])) for state in results[1:]]
        return relax.Tuple(results)

    def order(self, direction: int) -> range:
        return range(self.steps - 1, -1, -1) if self.directions[direction] else range(self.steps)


def _layer(bb: Any, inputs: Any, attr: Attributes, defaults: tuple[str, ...]) -> _Layer:
    first = bool(attr.get("layout", 0))
    data = inputs[0]
    if first:
        data = bb.emit(relax.op.permute_dims(data, [1, 0, 2]))
    steps, batch, _ = shape_of(data)
    if steps > _MOST_STEPS:
        raise ModelError(
            f"runs over {steps} time steps, and is unrolled: {_MOST_STEPS} at most; use a shorter sequence"
        )
    _reject_lengths(constant_input(inputs, 4, "sequence lengths"), steps)
    direction = text(attr, "direction", "forward")
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    clip = attr.get("clip")
    return _Layer(
        bb=bb,
        data=data,
        steps=steps,
        batch=batch,
        hidden=shape_of(inputs[2])[2],
        directions=backwards,
        weight=inputs[1],
        recurrence=inputs[2],
        bias=optional(inputs, 3),
        activations=_activations(attr, defaults, len(backwards)),
        clip=float(clip) if clip else None,
        first=first,
    )


def _reject_lengths(lengths: Array | None, steps: int) -> None:
    if lengths is not None and not bool(np.all(lengths == steps)):
        raise ModelError("sequences of different lengths in one batch are not supported; pad them or run them apart")


_DEFAULT_ALPHA = {
    "hardsigmoid": 0.2,
    "leakyrelu": 0.01,
    "elu": 1.0,
    "affine": 1.0,
    "scaledtanh": 1.0,
    "thresholdedrelu": 1.0,
}
_DEFAULT_BETA = {"hardsigmoid": 0.5, "affine": 0.0, "scaledtanh": 1.0}


def _activations(attr: Attributes, defaults: tuple[str, ...], directions: int) -> tuple[tuple[Activation, ...], ...]:
    names = [n.decode() if isinstance(n, bytes) else n for n in attr.get("activations", defaults * directions)]
    # alphas and betas are given only to the activations that take one, in order
    alphas, betas = list(attr.get("activation_alpha", ())), list(attr.get("activation_beta", ()))
    made = []
    for name in (name.lower() for name in names):
        alpha = alphas.pop(0) if name in _DEFAULT_ALPHA and alphas else _DEFAULT_ALPHA.get(name, 0.0)
        beta = betas.pop(0) if name in _DEFAULT_BETA and betas else _DEFAULT_BETA.get(name, 0.0)
        made.append(_activation(name, float(alpha), float(beta)))
    size = len(defaults)
    return tuple(tuple(made[d * size : (d + 1) * size]) for d in range(directions))


def _activation(name: str, alpha: float, beta: float) -> Activation:
    op = relax.op
    table: dict[str, Activation] = {
        "sigmoid": op.sigmoid,
        "tanh": op.tanh,
        "relu": op.nn.relu,
        "softplus": op.nn.softplus,
        "hardsigmoid": lambda x: hard_sigmoid(x, alpha, beta),
        "leakyrelu": lambda x: op.nn.leakyrelu(x, alpha),
        "affine": lambda x: op.add(op.multiply(x, scalar(alpha, x)), scalar(beta, x)),
        "scaledtanh": lambda x: op.multiply(op.tanh(op.multiply(x, scalar(beta, x))), scalar(alpha, x)),
        "thresholdedrelu": lambda x: op.where(op.greater_equal(x, scalar(alpha, x)), x, scalar(0.0, x)),
        "softsign": lambda x: op.divide(x, op.add(op.abs(x), scalar(1.0, x))),
        "elu": lambda x: op.add(
            op.nn.relu(x),
            op.multiply(op.subtract(op.exp(op.minimum(x, scalar(0.0, x))), scalar(1.0, x)), scalar(alpha, x)),
        ),
    }
    if name not in table:
        raise ModelError(f"its activation {name} is not supported; the known ones are {', '.join(sorted(table))}")
    return table[name]


class LSTM(OnnxOpConverter):  # type: ignore[misc]
    """Ct = f·Ct-1 + i·c, Ht = o·h(Ct), with peepholes where given."""

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        layer = _layer(bb, inputs, attr, ("Sigmoid", "Tanh", "Tanh"))
        hidden, cells, every = [], [], []
        for direction in range(len(layer.directions)):
            f, g, h = layer.activations[direction]
            peep = optional(inputs, 7)
            peepholes = _peepholes(layer, layer.part(peep, direction)) if peep is not None else None
            state = layer.initial(optional(inputs, 5), direction)
            cell = layer.initial(optional(inputs, 6), direction)
            recurrence = layer.transposed(layer.recurrence, direction)
            gates_in = layer.projected(direction, layer.summed_bias(direction, 4))
            states: list[Any] = []
            for step in layer.order(direction):
                state, cell = _lstm_step(
                    layer, gates_in[step], state, cell, recurrence, peepholes, (f, g, h), bool(attr.get("input_forget"))
                )
                states.append(state)
            every.append(states)
            hidden.append(state)
            cells.append(cell)
        return layer.outputs(every, hidden, cells)


def _peepholes(layer: _Layer, both: Any) -> tuple[Any, ...]:
    size = layer.hidden
    return tuple(layer.emit(relax.op.strided_slice(both, [0], [k * size], [(k + 1) * size])) for k in range(3))


def _lstm_step(
    layer: _Layer,
    gates_in: Any,
    state: Any,
    cell: Any,
    recurrence: Any,
    peepholes: tuple[Any, ...] | None,
    activations: tuple[Activation, Activation, Activation],
    coupled: bool,
) -> tuple[Any, Any]:
    op, emit = relax.op, layer.emit
    f, g, h = activations
    total = emit(op.add(gates_in, emit(op.matmul(state, recurrence))))
    pre = [layer.columns(total, gate, gate + 1) for gate in range(4)]
    if peepholes is not None:
        # P holds i, o, f; the output gate looks at the new cell, below.
        pre[0] = emit(op.add(pre[0], op.multiply(peepholes[0], cell)))
        pre[2] = emit(op.add(pre[2], op.multiply(peepholes[2], cell)))
    enter = emit(f(layer.bounded(pre[0])))
    keep = emit(op.subtract(scalar(1.0, enter), enter)) if coupled else emit(f(layer.bounded(pre[2])))
    fresh = emit(g(layer.bounded(pre[3])))
    cell = emit(op.add(emit(op.multiply(keep, cell)), emit(op.multiply(enter, fresh))))
    if peepholes is not None:
        pre[1] = emit(op.add(pre[1], op.multiply(peepholes[1], cell)))
    leave = emit(f(layer.bounded(pre[1])))
    return emit(op.multiply(leave, emit(h(cell)))), cell


class GRU(OnnxOpConverter):  # type: ignore[misc]
    """Ht = (1 − z)·h + z·Ht-1, the reset gate applied before or after the recurrent matmul."""

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        layer = _layer(bb, inputs, attr, ("Sigmoid", "Tanh"))
        after = bool(attr.get("linear_before_reset", 0))
        hidden, every = [], []
        for direction in range(len(layer.directions)):
            state = layer.initial(optional(inputs, 5), direction)
            recurrence = layer.transposed(layer.recurrence, direction)
            of_input, of_state = layer.biases(direction, 3)
            gates_in = layer.projected(direction, of_input)
            states: list[Any] = []
            for step in layer.order(direction):
                update = _gru_after if after else _gru_before
                state = update(layer, gates_in[step], state, recurrence, of_state, layer.activations[direction])
                states.append(state)
            every.append(states)
            hidden.append(state)
        return layer.outputs(every, hidden)


def _gru_after(
    layer: _Layer, gates_in: Any, state: Any, recurrence: Any, bias: Any, acts: tuple[Activation, ...]
) -> Any:
    """h = g(Wx + r·(R·H + b)): one recurrent matmul serves the three gates."""
    op, emit = relax.op, layer.emit
    product = emit(op.matmul(state, recurrence))
    if bias is not None:
        product = emit(op.add(product, bias))
    both = emit(acts[0](layer.bounded(emit(op.add(layer.columns(gates_in, 0, 2), layer.columns(product, 0, 2))))))
    update, reset = layer.columns(both, 0, 1), layer.columns(both, 1, 2)
    inner = emit(op.add(layer.columns(gates_in, 2, 3), op.multiply(reset, layer.columns(product, 2, 3))))
    return _mix(layer, update, emit(acts[1](layer.bounded(inner))), state)


def _gru_before(
    layer: _Layer, gates_in: Any, state: Any, recurrence: Any, bias: Any, acts: tuple[Activation, ...]
) -> Any:
    """h = g(Wx + R·(r·H) + b): the candidate's matmul waits for the reset gate."""
    op, emit = relax.op, layer.emit
    if bias is not None:
        gates_in = emit(op.add(gates_in, bias))
    product = emit(op.matmul(state, layer.columns(recurrence, 0, 2)))
    both = emit(acts[0](layer.bounded(emit(op.add(layer.columns(gates_in, 0, 2), product)))))
    update, reset = layer.columns(both, 0, 1), layer.columns(both, 1, 2)
    candidate = emit(op.matmul(emit(op.multiply(reset, state)), layer.columns(recurrence, 2, 3)))
    inner = emit(op.add(layer.columns(gates_in, 2, 3), candidate))
    return _mix(layer, update, emit(acts[1](layer.bounded(inner))), state)


def _mix(layer: _Layer, update: Any, candidate: Any, state: Any) -> Any:
    # (1 − z)·h + z·H = h + z·(H − h)
    difference = layer.emit(relax.op.subtract(state, candidate))
    return layer.emit(relax.op.add(candidate, layer.emit(relax.op.multiply(update, difference))))


class RNN(OnnxOpConverter):  # type: ignore[misc]
    """Ht = f(Wx + R·Ht-1 + b)"""

    @classmethod
    def _impl_v7(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        layer = _layer(bb, inputs, attr, ("Tanh",))
        hidden, every = [], []
        for direction in range(len(layer.directions)):
            state = layer.initial(optional(inputs, 5), direction)
            recurrence = layer.transposed(layer.recurrence, direction)
            gates_in = layer.projected(direction, layer.summed_bias(direction, 1))
            states: list[Any] = []
            for step in layer.order(direction):
                total = layer.emit(relax.op.add(gates_in[step], layer.emit(relax.op.matmul(state, recurrence))))
                state = layer.emit(layer.activations[direction][0](layer.bounded(total)))
                states.append(state)
            every.append(states)
            hidden.append(state)
        return layer.outputs(every, hidden)


CONVERTERS: dict[str, Any] = {"LSTM": LSTM, "GRU": GRU, "RNN": RNN}
