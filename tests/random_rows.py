"""Layers of random models over rows: reductions, softmax, normalisations, products, attention, recurrent ones."""

from __future__ import annotations

import numpy as np
from random_elementwise import activate
from random_models import WIDTHS, RefusedError, Sketch, Value, ints, scalar


def axes_of(s: Sketch, v: Value) -> list[int]:
    count = int(s.rng.integers(1, min(v.rank, 3) + 1))
    return sorted(s.rng.choice(v.rank, count, replace=False).tolist())


def reduction(s: Sketch) -> None:
    v = s.find()
    kinds = ("Mean", "Sum", "Max", "Min", "L2", "SumSquare", "L1", "LogSumExp", "Prod")
    op = f"Reduce{s.pick(*kinds)}"
    axes = [axis - s.pick(0, v.rank) for axis in axes_of(s, v)]
    made = s.add(op, v, ints(*axes), keepdims=int(s.chance(0.5)))
    if s.chance(0.5) and made.rank == v.rank:
        s.add(s.pick("Sub", "Mul", "Add"), v, made)
    elif s.chance(0.3):
        activate(s, made)


def softmax(s: Sketch) -> None:
    v = s.find()
    s.add(s.pick("Softmax", "Softmax", "LogSoftmax"), v, axis=int(s.rng.integers(-v.rank, v.rank)))


def arg(s: Sketch) -> None:
    v = s.find()
    op, axis = s.pick("ArgMax", "ArgMin", "CumSum", "TopK"), int(s.rng.integers(v.rank))
    if op == "CumSum":
        s.add(op, v, np.asarray(axis, np.int64), exclusive=int(s.chance(0.3)), reverse=int(s.chance(0.3)))
    elif op == "TopK":
        s.add_all(op, v, ints(min(2, v.shape[axis])), results=2, axis=axis, largest=int(s.chance(0.7)))
    else:
        s.add(op, v, axis=axis, keepdims=int(s.chance(0.5)))


def normalise(s: Sketch, v: Value, axes: list[int], *, centred: bool = True) -> Value:
    """As exporters spell it: the mean taken off, divided by the root of the mean square."""
    if centred:
        v = s.add("Sub", v, s.add("ReduceMean", v, ints(*axes), keepdims=1, hidden=True), hidden=True)
    square = s.add("Mul", v, v, hidden=True) if s.chance(0.5) else s.add("Pow", v, scalar(2), hidden=True)
    mean = s.add("ReduceMean", square, ints(*axes), keepdims=1, hidden=True)
    root = s.add("Sqrt", s.add("Add", mean, scalar(1e-2), hidden=True), hidden=True)
    if s.chance(0.3):
        return s.add("Mul", v, s.add("Reciprocal", root, hidden=True))
    return s.add("Div", v, root)


def layer_norm(s: Sketch) -> None:
    v = s.find(2, 3, 4)
    if s.chance(0.4):
        size = v.shape[-1]
        bias = [s.numbers(size)] if s.chance(0.5) else []
        made = s.add("LayerNormalization", v, s.numbers(size), *bias, axis=-1, epsilon=1e-2)
    else:
        axes = s.pick([-1], [-1], [1], axes_of(s, v))
        made = normalise(s, v, axes, centred=s.chance(0.6))
    activate(s, made)


def group_norm(s: Sketch) -> None:
    v = s.find(4)
    b, c, h, w = v.shape
    groups = s.pick(*(n for n in range(1, c + 1) if c % n == 0))
    parts = s.add("Reshape", v, ints(b, groups, -1), hidden=True)
    if s.chance(0.5):
        ones = np.ones(groups, np.float32)
        made = s.add("InstanceNormalization", parts, ones, 0 * ones, epsilon=1e-2, hidden=True)
    else:
        made = normalise(s, parts, [2])
    made = s.add("Reshape", made, ints(b, c, h, w), hidden=True)
    made = s.add("Add", s.add("Mul", made, s.numbers(c, 1, 1), hidden=True), s.numbers(c, 1, 1))
    activate(s, made)


def instance_norm(s: Sketch) -> None:
    v = s.find(4)
    s.add("InstanceNormalization", v, s.numbers(v.shape[1]), s.numbers(v.shape[1]), epsilon=1e-2)


def project(s: Sketch, v: Value, width: int) -> Value:
    made = s.add("MatMul", v, s.numbers(v.shape[-1], width, scale=float(1 / np.sqrt(v.shape[-1]))))
    return s.add("Add", made, s.numbers(width)) if s.chance(0.6) else made


def product(s: Sketch) -> None:
    """One to three products in a row, with activations, now and then back onto the source."""
    v = source = s.find(2, 3, 4)
    for _ in range(s.pick(1, 2, 3)):
        v = activate(s, project(s, v, s.pick(*WIDTHS)))
    if s.chance(0.4):
        s.add("Add", source, project(s, v, source.shape[-1]))


def product_of_values(s: Sketch) -> None:
    a = s.find(2, 3, 4)
    b = s.find(2, 3, 4)
    if b.shape[-2] != a.shape[-1] and b.shape[-1] == a.shape[-1]:
        order = [*range(b.rank - 2), b.rank - 1, b.rank - 2]
        b = s.add("Transpose", b, perm=order, hidden=True)
    activate(s, s.add("MatMul", a, b))


def gemm(s: Sketch) -> None:
    v = s.find(2)
    turned, width = s.chance(0.5), s.pick(*WIDTHS)
    inner = v.shape[1]
    weight = s.numbers(*((width, inner) if turned else (inner, width)), scale=float(1 / np.sqrt(inner)))
    bias = [s.numbers(*s.pick((width,), (1, width), (1,)))] if s.chance(0.7) else []
    activate(s, s.add("Gemm", v, weight, *bias, transB=int(turned), alpha=s.pick(1.0, 0.5), beta=s.pick(1.0, 2.0)))


def attention(s: Sketch) -> None:
    """Projections, heads, two products with a softmax between them, scale and mask where there are."""
    v = s.find(3)
    b, length, width = v.shape
    other = s.find(3, where=lambda o: o.floating and o.shape[0] == b) if s.chance(0.3) else v
    heads, size = s.pick(1, 2, 3), s.pick(3, 4, 8, 16)
    many = other.shape[1]

    def parts(source: Value, count: int, order: list[int]) -> Value:
        made = project(s, source, heads * size)
        made = s.add("Reshape", made, ints(b, count, heads, size), hidden=True)
        return s.add("Transpose", made, perm=order, hidden=True)

    query, value = parts(v, length, [0, 2, 1, 3]), parts(other, many, [0, 2, 1, 3])
    scores = s.add("MatMul", query, parts(other, many, [0, 2, 3, 1]), hidden=s.chance(0.9))
    if s.chance(0.7):
        scores = s.add(s.pick("Div", "Mul"), scores, scalar(size**0.5), hidden=True)
    if s.chance(0.5):
        mask = np.where(s.rng.random(s.pick((length, many), (1, 1, many))) < 0.3, -1e3, 0).astype(np.float32)
        scores = s.add("Add", scores, mask, hidden=True)
    weights = s.add("Softmax", scores, axis=-1, hidden=s.chance(0.9))
    made = s.add("Transpose", s.add("MatMul", weights, value, hidden=True), perm=[0, 2, 1, 3], hidden=True)
    made = s.add("Reshape", made, ints(b, length, heads * size))
    if s.chance(0.6):
        s.add("Add", project(s, made, width), v)


def recurrent(s: Sketch) -> None:
    v = s.find(3)
    if v.shape[0] > 8:
        raise RefusedError
    op, hidden, ways = s.pick("LSTM", "GRU"), s.pick(3, 8, 13), s.pick(1, 1, 2)
    gates = (4 if op == "LSTM" else 3) * hidden
    more = {"linear_before_reset": int(s.chance(0.5))} if op == "GRU" else {}
    bias = [s.numbers(ways, 2 * gates, scale=0.3)] if s.chance(0.5) else []
    weight, state = s.numbers(ways, gates, v.shape[2], scale=0.3), s.numbers(ways, gates, hidden, scale=0.3)
    direction = "bidirectional" if ways == 2 else s.pick("forward", "reverse")
    s.add(op, v, weight, state, *bias, hidden_size=hidden, direction=direction, **more)
