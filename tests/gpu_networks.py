"""Whole networks kernel by kernel on PoCL: each group of a plan on what the ones before it gave, against numpy.

Each kernel is compared with numpy on the same operands, and in the end the network's results with ONNX Runtime's.
Operators that are no tensor programs are computed by numpy alone where it knows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu_harness import HARDWARE, Pocl

from autofuse.compiler import Analysed, problem_of
from autofuse.cost.model import CostModel
from autofuse.measure.oracle import evaluate
from autofuse.schedule.registry import family
from autofuse.search.problem import Choice
from autofuse.search.strategies import strategy

Array = np.ndarray[Any, Any]


#: Layers of random models whose operators numpy knows, nearly all of them.
LAYERS = (
    "activation", "unary", "constant_operand", "two_values", "convolution", "grouped", "separable", "inverted_residual",
    "pool", "global_pool", "excitation", "resize", "concat", "split", "transpose", "reshape", "shuffle", "reduction",
    "softmax", "layer_norm", "product", "product_of_values", "gemm", "attention",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A kernel, and how far its results are from numpy's, as a part of the largest; inf where one is not finite."""

    group: str
    family: str
    config: str
    error: float


def plan(analysed: Analysed, costs: CostModel, how: str = "dp") -> Sequence[Choice]:
    """The groups that the search chooses."""
    return tuple(strategy(how, hardware=HARDWARE).search(problem_of(analysed, costs)).choices)


class Run:
    """A network's values by tensor while its kernels run; `inputs` in the order of the model's inputs."""

    def __init__(self, analysed: Analysed, inputs: Sequence[Array], pocl: Pocl) -> None:
        graph = analysed.graph
        self.analysed, self.pocl = analysed, pocl
        self.values: dict[int, Array] = dict(zip(graph.inputs, inputs, strict=True))
        self.values.update({t: np.asarray(value.numpy()) for t, value in analysed.constants.items()})

    def kernels(self, choices: Sequence[Choice]) -> Iterator[Outcome]:
        """Run the groups in order. NotEvaluated where numpy does not know an operator."""
        for choice in choices:
            group = choice.group
            tensors = group.graph.tensors
            given = [self.values[t] for t in group.inputs]
            if choice.family == "view":
                (t,) = group.outputs
                self.values[t] = given[0].reshape(tensors[t].shape)
                continue
            wanted = evaluate(group, given)
            if not choice.family:
                self.values.update(zip(group.outputs, wanted, strict=True))
                continue
            chosen = family(choice.family, "gpu")
            parsed = chosen.configuration.parse(choice.config)
            func = chosen.apply(self.analysed.fuser.fuse(group), group, parsed, HARDWARE)
            found = self.pocl.run(func, given, [(tensors[t].shape, tensors[t].dtype) for t in group.outputs])
            self.values.update(zip(group.outputs, found, strict=True))
            error = max((apart(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)
            yield Outcome(group.label, choice.family, choice.config, error)

    def results(self) -> dict[str, Array]:
        """The network's results by name, after its kernels."""
        names, outputs = self.analysed.prepared.output_names, self.analysed.graph.outputs
        return {name: self.values[t] for name, t in zip(names, outputs, strict=True)}


def apart(found: Array, wanted: Array) -> float:
    """The largest difference as a part of the largest number."""
    if not np.isfinite(found).all() and np.isfinite(wanted).all():
        return float("inf")
    with np.errstate(invalid="ignore"):
        difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    largest = float(np.nanmax(np.abs(wanted.astype(np.float64)), initial=0.0))
    return float(np.nanmax(difference, initial=0.0)) / max(1e-3, largest)


def by_onnxruntime(analysed: Analysed, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime gives for the model."""
    import onnxruntime as ort

    session = ort.InferenceSession(analysed.prepared.reference.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, dict(inputs))), strict=True))
