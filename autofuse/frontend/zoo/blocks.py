"""Takes a builder and a value, gives the value behind a convolutional block: the parts that the CNNs share.

Weights keep the variance of activations near one: every block takes and gives a value with Var[x] ≈ 1. A convolution
in front of activation f gets centred filters (`GraphBuilder.filters`) of variance GAIN[f] / fan_in, the reasoning of
He et al. 2015 (arXiv:1502.01852, section 2.2) with the mean taken out, and a batch norm whose statistics fit.
"""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from autofuse.frontend.zoo.builder import CENTRED_FROM, GraphBuilder

# The g with Var[f(√g z)] = 1 for z ~ N(0, 1): in closed form for the rectifiers, by sampling for silu and mish. The
# last two get a tenth more: they turn linear near zero, so a signal once too small would fade away, layer by layer.
GAIN = {"linear": 1.0, "relu": 2.93, "relu6": 2.93, "leaky_relu": 2.66, "silu": 3.2, "mish": 2.8}
# The g with Var[f(√g z + SHIFT)] = 1. Shifted by a batch norm's beta, activations work in their nearly linear part,
# and a rounding error grows by 1 to 2 % a layer and not by 15 %: in a hundred layers that decides whether two right
# computations of the same network agree.
SHIFT = 1.5
SHIFTED_GAIN = {"leaky_relu": 1.138, "mish": 1.042}
# E[f(√g z)²] at that g, between 1.2 and 1.5: what a filter too small to be centred sees.
_RAW_MOMENT = 1.2
# What squeeze-excite leaves of the variance, gates being around one half. The depth makes the choice delicate: over
# EfficientNet-B0's 16 blocks activations keep to order one with 0.35, grow thirtyfold with 0.25, fade away with 1.
_GATED_VARIANCE = 0.35


def activation(b: GraphBuilder, x: str, kind: str) -> str:
    """Applies an activation the way exporters write it: silu and mish as chains of simpler nodes."""
    if kind == "linear":
        return x
    if kind == "relu":
        return b.node("Relu", [x])
    if kind == "relu6":
        return b.node("Clip", [x, b.scalar(0.0), b.scalar(6.0)])
    if kind == "leaky_relu":
        return b.node("LeakyRelu", [x], alpha=0.1)
    if kind == "sigmoid":
        return b.node("Sigmoid", [x])
    if kind == "silu":
        return b.node("Mul", [x, b.node("Sigmoid", [x])])
    if kind == "mish":
        return b.node("Mul", [x, b.node("Tanh", [b.node("Softplus", [x])])])
    raise ValueError(f"unknown activation {kind!r}")


def conv(
    b: GraphBuilder,
    x: str,
    out: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = True,
    gain: float = 1.0,
) -> str:
    """A square convolution on NCHW; `padding` defaults to half the kernel. Var[output] ≈ gain · Var[x]."""
    weight_shape = (out, b.channels(x) // groups, kernel, kernel)
    pad = kernel // 2 if padding is None else padding
    fan_in = prod(weight_shape[1:])
    seen = 1.0 if fan_in >= CENTRED_FROM else _RAW_MOMENT
    inputs = [x, b.filters("weight", weight_shape, sqrt(gain / (fan_in * seen)))]
    if bias:
        inputs.append(b.normal("bias", (out,), 0.05))
    return b.node(
        "Conv",
        inputs,
        kernel_shape=[kernel, kernel],
        strides=[stride, stride],
        pads=[pad] * 4,
        dilations=[1, 1],
        group=groups,
    )


def batch_norm(b: GraphBuilder, x: str, *, scale: float = 1.0, shift: float = 0.0, epsilon: float = 1e-5) -> str:
    """Inference-time batch norm: gamma ≈ scale, beta ≈ shift, a small running mean, a running variance near one."""
    channels = (b.channels(x),)
    inputs = [
        x,
        b.uniform("weight", channels, 0.8 * scale, 1.2 * scale),
        b.normal("bias", channels, 0.1 * scale, mean=shift),
        b.normal("running_mean", channels, 0.1),
        b.uniform("running_var", channels, 0.8, 1.2),
    ]
    return b.node("BatchNormalization", inputs, epsilon=epsilon)


def conv_bn_act(
    b: GraphBuilder,
    x: str,
    out: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    act: str = "relu",
    variance: float = 1.0,
    scale: float = 1.0,
    shifted: bool = False,
    epsilon: float = 1e-5,
    name: str = "",
) -> str:
    """Convolution without bias, batch norm, activation.

    `variance`: that of x where it is not about one. `scale` below one quiets a residual branch. `shifted`: see SHIFT.
    """
    gain = SHIFTED_GAIN[act] if shifted else GAIN[act]
    with b.scope(name or f"conv{kernel}x{kernel}"):
        with b.scope("conv"):
            x = conv(b, x, out, kernel, stride=stride, groups=groups, bias=False, gain=gain / variance)
        with b.scope("bn"):
            x = batch_norm(b, x, scale=scale, shift=SHIFT if shifted else 0.0, epsilon=epsilon)
        return activation(b, x, act)


def squeeze_excite(b: GraphBuilder, x: str, squeezed: int, act: str) -> str:
    """Channel gates from global averages (Hu et al. 2018, arXiv:1709.01507), with 1×1 convolutions."""
    channels = b.channels(x)
    with b.scope("se"):
        gate = b.node("GlobalAveragePool", [x])
        # Averages are small: more gain, so that the gates differ from image to image.
        with b.scope("fc1"):
            gate = conv(b, gate, squeezed, 1, gain=4.0)
        gate = activation(b, gate, act)
        with b.scope("fc2"):
            gate = conv(b, gate, channels, 1, gain=4.0)
        return b.node("Mul", [activation(b, gate, "sigmoid"), x])


def inverted_residual(
    b: GraphBuilder,
    x: str,
    out: int,
    *,
    expand: int,
    stride: int,
    kernel: int = 3,
    act: str = "relu6",
    squeezed: int | None = None,
    epsilon: float = 1e-5,
) -> str:
    """Expand (1×1), depthwise, [squeeze-excite], project (1×1, linear); added to its input where shapes allow.

    Sandler et al. 2018 (arXiv:1801.04381) and, with squeeze-excite, Tan and Le 2019 (arXiv:1905.11946).
    """
    channels = b.channels(x)
    hidden = channels * expand
    residual = stride == 1 and channels == out
    y = x
    if expand != 1:
        y = conv_bn_act(b, y, hidden, 1, act=act, epsilon=epsilon, name="expand")
    y = conv_bn_act(b, y, hidden, kernel, stride=stride, groups=hidden, act=act, epsilon=epsilon, name="depthwise")
    if squeezed is not None:
        y = squeeze_excite(b, y, squeezed, act)
    seen = 1.0 if squeezed is None else _GATED_VARIANCE
    scale = 0.5 if residual else 1.0
    y = conv_bn_act(b, y, out, 1, act="linear", variance=seen, scale=scale, epsilon=epsilon, name="project")
    return b.node("Add", [x, y]) if residual else y


def depthwise_separable(b: GraphBuilder, x: str, out: int, *, stride: int, act: str) -> str:
    """Depthwise 3×3 then pointwise 1×1, each with batch norm and activation (Howard et al. 2017)."""
    channels = b.channels(x)
    x = conv_bn_act(b, x, channels, 3, stride=stride, groups=channels, act=act, name="depthwise")
    return conv_bn_act(b, x, out, 1, act=act, name="pointwise")


def max_pool(b: GraphBuilder, x: str, kernel: int, *, stride: int, padding: int = 0) -> str:
    """A square max pool on NCHW."""
    return b.node("MaxPool", [x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4, ceil_mode=0)


def channel_shuffle(b: GraphBuilder, x: str, groups: int) -> str:
    """Interleaves `groups` runs of channels: reshape, transpose, reshape (Zhang et al. 2018, arXiv:1707.01083)."""
    batch, channels, height, width = b.shape(x)
    x = b.node("Reshape", [x, b.ints([batch, groups, channels // groups, height, width])])
    x = b.node("Transpose", [x], perm=[0, 2, 1, 3, 4])
    return b.node("Reshape", [x, b.ints([batch, channels, height, width])])


def upsample(b: GraphBuilder, x: str, factor: int = 2) -> str:
    """Nearest-neighbour upsampling of height and width."""
    scales = b.constant(np.array([1, 1, factor, factor], dtype=np.float32))
    return b.node(
        "Resize",
        [x, "", scales],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def dense(b: GraphBuilder, x: str, out: int, *, gain: float = 1.0, name: str = "fc") -> str:
    """A fully connected layer on a rank-2 value: Gemm with a transposed weight of shape (out, in)."""
    width = b.shape(x)[1]
    with b.scope(name):
        weight = b.filters("weight", (out, width), sqrt(gain / width))
        bias = b.normal("bias", (out,), 0.05)
        return b.node("Gemm", [x, weight, bias], alpha=1.0, beta=1.0, transB=1)


def pooled_classifier(b: GraphBuilder, x: str, classes: int = 1000) -> str:
    """Global average pool, flatten, fully connected: the end of most image classifiers."""
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])], axis=1)
    return dense(b, x, classes, name="classifier")
