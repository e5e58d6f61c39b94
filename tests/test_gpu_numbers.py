"""Random models, planned and scheduled for a GPU at random, give numpy's numbers kernel by kernel on PoCL."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_harness import HARDWARE, Pocl
from gpu_networks import LAYERS, Run, apart, plan
from random_checks import RandomCosts
from random_models import random_model

from autofuse.compiler import analyse_for

# Chosen so that every family but TVM's rules is met; `scripts/gpu_numbers.py --seeds` tries any number of them.
SEEDS = (1, 3, 6, 11)


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_of_random_models_give_numpys_numbers(pocl: Pocl, seed: int) -> None:
    model = random_model(seed, LAYERS, steps=3)
    analysed = analyse_for(model.model, HARDWARE)
    inputs = [model.inputs[name] for name in analysed.prepared.input_names]
    outcomes = list(Run(analysed, inputs, pocl).kernels(plan(analysed, RandomCosts(seed))))
    assert outcomes
    assert [o for o in outcomes if not o.error < 5e-5] == []


def test_numbers_that_are_wrong_are_told() -> None:
    wanted = np.array([1.0, -4.0, 2.0])
    assert apart(wanted, wanted) == 0.0
    assert apart(np.array([1.0, -4.0, 2.4]), wanted) == pytest.approx(0.1)
    assert apart(np.array([1.0, np.nan, 2.0]), wanted) == float("inf")
    assert apart(np.array([1, 7]), np.array([1, 6])) == pytest.approx(1 / 6)
