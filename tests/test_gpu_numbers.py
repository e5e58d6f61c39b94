"""Networks and random models, scheduled for a GPU, give numpy's numbers kernel by kernel on PoCL; networks as a whole
ONNX Runtime's. Every kernel runs in a child process, with a time limit.
"""

from __future__ import annotations

import numpy as np
import pytest
from gpu_harness import HARDWARE, Pocl
from gpu_networks import LAYERS, Run, apart, by_onnxruntime, plan
from random_checks import RandomCosts
from random_models import random_model

from autofuse.bench.case import random_inputs
from autofuse.compiler import analyse_for
from autofuse.cost.gpu import GpuCostModel

# Chosen so that every family but TVM's rules is met; `scripts/gpu_numbers.py --seeds` tries any number of them.
SEEDS = (1, 3, 6, 11)
#: Whole, as they come, under the plan that a card would get → families that the plan must have.
NETWORKS = {
    "mobilenet_v1": {"gpu_gemm", "gpu_depthwise_gemm", "gpu_rows"},
    "minilm_l6": {"gpu_gemm", "gpu_rows", "gpu_attention"},
    "yolov4_tiny": {"gpu_gemm", "gpu_direct", "gpu_elementwise"},
}


@pytest.mark.parametrize("network", NETWORKS)
def test_whole_networks_give_onnxruntimes_numbers(pocl: Pocl, network: str) -> None:
    analysed = analyse_for(network, HARDWARE)
    drawn = random_inputs(analysed.prepared, 1)
    run = Run(analysed, [drawn[name] for name in analysed.prepared.input_names], pocl)
    outcomes = list(run.kernels(plan(analysed, GpuCostModel(HARDWARE))))
    assert {o.family for o in outcomes} == NETWORKS[network]
    assert [o for o in outcomes if not o.error < 2e-5] == []
    wanted = by_onnxruntime(analysed, drawn)
    errors = {name: apart(found, wanted[name]) for name, found in run.results().items()}
    assert set(errors) == set(wanted) and max(errors.values()) < 5e-5, errors


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
