"""Which operators docs/kernels.md is about, what is measured again, and what the page says of the results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import bench_kernels
import kernel_models
import kernels_page


def network() -> onnx.ModelProto:
    """Two equal convolutions, one that differs by its stride alone, a pool and a product."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"], pads=[1, 1, 1, 1]),
        node("Conv", ["c", "v"], ["d"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("GlobalAveragePool", ["d"], ["e"]),
        node("Flatten", ["e"], ["f"]),
        node("Gemm", ["f", "m", "bias"], ["y"], transB=1),
    ]
    weights = {"w": np.ones((8, 8, 3, 3)), "v": np.ones((8, 8, 3, 3)), "m": np.ones((5, 8)), "bias": np.ones(5)}
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def test_equal_operators_are_one_row_and_a_stride_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from autofuse.frontend import zoo

    monkeypatch.setattr(zoo, "names", lambda: ("one", "two"))
    monkeypatch.setattr(zoo, "build", lambda name: network(), raising=False)
    rows = kernel_models.alone()
    assert [(r.kind, r.name) for r in rows] == [
        ("3×3", "3×3 8→8, 6×6"),
        ("3×3/2", "3×3/2 8→8, 6×6"),
        ("pool", "global average 1×8×3×3"),
        ("product with one row", "1×8 · 8×5"),
    ]
    assert all(r.networks == ("one", "two") for r in rows)
    assert [r.repeat for r in rows] == [4, 1, 1, 1]
    shapes = [[d.dim_value for d in r.proto().graph.output[0].type.tensor_type.shape.dim] for r in rows]
    assert shapes == [[1, 8, 6, 6], [1, 8, 3, 3], [1, 8, 1, 1], [1, 5]]


@pytest.mark.parametrize(
    "row", [r for r in kernel_models.FOLLOWED if "256→256, 56" not in r.name], ids=lambda r: r.name
)
def test_every_model_is_whole_and_has_inputs(row: kernel_models.KernelModel) -> None:
    model = row.proto()
    onnx.checker.check_model(model)
    given = bench_kernels.inputs_of(model)
    assert set(given) == {v.name for v in model.graph.input}
    for value in model.graph.input:
        assert list(given[value.name].shape) == [d.dim_value for d in value.type.tensor_type.shape.dim]
    assert 0 < sum(a.nbytes for a in given.values()) < bench_kernels.bytes_of(model, given)


def test_what_is_there_is_skipped_unless_it_is_asked_for() -> None:
    rows = [kernel_models.CALL, *kernel_models.FOLLOWED[:3]]
    found = {rows[0].name: {}, rows[1].name: {}}

    def due(**asked: Any) -> list[str]:
        options = {"kinds": None, "names": None, "again": False, "large": False, **asked}
        return [r.name for r in bench_kernels.due(rows, found, argparse.Namespace(**options))]

    assert due() == [r.name for r in rows[2:]]
    assert due(kinds="call") == []
    assert due(kinds="call", again=True) == due(names="one number") == [rows[0].name]
    found = {rows[0].name: row(2.0, 0.0), rows[1].name: row(2000.0, 2e8), rows[2].name: row(2000.0, 1e8)}
    assert due(large=True) == [rows[1].name]


def row(micros: float, flops: float, **more: Any) -> dict[str, Any]:
    """A row with sgemm at 100 GFLOP/s and copying at 67 GB/s."""
    engines = {
        "autofuse": {"median_us": micros, "iqr_us": 2.0, "ratio": 1.0, "ratio_iqr": 0.0},
        "onnxruntime": {"median_us": 2 * micros, "iqr_us": 2.0, "ratio": 2.0, "ratio_iqr": 0.5},
        "torch": {"error": "torch is not installed"},
    }
    return {
        "kind": "3×3", "repeat": 1, "followed": False, "threads": 1, "networks": ["vgg16"], "kernels": 1,
        "configurations": ["conv2d[rows=2]"], "flops": flops, "bytes": 1000, "engines": engines,
        "probes": {"arithmetic": 2e-8 * 512**3, "memory": 2.0}, **more,
    }  # fmt: skip


def stored(rows: dict[str, Any]) -> dict[str, Any]:
    from autofuse.report.results import machine

    return {"threads": 1, "machine": machine(), "listed": 4, "rows": rows}


def lines(text: str, heading: str) -> list[list[str]]:
    part = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    return [[c.strip() for c in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("| ")][2:]


def test_the_page_says_who_is_faster_and_how_near_the_limit_we_are() -> None:
    failed = row(1.0, 0.0)
    failed["engines"]["autofuse"] = {"error": "no kernel"}
    text = kernels_page.page(
        stored(
            {"quick": row(2000.0, 2e8), "slow": row(4000.0, 2e8), "bad": failed, "more": row(1.0, 1.0, followed=True)}
        ),
        "## The default configuration\n",
        "## What was tried\n",
    )
    assert [line[0] for line in lines(text, "Every operator")] == ["quick", "slow", "bad"]
    quick, slow, bad = lines(text, "Every operator")
    assert quick[2:8] == ["2000.0 ±1.0", "2.00 ±0.25", "failed: torch is not installed", "100.0", "1.00", "–"]
    assert slow[6] == "0.50" and bad[2] == "failed: no kernel" and len(bad) == len(slow)
    assert "2 operators have 200 million operations or more" in text
    assert (
        "- 2 direct convolutions and products: 1 reach 85 % of sgemm's rate in the same rounds (median 0.75)." in text
    )
    assert [line[0] for line in lines(text, "Large operators")] == ["slow"]
    kinds = {line[0]: line for line in lines(text, "By kind")}
    assert kinds["3×3"][1:5] == ["3", "2.00", "2.00", "0 of 2"] and kinds["with what follows"][1] == "1"
    assert text.index("## With what follows them") < text.index("## The default configuration")
    assert text.rstrip().endswith("## What was tried")


def test_shares_are_of_the_rounds_that_both_were_in_and_of_the_least_times() -> None:
    one = row(2000.0, 2e8)
    one["engines"]["autofuse"]["least_us"] = 1000.0
    one["probes"] |= {
        "arithmetic_least": one["probes"]["arithmetic"] / 4, "arithmetic_over_ours": one["probes"]["arithmetic"] / 4.0,
        "memory_over_ours": one["probes"]["memory"] / 2.0,
    }  # fmt: skip
    # In the rounds that both were in sgemm took twice as long beside ours as the medians say.
    assert kernels_page.shares(one)[1] == pytest.approx(0.5)
    assert kernels_page.least_share(one) == pytest.approx(0.5)
    winograd = row(1000.0, 2e8, configurations=["elementwise[vectors=1]", "winograd[m=4]"])
    text = kernels_page.page(stored({"one": one, "two": winograd}))
    assert "- 1 direct convolutions and products: 0 reach 85 %" in text and "0 of 1 least against least" in text
    assert "- 1 Winograd convolutions" in text and [line[0] for line in lines(text, "Large operators")] == ["one"]


def test_a_page_of_part_of_the_operators_says_so() -> None:
    assert "1 of 4 are measured so far" in kernels_page.page(stored({"quick": row(2000.0, 2e8)}))
    assert "Nothing was measured yet" in kernels_page.page({})
