"""Takes a builder and a batch size, gives the raw detection maps of YOLOv4 and YOLOv4-tiny (416×416, 80 classes).

Layer by layer as darknet's yolov4.cfg and yolov4-tiny.cfg (Bochkovskiy et al. 2020, arXiv:2004.10934; CSP stages from
Wang et al. 2019, arXiv:1911.11929). Each map has 3 anchors × (4 box + 1 objectness + 80 classes) = 255 channels.
"""

from __future__ import annotations

from autofuse.frontend.zoo.blocks import conv, conv_bn_act, max_pool, upsample
from autofuse.frontend.zoo.builder import GraphBuilder

RESOLUTION = 416
MAP_CHANNELS = 3 * (4 + 1 + 80)


def _concat(b: GraphBuilder, *values: str) -> str:
    return b.node("Concat", list(values), axis=1)


def _csp_stage(b: GraphBuilder, x: str, out: int, depth: int, *, first: bool = False) -> str:
    """Downsample, then two paths: one through residual blocks, one past them, joined by a 1×1."""
    half = out if first else out // 2
    inner = out // 2
    x = conv_bn_act(b, x, out, 3, stride=2, act="mish", shifted=True, name="down")
    passed = conv_bn_act(b, x, half, 1, act="mish", shifted=True, name="pass")
    y = conv_bn_act(b, x, half, 1, act="mish", shifted=True, name="enter")
    for block in range(depth):
        with b.scope(block):
            z = conv_bn_act(b, y, inner, 1, act="mish", shifted=True, name="reduce")
            z = conv_bn_act(b, z, half, 3, act="mish", scale=0.5, shifted=True, name="spatial")
            y = b.node("Add", [y, z])
    y = conv_bn_act(b, y, half, 1, act="mish", shifted=True, name="leave")
    return conv_bn_act(b, _concat(b, y, passed), out, 1, act="mish", shifted=True, name="join")


def _alternate(b: GraphBuilder, x: str, width: int, count: int) -> str:
    """`count` convolutions, 1×1 to `width` and 3×3 to twice that in turn."""
    for index in range(count):
        kernel, channels = (3, 2 * width) if index % 2 else (1, width)
        x = conv_bn_act(b, x, channels, kernel, act="leaky_relu", shifted=True, name=f"conv{index + 1}")
    return x


def _spatial_pyramid(b: GraphBuilder, x: str) -> str:
    """Max pools of 13, 9 and 5 at stride 1 beside their input (He et al. 2014, arXiv:1406.4729)."""
    with b.scope("spp"):
        pools = [max_pool(b, x, kernel, stride=1, padding=kernel // 2) for kernel in (13, 9, 5)]
        return _concat(b, *pools, x)


def _detect(b: GraphBuilder, x: str, width: int, name: str) -> str:
    """A 3×3 and the linear 1×1 that gives a raw detection map."""
    with b.scope(name):
        x = conv_bn_act(b, x, width, 3, act="leaky_relu", shifted=True, name="conv")
        with b.scope("predict"):
            return conv(b, x, MAP_CHANNELS, 1)


def _lateral(b: GraphBuilder, x: str, skip: str, width: int, name: str) -> str:
    """Top-down step of the path aggregation network: upsample, join with a backbone map, five convolutions."""
    with b.scope(name):
        up = upsample(b, conv_bn_act(b, x, width, 1, act="leaky_relu", shifted=True, name="reduce"))
        side = conv_bn_act(b, skip, width, 1, act="leaky_relu", shifted=True, name="side")
        return _alternate(b, _concat(b, side, up), width, 5)


def _bottom_up(b: GraphBuilder, x: str, skip: str, width: int, name: str) -> str:
    """Bottom-up step of the path aggregation network (Liu et al. 2018, arXiv:1803.01534)."""
    with b.scope(name):
        down = conv_bn_act(b, x, width, 3, stride=2, act="leaky_relu", shifted=True, name="down")
        return _alternate(b, _concat(b, down, skip), width, 5)


def yolov4(b: GraphBuilder, batch: int) -> dict[str, str]:
    """CSPDarknet53, spatial pyramid pooling, path aggregation, three heads (strides 8, 16, 32)."""
    x = b.input("input", (batch, 3, RESOLUTION, RESOLUTION))
    x = conv_bn_act(b, x, 32, 3, act="mish", shifted=True, name="stem")
    stages: list[str] = []
    for stage, (channels, depth) in enumerate(((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))):
        with b.scope(f"stage{stage + 1}"):
            x = _csp_stage(b, x, channels, depth, first=stage == 0)
        stages.append(x)
    with b.scope("neck"):
        with b.scope("before_spp"):
            x = _alternate(b, x, 512, 3)
        x = _spatial_pyramid(b, x)
        with b.scope("after_spp"):
            top = _alternate(b, x, 512, 3)
        middle = _lateral(b, top, stages[3], 256, "lateral16")
        fine = _lateral(b, middle, stages[2], 128, "lateral8")
        middle = _bottom_up(b, fine, middle, 256, "bottom_up16")
        top = _bottom_up(b, middle, top, 512, "bottom_up32")
    return {
        "map8": _detect(b, fine, 256, "head8"),
        "map16": _detect(b, middle, 512, "head16"),
        "map32": _detect(b, top, 1024, "head32"),
    }


def _tiny_stage(b: GraphBuilder, x: str, width: int) -> tuple[str, str]:
    """A CSP stage on the second half of the channels. Gives its output and, from inside, the map a head joins."""
    x = conv_bn_act(b, x, width, 3, act="leaky_relu", name="enter")
    half = b.node("Slice", [x, b.ints([width // 2]), b.ints([width]), b.ints([1]), b.ints([1])])
    y = conv_bn_act(b, half, width // 2, 3, act="leaky_relu", name="inner1")
    z = conv_bn_act(b, y, width // 2, 3, act="leaky_relu", name="inner2")
    inside = conv_bn_act(b, _concat(b, z, y), width, 1, act="leaky_relu", name="leave")
    return max_pool(b, _concat(b, x, inside), 2, stride=2), inside


def yolov4_tiny(b: GraphBuilder, batch: int) -> dict[str, str]:
    """Three CSP stages on half of the channels, two heads (strides 16, 32)."""
    x = b.input("input", (batch, 3, RESOLUTION, RESOLUTION))
    x = conv_bn_act(b, x, 32, 3, stride=2, act="leaky_relu", name="stem1")
    x = conv_bn_act(b, x, 64, 3, stride=2, act="leaky_relu", name="stem2")
    inside = x
    for stage, width in enumerate((64, 128, 256)):
        with b.scope(f"stage{stage + 1}"):
            x, inside = _tiny_stage(b, x, width)
    x = conv_bn_act(b, x, 512, 3, act="leaky_relu", name="last")
    x = conv_bn_act(b, x, 256, 1, act="leaky_relu", name="neck")
    up = upsample(b, conv_bn_act(b, x, 128, 1, act="leaky_relu", name="lateral"))
    return {
        "map16": _detect(b, _concat(b, up, inside), 256, "head16"),
        "map32": _detect(b, x, 512, "head32"),
    }
