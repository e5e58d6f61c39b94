"""The layers of random models, by name: each adds nodes to a `Sketch`, with attributes chosen at random.

Layers do not check what they choose: `Sketch.add` refuses what cannot be run.
"""

from __future__ import annotations

from random_elementwise import activation, compare, constant_operand, to_whole, two_values, unary, whole_numbers
from random_models import CHANNELS, IMAGES, WIDTHS, Layer, Sketch
from random_moves import concat, expand, gather, pad, reshape, shuffle, split, strided_slice, transpose
from random_rows import (
    arg,
    attention,
    gemm,
    group_norm,
    instance_norm,
    layer_norm,
    product,
    product_of_values,
    recurrent,
    reduction,
    softmax,
)
from random_windows import (
    convolution,
    convolution_1d_3d,
    excitation,
    global_pool,
    grouped,
    inverted_residual,
    pool,
    resize,
    separable,
    transposed,
)


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


LAYERS: dict[str, Layer] = {
    layer.__name__: layer
    for layer in (
        activation, unary, constant_operand, two_values, compare, whole_numbers, to_whole, convolution,
        convolution_1d_3d, grouped, separable, inverted_residual, transposed, pool, global_pool, excitation, resize,
        concat, split, strided_slice, pad, transpose, reshape, shuffle, gather, expand, reduction, softmax, arg,
        layer_norm, group_norm, instance_norm, product, product_of_values, gemm, attention, recurrent,
    )
}  # fmt: skip
