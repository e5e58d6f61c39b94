"""Takes a builder and a batch size, gives a branched CNN's outputs: ShuffleNet-V2, DenseNet-121."""

from __future__ import annotations

from autofuse.frontend.zoo.blocks import (
    GAIN,
    activation,
    batch_norm,
    channel_shuffle,
    conv,
    conv_bn_act,
    max_pool,
    pooled_classifier,
)
from autofuse.frontend.zoo.builder import GraphBuilder


def _shuffle_branch(b: GraphBuilder, x: str, out: int, stride: int) -> str:
    """1×1, depthwise 3×3 (linear), 1×1."""
    x = conv_bn_act(b, x, out, 1, name="reduce")
    x = conv_bn_act(b, x, out, 3, stride=stride, groups=out, act="linear", name="depthwise")
    return conv_bn_act(b, x, out, 1, name="restore")


def _shuffle_unit(b: GraphBuilder, x: str, out: int, stride: int) -> str:
    """Half of the channels pass by (stride 1) or go through a short branch (stride 2); then the halves are mixed."""
    half = out // 2
    if stride == 1:
        passed, rest = b.nodes("Split", [x, b.ints([half, half])], 2, axis=1)
    else:
        channels, rest = b.channels(x), x
        with b.scope("shortcut"):
            passed = conv_bn_act(b, x, channels, 3, stride=stride, groups=channels, act="linear", name="depthwise")
            passed = conv_bn_act(b, passed, half, 1, name="pointwise")
    with b.scope("branch"):
        rest = _shuffle_branch(b, rest, half, stride)
    return channel_shuffle(b, b.node("Concat", [passed, rest], axis=1), 2)


def shufflenet_v2(b: GraphBuilder, batch: int) -> dict[str, str]:
    """ShuffleNet-V2 at width 1.0 (Ma et al. 2018, arXiv:1807.11164, table 5)."""
    x = b.input("input", (batch, 3, 224, 224))
    x = max_pool(b, conv_bn_act(b, x, 24, 3, stride=2, name="stem"), 3, stride=2, padding=1)
    for stage, (channels, depth) in enumerate(((116, 4), (232, 8), (464, 4))):
        for unit in range(depth):
            with b.scope(f"stage{stage + 2}"), b.scope(unit):
                x = _shuffle_unit(b, x, channels, 1 if unit else 2)
    return {"logits": pooled_classifier(b, conv_bn_act(b, x, 1024, 1, name="head"))}


def _bn_relu_conv(b: GraphBuilder, x: str, out: int, kernel: int, name: str) -> str:
    """DenseNet's order: the normalisation and the activation come before the convolution."""
    with b.scope(name):
        with b.scope("bn"):
            x = batch_norm(b, x)
        x = activation(b, x, "relu")
        with b.scope("conv"):
            return conv(b, x, out, kernel, bias=False, gain=GAIN["relu"])


def densenet121(b: GraphBuilder, batch: int) -> dict[str, str]:
    """DenseNet-121, growth 32 (Huang et al. 2016, arXiv:1608.06993, table 1)."""
    growth = 32
    x = b.input("input", (batch, 3, 224, 224))
    x = max_pool(b, conv_bn_act(b, x, 64, 7, stride=2, name="stem"), 3, stride=2, padding=1)
    for block, depth in enumerate((6, 12, 24, 16)):
        features = [x]
        for layer in range(depth):
            with b.scope(f"denseblock{block + 1}"), b.scope(layer):
                x = b.node("Concat", features, axis=1) if layer else x
                y = _bn_relu_conv(b, x, 4 * growth, 1, "bottleneck")
                features.append(_bn_relu_conv(b, y, growth, 3, "grow"))
        with b.scope(f"denseblock{block + 1}"):
            x = b.node("Concat", features, axis=1)
        if block < 3:
            with b.scope(f"transition{block + 1}"):
                x = _bn_relu_conv(b, x, b.channels(x) // 2, 1, "reduce")
                x = b.node("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
    with b.scope("norm"):
        x = activation(b, batch_norm(b, x), "relu")
    return {"logits": pooled_classifier(b, x)}
