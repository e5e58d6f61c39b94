"""The layers of random models, by name: each adds nodes to a `Sketch`, with attributes chosen at random.

Layers do not check what they choose: `Sketch.add` refuses what cannot be run.
"""

from __future__ import annotations

import numpy as np
from random_models import Array, Layer, RefusedError, Sketch, Value

#: Sizes of images: one, powers of two, primes, long and thin.
IMAGES = (
    (1, 1), (2, 2), (3, 1), (1, 5), (4, 4), (7, 7), (8, 8), (5, 9), (14, 14), (13, 16), (17, 3), (28, 28), (31, 19)
)  # fmt: skip
CHANNELS = (1, 3, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 40, 64)
WIDTHS = (1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 23, 24, 31, 32, 37, 48, 64)


def ints(*numbers: int) -> Array:
    return np.asarray(numbers, dtype=np.int64)


def floats(*numbers: float) -> Array:
    return np.asarray(numbers, dtype=np.float32)


def scalar(number: float) -> Array:
    return np.asarray(number, dtype=np.float32)


def whole(value: Value) -> bool:
    return value.array.dtype == np.int64


def start(s: Sketch) -> None:
    """One to three inputs: an image, a sequence, a matrix; numbers of tokens."""
    batch = s.pick(1, 1, 1, 2, 3, 4)
    image = s.pick(*IMAGES)
    kind = s.pick("image", "image", "sequence", "both")
    if kind != "sequence":
        s.input(s.numbers(batch, s.pick(*CHANNELS), *image))
        if s.chance(0.3):
            s.input(s.numbers(batch, s.pick(*CHANNELS), *image))
    if kind != "image":
        shape = s.pick((batch, s.pick(*WIDTHS), s.pick(*WIDTHS)), (s.pick(*WIDTHS), s.pick(*WIDTHS)))
        s.input(s.numbers(*shape))
        if s.chance(0.3):
            s.input(s.numbers(*shape))
    if s.chance(0.3):
        s.input(s.rng.integers(0, 7, (batch, s.pick(1, 2, 5, 8, 13))))


# --- elementwise ----------------------------------------------------------------------------------------------------


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


# --- windows --------------------------------------------------------------------------------------------------------


def convolve(
    s: Sketch, v: Value, out: int, kernel: tuple[int, ...], groups: int = 1, op: str = "Conv", **attributes: object
) -> Value:
    inner = v.shape[1] // groups
    scale = float(1 / np.sqrt(inner * np.prod(kernel)))
    shape = (out, inner, *kernel) if op == "Conv" else (v.shape[1], out // groups, *kernel)
    bias = [s.numbers(out, scale=0.3)] if s.chance(0.5) else []
    return s.add(op, v, s.numbers(*shape, scale=scale), *bias, kernel_shape=list(kernel), group=groups, **attributes)


def window(s: Sketch, kernel: tuple[int, ...]) -> dict[str, object]:
    """Strides, dilations and padding of a convolution."""
    dims = len(kernel)
    dilations = [1] * dims if s.chance(0.6) else [s.pick(1, 2, 3) for _ in range(dims)]
    same = [(k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True)]
    pads = s.pick(same * 2, same * 2, [0] * 2 * dims, [s.pick(0, 1, 2) for _ in range(2 * dims)])
    strides = s.pick([1] * dims, [1] * dims, [2] * dims, [s.pick(1, 2, 3) for _ in range(dims)])
    return {"strides": strides, "dilations": dilations, "pads": pads}


def convolution(s: Sketch) -> None:
    v = s.find(4)
    kernel = s.pick((3, 3), (3, 3), (1, 1), (2, 3), (5, 5), (1, 7))
    activate(s, convolve(s, v, s.pick(*CHANNELS), kernel, **window(s, kernel)))


def convolution_1d_3d(s: Sketch) -> None:
    v = s.find(3, 5)
    kernel = (s.pick(1, 2, 3),) * (v.rank - 2)
    activate(s, convolve(s, v, s.pick(*CHANNELS), kernel, **window(s, kernel)))


def grouped(s: Sketch) -> None:
    v = s.find(4)
    groups = s.pick(*(g for g in range(1, v.shape[1] + 1) if v.shape[1] % g == 0))
    kernel = s.pick((3, 3), (1, 1), (2, 2), (5, 3))
    activate(s, convolve(s, v, groups * s.pick(1, 2, 3, 4), kernel, groups, **window(s, kernel)))


def depthwise(s: Sketch, v: Value) -> Value:
    kernel = s.pick((3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2), (7, 7))
    multiple = s.pick(1, 1, 1, 2) if v.shape[1] < 40 else 1
    return activate(s, convolve(s, v, v.shape[1] * multiple, kernel, v.shape[1], **window(s, kernel)))


def pointwise(s: Sketch, v: Value) -> Value:
    return activate(s, convolve(s, v, s.pick(*CHANNELS), (1, 1), strides=s.pick([1, 1], [1, 1], [1, 1], [2, 2])))


def separable(s: Sketch) -> None:
    if s.chance(0.5):
        pointwise(s, depthwise(s, s.find(4)))
    else:
        depthwise(s, pointwise(s, s.find(4)))


def inverted_residual(s: Sketch) -> None:
    v = s.find(4)
    wide = activate(s, convolve(s, v, min(2 * v.shape[1], 64), (1, 1)))
    inner = activate(s, convolve(s, wide, wide.shape[1], (3, 3), wide.shape[1], pads=[1] * 4))
    made = convolve(s, inner, v.shape[1], (1, 1))
    s.add("Add", *((v, made) if s.chance(0.5) else (made, v)))


def transposed(s: Sketch) -> None:
    v = s.find(4)
    groups = s.pick(1, 1, v.shape[1], *(g for g in (2, 3, 4) if v.shape[1] % g == 0))
    kernel = s.pick((2, 2), (3, 3), (4, 4), (1, 3), (5, 2))
    strides = [s.pick(1, 2, 2, 3) for _ in range(2)]
    more = {
        "strides": strides,
        "pads": s.pick([0] * 4, [1] * 4, [0, 1, 1, 0]),
        "output_padding": [s.pick(0, 0, stride - 1) for stride in strides],
        "dilations": s.pick([1, 1], [1, 1], [2, 2]),
    }
    activate(s, convolve(s, v, groups * s.pick(1, 2, 3, 8), kernel, groups, "ConvTranspose", **more))


def pool(s: Sketch) -> None:
    v = s.find(4)
    kernel = s.pick((2, 2), (3, 3), (1, 2), (5, 5))
    more: dict[str, object] = {
        "strides": s.pick([1, 1], [2, 2], [1, 2], [3, 3]),
        "pads": [int(s.rng.integers(0, (kernel[i % 2] + 1) // 2)) for i in range(4)],
        "ceil_mode": int(s.chance(0.3)),
    }
    if any(size < 2 * k - 1 for size, k in zip(v.shape[2:], kernel, strict=True)):
        raise RefusedError  # ONNX Runtime runs windows larger than the data
    if s.chance(0.5):
        more["dilations"] = s.pick([1, 1], [1, 1], [2, 1])
        s.add("MaxPool", v, kernel_shape=list(kernel), **more)
    else:
        s.add("AveragePool", v, kernel_shape=list(kernel), count_include_pad=int(s.chance(0.5)), **more)


def global_pool(s: Sketch) -> None:
    s.add(s.pick("GlobalAveragePool", "GlobalMaxPool"), s.find(3, 4))


def excitation(s: Sketch) -> None:
    v = s.find(4)
    mean = s.add("GlobalAveragePool", v, hidden=True)
    inner = activate(s, convolve(s, mean, max(1, v.shape[1] // 4), (1, 1)))
    made = s.add("Mul", v, s.add(s.pick("Sigmoid", "HardSigmoid"), convolve(s, inner, v.shape[1], (1, 1)), hidden=True))
    if s.chance(0.5):
        pointwise(s, made)


def resize(s: Sketch) -> None:
    v = s.find(4)
    scales = floats(1, 1, s.pick(1, 2, 3, 1.5), s.pick(1, 2, 3, 0.5))
    way = s.pick("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
    if s.chance(0.5):
        rounding = s.pick("floor", "round_prefer_floor", "ceil", "round_prefer_ceil")
        way = s.pick("asymmetric", "half_pixel")
        s.add("Resize", v, None, scales, mode="nearest", coordinate_transformation_mode=way, nearest_mode=rounding)
    elif s.chance(0.5):
        # Where a scaled length is not whole, ONNX's own tests align corners otherwise than ONNX Runtime.
        way = "half_pixel" if way == "align_corners" else way
        s.add("Resize", v, None, scales, mode="linear", coordinate_transformation_mode=way)
    else:
        sizes = ints(*v.shape[:2], s.pick(1, 5, 8, 13), s.pick(1, 4, 7, 16))
        s.add("Resize", v, None, None, sizes, mode=s.pick("linear", "cubic"), coordinate_transformation_mode=way)


# --- moves ----------------------------------------------------------------------------------------------------------


def concat(s: Sketch) -> None:
    v = s.find()
    axis = s.pick(1 if v.rank > 1 else 0, int(s.rng.integers(v.rank)))

    def fits(b: Value) -> bool:
        return b.floating and b.rank == v.rank and all(
            i == axis or x == y for i, (x, y) in enumerate(zip(v.shape, b.shape, strict=True))
        )  # fmt: skip

    parts = [v, *(s.find(where=fits) for _ in range(s.pick(1, 2, 3, 7)))]
    if v.rank == 4 and axis == 1 and s.chance(0.5):
        parts = [activate(s, convolve(s, part, s.pick(1, 2, 3, 5, 8, 16), (1, 1))) for part in parts]
    made = s.add("Concat", *(parts[i] for i in s.rng.permutation(len(parts))), axis=axis - s.pick(0, v.rank))
    if s.chance(0.5):
        activate(s, made)


def split(s: Sketch) -> None:
    v = s.find()
    axis = int(s.rng.integers(v.rank))
    size = v.shape[axis]
    if size < 2:
        raise RefusedError
    cuts = sorted(s.rng.choice(np.arange(1, size), int(s.rng.integers(1, min(size, 4))), replace=False).tolist())
    parts = ints(*np.diff([0, *cuts, size]).tolist())
    made = s.add_all("Split", v, parts, results=len(parts), axis=axis)
    for part in made:
        if s.chance(0.4):
            activate(s, part)


def strided_slice(s: Sketch) -> None:
    v = s.find()
    axis = int(s.rng.integers(v.rank))
    size, step = v.shape[axis], s.pick(1, 1, 2, 3, -1, -2)
    first, last = (0, size) if step > 0 else (size - 1, -size - 1)
    first += s.pick(0, 0, 1) * (1 if step > 0 else -1)
    s.add("Slice", v, ints(first), ints(last), ints(axis), ints(step))


def pad(s: Sketch) -> None:
    v = s.find(2, 3, 4)
    mode = s.pick("constant", "reflect", "edge")
    least = -1 if mode == "constant" else 0
    amounts = [0] * (2 * v.rank)
    for axis in s.rng.choice(v.rank, s.pick(1, 2), replace=False).tolist():
        amounts[axis], amounts[axis + v.rank] = int(s.rng.integers(least, 3)), int(s.rng.integers(least, 3))
    s.add("Pad", v, ints(*amounts), *([scalar(s.pick(0, -1.5, 2))] if mode == "constant" else []), mode=mode)


def transpose(s: Sketch) -> None:
    v = s.find(2, 3, 4, 5)
    s.add("Transpose", v, perm=s.rng.permutation(v.rank).tolist())


def reshape(s: Sketch) -> None:
    v = s.find()
    kind = s.pick("flatten", "merge", "part", "unsqueeze", "turned")
    shape = list(v.shape)
    if kind == "flatten":
        s.add("Flatten", v, axis=int(s.rng.integers(0, v.rank + 1)))
    elif kind == "unsqueeze":
        s.add("Unsqueeze", v, ints(int(s.rng.integers(0, v.rank + 1))))
    elif kind == "turned":
        s.add("Reshape", v, ints(*shape[::-1]))
    elif kind == "merge" and v.rank > 1:
        at = int(s.rng.integers(v.rank - 1))
        s.add("Reshape", v, ints(*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))
    else:
        at = int(s.rng.integers(v.rank))
        whole_parts = [n for n in range(2, shape[at]) if shape[at] % n == 0]
        if not whole_parts or v.rank > 4:
            raise RefusedError
        n = s.pick(*whole_parts)
        s.add("Reshape", v, ints(*shape[:at], n, shape[at] // n, *shape[at + 1 :]))


def shuffle(s: Sketch) -> None:
    """Channels between groups, or between channels and pixels."""
    v = s.find(4)
    kind = s.pick("shuffle", "depth", "space")
    if kind == "depth":
        s.add("DepthToSpace", v, blocksize=2, mode=s.pick("DCR", "CRD"))
    elif kind == "space":
        s.add("SpaceToDepth", v, blocksize=2)
    else:
        b, c, h, w = v.shape
        parts = s.add("Reshape", v, ints(b, 2, c // 2, h, w), hidden=True)
        turned = s.add("Transpose", parts, perm=[0, 2, 1, 3, 4], hidden=True)
        made = s.add("Reshape", turned, ints(b, c, h, w))
        if s.chance(0.6):
            s.pick(pointwise, depthwise)(s, made)


def gather(s: Sketch) -> None:
    """Rows of a constant or of a value, by constants or by what is computed."""
    kind = s.pick("embedding", "constant", "elements")
    if kind == "embedding":
        tokens = s.find(where=lambda v: whole(v) and bool(np.all((v.array >= 0) & (v.array < 23))))
        s.add("Gather", s.numbers(23, s.pick(*WIDTHS)), tokens)
        return
    v = s.find()
    axis = int(s.rng.integers(v.rank))
    size = v.shape[axis]
    if kind == "elements":
        shape = list(v.shape)
        shape[axis] = s.pick(1, 2, 3)
        s.add("GatherElements", v, s.rng.integers(0, size, shape), axis=axis)
    else:
        indices = s.pick(np.asarray(size - 1), s.rng.integers(-size, size, 3), s.rng.integers(0, size, (2, 2)))
        s.add("Gather", v, indices.astype(np.int64), axis=axis)


def expand(s: Sketch) -> None:
    v = s.find()
    if s.chance(0.5):
        s.add("Tile", v, ints(*(s.pick(1, 1, 2) for _ in v.shape)))
    else:
        s.add("Expand", v, ints(*([s.pick(2, 3)] if v.rank < 4 else []), *(s.pick(1, n) for n in v.shape)))


# --- rows -----------------------------------------------------------------------------------------------------------


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


# --- products -------------------------------------------------------------------------------------------------------


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


LAYERS: dict[str, Layer] = {
    layer.__name__: layer
    for layer in (
        activation, unary, constant_operand, two_values, compare, whole_numbers, to_whole, convolution,
        convolution_1d_3d, grouped, separable, inverted_residual, transposed, pool, global_pool, excitation, resize,
        concat, split, strided_slice, pad, transpose, reshape, shuffle, gather, expand, reduction, softmax, arg,
        layer_norm, group_norm, instance_norm, product, product_of_values, gemm, attention, recurrent,
    )
}  # fmt: skip
