"""Fixed kernels whose machine code must not change while the version of the code generation stays.

What is digested is what reaches LLVM: TIR after all passes, with the target and its options. The kernels are written by
hand, so that a family's schedule may change without them; they reach whatever the code generation does by itself:
functions as arithmetic, buffers on the stack, loops split at their edges, parallel regions, arguments without checks.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import tvm
from test_stack import row_sums
from tvm import s_tir, te, tirx

from autofuse.codegen.build import PASS_CONFIG, build_kernel
from autofuse.codegen.digest import DIGEST_LENGTH, tir_digest
from autofuse.codegen.stack import MOST_BYTES
from autofuse.target.registry import resolve

FILE = Path(__file__).with_name("golden_code.json")
NAME = "codegen"
#: A machine that is the same wherever the test runs.
TARGET = "llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"
LANES = 8

FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "exp": tirx.exp,
    "sigmoid": tirx.sigmoid,
    "tanh": tirx.tanh,
    "erf": tirx.erf,
    "log": tirx.log,
    "rsqrt": tirx.rsqrt,
    "square": lambda x: tirx.power(x, tirx.const(2.0, "float32")),
    "cube": lambda x: tirx.power(x, tirx.const(3.0, "float32")),
    "fourth power": lambda x: tirx.power(x, tirx.const(4.0, "float32")),
    "root": lambda x: tirx.power(x, tirx.const(0.5, "float32")),
    "other power": lambda x: tirx.power(x, tirx.const(1.7, "float32")),
    "nested": lambda x: tirx.tanh(tirx.exp(x) * x),
}


def elementwise(function: Callable[[Any], Any], lanes: int) -> Any:
    source = te.placeholder((4 * LANES,), name="x")
    result = te.compute((4 * LANES,), lambda i: function(source[i]), name="y")
    sch = s_tir.Schedule(te.create_prim_func([source, result]))
    if lanes > 1:
        _, inner = sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, lanes])
        sch.vectorize(inner)
    return sch.mod["main"]


def edges() -> Any:
    """Rows whose last tile is not full: the loop over tiles is split before it."""
    source = te.placeholder((4, 30), name="x")
    result = te.compute((4, 30), lambda i, j: source[i, j] + tirx.const(1.0, "float32"), name="y")
    sch = s_tir.Schedule(te.create_prim_func([source, result]))
    row, column = sch.get_loops(sch.get_sblock("y"))
    tile, inner = sch.split(column, [None, LANES])
    sch.annotate(tile, "pragma_loop_partition_hint", 1)
    sch.vectorize(inner)
    sch.parallel(row)
    return sch.mod["main"]


KERNELS: Mapping[str, Callable[[], Any]] = {
    **{f"{name}, lanes {n}": partial(elementwise, f, n) for name, f in FUNCTIONS.items() for n in (1, LANES)},
    **{f"row sums of {n} numbers": partial(lambda n: row_sums(n, "local").mod["main"], n) for n in (8, MOST_BYTES)},
    "edges": edges,
}


def lowered(func: Any) -> str:
    """The digest of what the code generation gives LLVM for a scheduled function."""
    found: list[Any] = []
    module = importlib.import_module("tvm.tirx.build")
    build = module.codegen_build

    def caught(made: Any, target: Any) -> Any:
        # The last thing that is done to it before LLVM has it.
        skip = tvm.transform.PassContext.current().config.get("tirx.disable_assert", False)
        found.append(tirx.transform.SkipAssert()(made) if skip else made)
        return build(made, target)

    with mock.patch.object(module, "codegen_build", caught):
        build_kernel(func, resolve(TARGET, 2).tvm_target())
    digests = sorted(tir_digest(f) for made in found for f in made.functions.values())
    assert digests, "nothing came by on its way to LLVM"
    return "+".join(digests)


def digests() -> dict[str, str]:
    """Kernel → digest; and that of the passes' configuration, not all of which shows in small kernels."""
    configuration = hashlib.sha256(json.dumps(PASS_CONFIG, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]
    return {"configuration of passes": configuration} | {name: lowered(make()) for name, make in KERNELS.items()}


def kept() -> dict[str, Any]:
    """The file's content."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content
