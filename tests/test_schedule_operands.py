"""Concatenations of many operands in front of a convolution: right, and code that does not grow with their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from built_kernels import build_kernels
from lowered_groups import HARDWARE, LoweredGroup
from tvm import relax, tirx
from tvm.relax import op as R

from autofuse.codegen.digest import tir_digest
from autofuse.graph.model import Group, Role
from autofuse.measure.oracle import evaluate
from autofuse.schedule.cpu.conv_tiling import Conv2dConfiguration
from autofuse.schedule.operands import FEWEST
from autofuse.schedule.registry import family


def constant(*shape: int, seed: int = 3) -> Any:
    return relax.const(((np.random.default_rng(seed).random(shape) * 2 - 1) * 0.2).astype("float32"))


def dense_layer(channels: Sequence[int], batch: int, kernel: int) -> tuple[LoweredGroup, Group]:
    """concat, scale, shift, relu and a convolution, all in blocks; each operand of the concat is a convolution's."""

    def build(emit: Any, *inputs: Any) -> Any:
        parts = [emit(R.nn.conv2d(x, constant(c, 4, 1, 1, seed=c))) for x, c in zip(inputs, channels, strict=True)]
        total = sum(channels)
        y = emit(R.multiply(emit(R.concat(parts, 1)), constant(total, 1, 1)))
        y = emit(R.nn.relu(emit(R.add(y, constant(total, 1, 1, seed=4)))))
        return R.nn.conv2d(y, constant(16, total, kernel, kernel), padding=kernel // 2)

    case = LoweredGroup(build, [(batch, 4, 9, 7)] * len(channels))
    kinds = [op.kind for op in case.graph.operators]
    last = len(kinds) - (kinds[-1] == "layout_change")
    return case, Group.of(case.graph, range(kinds.index("concat"), last))


def statements(func: Any, kind: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(func.body, (kind, found.append))
    return found


@pytest.mark.parametrize(
    ("channels", "batch", "kernel"),
    [([16, 8, 8, 8, 8, 8], 1, 1), ([16, 8, 8, 24, 8, 8, 8], 2, 1), ([24, 8, 16, 8, 8], 2, 3)],
)
def test_operands_that_are_looked_up(channels: list[int], batch: int, kernel: int) -> None:
    case, group = dense_layer(channels, batch, kernel)
    chosen = family("conv2d")
    random = np.random.default_rng(1)
    inputs = []
    for t in group.inputs:
        tensor = case.graph.tensors[t]
        array = (random.random(tensor.shape) * 2 - 1).astype("float32")
        inputs.append(np.ascontiguousarray(case.values[t].value.numpy()) if tensor.role is Role.CONSTANT else array)
    (expected,) = evaluate(group, inputs)
    looked_up = 0
    for config in list(chosen.configs(group, HARDWARE))[:5:4]:
        func = chosen.apply(case.fuser.fuse(group), group, config, HARDWARE).with_attr("global_symbol", "main")
        looked_up += len(statements(func, tirx.DeclBuffer))
        text = tvm.IRModule({"main": func}).script(show_meta=True)
        assert tir_digest(tvm.script.from_source(text)["main"]) == tir_digest(func)
        result = tvm.runtime.tensor(np.full(expected.shape, np.nan, "float32"))
        (kernel,) = build_kernels([func])
        kernel(*map(tvm.runtime.tensor, inputs), result)
        assert np.abs(result.numpy() - expected).max() < 1e-5 * np.abs(expected).max()
    assert looked_up


# Rows of a tile's columns, and tiles of places that run on over the ends of rows.
CONFIGURATIONS = [
    Conv2dConfiguration(nb=2, ht=1, mt=4, cob=1, hb=9, pad=1, chunk=1, parallel=0),
    Conv2dConfiguration(nb=2, ht=0, mt=6, cob=1, hb=11, pad=1, chunk=1, parallel=0),
]


def test_code_does_not_grow_with_many_operands() -> None:
    chosen = family("conv2d")
    stores: dict[int, list[int]] = {}
    for count in (FEWEST - 1, FEWEST, 3 * FEWEST):
        case, group = dense_layer([8] * count, 1, 1)
        functions = (chosen.apply(case.fuser.fuse(group), group, config, HARDWARE) for config in CONFIGURATIONS)
        stores[count] = [len(statements(func, tirx.BufferStore)) for func in functions]
    assert stores[3 * FEWEST] == stores[FEWEST]
    assert stores[FEWEST][0] < stores[FEWEST - 1][0]
    assert stores[FEWEST][1] <= stores[FEWEST - 1][1]  # nothing is staged operand by operand there
