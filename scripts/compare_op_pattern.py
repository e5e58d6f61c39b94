"""Writes docs/mapping-types.md: our mapping type per operand beside TVM's OpPatternKind, operator by operator.

Usage: python scripts/compare_op_pattern.py [--check]
With --check nothing is written; the exit code is 1 if the file is not what would be written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "mapping-types.md"
PATTERNS = ("elementwise", "broadcast", "injective", "commutative reduce", "out-elementwise-fusable", "", "", "tuple",
            "opaque")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A Relax operator at tiny shapes; `make` gets one variable a shape, `dtypes` overrides float32 by position."""

    make: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: Mapping[int, str] = field(default_factory=dict)


def cases() -> dict[str, Case]:
    """The operators that networks of the zoo use, and others that the analysis must tell apart."""
    from tvm import relax
    from tvm.relax import op as R

    image = (1, 8, 6, 6)
    small = (1, 4, 5, 5)
    long = {1: "int64"}
    rows = (2, 4, 8)

    def pool(kind: Callable[..., Any], size: int, step: int, pad: int) -> Callable[..., Any]:
        return lambda x: kind(x, (size, size), (step, step), (pad, pad))

    return {
        "relu": Case(R.nn.relu, (image,)),
        "leakyrelu": Case(lambda x: R.nn.leakyrelu(x, 0.1), (image,)),
        "sigmoid": Case(R.sigmoid, (image,)),
        "tanh": Case(R.tanh, (image,)),
        "exp": Case(R.exp, (image,)),
        "erf": Case(R.erf, (image,)),
        "sqrt": Case(R.sqrt, (image,)),
        "gelu": Case(R.nn.gelu, (image,)),
        "silu": Case(R.nn.silu, (image,)),
        "clip": Case(lambda x: R.clip(x, 0.0, 6.0), (image,)),
        "cast": Case(lambda x: R.astype(x, "float16"), (image,)),
        "add, same shapes": Case(R.add, (image, image)),
        "add, per channel": Case(R.add, (image, (1, 8, 1, 1))),
        "add, lower rank": Case(R.add, ((4, 5, 6), (6,))),
        "add, unit axes": Case(R.add, ((1, 6), (6,))),
        "add, scalar": Case(lambda x: R.add(x, relax.const(1.0, "float32")), (image,)),
        "multiply, outer": Case(R.multiply, ((4, 1), (1, 5))),
        "where": Case(R.where, ((4, 8), (4, 8), (4, 8)), {0: "bool"}),
        "conv2d, 3×3 padded": Case(lambda x, w: R.nn.conv2d(x, w, padding=1), (small, (6, 4, 3, 3))),
        "conv2d, 1×1": Case(R.nn.conv2d, (image, (16, 8, 1, 1))),
        "conv2d, stride 2": Case(lambda x, w: R.nn.conv2d(x, w, strides=2), (small, (6, 4, 3, 3))),
        "conv2d, grouped": Case(lambda x, w: R.nn.conv2d(x, w, groups=2), (small, (6, 2, 3, 3))),
        "conv2d, depthwise": Case(lambda x, w: R.nn.conv2d(x, w, padding=1, groups=4), (small, (4, 1, 3, 3))),
        "conv2d, on one pixel": Case(R.nn.conv2d, ((1, 8, 1, 1), (16, 8, 1, 1))),
        "conv2d_transpose": Case(lambda x, w: R.nn.conv2d_transpose(x, w, strides=2), (small, (4, 3, 2, 2))),
        "matmul": Case(R.matmul, ((4, 8), (8, 16))),
        "matmul, one row": Case(R.matmul, ((1, 8), (8, 16))),
        "matmul, batched": Case(R.matmul, ((2, 4, 8), (2, 8, 16))),
        "softmax": Case(lambda x: R.nn.softmax(x, -1), (rows,)),
        "softmax, inner axis": Case(lambda x: R.nn.softmax(x, 1), (rows,)),
        "layer_norm": Case(lambda x, g, b: R.nn.layer_norm(x, g, b, axes=-1), (rows, (8,), (8,))),
        "instance_norm": Case(
            lambda x, g, b: R.nn.instance_norm(x, g, b, axes=[2, 3], channel_axis=1), (image, (8,), (8,))
        ),
        "sum, last axis": Case(lambda x: R.sum(x, -1), ((4, 8),)),
        "mean, spatial": Case(lambda x: R.mean(x, [2, 3], keepdims=True), (image,)),
        "max, all": Case(lambda x: R.max(x), ((4, 8),)),
        "argmax": Case(lambda x: R.argmax(x, 1), ((4, 8),)),
        "max_pool2d, apart": Case(pool(R.nn.max_pool2d, 2, 2, 0), (image,)),
        "max_pool2d, overlapping": Case(pool(R.nn.max_pool2d, 3, 2, 1), (image,)),
        "avg_pool2d, overlapping": Case(pool(R.nn.avg_pool2d, 3, 2, 1), (image,)),
        "adaptive_avg_pool2d": Case(lambda x: R.nn.adaptive_avg_pool2d(x, (1, 1)), (image,)),
        "reshape": Case(lambda x: R.reshape(x, (1, 8, 36)), (image,)),
        "reshape, across rows": Case(lambda x: R.reshape(x, (6, 4)), ((3, 8),)),
        "squeeze": Case(lambda x: R.squeeze(x, [0]), (image,)),
        "expand_dims": Case(lambda x: R.expand_dims(x, [0]), ((8, 6, 6),)),
        "permute_dims": Case(lambda x: R.permute_dims(x, [0, 2, 3, 1]), (image,)),
        "layout_transform": Case(
            lambda x: R.layout_transform(x, lambda n, c, h, w: (n, c // 4, h, w, c % 4)), (image,)
        ),
        "flip": Case(lambda x: R.flip(x, 1), ((4, 8),)),
        "concat": Case(lambda x, y: R.concat([x, y], 1), (image, (1, 4, 6, 6))),
        "strided_slice": Case(lambda x: R.strided_slice(x, [1], [2], [6]), (image,)),
        "strided_slice, step 2": Case(lambda x: R.strided_slice(x, [1], [0], [8], [2]), (image,)),
        "split": Case(lambda x: R.split(x, 2, 1), (image,)),
        "pad": Case(lambda x: R.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1)), (image,)),
        "broadcast_to": Case(lambda x: R.broadcast_to(x, (4, 8)), ((1, 8),)),
        "tile": Case(lambda x: R.tile(x, (1, 2)), ((4, 8),)),
        "repeat": Case(lambda x: R.repeat(x, 2, 1), ((4, 8),)),
        "resize2d, nearest": Case(
            lambda x: R.image.resize2d(
                x, (12, 12), layout="NCHW", method="nearest_neighbor",
                coordinate_transformation_mode="asymmetric", rounding_method="floor"),
            (image,),
        ),
        "resize2d, linear": Case(
            lambda x: R.image.resize2d(x, (12, 12), layout="NCHW", method="linear"), (image,)
        ),
        "take": Case(lambda x, i: R.take(x, i, 0), ((10, 8), (3,)), long),
        "gather_elements": Case(lambda x, i: R.gather_elements(x, i, 1), ((4, 8), (4, 3)), long),
        "gather_nd": Case(R.gather_nd, ((4, 8), (3, 2)), long),
        "one_hot": Case(
            lambda i: R.one_hot(i, relax.prim_value(1), relax.prim_value(0), 5, 1), ((4,),), {0: "int64"}
        ),
        "scatter_elements": Case(lambda x, i, u: R.scatter_elements(x, i, u, 1), ((4, 8), (4, 3), (4, 3)), long),
        "cumsum": Case(lambda x: R.cumsum(x, 1), ((4, 8),)),
        "topk": Case(lambda x: R.topk(x, 2, axis=1), ((4, 8),)),
    }  # fmt: skip


def legalised(case: Case) -> Any:
    """The operator as a module of `call_tir`, annotated with TVM's pattern kinds."""
    import tvm
    from tvm import relax

    parameters = [
        relax.Var(f"x{i}", relax.TensorType(shape, case.dtypes.get(i, "float32")))
        for i, shape in enumerate(case.shapes)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(case.make(*parameters)))
        builder.emit_func_output(output)
    with tvm.target.Target({"kind": "llvm"}):
        return relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(builder.get()))


def row(name: str, case: Case) -> str:
    """One line of the table."""
    from tvm import tirx

    from autofuse.graph.build import build_graph

    module = legalised(case)
    operators = build_graph(module, name).graph.operators
    functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    pattern = PATTERNS[int(functions[0].attrs["op_pattern"])] if functions else "not a tensor program"
    operator = operators[-1]
    operands = [
        f"{a.mapping.value} {a.reads_per_output}/{a.uses_per_element}" + (f" ({a.reason})" if a.reason else "")
        for a in operator.accesses
    ]
    return f"| {name} | {operator.mapping.value} | {'<br>'.join(operands)} | {pattern} |"


HEAD = """\
# Mapping types

How the output of an operator maps to each of its operands, found from the index maps of its tensor program
(`autofuse/graph/access.py`, `mapping.py`), beside the class that TVM gives the whole operator (`OpPatternKind`). TVM's
class looks at all operands together and decides by a few forms of index expression; a mapping type is per operand and
counts: after it stand *distinct elements that one output element reads* / *output elements that read one element*, the
largest of each. Shapes are tiny; `scripts/compare_op_pattern.py` writes this page and has them.

- **One-to-One**: one element each way. A *shifted window* (slice, pad, concatenation) counts: each axis keeps its
  place.
- **One-to-Many**: one element feeds several outputs (broadcast, nearest resize, gather).
- **Many-to-One**: several elements feed one output and none feeds a second (reductions, pools that do not overlap).
  Softmax and the normalisations are here too, *reduced and read back over the same axes*: by the counts they are
  Many-to-Many, but they stay within a row, and a kernel may hold that row; a convolution or a matmul may not.
- **Many-to-Many**: both (convolution, matmul, overlapping pools, linear resize). Degenerate extents show: the weight of
  a matmul with one row is read once, hence Many-to-One.
- **Reorganize**: the same order of elements under another shape. **Shuffle**: another order.
- **Opaque**: not followed, with the reason; such an operator stays outside every group. An operator that TVM never
  legalises, or that stores by itself (scatter), is opaque whatever its indices are.

Where the two disagree is where fusion rules by class go wrong: softmax, layer norm, mean and pooling are all
"out-elementwise-fusable" to TVM, like a convolution; `take` and `layout_transform` are opaque to it.

| operator | mapping type | per operand | TVM's class |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(row(name, case) for name, case in cases().items()) + "\n"


def main() -> int:
    """Writes the page, or checks it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    arguments = parser.parse_args()
    text = page()
    if arguments.check:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=PAGE.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, PAGE)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
