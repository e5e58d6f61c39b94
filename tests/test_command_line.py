"""The commands, from a model to results, and what they print."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_network import close, command, expected, here, image, refused, small_network

import autofuse
from autofuse.bench.interleave import Pace
from autofuse.codegen.executable import Executable

COMPILE_KEYS = {
    "model", "target", "strategy", "cost_model", "records", "operators", "kernels", "fusion_ratio", "seconds", "search",
    "predicted_ms", "peak_memory_mb", "output",
}  # fmt: skip
ENGINE_KEYS = {"engine", "median_ms", "iqr_ms", "kernels", "compile_s", "max_abs_err", "max_rel_err", "error"}


def test_compile_and_run_by_command(network: Path, executable: Executable, tmp_path: Path) -> None:
    done = command("compile", network, "-o", "net.so", "--strategy", "dp", "--threads", 2, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == COMPILE_KEYS
    assert set(report["seconds"]) == {"import", "prepare", "search", "codegen", "total"}
    assert {"states", "transitions", "proved_optimal"} <= set(report["search"])
    assert report["strategy"] == "dp" and report["cost_model"] == "analytical" and report["output"] == "net.so"
    assert report["records"] is None and report["search"]["reason"] == ""
    assert report["kernels"] == executable.kernels and report["operators"] == executable.description["operators"]
    assert report["predicted_ms"] > 0 and report["peak_memory_mb"] > 0
    assert sum(report["seconds"].values()) - report["seconds"]["total"] <= report["seconds"]["total"] * 1.01
    x = image(seed=5)
    np.savez(tmp_path / "x.npz", image=x)
    done = command("run", "net.so", "--input", "x.npz", "--output", "y.npz", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "y.npz") as results:
        assert results.files == ["y"]
        close([results["y"]], expected(small_network(), [x]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.so", "x.npz", "y.npz"]


def test_bench_by_command(network: Path, tmp_path: Path) -> None:
    flags = ("--strategy", "dp", "--against", "greedy,onnxruntime", "--rounds", 2, "--threads", 2, "--json")
    done = command("bench", network, *flags, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {"model", "threads", "results", "probe"} <= set(report)
    assert report["threads"] == 2
    assert [row["engine"] for row in report["results"]] == ["autofuse", "greedy", "onnxruntime"]
    for row in report["results"]:
        assert set(row) >= ENGINE_KEYS
        assert row["error"] is None and row["median_ms"] > 0 and row["max_rel_err"] < 1e-4


def test_bench_times_a_plan_beside_a_search(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The plan is the engine `autofuse`'s alone."""
    monkeypatch.setattr("autofuse.bench.runner.Pace", lambda: Pace(retries=0))  # nothing waits for a calm machine
    plan = tmp_path / "none.json"
    autofuse.compile(network, strategy="none", threads=1).plan.save(plan)
    flags = ("--plan", plan, "--dump-ir", tmp_path / "ir", "--against", "dp", "--rounds", 1, "--threads", 1, "--json")
    capfd.readouterr()
    assert here("bench", network, *flags) == 0
    mine, searched = json.loads(capfd.readouterr().out)["results"]
    assert mine["error"] is None and searched["error"] is None
    assert mine["kernels"] > searched["kernels"] and (tmp_path / "ir" / "3-scheduled.py").is_file()


def test_plans_are_built_again_and_only_for_their_graph(
    network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "net.so"
    assert here("compile", network, "--strategy", "dp", "--threads", 2, "--save-plan", plan, "--json") == 0
    first = json.loads(capfd.readouterr().out)
    assert here("compile", network, "--plan", plan, "-o", out, "--threads", 2, "--json") == 0
    second = json.loads(capfd.readouterr().out)
    assert second["kernels"] == first["kernels"]
    again = autofuse.load(out)
    content = json.loads(plan.read_text())
    assert [list(g.members) for g in again.plan.groups] == [g["members"] for g in content["groups"]]
    assert [g.config for g in again.plan.groups] == [g["config"] for g in content["groups"]]
    x = image()
    close(again(x), expected(small_network(), [x]))
    other = tmp_path / "other.onnx"
    onnx.save(small_network(24), other)
    line = refused(capfd, tmp_path, "compile", other, "--plan", plan, "-o", tmp_path / "other.so")
    assert "plan" in line and "graph" in line


def test_hybrid_says_what_it_searched(network: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert here("compile", network, "--strategy", "hybrid", "--threads", 2, "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert report["strategy"] == "hybrid" and "whose groups promise most" in report["search"]["reason"]


def test_kernels_are_checked_by_command(network: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert here("compile", network, "--check", "--threads", 2, "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report) == {*COMPILE_KEYS, "checked"}
    assert report["checked"]["right"] > 0 and report["checked"]["wrong"] == 0


def test_the_zoo_is_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert here("zoo", "list", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert set(report) == {"networks"}
    by_name = {entry["name"]: entry for entry in report["networks"]}
    assert by_name["vgg16"]["parameters"] == 138357544
    assert by_name["minilm_l6"]["inputs"] and by_name["yolov4"]["source"]


def test_the_zoo_is_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shuffle.onnx"
    assert here("zoo", "export", "shufflenet_v2", "-o", path) == 0
    onnx.checker.check_model(str(path))
    assert "resnet51" in refused(capfd, tmp_path, "zoo", "export", "resnet51", "-o", tmp_path / "n.onnx")
