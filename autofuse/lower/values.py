"""A value while a module is lowered: its logical type and the layouts in which it exists so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLAIN = ""


def blocked(lanes: int) -> str:
    """Name of the layout [N, C/lanes, H, W, lanes]."""
    return f"NCHW{lanes}c"


@dataclass
class Value:
    """`forms` maps a layout's name to the Relax expression that holds the value in it; `layout` is where it was made.

    `array` is set for constants (numpy, logical layout). `padding` bounds the magnitude of what the lanes past the last
    channel hold in the blocked form; it means nothing where the lanes divide the channels. `wide` is the value with a
    height of one of which a one-dimensional value is a reshape: emitted when somebody asks for it.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str
    forms: dict[str, Any] = field(default_factory=dict)
    array: NDArray[Any] | None = None
    padding: float = 0.0
    wide: Value | None = None

    @property
    def constant(self) -> bool:
        """Whether the value is known at compile time."""
        return self.array is not None

    @property
    def scalar(self) -> bool:
        """Whether it is a constant of one element, which legalisation folds into the kernel."""
        return self.array is not None and self.array.size == 1


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


# The packing functions give views of their operand where they can: whoever stores the result copies once.


def pack_conv2d(weight: NDArray[Any], in_block: int, lanes: int) -> NDArray[Any]:
    """[OC, IC, KH, KW] → [OC/lanes, IC/in_block, KH, KW, in_block, lanes], both channel axes zero-padded."""
    oc, ic, kh, kw = weight.shape
    outer, inner = ceil_div(oc, lanes), ceil_div(ic, in_block)
    if (outer * lanes, inner * in_block) != (oc, ic):
        weight = np.pad(weight, ((0, outer * lanes - oc), (0, inner * in_block - ic), (0, 0), (0, 0)))
    split = weight.reshape(outer, lanes, inner, in_block, kh, kw)
    return split.transpose(0, 2, 4, 5, 3, 1)


def pack_depthwise(weight: NDArray[Any], lanes: int) -> NDArray[Any]:
    """[C, 1, KH, KW] → [C/lanes, KH, KW, lanes], zero-padded."""
    c, _, kh, kw = weight.shape
    outer = ceil_div(c, lanes)
    if outer * lanes != c:
        weight = np.pad(weight, ((0, outer * lanes - c), (0, 0), (0, 0), (0, 0)))
    return weight.reshape(outer, lanes, kh, kw).transpose(0, 2, 3, 1)


def pack_matmul(weight: NDArray[Any], block: int) -> NDArray[Any]:
    """[K, N] → [N/block, K, block], zero-padded."""
    k, n = weight.shape
    outer = ceil_div(n, block)
    if outer * block != n:
        weight = np.pad(weight, ((0, 0), (0, outer * block - n)))
    return weight.reshape(k, outer, block).transpose(1, 0, 2)


def block_array(array: NDArray[Any], lanes: int) -> NDArray[Any]:
    """[A, C, H, W] → [A, C/lanes, H, W, lanes], zero-padded."""
    a, c, h, w = array.shape
    outer = ceil_div(c, lanes)
    if outer * lanes != c:
        array = np.pad(array, ((0, 0), (0, outer * lanes - c), (0, 0), (0, 0)))
    return array.reshape(a, outer, lanes, h, w).transpose(0, 1, 3, 4, 2)
