"""Takes a builder and a (batch, tokens, width) value, gives the value behind a transformer block.

Exporters write an nn.Linear on rank 3 as MatMul then Add, attention as MatMul, scale, [mask], Softmax, MatMul, and
gelu as a chain of elementwise nodes; so does this module.
"""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from autofuse.frontend.zoo.builder import GraphBuilder


def linear(b: GraphBuilder, x: str, out: int, *, name: str, std: float | None = None) -> str:
    """x · W + bias on the last axis; `std` of the weights defaults to 1/√in, which keeps E[x²]."""
    width = b.shape(x)[-1]
    with b.scope(name):
        weight = b.normal("weight", (width, out), 1.0 / sqrt(width) if std is None else std)
        bias = b.normal("bias", (out,), 0.05)
        return b.node("Add", [bias, b.node("MatMul", [x, weight])])


def layer_norm(b: GraphBuilder, x: str, *, epsilon: float, name: str) -> str:
    """Layer norm over the last axis with gamma near one and a small beta."""
    width = (b.shape(x)[-1],)
    with b.scope(name):
        gamma = b.uniform("weight", width, 0.8, 1.2)
        beta = b.normal("bias", width, 0.1)
        return b.node("LayerNormalization", [x, gamma, beta], axis=-1, epsilon=epsilon)


def gelu_erf(b: GraphBuilder, x: str) -> str:
    """The exact gelu, x · (1 + erf(x / √2)) / 2 (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""
    inner = b.node("Erf", [b.node("Div", [x, b.scalar(sqrt(2.0))])])
    inner = b.node("Mul", [x, b.node("Add", [inner, b.scalar(1.0)])])
    return b.node("Mul", [inner, b.scalar(0.5)])


def gelu_tanh(b: GraphBuilder, x: str) -> str:
    """The tanh form of gelu that GPT-2 uses (the same paper): x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    cube = b.node("Mul", [b.node("Pow", [x, b.scalar(3.0)]), b.scalar(0.044715)])
    inner = b.node("Tanh", [b.node("Mul", [b.node("Add", [x, cube]), b.scalar(sqrt(2.0 / pi))])])
    return b.node("Mul", [b.node("Mul", [x, b.scalar(0.5)]), b.node("Add", [inner, b.scalar(1.0)])])


def causal_mask(tokens: int) -> NDArray[np.bool_]:
    """(1, 1, tokens, tokens), true where a token may look: at itself and at earlier ones."""
    return np.tril(np.ones((tokens, tokens), dtype=np.bool_))[None, None]


def attention(
    b: GraphBuilder,
    x: str,
    heads: int,
    *,
    fused_qkv: bool,
    mask: NDArray[np.bool_] | None = None,
    out_gain: float = 1.0,
) -> str:
    """Multi-head self-attention (Vaswani et al. 2017, arXiv:1706.03762) with its output projection.

    `fused_qkv`: one projection split in three (GPT-2, ViT) rather than three (BERT). `mask`: false entries get the
    lowest float before the softmax. `out_gain` scales the output projection's weights.
    """
    batch, tokens, width = b.shape(x)
    size = width // heads
    with b.scope("attn"):
        if fused_qkv:
            parts = b.ints([width, width, width])
            query, key, value = b.nodes("Split", [linear(b, x, 3 * width, name="qkv"), parts], 3, axis=-1)
        else:
            query, key, value = (linear(b, x, width, name=name) for name in ("query", "key", "value"))
        split = b.ints([batch, tokens, heads, size])
        query = b.node("Transpose", [b.node("Reshape", [query, split])], perm=[0, 2, 1, 3])
        # The exporter merges the head transpose with the one of the product.
        key = b.node("Transpose", [b.node("Reshape", [key, split])], perm=[0, 2, 3, 1])
        value = b.node("Transpose", [b.node("Reshape", [value, split])], perm=[0, 2, 1, 3])
        scores = b.node("Div", [b.node("MatMul", [query, key]), b.scalar(sqrt(size))])
        if mask is not None:
            lowest = b.scalar(float(np.finfo(np.float32).min))
            scores = b.node("Where", [b.constant(mask), scores, lowest])
        context = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), value])
        context = b.node("Transpose", [context], perm=[0, 2, 1, 3])
        context = b.node("Reshape", [context, b.ints([batch, tokens, width])])
        # An average over many tokens is small; the gain brings the branch back to the size of what it is added to.
        return linear(b, context, width, name="proj", std=out_gain / sqrt(width))


def feed_forward(b: GraphBuilder, x: str, hidden: int, *, tanh_gelu: bool = False, scale: float = 1.0) -> str:
    """Two linear layers with gelu between them; `scale` multiplies the last one's weights."""
    width = b.shape(x)[-1]
    with b.scope("mlp"):
        # sqrt(2): gelu keeps about half of the second moment of its input, as ReLU does.
        y = linear(b, x, hidden, name="fc1", std=sqrt(2.0 / width))
        with b.scope("act"):
            y = gelu_tanh(b, y) if tanh_gelu else gelu_erf(b, y)
        return linear(b, y, width, name="fc2", std=scale / sqrt(hidden))


def pre_norm_block(
    b: GraphBuilder,
    x: str,
    heads: int,
    hidden: int,
    *,
    epsilon: float,
    mask: NDArray[np.bool_] | None = None,
    tanh_gelu: bool = False,
) -> str:
    """x + attention(norm(x)), then x + mlp(norm(x)): GPT-2 and ViT. Branches are quieted: they pile up."""
    y = layer_norm(b, x, epsilon=epsilon, name="norm1")
    y = attention(b, y, heads, fused_qkv=True, mask=mask)
    x = b.node("Add", [x, y])
    y = layer_norm(b, x, epsilon=epsilon, name="norm2")
    y = feed_forward(b, y, hidden, tanh_gelu=tanh_gelu, scale=0.5)
    return b.node("Add", [x, y])


def post_norm_block(b: GraphBuilder, x: str, heads: int, hidden: int, *, epsilon: float) -> str:
    """norm(x + attention(x)), then norm(x + mlp(x)): BERT."""
    y = attention(b, x, heads, fused_qkv=False, out_gain=2.0)
    x = layer_norm(b, b.node("Add", [y, x]), epsilon=epsilon, name="norm1")
    y = feed_forward(b, x, hidden)
    return layer_norm(b, b.node("Add", [y, x]), epsilon=epsilon, name="norm2")
