"""scripts/gpu_loop.py: what its page says of what stood in for a card, and that a command that fails ends it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import gpu_loop
from gpu_loop_page import page


def report(stand_in: bool) -> dict[str, Any]:
    """What the script finds, in small."""
    way = {
        "device": "pthread-EPYC (PoCL), a stand-in: no GPU" if stand_in else "Z100 (ROCm)", "stand_in": stand_in,
        "error": 2.1e-6, "call_ms": 31.25, "kernels_ms": 30.0, "predicted_ms": 0.5, "kernels": 16,
        "cost_sources": {"analytical": 2, "predicted": 14},
    }  # fmt: skip
    counts = {"measured": 70, "failed": 1, "skipped": 0, "left": 200, "rate": 0.5, "records": 70}
    row = {"mape": 0.25, "within_20": 0.5, "tau_within": 0.4}
    return {
        "target": "dcu-z100", "network": "net", "input_shapes": ["input=1,3,64,64"], "missing": [],
        "analytical": way, "learned": way, "collected": counts, "collected_again": {**counts, "records": 93},
        "predictor": {"records": 93, "workloads": 17, "hardware": ["what was measured"], "learned": row},
        "commands": [{"command": ["train", "--db", "FOLDER/gpu.db"], "seconds": 4.2}], "minutes": 7.5,
    }  # fmt: skip


def test_a_stand_in_is_named_before_any_number() -> None:
    made = page(report(stand_in=True), "A machine.")
    head, _, said, *_ = made.split("\n\n")
    assert "stand-in" in head and said.startswith("**No GPU was at hand: pthread-EPYC (PoCL) stood in")
    assert "net --input-shape input=1,3,64,64, in 7.5 minutes" in made and "A machine." in made
    assert "| 2.1e-06 | 0.50 | 30.00 | 31.25 |" in made and "2 analytical, 14 predicted" in made
    assert "70 kernels were measured, 1 failed, 200 were not reached (30 a minute)" in made
    assert "From 93 records of 17 workloads, of what was measured" in made
    assert "| `autofuse train --db FOLDER/gpu.db` | 4 |" in made


def test_a_card_is_no_stand_in() -> None:
    made = page(report(stand_in=False), "A machine.")
    assert "stand-in" not in made and "It ran on Z100 (ROCm)." in made


def test_a_command_that_fails_ends_the_loop_with_its_line(tmp_path: Path) -> None:
    autofuse = gpu_loop.Commands(60.0)
    assert "mobilenet_v1" in autofuse("zoo", "list")
    assert [made["command"] for made in autofuse.made] == [["zoo", "list"]]
    with pytest.raises(SystemExit, match=r"autofuse train: .*none\.db"):
        autofuse("train", "--db", tmp_path / "none.db", "-o", tmp_path / "predictor")
