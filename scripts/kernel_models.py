"""The zoo's operators as ONNX models of their own, for scripts/bench_kernels.py: nothing → `KernelModel`s.

`alone()`: every distinct convolution, product, pool, reduction, normalisation, softmax, resize and lookup of the zoo's
networks, with no more than its bias. `FOLLOWED`: some of them with what follows (relu, gelu), and attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class KernelModel:
    """One row of the table: `build` adds nodes to a model.

    `repeat`: the operator stands so often in a row, so that changing the layout of the model's input and output weighs
    little. `networks` of the zoo have it; `followed`: what follows the operator there is in the model too.
    """

    kind: str
    name: str
    build: Callable[[Model], None]
    repeat: int = 1
    networks: tuple[str, ...] = ()
    followed: bool = False

    def proto(self) -> Any:
        """The ONNX model."""
        model = Model()
        self.build(model)
        return model.proto()


class Model:
    """An ONNX graph under construction: a chain of operators with He-style weights."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.last = ""

    def input(self, *shape: int, integers: bool = False) -> str:
        """A new input, which the chain goes on with."""
        from onnx import TensorProto, helper

        name = f"x{len(self.inputs)}"
        kind = TensorProto.INT64 if integers else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.last = name
        return name

    def constant(self, array: Any) -> str:
        """A constant's name."""
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, inner: int) -> str:
        """Weights whose sums over `inner` products keep the variance."""
        weights = self.random.standard_normal(shape, dtype=np.float32)
        weights *= (2.0 / inner) ** 0.5
        return self.constant(weights)

    def node(self, kind: str, *operands: str, **attributes: Any) -> str:
        """An operator on `operands`, by default on the chain's end."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(operands or (self.last,)), [name], **attributes))
        self.last = name
        return name

    def proto(self) -> Any:
        """The finished model; the chain's end is its output."""
        import onnx
        from onnx import TensorProto, helper

        output = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "kernel", self.inputs, [output], self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


def conv(
    ic: int, oc: int, size: int, kernel: int = 3, stride: int = 1, groups: int = 1, repeat: int = 1
) -> Callable[[Model], None]:
    """Convolution, bias and relu, `repeat` times; padded so that stride 1 keeps the size."""

    def build(model: Model) -> None:
        model.input(1, ic, size, size)
        for n in range(repeat):
            depth = (ic if n == 0 else oc) // groups
            weight = model.weight(oc, depth, kernel, kernel, inner=depth * kernel * kernel)
            bias = model.constant(np.full(oc, 0.1, np.float32))
            pads = [kernel // 2] * 4
            model.node("Conv", model.last, weight, bias, pads=pads, strides=[stride, stride], group=groups)
            model.node("Relu")

    return build


def dense(rows: int, depth: int, columns: int, gelu: bool = False) -> Callable[[Model], None]:
    """Product with constant weights, bias, and gelu."""

    def build(model: Model) -> None:
        model.input(rows, depth)
        model.node("MatMul", model.last, model.weight(depth, columns, inner=depth))
        made = model.node("Add", model.last, model.constant(np.full(columns, 0.1, np.float32)))
        if gelu:
            model.node("Div", made, model.constant(np.float32(2**0.5)))
            model.node("Erf")
            model.node("Add", model.last, model.constant(np.float32(1.0)))
            half = model.node("Mul", model.last, model.constant(np.float32(0.5)))
            model.node("Mul", made, half)

    return build


def attention(heads: int, length: int, width: int) -> Callable[[Model], None]:
    """softmax(Q Kᵀ / √d) V."""

    def build(model: Model) -> None:
        q, k, v = (model.input(1, heads, length, width) for _ in range(3))
        turned = model.node("Transpose", k, perm=[0, 1, 3, 2])
        model.node("MatMul", q, turned)
        model.node("Mul", model.last, model.constant(np.float32(width**-0.5)))
        weights = model.node("Softmax", axis=-1)
        model.node("MatMul", weights, v)

    return build


def batched(batch: int, rows: int, depth: int, columns: int) -> Callable[[Model], None]:
    """A batch of products of two inputs."""

    def build(model: Model) -> None:
        left, right = model.input(batch, rows, depth), model.input(batch, depth, columns)
        model.node("MatMul", left, right)

    return build


def plain(kind: str, *shape: int, **attributes: Any) -> Callable[[Model], None]:
    """One operator of one input."""

    def build(model: Model) -> None:
        model.input(*shape)
        model.node(kind, **attributes)

    return build


def layer_norm(rows: int, width: int) -> Callable[[Model], None]:
    """Residual addition and layer normalisation."""

    def build(model: Model) -> None:
        one, two = model.input(rows, width), model.input(rows, width)
        total = model.node("Add", one, two)
        ones = model.constant(np.ones(width, np.float32))
        model.node("LayerNormalization", total, ones, model.constant(np.zeros(width, np.float32)), axis=-1)

    return build


def layout_change(channels: int, size: int) -> Callable[[Model], None]:
    """sigmoid(x) · x, then channels last."""

    def build(model: Model) -> None:
        source = model.input(1, channels, size, size)
        gate = model.node("Sigmoid", source)
        made = model.node("Mul", source, gate)
        model.node("Transpose", made, perm=[0, 2, 3, 1])

    return build


def resize(channels: int, size: int) -> Callable[[Model], None]:
    """Nearest neighbour, twice as high and wide."""

    def build(model: Model) -> None:
        source = model.input(1, channels, size, size)
        scales = model.constant(np.array([1, 1, 2, 2], np.float32))
        model.node("Resize", source, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                   nearest_mode="floor")  # fmt: skip

    return build


def gather(words: int, width: int, count: int) -> Callable[[Model], None]:
    """Rows of a table of embeddings."""

    def build(model: Model) -> None:
        places = model.input(1, count, integers=True)
        model.node("Gather", model.weight(words, width, inner=2), places, axis=0)

    return build


#: ONNX operators that a kernel is built around.
_ANCHORS = {
    "Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool", "GlobalAveragePool", "Softmax", "Resize",
    "LayerNormalization", "Gather",
}  # fmt: skip
#: As often stand convolutions whose result has their data's shape.
_REPEAT = 4


def _followed(kind: str, name: str, build: Callable[[Model], None], repeat: int = 1) -> KernelModel:
    return KernelModel(kind, f"{name} and what follows", build, repeat, followed=True)


def alone() -> list[KernelModel]:
    """Every distinct anchor of the zoo's networks at batch 1: those of the same kind and numbers are one."""
    from autofuse.frontend import zoo

    found: dict[tuple[Any, ...], KernelModel] = {}
    for network in zoo.names():
        for signature, made in _anchors(zoo.build(network)):
            known = found.setdefault(signature, made)
            if network not in known.networks:
                found[signature] = replace(known, networks=(*known.networks, network))
    return list(found.values())


def _anchors(model: Any) -> Iterator[tuple[tuple[Any, ...], KernelModel]]:
    """The anchors of one network: what makes each distinct, and its model."""
    from onnx import helper, numpy_helper

    graph = model.graph  # the zoo's models say what shape every value has
    shapes = {v.name: _extents(v) for v in (*graph.input, *graph.value_info, *graph.output)}
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t
    shapes.update({name: tuple(t.dims) for name, t in constants.items()})
    for node in graph.node:
        if node.op_type not in _ANCHORS or (node.op_type == "Gather" and node.input[0] not in constants):
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        operands = tuple((shapes.get(n, ()), n in constants) for n in node.input)
        # A bias says nothing of the operator: batch norm leaves one with every convolution.
        operands = operands[:2] if node.op_type in ("Conv", "ConvTranspose", "Gemm") else operands
        scales = [numpy_helper.to_array(constants[n]).tolist() for n in node.input[1:] if n in constants
                  and node.op_type == "Resize"]  # fmt: skip
        signature = (node.op_type, operands, _text(attributes), str(scales))
        yield signature, _model_of(node.op_type, operands, attributes, scales)


def _extents(value: Any) -> tuple[int, ...]:
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def _text(attributes: Mapping[str, Any]) -> str:
    plain = {k: v.decode() if isinstance(v, bytes) else list(v) if hasattr(v, "__len__") else v
             for k, v in attributes.items()}  # fmt: skip
    return ", ".join(f"{k}={plain[k]}" for k in sorted(plain))


def _model_of(
    kind: str, operands: Sequence[tuple[tuple[int, ...], bool]], attributes: Mapping[str, Any], scales: Sequence[Any]
) -> KernelModel:
    data = operands[0][0]
    if kind in ("Conv", "ConvTranspose"):
        return _convolution(kind, data, operands[1][0], attributes)
    if kind in ("Gemm", "MatMul"):
        return _product(operands, bool(attributes.get("transB", 0)), bias=kind == "Gemm")

    def build(model: Model) -> None:
        if kind == "Gather":
            found = int(np.prod(operands[1][0])) or 1
            table = model.weight(*data, inner=2)
            # Lookups of constants, such as positions, are folded: here they are an input too.
            model.input(*(operands[1][0] or (found,)), integers=True)
            model.node(kind, table, model.last, **attributes)
            return
        source = model.input(*data)
        if kind == "Resize":
            given = [model.constant(np.asarray(s, np.float32)) for s in scales if s]
            model.node(kind, source, "", *given, **attributes)
        elif kind == "LayerNormalization":
            ones, zeros = np.ones(operands[1][0], np.float32), np.zeros(operands[1][0], np.float32)
            model.node(kind, source, model.constant(ones), model.constant(zeros), **attributes)
        else:
            model.node(kind, **attributes)

    window = attributes.get("kernel_shape")
    what = {
        "MaxPool": "max", "AveragePool": "average", "GlobalAveragePool": "global average", "Softmax": "softmax",
        "LayerNormalization": "layer norm", "Resize": "resize", "Gather": "gather",
    }[kind]  # fmt: skip
    stride = (attributes.get("strides") or [1])[0]
    name = f"{what}{_window(window, stride)} {'×'.join(map(str, data))}"
    if kind == "Gather":
        name = f"gather {'×'.join(map(str, operands[1][0]))} of {'×'.join(map(str, data))}"
    return KernelModel("pool" if what in ("max", "average", "global average") else what, name, build)


def _window(window: Sequence[int] | None, stride: int) -> str:
    return "" if window is None else f" {'×'.join(map(str, window))}" + (f"/{stride}" if stride > 1 else "")


def _convolution(
    kind: str, data: tuple[int, ...], kernel: tuple[int, ...], attributes: Mapping[str, Any]
) -> KernelModel:
    groups, stride = int(attributes.get("group", 1)), (attributes.get("strides") or [1])[0]
    transposed = kind == "ConvTranspose"
    results = kernel[1] * groups if transposed else kernel[0]
    inner = int(np.prod(kernel[1:]))
    same = stride == 1 and data[1] == results and not transposed and _keeps_size(kernel, attributes)
    repeat = _REPEAT if same else 1

    def build(model: Model) -> None:
        model.input(*data)
        for _ in range(repeat):
            weight = model.weight(*kernel, inner=2 * inner)
            model.node(kind, model.last, weight, model.constant(np.full(results, 0.1, np.float32)), **attributes)

    sort = "1×1" if max(kernel[2:]) == 1 else f"{'×'.join(map(str, kernel[2:]))}{f'/{stride}' if stride > 1 else ''}"
    name = f"{_window(kernel[2:], stride).strip()} {data[1]}→{results}, {'×'.join(map(str, data[2:]))}"
    name += f", {groups} groups" if groups > 1 else ""
    if transposed:
        return KernelModel("transposed", name, build, repeat)
    if groups > 1:
        return KernelModel("depthwise" if groups == data[1] else "grouped", name, build, repeat)
    return KernelModel("first layer" if data[1] <= 4 else sort, name, build, repeat)


def _keeps_size(kernel: tuple[int, ...], attributes: Mapping[str, Any]) -> bool:
    steps = attributes.get("dilations") or [1] * len(kernel[2:])
    pads = attributes.get("pads") or [0] * (2 * len(steps))
    around = [a + b for a, b in zip(pads[: len(steps)], pads[len(steps) :], strict=True)]
    return all(p == d * (k - 1) for p, d, k in zip(around, steps, kernel[2:], strict=True))


def _product(operands: Sequence[tuple[tuple[int, ...], bool]], turned: bool, bias: bool) -> KernelModel:
    (left, _), (right, constant) = operands[:2]
    depth = left[-1]
    columns = right[-2] if turned else right[-1]

    def build(model: Model) -> None:
        source = model.input(*left)
        shape = (*right[:-2], depth, columns)
        other = model.weight(*shape, inner=2 * depth) if constant else model.input(*shape)
        made = model.node("MatMul", source, other)
        if bias:
            model.node("Add", made, model.constant(np.full(columns, 0.1, np.float32)))

    name = f"{'×'.join(map(str, left))} · {depth}×{columns}"
    if not constant:
        return KernelModel("batched product", name, build)
    return KernelModel("product with one row" if int(np.prod(left[:-1])) == 1 else "product", name, build)


#: What a call takes by itself.
CALL = KernelModel("call", "relu of one number", plain("Relu", 1))

FOLLOWED = (
    _followed("winograd", "3×3 64→64, 56² (ResNet)", conv(64, 64, 56, repeat=4), 4),
    _followed("winograd", "3×3 128→128, 28² (ResNet)", conv(128, 128, 28, repeat=4), 4),
    _followed("winograd", "3×3 256→256, 14² (ResNet)", conv(256, 256, 14, repeat=4), 4),
    _followed("winograd", "3×3 512→512, 7² (ResNet)", conv(512, 512, 7, repeat=4), 4),
    _followed("winograd", "3×3 256→256, 56² (VGG)", conv(256, 256, 56, repeat=2), 2),
    _followed("conv2d", "3×3/2 64→128, 104² (YOLOv4-tiny)", conv(64, 128, 104, stride=2)),
    _followed("conv2d", "3×3/2 256→512, 26² (YOLOv4)", conv(256, 512, 26, stride=2)),
    _followed("first layer", "7×7/2 3→64, 224² (ResNet)", conv(3, 64, 224, 7, 2)),
    _followed("first layer", "3×3/2 3→32, 224² (MobileNet)", conv(3, 32, 224, 3, 2)),
    _followed("1×1", "1×1 256→256, 56²", conv(256, 256, 56, 1, repeat=4), 4),
    _followed("1×1", "1×1 512→512, 14² (MobileNet)", conv(512, 512, 14, 1, repeat=4), 4),
    _followed("1×1", "1×1 320→1280, 7² (MobileNet-V2)", conv(320, 1280, 7, 1)),
    _followed("depthwise", "3×3 144, 56² (MobileNet-V2)", conv(144, 144, 56, groups=144, repeat=4), 4),
    _followed("depthwise", "5×5 672, 14² (EfficientNet)", conv(672, 672, 14, 5, groups=672, repeat=4), 4),
    _followed("matmul", "128×384 · 384×1536 + gelu (MiniLM)", dense(128, 384, 1536, gelu=True)),
    _followed("matmul", "128×1536 · 1536×384 (MiniLM)", dense(128, 1536, 384)),
    _followed("matmul", "1×2048 · 2048×1000 (ResNet)", dense(1, 2048, 1000)),
    _followed("matmul", "12 × 128×64 · 64×128", batched(12, 128, 64, 128)),
    _followed("attention", "12 heads × 128 × 32 (MiniLM)", attention(12, 128, 32)),
    _followed("attention", "3 heads × 197 × 64 (ViT)", attention(3, 197, 64)),
    _followed("pool", "max 3×3/2 64, 112² (ResNet)",
          plain("MaxPool", 1, 64, 112, 112, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    _followed("pool", "global average 2048, 7² (ResNet)", plain("GlobalAveragePool", 1, 2048, 7, 7)),
    _followed("rows", "softmax 1536×128", plain("Softmax", 1536, 128, axis=-1)),
    _followed("rows", "add + layer norm 128×384", layer_norm(128, 384)),
    _followed("elementwise", "swish, channels last, 96, 112²", layout_change(96, 112)),
    _followed("elementwise", "resize ×2 128, 26² (YOLOv4)", resize(128, 26)),
    _followed("elementwise", "gather 128 of 30522×384 (MiniLM)", gather(30522, 384, 128)),
)  # fmt: skip
