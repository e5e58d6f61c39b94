"""Compiles a random model, also with costs that make any plan the best, and says in what its results are wrong."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from random_models import Array, RandomModel

from autofuse.cost.model import Candidate, CostModel

#: Of the largest number of a result.
TOLERANCE = 1e-4
#: Below this a result's largest number is not what differences are held against.
LEAST_SCALE = 0.05
RANDOM = "random"


class RandomCosts(CostModel):
    """Between one and four units for each candidate, whatever it is, drawn from a seed.

    Families that take several kernels' work together would hardly ever win: they get them at a discount.
    """

    name: ClassVar[str] = "analytical"
    discounts: ClassVar[dict[str, float]] = {
        "depthwise_pointwise": 0.4, "pointwise_depthwise": 0.4, "winograd": 0.4, "conv2d_pool": 0.4, "staged": 0.4,
        "attention": 0.4,
    }  # fmt: skip

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def costs(self, candidates: Sequence[Candidate]) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([self._cost(candidate) for candidate in candidates], dtype=np.float64)

    def _cost(self, candidate: Candidate) -> float:
        operators = sorted(operator.name for operator in candidate.group.operators)
        text = f"{self.seed}|{operators}|{candidate.family.name}|{candidate.config.text}"
        drawn = zlib.crc32(text.encode()) * 2654435761 % 2**32 / 2**32
        return 1e-5 * (1 + 3 * drawn) * self.discounts.get(candidate.family.name, 1.0)


def compile_random(model: RandomModel, strategy: str, threads: int = 2, **options: Any) -> Any:
    """An executable; the strategy `random` is dp with random costs. Warnings are errors: a kernel cannot be built."""
    import autofuse

    if strategy == RANDOM:
        strategy, options = "dp", {**options, "cost_model": RandomCosts(model.seed)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return autofuse.compile(model.model, strategy=strategy, threads=threads, **options)


def difference(model: RandomModel, results: Sequence[Array]) -> str | None:
    """What is wrong with the results, in a line; None if nothing is."""
    if len(results) != len(model.outputs):
        return f"{len(results)} results, not {len(model.outputs)}"
    for name, got, want, spread in zip(model.outputs, results, model.expected, model.spread, strict=True):
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        if not np.all(np.isfinite(got)):
            return f"{name} holds numbers that are not finite"
        apart = np.abs(got.astype(float) - want.astype(float))
        scale = max(LEAST_SCALE, float(np.abs(want.astype(float)).max(initial=0)))
        allowed = 8 * spread + (TOLERANCE * scale if want.dtype == np.float32 else 0)
        wrong = int(np.count_nonzero(apart > allowed))
        if wrong:
            return f"{name}: {wrong} of {want.size} numbers are wrong, by up to {float(apart.max()) / scale:.1e}"
    return None


def check(model: RandomModel, strategy: str) -> str | None:
    """Compile, run twice (a second run finds the memory of the first), compare. Raises what compiling raises."""
    executable = compile_random(model, strategy)
    if tuple(executable.output_names) != model.outputs:
        return f"outputs are {executable.output_names}, not {list(model.outputs)}"
    arrays = [model.inputs[name] for name in executable.input_names]
    return difference(model, executable(*arrays)) or difference(model, executable(*arrays))
