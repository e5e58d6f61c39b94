"""Takes a builder and a batch size, gives the outputs of a chain of convolutions: VGG-16 and ResNet-50."""

from __future__ import annotations

from autofuse.frontend.zoo.blocks import (
    GAIN,
    activation,
    conv,
    conv_bn_act,
    dense,
    max_pool,
    pooled_classifier,
)
from autofuse.frontend.zoo.builder import GraphBuilder


def vgg16(b: GraphBuilder, batch: int) -> dict[str, str]:
    """VGG-16, configuration D without batch norm (Simonyan and Zisserman 2014, arXiv:1409.1556)."""
    x = b.input("input", (batch, 3, 224, 224))
    for stage, (channels, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        with b.scope(f"stage{stage + 1}"):
            for layer in range(depth):
                with b.scope(f"conv{layer + 1}"):
                    x = activation(b, conv(b, x, channels, 3, gain=GAIN["relu"]), "relu")
            x = max_pool(b, x, 2, stride=2)
    x = b.node("Flatten", [x], axis=1)
    for name in ("fc6", "fc7"):
        x = activation(b, dense(b, x, 4096, gain=GAIN["relu"], name=name), "relu")
    return {"logits": dense(b, x, 1000, name="fc8")}


def _bottleneck(b: GraphBuilder, x: str, width: int, stride: int) -> str:
    """1×1, 3×3 (with the stride), 1×1 to four times the width; a 1×1 shortcut where shapes differ."""
    out = 4 * width
    y = conv_bn_act(b, x, width, 1, name="reduce")
    y = conv_bn_act(b, y, width, 3, stride=stride, name="spatial")
    y = conv_bn_act(b, y, out, 1, act="linear", scale=0.5, name="restore")
    if stride != 1 or b.channels(x) != out:
        x = conv_bn_act(b, x, out, 1, stride=stride, act="linear", name="shortcut")
    return activation(b, b.node("Add", [y, x]), "relu")


def resnet50(b: GraphBuilder, batch: int) -> dict[str, str]:
    """ResNet-50 v1.5: the stride sits in the 3×3 (He et al. 2015, arXiv:1512.03385; torchvision's variant)."""
    x = b.input("input", (batch, 3, 224, 224))
    x = max_pool(b, conv_bn_act(b, x, 64, 7, stride=2, name="stem"), 3, stride=2, padding=1)
    for stage, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(depth):
            with b.scope(f"layer{stage + 1}"), b.scope(block):
                x = _bottleneck(b, x, width, 2 if stage and not block else 1)
    return {"logits": pooled_classifier(b, x)}
