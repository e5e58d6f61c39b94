"""Layers of random models that move data: concat, split, slices, padding, reshapes, shuffles, gathers."""

from __future__ import annotations

import numpy as np
from random_elementwise import activate
from random_models import WIDTHS, RefusedError, Sketch, Value, ints, scalar, whole
from random_windows import convolve, depthwise, pointwise


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
