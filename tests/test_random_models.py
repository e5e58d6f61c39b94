"""Random models of every kind of layer, compiled for any plan, give what ONNX Runtime gives."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from random_checks import check, difference
from random_layers import LAYERS, start
from random_models import Sketch, random_model

#: What scripts/fuzz.py does for many seeds, in small: enough to see that it works.
SEEDS = (1, 3, 6, 11, 15, 21, 28, 36)


@pytest.mark.parametrize("seed", SEEDS)
def test_models_of_a_seed_give_what_onnxruntime_gives_under_random_costs(seed: int) -> None:
    assert check(random_model(seed, steps=4), "random") is None


def test_a_seed_always_gives_the_same_model() -> None:
    once, again = random_model(5), random_model(5)
    assert once.model.SerializeToString() == again.model.SerializeToString()
    assert all(np.array_equal(once.inputs[name], again.inputs[name]) for name in once.inputs)
    onnx.checker.check_model(once.model)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_can_be_added_to_some_model(layer: str) -> None:
    def grows(seed: int) -> bool:
        sketch = Sketch(seed)
        start(sketch)
        return sketch.grow(LAYERS[layer])

    assert any(grows(seed) for seed in range(40))


def test_a_wrong_number_is_told() -> None:
    model = random_model(5)
    results = [array.copy() for array in model.expected]
    assert difference(model, results) is None
    results[0].flat[-1] += results[0].dtype.type(1)
    assert "1 of" in str(difference(model, results))
    assert "results, not" in str(difference(model, results[1:]))
