"""Layers of random models that work element by element: activations, arithmetic, comparisons, whole numbers."""

from __future__ import annotations

import numpy as np
from random_models import Array, Sketch, Value, ints, scalar, whole


def activate(s: Sketch, v: Value) -> Value:
    """One of the activations, alone or as exporters spell it; often none."""
    kind = s.pick(
        "Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "HardSigmoid", "Elu", "Softplus", "Clip", "silu", "gelu",
        "mish", "bn", "scale", "PRelu", "", "", "",
    )  # fmt: skip
    if not kind or v.rank == 0:
        return v
    if kind == "Clip":
        return s.add("Clip", v, scalar(s.pick(-1, 0)), scalar(s.pick(1, 6)))
    if kind == "silu":
        return s.add("Mul", v, s.add("Sigmoid", v, hidden=True))
    if kind == "mish":
        return s.add("Mul", v, s.add("Tanh", s.add("Softplus", v, hidden=True), hidden=True))
    if kind == "gelu":
        inner = s.add("Erf", s.add("Div", v, scalar(1.4142135), hidden=True), hidden=True)
        made = s.add("Mul", v, s.add("Add", inner, scalar(1), hidden=True), hidden=True)
        return s.add("Mul", made, scalar(0.5))
    channels = v.shape[1] if v.rank == 4 else v.shape[-1]
    if kind == "bn":
        if v.rank != 4:
            return v
        spread, mean = np.abs(s.numbers(channels)) + scalar(0.5), s.numbers(channels, scale=0.1)
        return s.add("BatchNormalization", v, s.numbers(channels, scale=0.1) + scalar(1), mean, mean, spread)
    shape = (channels, 1, 1) if v.rank == 4 else (channels,)
    if kind == "scale":
        return s.add(s.pick("Mul", "Add", "Sub"), v, s.numbers(*shape))
    if kind == "PRelu":
        return s.add("PRelu", v, np.abs(s.numbers(*shape)))
    return s.add(kind, v)


def activation(s: Sketch) -> None:
    activate(s, s.find())


def unary(s: Sketch) -> None:
    op = s.pick(
        "Abs", "Neg", "Exp", "Sqrt", "Sin", "Cos", "Erf", "Log", "Reciprocal", "Softsign", "Sign", "Selu", "Atan"
    )
    v = s.find()
    if op in ("Sqrt", "Log", "Reciprocal"):
        v = s.add("Add", s.add("Abs", v, hidden=True), scalar(0.5), hidden=True)
    s.add(op, v)


def constant_operand(s: Sketch) -> None:
    """Broadcasts of every kind, with a constant on either side."""
    v = s.find()
    shape = [size if s.chance(0.5) else 1 for size in v.shape]
    if s.chance(0.5):
        shape = shape[s.rng.integers(0, len(shape) + 1) :]
    other: Array = s.numbers(*shape)
    op = s.pick("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
    if op == "Pow":
        s.add("Pow", v, scalar(s.pick(2, 3)))
        return
    if op == "Div":
        other = np.abs(other) + scalar(0.5)
        s.add("Div", v, other)
    elif s.chance(0.5):
        s.add(op, v, other)
    else:
        s.add(op, other, v)


def two_values(s: Sketch) -> None:
    """Two values of the model, also under a broadcast, also twice the same."""
    a = s.find()

    def fits(b: Value) -> bool:
        pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
        return b.floating and all(i == j or 1 in (i, j) for i, j in pairs)

    b = s.find(where=fits)
    a, b = (a, b) if s.chance(0.5) else (b, a)
    s.add(s.pick("Add", "Add", "Mul", "Sub", "Max", "Min"), a, b)


def compare(s: Sketch) -> None:
    """A comparison, perhaps with logic, that chooses between two values."""
    v = s.find(where=lambda value: value.floating or whole(value))
    # Not 0: what saturates there is on either side of it as its rounding goes.
    level: Array = scalar(s.pick(0.1, 0.25)) if v.floating else ints(3)
    chosen = s.add(s.pick("Greater", "Less", "GreaterOrEqual", "LessOrEqual"), v, level, hidden=s.chance(0.8))
    if s.chance(0.3):
        chosen = s.add(s.pick("And", "Or", "Xor"), chosen, s.add("Not", chosen, hidden=True), hidden=True)
    if s.chance(0.3):
        s.add("Cast", chosen, to=s.pick(1, 7))
    elif s.chance(0.5):
        s.add("Where", chosen, s.find(), s.find())
    else:
        s.add("Where", chosen, s.find(), scalar(s.pick(-1e3, 0.5)))


def whole_numbers(s: Sketch) -> None:
    """Arithmetic of int64, floor division of the signs there are, and the way back to float."""
    v = s.find(where=whole)
    op = s.pick("Add", "Sub", "Mul", "Div", "Mod", "Max", "Neg", "Abs")
    made = s.add(op, v) if op in ("Neg", "Abs") else s.add(op, v, ints(s.pick(2, 3, 5) * s.pick(1, 1, -1)))
    if s.chance(0.6):
        s.add("Cast", made, to=1)


def to_whole(s: Sketch) -> None:
    s.add("Cast", s.find(), to=s.pick(6, 7))
