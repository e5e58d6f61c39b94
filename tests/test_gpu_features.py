"""What a predictor of GPUs is told of a kernel: registers, LDS, waves, what a lane does; and that it learns from it."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learn_stores import FAMILY, RECORDED, family_of, matmul_group, synthetic_store
from test_cost_analytical import FakeConfiguration, FakeFamily, one

from autofuse.cost.features import FEATURE_VERSION, feature_names
from autofuse.cost.gpu import GpuCostModel
from autofuse.cost.gpu_features import GPU_FEATURES, extract_gpu
from autofuse.cost.model import Candidate
from autofuse.cost.schema import schema_of
from autofuse.errors import PredictorError
from autofuse.graph.model import Work
from autofuse.learn import TrainSettings, build_dataset, load_predictor, save_predictor, train_predictor
from autofuse.learn.boosting import TreeSettings
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.target import GpuHardware, Hardware

COLUMN = {f.name: i for i, f in enumerate(GPU_FEATURES)}
CARD = GpuHardware()  # 60 units of 4 SIMDs, 10 waves each
CPU_NAMES = 109145979  # CRC32 of the names, a line each
WORK = Work(fma=1 << 20, special=1 << 10)


def candidate(**shape: Any) -> Candidate:
    made = GpuShape(**{"tasks": 240, "threads": 256, "registers": 32, **shape})
    return Candidate(one(WORK, 64), FakeFamily([made]), FakeConfiguration())


def row(**shape: Any) -> dict[str, float]:
    found = extract_gpu([candidate(**shape)], CARD)[0]
    return {name: float(found[i]) for name, i in COLUMN.items()}


def test_the_columns_of_a_cpu_are_what_they_were() -> None:
    """Predictors that ship were trained on them: names, order and version."""
    assert FEATURE_VERSION == 4 and schema_of("cpu").names == tuple(feature_names())
    assert zlib.crc32("\n".join(feature_names()).encode()) == CPU_NAMES


def test_columns_have_names_units_and_meanings() -> None:
    assert len(COLUMN) == len(GPU_FEATURES) and all(
        f.name.isidentifier() and f.unit and f.meaning for f in GPU_FEATURES
    )
    assert schema_of("gpu").names[schema_of("gpu").base] == "log_total"
    assert extract_gpu([], CARD).shape == (0, len(GPU_FEATURES))
    with pytest.raises(KeyError):
        schema_of("toaster")


def test_what_limits_a_kernel_is_told() -> None:
    """240 workgroups of 4 waves on 60 units: 4 a unit. 32 registers leave 8 waves a SIMD, 32 KiB of LDS 2 groups."""
    free = row()
    assert (free["threads"], free["waves"], free["registers"]) == (256, 4, 32)
    assert free["resident"] == 16 and free["occupancy"] == pytest.approx(0.4) and free["lds_limited"] == 0
    assert free["register_share"] == pytest.approx(32 / 256) and free["unit_fill"] == 1.0
    tight = row(lds_bytes=32 << 10)
    assert tight["lds_limited"] == 1 and tight["resident"] == 8 and tight["lds_share"] == pytest.approx(0.5)
    wide = row(registers=200)
    assert wide["resident"] == 4 and wide["lds_limited"] == 0 and wide["rounds"] > tight["rounds"] > free["rounds"]


def test_what_a_lane_does_is_told() -> None:
    lanes = 240 * 256
    found = row(lds_traffic=8 * lanes, l1_bytes=16 * lanes, vector_fill=0.5, barriers=3)
    assert found["lane_fma"] == pytest.approx(np.log2(1 + 2 * (1 << 20) / lanes), rel=1e-5)
    assert found["lane_special"] == pytest.approx(np.log2(1 + 2 * (1 << 10) / lanes), rel=1e-5)
    assert found["lane_lds"] == pytest.approx(np.log2(17), rel=1e-5) and found["barriers"] == 2.0
    assert found["lane_l1"] == pytest.approx(np.log2(33), rel=1e-5)


def test_the_base_is_the_gpus_own_cost_model() -> None:
    candidates = [candidate(), candidate(registers=200, barriers=50), candidate(tasks=1)]
    rows = extract_gpu(candidates, CARD)
    np.testing.assert_allclose(np.exp(rows[:, COLUMN["log_total"]]), GpuCostModel(CARD).costs(candidates), rtol=1e-5)
    # The result does not depend on what else is in the batch, and is finite where nothing fits.
    np.testing.assert_array_equal(rows[1], extract_gpu(candidates[1:2], CARD)[0])
    assert np.isfinite(extract_gpu([candidate(registers=300)], CARD)).all()


def test_a_predictor_of_a_gpu_is_trained_on_a_gpus_features(tmp_path: Path) -> None:
    store = synthetic_store(limit=24)
    data = build_dataset(store, descriptions={RECORDED.digest: CARD}, family_of=family_of)
    assert data.kind == "gpu" and data.features.shape[1] == len(GPU_FEATURES) and data.schema.kind == "gpu"
    assert data.select(range(10)).kind == "gpu"
    trained = train_predictor(data, TrainSettings(members=2, trees=TreeSettings(rounds=8)))
    assert trained.card.kind == "gpu" and trained.card.features == schema_of("gpu").names
    folder = save_predictor(trained, tmp_path / "gpu")
    content = json.loads((folder / "card.json").read_text())
    assert {"tasks", "memory_bytes", "hw_wave", "log_total"} <= set(content["range"])
    model = load_predictor(folder, CARD)
    group = matmul_group(24, 100, 64, "exp")
    candidates = [Candidate(group, FAMILY, c) for c in FAMILY.configs(group, CARD)]
    assert (
        model.known_hardware and np.isfinite(model.costs(candidates)).all() and "predicted" in model.sources(candidates)
    )
    with pytest.raises(PredictorError, match="for a gpu, the target is a cpu"):
        load_predictor(folder, Hardware())
    with pytest.warns(UserWarning, match="trained for other hardware"):
        load_predictor(folder, replace(CARD, isa="gfx936"))
