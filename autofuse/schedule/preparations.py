"""Constants in the form that a kernel reads: takes a text that names a preparation and an array, gives the array.

A schedule family may ask for one of its group's constants in another form (`ScheduleFamily.prepared`). The text is all
that the compiler and the measuring child need to know; numpy only.

`winograd,m=M,nb=NB`: the weights of a 3×3 convolution, packed as [OC/b, IC/b, 3, 3, b, b] (input lanes, then output
lanes), become G g Gᵀ of F(M×M, 3×3) as [⌈OC/b/NB⌉, (M+2)², IC, NB·b]: for each tile of NB output blocks and each of the
(M+2)² products, a row of output channels for each input channel. Missing output blocks of the last tile are zeros.
The algorithms are those of Lavin and Gray (Fast algorithms for convolutional neural networks, CVPR 2016), by Toom and
Cook's interpolation: at 0, ±1, ∞ for m = 2 and at 0, ±√½, ±√2, ∞ for m = 4, whose errors are a third of those of the
usual 0, ±1, ±2, ∞ (largest errors of float32 sums over 256 channels: 2.3e-6 and 8.1e-6 of the largest result).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = tuple[tuple[float, ...], ...]

#: G of F(m×m, 3×3), by m: a filter's three taps → m + 2 values.
WINOGRAD_WEIGHTS: Mapping[int, Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1, 0, 0),
        (-2 / 3, -2 / 3 * 0.5**0.5, -1 / 3),
        (-2 / 3, 2 / 3 * 0.5**0.5, -1 / 3),
        (1 / 6, 1 / 6 * 2**0.5, 1 / 3),
        (1 / 6, -1 / 6 * 2**0.5, 1 / 3),
        (0, 0, 1),
    ),
}


def prepare(text: str, array: NDArray[Any]) -> NDArray[Any]:
    """The array in the form that `text` names, contiguous, of its own dtype. ValueError for an unknown form or shape.

    Computed in float64 and rounded once.
    """
    m, nb = _winograd(text)
    shape = prepared_shape(text, array.shape)
    _, inner, _, _, ib, ob = array.shape
    g = np.array(WINOGRAD_WEIGHTS[m])
    made = np.zeros(shape, array.dtype)
    for tile in range(shape[0]):  # tile by tile: in float64 the weights of a large layer would fill a lot of memory
        part = array[tile * nb : (tile + 1) * nb].astype(np.float64)
        # [blocks, IC/b, 3, 3, b, b] → [a, a, IC/b, b, blocks, b]
        moved = np.einsum("yk,oiklcd,xl->yxicod", g, part, g, optimize=True)
        width = len(part) * ob
        made[tile, :, :, :width] = moved.reshape((m + 2) ** 2, inner * ib, width)
    return made


def prepared_shape(text: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of what `prepare` makes of an array of `shape`. ValueError for an unknown form or shape."""
    m, nb = _winograd(text)
    if len(shape) != 6 or tuple(shape[2:4]) != (3, 3):
        raise ValueError(f"{text!r} takes packed 3x3 weights, not an array of shape {tuple(shape)}")
    outer, inner, _, _, ib, ob = (int(extent) for extent in shape)
    return (-(-outer // nb), (m + 2) ** 2, inner * ib, nb * ob)


def winograd_text(m: int, nb: int) -> str:
    """The name of the transformed weights of F(m×m, 3×3) in tiles of `nb` output blocks."""
    return f"winograd,m={m},nb={nb}"


def _winograd(text: str) -> tuple[int, int]:
    """m and nb of a text. ValueError if it is none that is known."""
    name, *parts = text.split(",")
    given = dict(part.split("=", 1) for part in parts if "=" in part)
    numbers = {key: int(value) for key, value in given.items() if value.isdigit()}
    if name != "winograd" or set(numbers) != {"m", "nb"} or len(parts) != 2:
        raise ValueError(f"unknown preparation of a constant: {text!r}")
    if numbers["m"] not in WINOGRAD_WEIGHTS or numbers["nb"] < 1:
        raise ValueError(f"{text!r}: m must be 2 or 4 and nb at least 1")
    return numbers["m"], numbers["nb"]
