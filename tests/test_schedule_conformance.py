"""What every schedule family promises, checked for all of them on the groups of one small network."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from built_kernels import build_kernels
from onnx import TensorProto, helper, numpy_helper

from autofuse.codegen.intrinsics import register_intrinsics
from autofuse.compiler import Analysed, analyse
from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.graph.reasons import Refusal
from autofuse.measure.builder import argument_specs
from autofuse.measure.jobs import fill_inputs
from autofuse.measure.oracle import NotEvaluated, evaluate
from autofuse.measure.outputs import compare
from autofuse.schedule.family import ScheduleFamily, shape_matrix, shape_of_row
from autofuse.schedule.preparations import prepare
from autofuse.schedule.registry import families, family
from autofuse.search.candidates import legal_groups

NAMES = [f.name for f in families()]


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(len(name)).normal(0, 0.2, shape).astype("float32"), name)


def network() -> onnx.ModelProto:
    """A resize, convolutions, pooling, gates, softmax, layer norm, matrix products, reshapes, transposes; last, for the
    family that takes what no other does, a convolution over one axis."""
    node = helper.make_node
    nodes = [
        node("Resize", ["x", "", "", "sizes"], ["x1"], mode="linear"),
        node("Conv", ["x1", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w7"], ["b0"]),
        node("Conv", ["b0", "w8"], ["b1"], pads=[1, 1, 1, 1], group=16),
        node("Relu", ["b1"], ["b3"]),
        node("Conv", ["b3", "w9"], ["b4"]),
        node("Conv", ["b4", "w4"], ["b2"], pads=[1, 1, 1, 1]),
        node("MaxPool", ["b2"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "w5"], ["c1"], pads=[1, 1, 1, 1], group=4),
        node("GroupNormalization", ["c1", "scale", "shift"], ["c2"], num_groups=2),
        node("ConvTranspose", ["c2", "w6"], ["c3"], strides=[2, 2]),
        node("MaxPool", ["c3"], ["c4"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c4", "w1"], ["d"], pads=[1, 1, 1, 1], group=16),
        node("GlobalAveragePool", ["d"], ["e"]),
        node("Conv", ["e", "w2"], ["f"]),
        node("Sigmoid", ["f"], ["g"]),
        node("Mul", ["d", "g"], ["h"]),
        node("AveragePool", ["h"], ["i"], kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]),
        node("Exp", ["i"], ["i2"]),
        node("Reshape", ["i2", "rows"], ["j"]),
        node("LayerNormalization", ["j", "gamma", "beta"], ["k"], axis=-1),
        node("MatMul", ["k", "w3"], ["l"]),
        node("Transpose", ["l"], ["m"], perm=[1, 0]),
        node("MatMul", ["l", "m"], ["n"]),
        node("Softmax", ["n"], ["o"], axis=-1),
        node("MatMul", ["o", "l"], ["o2"]),
        node("Reshape", ["o2", "line"], ["o3"]),
        node("Conv", ["o3", "w10"], ["o4"], pads=[1, 1]),
        node("Reshape", ["o4", "flat"], ["p"]),
        node("Tanh", ["p"], ["y"]),
    ]
    initialisers = [
        weight("w0", 16, 3, 3, 3),
        weight("w1", 16, 1, 3, 3),
        weight("w2", 16, 16, 1, 1),
        weight("w3", 36, 40),
        weight("w4", 16, 16, 3, 3),
        weight("w5", 16, 4, 3, 3),
        weight("w6", 16, 16, 2, 2),
        weight("w7", 16, 16, 1, 1),
        weight("w8", 16, 1, 3, 3),
        weight("w9", 16, 16, 1, 1),
        weight("w10", 16, 16, 3),
        weight("scale", 2),
        weight("shift", 2),
        weight("gamma", 36),
        weight("beta", 36),
        numpy_helper.from_array(np.array([1, 3, 12, 12]), "sizes"),
        numpy_helper.from_array(np.array([16, 36]), "rows"),
        numpy_helper.from_array(np.array([1, 16, 40]), "line"),
        numpy_helper.from_array(np.array([640]), "flat"),
    ]
    graph = helper.make_graph(
        nodes,
        "conformance",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [640])],
        initialisers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.fixture(scope="module")
def analysed() -> Analysed:
    register_intrinsics()
    return analyse(network(), threads=2)


@pytest.fixture(scope="module")
def groups(analysed: Analysed) -> list[Group]:
    found = legal_groups(analysed.graph, hardware=analysed.hardware, families=families())
    return [legal.group for legal in found]


def taken(which: ScheduleFamily, groups: list[Group], analysed: Analysed) -> list[Group]:
    return [g for g in groups if which.match(g, analysed.hardware) is None]


def test_names_are_unique_and_findable() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for name in NAMES:
        assert family(name).name == name
        assert family(name).version >= 1


def test_every_family_has_a_property_based_test() -> None:
    """One of tests/test_schedule_*.py that draws its cases mentions the family, or a constant or helper that does."""
    mentions: dict[tuple[str, str], set[str]] = {}
    drawn: set[tuple[str, str]] = set()
    for path in sorted(Path(__file__).parent.glob("test_schedule_*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            where = path.stem
            for name, part in defined(statement):
                mentions[where, name] = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
            if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("test_schedule_"):
                where = str(statement.module)
                mentions.update({(path.stem, n.name): {f"{where} {n.name}"} for n in statement.names})
            if isinstance(statement, ast.FunctionDef) and any("given" in ast.dump(d) for d in statement.decorator_list):
                drawn.add((where, statement.name))
    reached = drawn
    while more := {step(one, name) for one in reached for name in mentions.get(one, ())} - reached:
        reached = reached | more
    assert {type(f).__name__ for f in families()} <= {name for _, name in reached}


def defined(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """What a statement of a module gives names to: functions, and constants, also several at once."""
    if isinstance(statement, ast.FunctionDef):
        yield statement.name, statement
    elif isinstance(statement, ast.Assign):
        (target,), value = statement.targets, statement.value
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]  # type: ignore[attr-defined]
        yield from ((ast.unparse(name), part) for name, part in pairs)


def step(one: tuple[str, str], name: str) -> tuple[str, str]:
    """From a module's name to what it mentions: "module name" stands for what is imported."""
    module, _, imported = name.partition(" ")
    return (module, imported) if imported else (one[0], name)


@pytest.mark.parametrize("name", NAMES)
def test_every_verdict_is_none_or_a_refusal_with_a_reason(name: str, groups: list[Group], analysed: Analysed) -> None:
    for group in groups:
        verdict = family(name).match(group, analysed.hardware)
        assert verdict is None or (isinstance(verdict, Refusal) and verdict.rule and verdict.detail)


@pytest.mark.parametrize("name", NAMES)
def test_configurations_are_distinct_stable_and_read_back(name: str, groups: list[Group], analysed: Analysed) -> None:
    which = family(name)
    mine = taken(which, groups, analysed)
    assert mine, f"no group of the network is for {name}"
    for group in mine:
        configs = list(which.configs(group, analysed.hardware))
        texts = [c.text for c in configs]
        assert texts and len(set(texts)) == len(texts)
        assert texts == [c.text for c in which.configs(group, analysed.hardware)]
        assert [which.configuration.parse(t) for t in texts] == configs


@pytest.mark.parametrize("name", NAMES)
def test_the_first_configuration_is_no_bad_guess(name: str, groups: list[Group], analysed: Analysed) -> None:
    """It costs at most half as much again as what the analytical model has for the best of the list, or its parallel
    region alone is what makes the difference."""
    which, hardware = family(name), analysed.hardware
    costs = AnalyticalCostModel(hardware)
    for group in taken(which, groups, analysed):
        configs = which.configs(group, hardware)
        seconds = costs.costs([Candidate(group, which, config) for config in configs])
        allowed = max(1.5 * seconds.min(), seconds.min() + hardware.parallel_overhead)
        assert seconds[0] <= allowed, f"{configs[0].text}, not {configs[int(np.argmin(seconds))].text}"


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_sane(name: str, groups: list[Group], analysed: Analysed) -> None:
    which = family(name)
    for group in taken(which, groups, analysed):
        for config in which.configs(group, analysed.hardware):
            shape = which.shape(group, config, analysed.hardware)
            assert shape.tasks >= 1 and 0 < shape.vector_fill <= 1 and shape.recompute >= 1
            assert shape.accumulators >= 1 and shape.independent_chains >= 1
            assert min(shape.l1_bytes, shape.l2_bytes, shape.l3_bytes, shape.memory_bytes, shape.footprint) >= 0
            assert shape.loops >= (0 if name == "view" else 1)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_in_a_batch_are_those_of_each_configuration(name: str, groups: list[Group], analysed: Analysed) -> None:
    which, hardware = family(name), analysed.hardware
    for group in taken(which, groups, analysed):
        configs = list(which.configs(group, hardware))
        alone = [which.shape(group, config, hardware) for config in configs]
        assert np.array_equal(which.shape_rows(group, configs, hardware), shape_matrix(alone))
        assert [shape_of_row(row) for row in shape_matrix(alone)] == alone


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_look_lets_pass_whatever_matches(name: str, analysed: Analysed) -> None:
    which, graph = family(name), analysed.graph
    paths = [[op.index] for op in graph.operators]
    for path in paths:  # grows while it is walked
        paths += [[*path, after] for after in graph.successors[path[-1]] if len(path) < 6]
    matching = 0
    for group in (Group.of(graph, path) for path in paths):
        if which.match(group, analysed.hardware) is None:
            matching += 1
            assert all(which.admits(op) for op in group.operators), group.label
            anchors = [op.index for op in group.operators if which.anchors(op)]
            assert 0 < which.least_anchors <= len(anchors) <= which.most_anchors, group.label
            results = [graph.producer[t] for t in group.outputs]
            shapes = {op.index: graph.tensors[op.outputs[0]].shape for op in group.operators}
            behind = [m for m in group.members if graph.ancestors[m] >> anchors[-1] & 1]
            if which.results_behind:
                assert set(results) <= {anchors[-1], *behind}, group.label
            if which.keeps_shape:
                changing = [m for m in behind if graph.operators[m].kind != "layout_change"]
                assert all(shapes[m] == shapes[anchors[-1]] for m in changing), group.label
            if which.one_shape:
                assert len({shapes[m] for m in results}) == 1, group.label
            assert len(group.operators) <= which.most_operators, group.label
            assert len(group.outputs) <= which.most_results, group.label
    assert matching or name == "attention"


@pytest.mark.parametrize("name", [n for n in NAMES if n != "view"])
def test_scheduling_is_deterministic_and_leaves_the_function_alone(
    name: str, groups: list[Group], analysed: Analysed
) -> None:
    which = family(name)
    for group in taken(which, groups, analysed)[:4]:
        func = analysed.fuser.fuse(group)
        before = func.script()
        for config in list(which.configs(group, analysed.hardware))[:2]:
            once = which.apply(func, group, config, analysed.hardware)
            again = which.apply(func, group, config, analysed.hardware)
            assert once.script() == again.script()
            assert len(once.params) == len(group.inputs) + len(group.outputs)
        assert func.script() == before


@pytest.mark.parametrize("name", [n for n in NAMES if n != "view"])
def test_every_configuration_gives_numpy_s_results(name: str, groups: list[Group], analysed: Analysed) -> None:
    """All that are offered for the smallest and the largest group that the family takes."""
    which = family(name)
    mine = sorted(taken(which, groups, analysed), key=lambda g: (len(g.members), g.members))
    for group in dict.fromkeys([mine[0], mine[-1]]):
        loops = analysed.fuser.fuse(group)
        configs = list(which.configs(group, analysed.hardware))
        kernels = build_kernels([which.apply(loops, group, c, analysed.hardware) for c in configs])
        specs = argument_specs(loops, len(group.outputs))
        inputs = fill_inputs(specs, 1)
        empty = [np.full(s.shape, np.nan, s.dtype) for s in specs if s.output]
        try:
            wanted = evaluate(group, inputs)
        except NotEvaluated:
            wanted = run(*build_kernels([loops]), inputs, empty)
        for config, kernel in zip(configs, kernels, strict=True):
            forms = which.prepared(group, config)
            given = [prepare(forms[i], a) if i in forms else a for i, a in enumerate(inputs)]
            said = compare(run(kernel, given, empty), wanted, 2e-5)
            assert not said, f"{name} [{config.text}] on {group.label}: {said}"


def run(kernel: Any, inputs: Sequence[np.ndarray], empty: Sequence[np.ndarray]) -> list[np.ndarray]:
    outputs = [tvm.runtime.tensor(e) for e in empty]
    kernel(*[tvm.runtime.tensor(np.ascontiguousarray(a)) for a in inputs], *outputs)
    return [o.numpy() for o in outputs]


@pytest.mark.parametrize("name", NAMES)
def test_a_text_that_is_no_configuration_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        family(name).configuration.parse("nonsense=1")
