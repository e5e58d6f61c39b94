"""Takes a builder and a batch size, gives the outputs of a transformer: MiniLM-L6, ViT-Tiny, GPT-2."""

from __future__ import annotations

from math import sqrt

import numpy as np

from autofuse.frontend.zoo.blocks import conv, dense
from autofuse.frontend.zoo.builder import GraphBuilder
from autofuse.frontend.zoo.transformer_blocks import causal_mask, layer_norm, post_norm_block, pre_norm_block


def minilm_l6(b: GraphBuilder, batch: int) -> dict[str, str]:
    """all-MiniLM-L6-v2's encoder (Wang et al. 2020, arXiv:2002.10957): a BERT of 6 layers, without the pooler."""
    tokens, width = 128, 384
    ids = b.input("input_ids", (batch, tokens), "int64")
    with b.scope("embeddings"):
        words = b.node("Gather", [b.normal("word", (30522, width), 1.0), ids], axis=0)
        kinds = b.constant(np.zeros((batch, tokens), dtype=np.int64))
        kind = b.node("Gather", [b.normal("token_type", (2, width), 0.2), kinds], axis=0)
        places = b.constant(np.arange(tokens, dtype=np.int64)[None])
        place = b.node("Gather", [b.normal("position", (512, width), 0.2), places], axis=0)
        x = b.node("Add", [b.node("Add", [words, kind]), place])
        x = layer_norm(b, x, epsilon=1e-12, name="norm")
    for layer in range(6):
        with b.scope(f"layer{layer}"):
            x = post_norm_block(b, x, 12, 1536, epsilon=1e-12)
    return {"last_hidden_state": x}


def vit_tiny(b: GraphBuilder, batch: int) -> dict[str, str]:
    """ViT-Tiny/16 at 224 (Dosovitskiy et al. 2020, arXiv:2010.11929; size of Touvron et al. 2020, arXiv:2012.12877)."""
    width, patches = 192, 14 * 14
    x = b.input("input", (batch, 3, 224, 224))
    with b.scope("embeddings"):
        with b.scope("patch"):
            x = conv(b, x, width, 16, stride=16, padding=0)
        x = b.node("Reshape", [x, b.ints([batch, width, patches])])
        x = b.node("Transpose", [x], perm=[0, 2, 1])
        first = b.node("Expand", [b.normal("class_token", (1, 1, width), 0.2), b.ints([batch, 1, width])])
        x = b.node("Concat", [first, x], axis=1)
        x = b.node("Add", [x, b.normal("position", (1, patches + 1, width), 0.2)])
    for layer in range(12):
        with b.scope(f"layer{layer}"):
            x = pre_norm_block(b, x, 3, 768, epsilon=1e-6)
    x = layer_norm(b, x, epsilon=1e-6, name="norm")
    return {"logits": dense(b, b.node("Gather", [x, b.ints(0)], axis=1), 1000, name="head")}


def gpt2(b: GraphBuilder, batch: int) -> dict[str, str]:
    """GPT-2 small (Radford et al. 2019) on 64 tokens, to the logits; the head's weight is the embedding's."""
    tokens, width, vocabulary = 64, 768, 50257
    ids = b.input("input_ids", (batch, tokens), "int64")
    with b.scope("embeddings"):
        # Of this size because the head reads it too: logits of order one.
        table = b.normal("word", (vocabulary, width), 1.0 / sqrt(width))
        places = b.constant(np.arange(tokens, dtype=np.int64)[None])
        place = b.node("Gather", [b.normal("position", (1024, width), 0.2 / sqrt(width)), places], axis=0)
        x = b.node("Add", [b.node("Gather", [table, ids], axis=0), place])
    for layer in range(12):
        with b.scope(f"layer{layer}"):
            x = pre_norm_block(b, x, 12, 3072, epsilon=1e-5, mask=causal_mask(tokens), tanh_gelu=True)
    x = layer_norm(b, x, epsilon=1e-5, name="norm")
    with b.scope("head"):
        return {"logits": b.node("MatMul", [x, b.node("Transpose", [table], perm=[1, 0])])}
