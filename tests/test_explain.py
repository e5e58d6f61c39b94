"""Explanations of two operators: neighbours, on one path, siblings, or nothing in common."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from frontend_graphs import model, node, weights
from small_network import here, refused


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x → a → b → c → y, with d beside b and c, and e from another input."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"], axis=-1),
        node("MatMul", ["b", "w"], ["c"]),
        node("Sigmoid", ["a"], ["d"]),
        node("Add", ["c", "d"], ["y"]),
        node("Tanh", ["other"], ["e"]),
    ]
    source = model(nodes, {"x": [32, 32], "other": [7, 5]}, ["y", "e"], {"w": weights(32, 32)})
    path = tmp_path_factory.mktemp("models") / "branches.onnx"
    onnx.save(source, path)
    return path


def operators(path: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Kind of operator → its name; the first matmul is "matmul", the second "matmul2"."""
    capfd.readouterr()
    assert here("explain", path, "--strategy", "none", "--threads", 2, "--json") == 0
    found: dict[str, str] = {}
    entries = [op for k in json.loads(capfd.readouterr().out)["kernels"] for op in k["operators"]]
    for op in sorted(entries, key=lambda op: op["index"]):
        kind = op["kind"].removeprefix("nn.")
        found[kind if kind not in found else f"{kind}2"] = op["name"]
    return found


def explained(path: Path, capfd: pytest.CaptureFixture[str], first: str, second: str) -> tuple[dict[str, object], str]:
    """The report on two operators as JSON, and as text."""
    flags = ("explain", path, "--edge", f"{first},{second}", "--threads", 2)
    assert here(*flags, "--json") == 0
    (edge,) = json.loads(capfd.readouterr().out)["edges"]
    assert here(*flags) == 0
    return edge, capfd.readouterr().out


def test_relations_of_two_operators(branches: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = operators(branches, capfd)
    first, softmax, second = names["matmul"], names["softmax"], names["matmul2"]

    edge, text = explained(branches, capfd, first, softmax)
    assert edge["relation"] == "adjacent" and edge["between"] == [] and edge["size"] == 2
    assert edge["rule"] != "not adjacent" and edge["tensor"]
    assert "not adjacent" not in text

    # In whichever order the two are named.
    for pair in ((first, second), (second, first)):
        edge, text = explained(branches, capfd, *pair)
        assert edge["relation"] == "path" and edge["between"] == [softmax]
        assert edge["rule"] == "not adjacent" and edge["size"] == 3
        assert "rule: not adjacent" in text and f"{first} → {softmax} → {second}" in text
        assert "never" not in text.splitlines()[1] and "these 3 operators" in text

    edge, text = explained(branches, capfd, softmax, names["sigmoid"])
    assert edge["relation"] == "siblings" and edge["rule"] == "not adjacent"
    assert f"both read {edge['tensor']}" in text

    edge, text = explained(branches, capfd, first, names["tanh"])
    assert edge["relation"] == "unrelated" and edge["tensor"] is None and edge["rule"] == "not adjacent"
    assert "neither depends on the other" in text and edge["refusal"]


def test_other_operators_between_two_are_counted(branches: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """From the first product to the sum there are two paths: the shorter one is named, the rest is counted."""
    names = operators(branches, capfd)
    edge, text = explained(branches, capfd, names["matmul"], names["add"])
    assert edge["relation"] == "path" and edge["between"] == [names["sigmoid"]] and edge["size"] == 5
    assert "2 more operators lie on other paths" in text and "these 5 operators" in text


def test_the_plan_explained_is_the_one_that_the_flags_give(branches: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    counts = []
    for flags in ((), ("--fuel", 0)):
        assert here("explain", branches, "--strategy", "dp", "--threads", 2, "--json", *flags) == 0
        counts.append(len(json.loads(capfd.readouterr().out)["kernels"]))
    assert counts[0] < counts[1] == 6


def test_all_edges_are_adjacent(branches: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert here("explain", branches, "--all", "--threads", 2, "--json") == 0
    edges = json.loads(capfd.readouterr().out)["edges"]
    assert len(edges) == 5 and {e["relation"] for e in edges} == {"adjacent"}


@pytest.mark.parametrize(
    ("edge", "word"),
    [
        ("a", "two operators"),
        ("a,b,c", "two operators"),
        ("matmul,nobody", "no operator"),
        ("0,0", "twice"),
        ("0,99", "99"),
    ],
)
def test_edges_that_make_no_sense(
    branches: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], edge: str, word: str
) -> None:
    assert word in refused(capfd, tmp_path, "explain", branches, "--edge", edge, "--threads", 2)


def test_a_plan_for_a_gpu_is_explained(branches: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert here("explain", branches, "--target", "dcu-z100", "--json") == 0
    families = {kernel["family"] for kernel in json.loads(capfd.readouterr().out)["kernels"]}
    assert "gpu_gemm" in families and families <= {"gpu_gemm", "gpu_rows", "gpu_elementwise", "view", "dlight"}
