"""Random small networks through the whole compiler, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_graphs import model, node, random_inputs, run_onnxruntime
from hypothesis import HealthCheck, Phase, given, settings
from random_networks import small_networks

import autofuse
from autofuse.frontend import prepare


@pytest.mark.parametrize("strategy", ["dp", "greedy"])
def test_random_networks_compute_what_onnx_runtime_does(strategy: str) -> None:
    # No shrinking: every example is compiled with full optimisation, and a failing one is small as it is.
    @settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(small_networks())
    def check(source: Any) -> None:
        prepared = prepare(source)
        arrays = random_inputs(prepared)
        compiled = autofuse.compile(source, strategy=strategy, threads=2)
        assert all(k["family"] not in ("", "plain") for k in compiled.description["kernel_list"])
        (mine,) = compiled(*arrays)
        (other,) = run_onnxruntime(source, prepared, arrays)
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-4 * max(1.0, float(np.abs(other).max())))

    check()


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(1, 8, 1), (1, 1, 1), (3, 6, 3), (2, 16, 2)])
def test_transposed_convolutions_of_single_channels(inputs: int, outputs: int, groups: int) -> None:
    weight = np.random.default_rng(5).standard_normal((inputs, outputs // groups, 2, 2)).astype("float32")
    layer = node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], kernel_shape=[2, 2], group=groups)
    source = model([layer], {"x": [1, inputs, 3, 5]}, ["y"], {"w": weight})
    prepared = prepare(source)
    arrays = random_inputs(prepared)
    compiled = autofuse.compile(source, strategy="dp", threads=2)
    np.testing.assert_allclose(compiled(*arrays)[0], run_onnxruntime(source, prepared, arrays)[0], rtol=0, atol=1e-5)
