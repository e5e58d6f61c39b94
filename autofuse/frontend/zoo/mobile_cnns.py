"""Takes a builder and a batch size, gives the outputs of a depthwise CNN: MobileNet-V1 and -V2, EfficientNet-B0."""

from __future__ import annotations

from autofuse.frontend.zoo.blocks import (
    conv_bn_act,
    depthwise_separable,
    inverted_residual,
    pooled_classifier,
)
from autofuse.frontend.zoo.builder import GraphBuilder


def mobilenet_v1(b: GraphBuilder, batch: int) -> dict[str, str]:
    """MobileNet-V1 at width 1.0 (Howard et al. 2017, arXiv:1704.04861), with ReLU6 as its released code has it."""
    x = b.input("input", (batch, 3, 224, 224))
    x = conv_bn_act(b, x, 32, 3, stride=2, act="relu6", name="stem")
    layers = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *(((512, 1),) * 5), (1024, 2), (1024, 1))
    for index, (channels, stride) in enumerate(layers):
        with b.scope(f"block{index + 1}"):
            x = depthwise_separable(b, x, channels, stride=stride, act="relu6")
    return {"logits": pooled_classifier(b, x)}


def mobilenet_v2(b: GraphBuilder, batch: int) -> dict[str, str]:
    """MobileNet-V2 at width 1.0 (Sandler et al. 2018, arXiv:1801.04381, table 2)."""
    x = b.input("input", (batch, 3, 224, 224))
    x = conv_bn_act(b, x, 32, 3, stride=2, act="relu6", name="stem")
    # expansion, channels, repeats, stride of the first
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for stage, (expand, channels, repeats, stride) in enumerate(stages):
        for block in range(repeats):
            with b.scope(f"stage{stage + 1}"), b.scope(block):
                x = inverted_residual(b, x, channels, expand=expand, stride=1 if block else stride)
    x = conv_bn_act(b, x, 1280, 1, act="relu6", name="head")
    return {"logits": pooled_classifier(b, x)}


def efficientnet_b0(b: GraphBuilder, batch: int) -> dict[str, str]:
    """EfficientNet-B0 (Tan and Le 2019, arXiv:1905.11946, table 1): swish, squeeze-excite at a quarter of the input."""
    epsilon = 1e-3
    x = b.input("input", (batch, 3, 224, 224))
    x = conv_bn_act(b, x, 32, 3, stride=2, act="silu", epsilon=epsilon, name="stem")
    # expansion, kernel, channels, repeats, stride of the first
    stages = (
        (1, 3, 16, 1, 1),
        (6, 3, 24, 2, 2),
        (6, 5, 40, 2, 2),
        (6, 3, 80, 3, 2),
        (6, 5, 112, 3, 1),
        (6, 5, 192, 4, 2),
        (6, 3, 320, 1, 1),
    )
    for stage, (expand, kernel, channels, repeats, stride) in enumerate(stages):
        for block in range(repeats):
            with b.scope(f"stage{stage + 1}"), b.scope(block):
                x = inverted_residual(
                    b,
                    x,
                    channels,
                    expand=expand,
                    stride=1 if block else stride,
                    kernel=kernel,
                    act="silu",
                    squeezed=b.channels(x) // 4,
                    epsilon=epsilon,
                )
    x = conv_bn_act(b, x, 1280, 1, act="silu", epsilon=epsilon, name="head")
    return {"logits": pooled_classifier(b, x)}
