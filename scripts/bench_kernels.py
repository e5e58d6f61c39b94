"""Times single operators of the zoo's networks against other engines, and writes docs/kernels.md.

Usage: python scripts/bench_kernels.py [--families a,b] [--budget S] [--candidates K] [--again] [--page-only]

An operator with what follows it is a model of its own; ours is built with the cost model's choice and with the first
configurations of every family that takes it. All of them, ONNX Runtime and OpenVINO take turns, each in a process of
its own. Raw results go to docs/results/kernels.json after every shape; shapes that are there are skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RAW = ROOT / "docs" / "results" / "kernels.json"
PAGE = ROOT / "docs" / "kernels.md"
NOTES = ROOT / "docs" / "kernels-notes.md"
CHOICE = "autofuse"
PEERS = ("onnxruntime", "openvino")
#: The default configuration may be this much slower than the best one measured.
ALLOWED = 1.15
Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Shape:
    """One row: `build` adds nodes to a model. `repeat`: the operator stands so often in a row, so that changing the
    layout of the model's input and output weighs little."""

    family: str
    name: str
    build: Callable[[Model], None]
    repeat: int = 1


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
        return self.constant((self.random.standard_normal(shape) * (2.0 / inner) ** 0.5).astype(np.float32))

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


SHAPES = (
    Shape("winograd", "3×3 64→64, 56² (ResNet)", conv(64, 64, 56, repeat=4), 4),
    Shape("winograd", "3×3 128→128, 28² (ResNet)", conv(128, 128, 28, repeat=4), 4),
    Shape("winograd", "3×3 256→256, 14² (ResNet)", conv(256, 256, 14, repeat=4), 4),
    Shape("winograd", "3×3 512→512, 7² (ResNet)", conv(512, 512, 7, repeat=4), 4),
    Shape("winograd", "3×3 256→256, 56² (VGG)", conv(256, 256, 56, repeat=2), 2),
    Shape("conv2d", "3×3/2 64→128, 104² (YOLOv4-tiny)", conv(64, 128, 104, stride=2)),
    Shape("conv2d", "3×3/2 256→512, 26² (YOLOv4)", conv(256, 512, 26, stride=2)),
    Shape("first layer", "7×7/2 3→64, 224² (ResNet)", conv(3, 64, 224, 7, 2)),
    Shape("first layer", "3×3/2 3→32, 224² (MobileNet)", conv(3, 32, 224, 3, 2)),
    Shape("1×1", "1×1 256→256, 56²", conv(256, 256, 56, 1, repeat=4), 4),
    Shape("1×1", "1×1 512→512, 14² (MobileNet)", conv(512, 512, 14, 1, repeat=4), 4),
    Shape("1×1", "1×1 320→1280, 7² (MobileNet-V2)", conv(320, 1280, 7, 1)),
    Shape("depthwise", "3×3 144, 56² (MobileNet-V2)", conv(144, 144, 56, groups=144, repeat=4), 4),
    Shape("depthwise", "5×5 672, 14² (EfficientNet)", conv(672, 672, 14, 5, groups=672, repeat=4), 4),
    Shape("matmul", "128×384 · 384×1536 + gelu (MiniLM)", dense(128, 384, 1536, gelu=True)),
    Shape("matmul", "128×1536 · 1536×384 (MiniLM)", dense(128, 1536, 384)),
    Shape("matmul", "1×2048 · 2048×1000 (ResNet)", dense(1, 2048, 1000)),
    Shape("matmul", "12 × 128×64 · 64×128", batched(12, 128, 64, 128)),
    Shape("attention", "12 heads × 128 × 32 (MiniLM)", attention(12, 128, 32)),
    Shape("attention", "3 heads × 197 × 64 (ViT)", attention(3, 197, 64)),
    Shape("pool", "max 3×3/2 64, 112² (ResNet)",
          plain("MaxPool", 1, 64, 112, 112, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])),
    Shape("pool", "global average 2048, 7² (ResNet)", plain("GlobalAveragePool", 1, 2048, 7, 7)),
    Shape("rows", "softmax 1536×128", plain("Softmax", 1536, 128, axis=-1)),
    Shape("rows", "add + layer norm 128×384", layer_norm(128, 384)),
    Shape("elementwise", "swish, channels last, 96, 112²", layout_change(96, 112)),
    Shape("elementwise", "resize ×2 128, 26² (YOLOv4)", resize(128, 26)),
    Shape("elementwise", "gather 128 of 30522×384 (MiniLM)", gather(30522, 384, 128)),
)  # fmt: skip


def variants(model: Any, folder: Path, count: int, threads: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Executables by name and what they are: the cost model's choice, and the first `count` other configurations.

    Only the group that costs most is varied, and those equal to it.
    """
    import autofuse
    from autofuse.compiler import analyse
    from autofuse.schedule.registry import families

    chosen = autofuse.compile(model, threads=threads)
    analysed = analyse(model, threads=threads)
    plan = chosen.plan
    totals: Counter[str] = Counter()
    for planned in plan.groups:
        totals[planned.key] += planned.seconds
    key = totals.most_common(1)[0][0]
    main = next(n for n, planned in enumerate(plan.groups) if planned.key == key)
    group = plan.groups_of(analysed.graph)[main]
    default = (plan.groups[main].family, plan.groups[main].config)
    offered: list[list[tuple[str, str]]] = []
    for family in families(analysed.hardware.kind):
        if family.match(group, analysed.hardware) is None:
            offered.append([(family.name, c.text) for c in family.configs(group, analysed.hardware)])
        if offered and not family.beside and family.match(group, analysed.hardware) is None:
            break
    others = [item for rank in range(count) for some in offered for item in some[rank : rank + 1] if item != default]
    made = {CHOICE: default}
    made.update({f"candidate {n}": item for n, item in enumerate(dict.fromkeys(others[:count]))})
    paths = {}
    for name, (family_name, config) in made.items():
        groups = tuple(
            replace(g, family=family_name, config=config) if g.key == key else g for g in plan.groups
        )  # fmt: skip
        built = (
            chosen if name == CHOICE else autofuse.compile(model, threads=threads, plan=replace(plan, groups=groups))
        )
        paths[name] = str(folder / f"{name.replace(' ', '-')}.so")
        built.save(paths[name])
    graph = analysed.graph
    kernels = chosen.description["kernel_list"]
    facts = {
        "configurations": {name: f"{family}[{config}]" for name, (family, config) in made.items()},
        "flops": sum(entry["flops"] for entry in kernels),
        # What no schedule avoids: inputs, weights and outputs of the model once.
        "bytes": sum(graph.tensors[t].bytes for t in _borders(graph)),
        "kernels": len(kernels),
        "predicted_ms": chosen.description["predicted_ms"],
    }
    return paths, facts


def _borders(graph: Any) -> set[int]:
    """The model's inputs and outputs, and the constants that an operator reads."""
    from autofuse.graph.model import Role

    read = {t for op in graph.operators for t in op.inputs if graph.tensors[t].role is Role.CONSTANT}
    return {*graph.inputs, *graph.outputs, *read}


def measure(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """One row: all variants and all engines, interleaved."""
    from autofuse import bench
    from autofuse.bench.runner import default_threads
    from autofuse.report.results import machine

    built = Model()
    shape.build(built)
    model = built.proto()
    threads = options.threads or default_threads()
    with tempfile.TemporaryDirectory(prefix="autofuse-kernels-") as folder:
        paths, facts = variants(model, Path(folder), options.candidates, threads)
        result = bench.run(
            model, engines=(*paths, *PEERS), executables=paths, threads=threads, rounds=options.rounds,
            budget=options.budget,
        )  # fmt: skip
    return {
        "family": shape.family, "name": shape.name, "repeat": shape.repeat, "machine": machine(), **facts,
        "bench": result.to_json(),
    }  # fmt: skip


def rates(raw: Raw) -> tuple[float, float]:
    """sgemm's operations and copied bytes a second, by the probes of the same run."""
    from autofuse.bench.peers.probe import ARITHMETIC_SIZE, MEMORY_BYTES

    probe, threads = raw["bench"]["probe"], raw["bench"]["threads"]
    sgemm = threads * 2 * ARITHMETIC_SIZE**3 / (1e-3 * probe["arithmetic"]["median_ms"])
    return sgemm, 2 * MEMORY_BYTES / (1e-3 * probe["memory"]["median_ms"])


def best(raw: Raw) -> Mapping[str, Any] | None:
    """Our fastest variant by its ratio to the default, which rounds are paired for."""
    ours = [r for r in raw["bench"]["results"] if r["engine"] in raw["configurations"] and r["ratio"]]
    return min(ours, key=lambda r: float(r["ratio"])) if ours else None


def cells(raw: Raw) -> list[str]:
    """A row of the table."""
    from autofuse.report.results import number

    rows = {r["engine"]: r for r in raw["bench"]["results"]}
    default, fastest = rows[CHOICE], best(raw)
    if fastest is None:
        return [raw["family"], raw["name"], f"failed: {default['error']}", *["–"] * 9]
    seconds = 1e-3 * default["median_ms"]
    sgemm, memory = rates(raw)
    roof = max(raw["flops"] / sgemm, raw["bytes"] / memory)
    loss = 1.0 / fastest["ratio"]
    peers = [f"{number(rows[p]['ratio'])} ±{number((rows[p]['ratio_iqr'] or 0.0) / 2)}" for p in PEERS]
    return [
        raw["family"],
        raw["name"],
        f"`{raw['configurations'][CHOICE]}`",
        f"{1e6 * seconds / raw['repeat']:.1f} ±{500 * (default['iqr_ms'] or 0.0) / raw['repeat']:.1f}",
        *peers,
        number(raw["flops"] / seconds / 1e9, "{:.1f}"),
        number(raw["flops"] / seconds / sgemm),
        number(roof / seconds),
        f"`{raw['configurations'][fastest['engine']]}`" if fastest["engine"] != CHOICE else "the same",
        number(loss),
        "yes" if loss <= ALLOWED else "**no**",
    ]


def write_page() -> Path:
    """Write the page from all results that are there; its path."""
    import bench_defaults

    from autofuse.report.results import write_text

    found: dict[str, Any] = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else {}
    defaults = bench_defaults.section(list(bench_defaults.results().values()))
    write_text(PAGE, page([found[shape.name] for shape in SHAPES if shape.name in found], defaults))
    return PAGE


def page(raws: Sequence[Raw], defaults: str = "") -> str:
    """The whole page: the table, what it says of the goal, the section on defaults, and the notes."""
    from autofuse.report.results import geometric_mean, machine_text, table

    notes = NOTES.read_text(encoding="utf-8").rstrip("\n") if NOTES.exists() else ""
    if not raws:
        parts = ["# Kernels", "Nothing was measured yet: run `python scripts/bench_kernels.py`.", defaults, notes]
        return "\n\n".join(part for part in parts if part) + "\n"
    headings = [
        "family", "operator", "the cost model's choice", "µs an operator", *(f"{p} / ours" for p in PEERS), "GFLOP/s",
        "of sgemm", "of roofline", "best measured", "choice / best", "within 15 %",
    ]  # fmt: skip
    measured = [raw for raw in raws if best(raw) is not None]
    lines = []
    for peer in PEERS:
        ratios = [r["ratio"] for raw in measured for r in raw["bench"]["results"] if r["engine"] == peer]
        mean = geometric_mean(ratios)
        slower = sum(1 for ratio in ratios if ratio is not None and ratio < 1.0)
        if mean:
            lines.append(f"- {peer}: {mean:.2f} times our time in the geometric mean; faster than us in {slower} rows.")
    near = sum(1 for raw in measured if 1.0 / float((best(raw) or {"ratio": 1.0})["ratio"]) <= ALLOWED)
    lines.append(f"- The cost model's choice is within 15 % of the best measured in {near} of {len(measured)} rows.")
    parts = [
        "# Kernels",
        "Written by `scripts/bench_kernels.py`; not to be edited. Single operators of the zoo's networks with what"
        " follows them (bias and relu, gelu), each a model of its own.",
        machine_text(raws[0]["machine"]),
        f"{raws[0]['bench']['threads']} threads; the engines and our configurations take turns round by round, each in"
        " a process of its own. Times are medians of whole calls, ± half the distance between the quartiles; ratios are"
        " medians over the rounds. Inputs and outputs are NCHW for everybody, so that changing the layout is part of"
        " the time; operators whose output has their input's shape stand two or four times in a row, and the time is"
        " that of one. Sgemm and copying are the probes of the same run (numpy's BLAS, a product a thread; 64 MB)."
        " Operations are those of the definition. The roofline is the larger of the operations at sgemm's rate and of"
        " inputs, weights and outputs at the rate of copying: Winograd, and data that stays in a cache, can exceed it.",
        table(headings, [cells(raw) for raw in raws]),
        "\n".join(lines),
        defaults,
        notes,
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def main() -> int:
    """Measures what is missing or asked for, then writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", help="only these, comma-separated; they are measured again")
    parser.add_argument("--shapes", help="only shapes whose name contains this text; they are measured again")
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--candidates", type=int, default=4, help="configurations beside the cost model's choice")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for the rounds of one shape")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that are there")
    options = parser.parse_args()
    from rich.progress import track

    from autofuse.report.results import write_json

    known = dict.fromkeys(shape.family for shape in SHAPES)
    wanted = set(options.families.split(",")) if options.families else set(known)
    if unknown := sorted(wanted - set(known)):
        parser.error(f"no family {unknown[0]!r}: there are {', '.join(known)}")
    found: dict[str, Any] = json.loads(RAW.read_text(encoding="utf-8")) if RAW.exists() else {}
    again = options.again or options.families or options.shapes
    due = [
        shape
        for shape in SHAPES
        if shape.family in wanted and (options.shapes or "") in shape.name and (again or shape.name not in found)
    ]
    failed = False
    for shape in track([] if options.page_only else due, description="kernels"):
        try:
            found[shape.name] = measure(shape, options)
        except Exception as error:
            print(f"{shape.name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed = True
        else:
            write_json(RAW, found)
    print(f"wrote {write_page()}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
