"""Mapping types, counts, strides and work of the operators that networks use, at tiny shapes.

Every followed operator's counts are compared with an enumeration that runs its blocks point by point and tracks
which operand elements each stored element depends on.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autofuse.graph.analysis import Analysis, analyse
from autofuse.graph.build import build_graph
from autofuse.graph.expression import Expr, evaluate, loads_from_memory
from autofuse.graph.mapping import GATHERED, ROW_LOCAL, WINDOW
from autofuse.graph.model import MappingType, Operator, Work
from autofuse.graph.tir import Program, read_program

tvm = pytest.importorskip("tvm")

_SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "compare_op_pattern.py"
_spec = importlib.util.spec_from_file_location("compare_op_pattern", _SCRIPT)
assert _spec is not None and _spec.loader is not None
compare = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = compare
_spec.loader.exec_module(compare)
CASES = compare.cases()

O2O, O2M, M2O, M2M = (
    MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY, MappingType.MANY_TO_ONE, MappingType.MANY_TO_MANY,
)  # fmt: skip
REORGANIZE, SHUFFLE, OPAQUE = MappingType.REORGANIZE, MappingType.SHUFFLE, MappingType.OPAQUE

EXPECTED: dict[str, tuple[MappingType, ...]] = {
    **dict.fromkeys(
        ("relu", "leakyrelu", "sigmoid", "tanh", "exp", "erf", "sqrt", "gelu", "silu", "clip", "cast", "add, scalar",
         "strided_slice", "strided_slice, step 2", "split", "pad"), (O2O,)),
    "add, same shapes": (O2O, O2O),
    "add, per channel": (O2O, O2M),
    "add, lower rank": (O2O, O2M),
    "add, unit axes": (O2O, O2O),
    "multiply, outer": (O2M, O2M),
    "where": (O2O, O2O, O2O),
    **dict.fromkeys(
        ("conv2d, 3×3 padded", "conv2d, 1×1", "conv2d, stride 2", "conv2d, grouped", "conv2d, depthwise",
         "conv2d_transpose", "matmul", "matmul, batched"), (M2M, M2M)),
    "conv2d, on one pixel": (M2M, M2O),
    "matmul, one row": (M2M, M2O),
    "softmax": (M2O,),
    "softmax, inner axis": (M2O,),
    "layer_norm": (M2O, O2M, O2M),
    "instance_norm": (OPAQUE, OPAQUE, OPAQUE),
    "sum, last axis": (M2O,),
    "mean, spatial": (M2O,),
    "max, all": (M2O,),
    "argmax": (OPAQUE,),
    "max_pool2d, apart": (M2O,),
    "max_pool2d, overlapping": (M2M,),
    "avg_pool2d, overlapping": (M2M,),
    "adaptive_avg_pool2d": (M2O,),
    **dict.fromkeys(("reshape", "reshape, across rows", "squeeze", "expand_dims"), (REORGANIZE,)),
    **dict.fromkeys(("permute_dims", "layout_transform", "flip"), (SHUFFLE,)),
    "concat": (O2O, O2O),
    **dict.fromkeys(("broadcast_to", "tile", "repeat", "resize2d, nearest", "one_hot"), (O2M,)),
    "resize2d, linear": (M2M,),
    "take": (O2M, O2M),
    "gather_elements": (O2M, O2O),
    "gather_nd": (O2M, M2O),
    "scatter_elements": (OPAQUE, OPAQUE, OPAQUE),
    "cumsum": (OPAQUE,),
    "topk": (OPAQUE,),
}  # fmt: skip


def operator(name: str) -> Operator:
    return build_graph(compare.legalised(CASES[name]), name).graph.operators[-1]


def functions(name: str) -> list[Any]:
    module = compare.legalised(CASES[name])
    return [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]


def dependencies(program: Program) -> dict[int, dict[tuple[int, ...], set[tuple[int, tuple[int, ...]]]]]:
    """Buffer → element → the parameter elements that it depends on, by running every block at every point."""
    known: dict[int, dict[tuple[int, ...], set[Any]]] = defaultdict(lambda: defaultdict(set))

    def needs(expr: Expr, point: dict[int, int]) -> set[Any]:
        tag = expr[0]
        if tag in ("c", "v"):
            return set()
        if tag == "ld":
            place = tuple(int(evaluate(i, point)) for i in expr[2])
            return set(known[expr[1]][place]) if expr[1] in program.writers else {(expr[1], place)}
        if tag in ("if_then_else", "select") and not loads_from_memory(expr[1]):
            return needs(expr[2] if bool(evaluate(expr[1], point)) else expr[3], point)
        parts = expr[2:] if tag == "cast" else expr[1:]
        return set().union(*(needs(p, point) for p in parts))

    for block in program.blocks:
        for values in itertools.product(*(range(a.extent) for a in block.axes)):
            point = {a.var: v for a, v in zip(block.axes, values, strict=True)}
            place = tuple(int(evaluate(w, point)) for w in block.write)
            known[block.target][place] |= needs(block.value, point)
    return known


def enumerated_counts(program: Program, operand: int) -> tuple[int, int]:
    """(reads per output, uses per element) of the last parameter's elements."""
    found = dependencies(program)[program.parameters - 1]
    reads = [{place for buffer, place in needed if buffer == operand} for needed in found.values()]
    uses = Counter(place for needed in reads for place in needed)
    return max(len(r) for r in reads), max(uses.values(), default=0)


def test_every_case_has_an_expectation() -> None:
    assert set(EXPECTED) == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_mapping_type_of_each_operand(name: str) -> None:
    assert tuple(a.mapping for a in operator(name).accesses) == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(n for n, types in EXPECTED.items() if OPAQUE not in types and n != "split"))
def test_counts_equal_enumeration(name: str) -> None:
    for func in functions(name):
        program = read_program(func)
        for access in analyse(func).accesses:
            if access.reason != GATHERED and not gathers(program):
                counts = (access.reads_per_output, access.uses_per_element)
                assert counts == enumerated_counts(program, access.operand), access


def gathers(program: Program) -> bool:
    """Whether some index depends on contents, which an enumeration without data cannot follow."""
    from autofuse.graph.tir import loads

    return any(loads_from_memory(i) for b in program.blocks for _, indices, _ in loads(b.value) for i in indices)


@pytest.mark.parametrize("name", ["softmax", "softmax, inner axis", "layer_norm"])
def test_rows_reduced_and_read_back_are_told_from_convolutions(name: str) -> None:
    access = operator(name).accesses[0]
    assert access.reason == ROW_LOCAL
    assert access.reads_per_output == access.uses_per_element > 1


@pytest.mark.parametrize("name", ["concat", "strided_slice", "pad", "split"])
def test_windows_say_that_they_are(name: str) -> None:
    assert {a.reason for a in operator(name).accesses} == {WINDOW}


def test_opaque_operators_give_a_reason_and_are_not_fusable() -> None:
    for name in ("argmax", "instance_norm", "scatter_elements", "cumsum", "topk"):
        op = operator(name)
        assert not op.fusable
        assert all(a.reason for a in op.accesses), name


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("add, per channel", (1, 0)), ("add, lower rank", (1, 1)), ("matmul", (0, 1)), ("conv2d, stride 2", (2, 0)),
        ("conv2d, 3×3 padded", (1, 0)), ("permute_dims", (36,)), ("reshape, across rows", (1,)),
        ("resize2d, nearest", (-1,)), ("sum, last axis", (8,)), ("mean, spatial", (36,)), ("softmax", (1,)),
        ("softmax, inner axis", (1,)), ("take", (1, 0)), ("gather_elements", (-1, 1)), ("concat", (1, 1)),
        ("strided_slice, step 2", (1,)), ("max_pool2d, apart", (2,)),
    ],
)  # fmt: skip
def test_stride_between_neighbours_on_the_innermost_axis(name: str, strides: tuple[int, ...]) -> None:
    assert tuple(a.stride for a in operator(name).accesses) == strides


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("relu", Work(compare=288)),
        ("sigmoid", Work(special=288)),
        ("clip", Work(compare=2 * 288)),
        ("add, per channel", Work(simple=288)),
        ("reshape", Work()),
        ("concat", Work()),
        ("resize2d, nearest", Work()),
        ("where", Work(simple=32, compare=2 * 32)),
        ("conv2d, 3×3 padded", Work(fma=6 * 25 * 36)),
        ("conv2d, depthwise", Work(fma=4 * 25 * 9)),
        ("matmul, batched", Work(fma=2 * 4 * 16 * 8)),
        ("sum, last axis", Work(simple=32)),
        ("mean, spatial", Work(simple=288, divide=8)),
        ("softmax", Work(simple=64 + 64, special=64, compare=64, divide=64)),
    ],
)
def test_work_counts_operations_on_values_only(name: str, work: Work) -> None:
    assert operator(name).work == work


@pytest.mark.parametrize(
    ("name", "reduction", "blocks"),
    [
        ("softmax", (8,), 4), ("layer_norm", (8,), 3), ("conv2d, 3×3 padded", (4, 3, 3), 1), ("gelu", (), 1),
        ("mean, spatial", (6, 6), 2), ("relu", (), 1), ("avg_pool2d, overlapping", (3, 3), 2),
    ],
)  # fmt: skip
def test_main_reduction_and_loop_nests(name: str, reduction: tuple[int, ...], blocks: int) -> None:
    op = operator(name)
    assert (op.reduction, op.blocks) == (reduction, blocks)


def test_the_page_of_mapping_types_is_up_to_date() -> None:
    assert compare.PAGE.read_text(encoding="utf-8") == compare.page()


# -- stored forms of the lowering: blocked convolutions, packed matmul ---------------------------------------------


def of(inputs: list[Any], output: Any) -> Analysis:
    return analyse(tvm.te.create_prim_func([*inputs, output]))


def blocked_convolution(step: int, pad: int) -> tuple[Any, Program]:
    """data [1, 2, 5, 5, 2], weight [2, 2, 3, 3, 2, 2], out [1, 2, ., ., 2]."""
    te, tirx = tvm.te, tvm.tirx
    data = te.placeholder((1, 2, 5, 5, 2), name="data")
    weight = te.placeholder((2, 2, 3, 3, 2, 2), name="weight")
    size = 5 + 2 * pad

    def padded(n: Any, c: Any, h: Any, w: Any, i: Any) -> Any:
        inside = tirx.all(h >= pad, h < 5 + pad, w >= pad, w < 5 + pad)
        return tirx.if_then_else(inside, data[n, c, h - pad, w - pad, i], tirx.const(0.0, "float32"))

    source = te.compute((1, 2, size, size, 2), padded, name="pad") if pad else data
    co, kh, kw, ci = (te.reduce_axis((0, e)) for e in (2, 3, 3, 2))
    extent = (size - 3) // step + 1
    out = te.compute(
        (1, 2, extent, extent, 2),
        lambda n, o, h, w, v: te.sum(
            source[n, co, h * step + kh, w * step + kw, ci] * weight[o, co, kh, kw, ci, v], axis=[co, kh, kw, ci]
        ),
    )
    func = te.create_prim_func([data, weight, out])
    return func, read_program(func)


@pytest.mark.parametrize(("step", "pad"), [(1, 0), (1, 1), (2, 1)])
def test_blocked_convolution(step: int, pad: int) -> None:
    func, program = blocked_convolution(step, pad)
    found = analyse(func)
    assert [a.mapping for a in found.accesses] == [M2M, M2M]
    assert found.reduction == (2, 3, 3, 2)
    assert found.blocks == 1
    for access in found.accesses:
        assert (access.reads_per_output, access.uses_per_element) == enumerated_counts(program, access.operand)
    assert [a.stride for a in found.accesses] == [0, 1]


def test_packed_matmul_reads_its_weight_contiguously() -> None:
    te = tvm.te
    a, w = te.placeholder((4, 8), name="a"), te.placeholder((2, 8, 16), name="w")
    k = te.reduce_axis((0, 8))
    out = te.compute((4, 32), lambda m, n: te.sum(a[m, k] * w[n // 16, k, n % 16], axis=[k]))
    found = of([a, w], out)
    assert [(x.mapping, x.reads_per_output, x.uses_per_element, x.stride) for x in found.accesses] == [
        (M2M, 8, 32, 0), (M2M, 8, 4, 1),
    ]  # fmt: skip
    assert found.work == Work(fma=4 * 32 * 8)


@pytest.mark.parametrize("channels", [8, 6])
def test_layout_changes_shuffle_with_and_without_padded_channels(channels: int) -> None:
    te, tirx = tvm.te, tvm.tirx
    x = te.placeholder((1, channels, 3, 5), name="x")
    blocks = -(-channels // 4)

    def changed(n: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
        if channels % 4 == 0:
            return x[n, c * 4 + v, h, w]
        return tirx.if_then_else(c * 4 + v < channels, x[n, c * 4 + v, h, w], tirx.const(0.0, "float32"))

    (access,) = of([x], te.compute((1, blocks, 3, 5, 4), changed)).accesses
    assert (access.mapping, access.stride) == (SHUFFLE, 15)


def test_a_layout_change_that_moves_nothing_reorganizes() -> None:
    x = tvm.te.placeholder((1, 8, 1, 1), name="x")
    out = tvm.te.compute((1, 2, 1, 1, 4), lambda n, c, h, w, v: x[n, c * 4 + v, h, w])
    assert of([x], out).accesses[0].mapping is REORGANIZE


def test_attention_scores_of_one_tensor_are_many_to_many_in_both_operands() -> None:
    te = tvm.te
    q, key = te.placeholder((2, 4, 8), name="q"), te.placeholder((2, 4, 8), name="k")
    r = te.reduce_axis((0, 8))
    out = te.compute((2, 4, 4), lambda b, i, j: te.sum(q[b, i, r] * key[b, j, r], axis=[r]))
    assert [a.mapping for a in of([q, key], out).accesses] == [M2M, M2M]


def test_normalising_over_another_axis_than_the_read_one_is_many_to_many() -> None:
    te = tvm.te
    x = te.placeholder((4, 4), name="x")
    k = te.reduce_axis((0, 4))
    column = te.compute((4,), lambda i: te.sum(x[k, i], axis=[k]))
    out = te.compute((4, 4), lambda i, j: x[i, j] / column[i])
    (access,) = of([x], out).accesses
    assert (access.mapping, access.reason) == (M2M, "")


# -- large shapes: sampled, yet right -----------------------------------------------------------------------------


def test_large_shapes_keep_their_types_and_counts() -> None:
    te = tvm.te
    x = te.placeholder((64, 224, 224), name="x")
    moved = te.compute((224, 64, 224), lambda h, c, w: x[c, h, w])
    flat = te.compute((64 * 224 * 224,), lambda i: x[i // 50176, i % 50176 // 224, i % 224])
    tiled = te.compute((64 * 224 * 448,), lambda i: x[i // 448 % 64, i // 28672 % 224, i % 224])
    assert of([x], moved).accesses[0].mapping is SHUFFLE
    assert of([x], flat).accesses[0].mapping is REORGANIZE
    access = of([x], tiled).accesses[0]
    assert (access.mapping, access.reads_per_output, access.uses_per_element) == (O2M, 1, 2)


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_long_rows_are_counted_as_short_ones_are(name: str) -> None:
    shapes = {"softmax": ((3, 300),), "layer_norm": ((3, 300), (300,), (300,))}[name]
    module = compare.legalised(compare.Case(CASES[name].make, shapes))
    access = build_graph(module, name).graph.operators[0].accesses[0]
    assert (access.mapping, access.reason) == (M2O, ROW_LOCAL)
    assert (access.reads_per_output, access.uses_per_element) == (300, 300)


def test_analysis_does_not_depend_on_names_and_is_remembered() -> None:
    te = tvm.te

    def make(name: str) -> Any:
        x = te.placeholder((3, 4), name=name)
        return te.create_prim_func([x, te.compute((3, 4), lambda i, j: x[i, j] * 2.0, name=f"{name}_out")])

    assert analyse(make("a")) is analyse(make("b"))
    assert analyse(make("a")).text == analyse(make("b")).text


def test_empty_tensors_are_opaque() -> None:
    x = tvm.te.placeholder((0, 4), name="x")
    (access,) = of([x], tvm.te.compute((0, 4), lambda i, j: x[i, j] * 2.0)).accesses
    assert access.mapping is OPAQUE and "empty" in access.reason


def test_numbers_in_an_index_keep_float32_precision() -> None:
    # In float64 0.1 * 30 is just above 3, in float32 it is 3 exactly after rounding: the run-time value counts.
    value = ("mul", ("cast", "float32", ("v", 0)), ("c", 0.1, "float32"))
    got = evaluate(("cast", "int64", ("floor", value)), {0: np.arange(40)})
    assert np.array_equal(got, np.floor(np.arange(40, dtype=np.float32) * np.float32(0.1)).astype(np.int64))
