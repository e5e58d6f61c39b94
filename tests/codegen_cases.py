"""Small ONNX models taken as far as their graph, and their groups built and run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tvm
from frontend_graphs import model, node, weights
from tvm import relax

from autofuse.codegen.build import build_kernel
from autofuse.codegen.kernels import Assignment, Kernel
from autofuse.codegen.program import Program, assemble
from autofuse.compiler import Analysed, analyse
from autofuse.graph.model import Group
from autofuse.schedule.registry import families

TARGET = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def two_branches() -> Any:
    """Two equal convolution + relu branches with weights of their own, added: 6 operators and the way back."""
    return model(
        [
            node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("Conv", ["x", "w2"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["d"]),
            node("Add", ["b", "d"], ["e"]),
            node("Sigmoid", ["e"], ["y"]),
        ],
        {"x": [1, 8, 6, 6]},
        ["y"],
        {"w1": weights(8, 8, 3, 3), "w2": weights(8, 8, 3, 3, seed=1)},
    )


def of_kind(analysed: Analysed, kind: str) -> list[int]:
    """The operators of a kind, in order."""
    return [op.index for op in analysed.graph.operators if op.kind == kind]


def taken(analysed: Analysed, members: Iterable[int], outputs: Iterable[int] | None = None) -> Assignment:
    """A group with the first family that takes it, in its first configuration."""
    group = Group.of(analysed.graph, members, outputs)
    for family in families():
        if family.match(group, analysed.hardware) is None:
            return Assignment(group, family, family.configs(group, analysed.hardware)[0])
    raise AssertionError(f"no family takes {group.label}")


def alone(analysed: Analysed) -> Any:
    """What `KernelBuilder` asks for the schedule of an operator alone."""

    def choose(group: Group) -> Assignment | None:
        for family in families():
            if family.match(group, analysed.hardware) is None:
                return Assignment(group, family, family.configs(group, analysed.hardware)[0])
        return None

    return choose


def program_of(analysed: Analysed, kernels: Sequence[Kernel], opaque: Sequence[int] = ()) -> Program:
    """The kernels as a program of the analysed model."""
    return assemble(analysed.lowered.module, analysed.graph, kernels, opaque, analysed.calls, analysed.constants)


def run_executable(program: Program, executable: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a built program."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(a) for a in arrays), *program.weights)
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else list(result))]


def run_function(func: Any, inputs: Sequence[np.ndarray], shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Builds a PrimFunc and gives its outputs, of `shapes`."""
    module = build_kernel(func, TARGET)
    results = [tvm.runtime.empty(tuple(shape), "float32") for shape in shapes]
    module["main"](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in inputs), *results)
    return [r.numpy() for r in results]


def analysed_model(source: Any) -> Analysed:
    """The model's graph, for this machine."""
    found = analyse(source)
    assert found.hardware.kind == "cpu"
    return found
