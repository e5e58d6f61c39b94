"""Raw results of several machines: each has its folder and its pages, and nothing mixes them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import bench_defaults
import bench_plans
import bench_zoo
import raw_results
import readme_results
from raw_results import Place, one_machine, refuse_others

from autofuse.frontend import zoo

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
#: Results of one network as the script wrote them on a machine with AVX2.
RAW: dict[str, Any] = json.loads((RESULTS / "avx2" / "mobilenet_v1-b1.json").read_text(encoding="utf-8"))
WIDE = {**RAW, "machine": {**RAW["machine"], "isa": "avx512", "l2_bytes": 1 << 20}}


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of two machines: AVX-512 last, AVX2 in a folder of its own."""
    monkeypatch.setattr(raw_results, "DOCS", tmp_path)
    put(tmp_path, "mobilenet_v1-b1.json", WIDE)
    put(tmp_path, "avx2/mobilenet_v1-b1.json", RAW)
    return tmp_path


def put(docs: Path, name: str, raw: dict[str, Any]) -> None:
    path = docs / "results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(raw), encoding="utf-8")


def test_a_machines_results_and_pages_are_where_its_folder_says(docs: Path) -> None:
    last, other = Place(), Place("avx2")
    assert (last.raw, last.page("results"), last.said) == (docs / "results", docs / "results.md", "docs/results")
    assert (other.raw, other.page("plans")) == (docs / "results" / "avx2", docs / "plans-avx2.md")
    assert last.others("*-b1.json") == [other] and other.others("*-b1.json") == [last]
    assert last.others("plans/*.json") == [] and last.elsewhere("plans/*.json", "plans") == ""
    assert last.elsewhere("*-b1.json", "results") == (
        f"On other machines: [results-avx2.md](results-avx2.md) ({RAW['machine']['cpu']}, avx2)."
    )
    for name in ("plans", "../x", "a b"):
        with pytest.raises(SystemExit):
            Place(name)


def test_results_of_another_machine_are_not_added_to(docs: Path) -> None:
    paths = sorted((docs / "results").glob("*-b*.json"))
    refuse_others(paths, {**WIDE["machine"], "fma_per_second": 1.0, "packages": {}, "system": "another Linux"})
    refuse_others([docs / "none.json"], RAW["machine"])
    for name, value in (("isa", "avx2"), ("cores", 4), ("l3_bytes", 1), ("cpu", "A CPU")):
        with pytest.raises(SystemExit, match=r"mobilenet_v1-b1\.json is of another machine"):
            refuse_others(paths, {**WIDE["machine"], name: value})


@pytest.mark.parametrize("script", [bench_zoo, bench_plans], ids=["zoo", "plans"])
def test_a_script_that_measures_refuses_before_it_measures(
    script: Any, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(docs, "plans/vgg16.json", {"machine": WIDE["machine"]})
    monkeypatch.setattr("autofuse.report.results.machine", lambda: RAW["machine"])
    monkeypatch.setattr(sys, "argv", ["script"])
    for step in ("measure", "prepare", "compiled"):
        monkeypatch.setattr(script, step, lambda *_: 1 / 0, raising=False)
    with pytest.raises(SystemExit, match="of another machine"):
        script.main()
    assert not list(docs.glob("*.md"))


def test_pages_are_of_one_machine(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, isa, other in (("", "avx512", "results-avx2.md"), ("avx2", "avx2", "results.md")):
        monkeypatch.setattr(sys, "argv", ["bench_zoo.py", "--page-only", "--folder", folder])
        assert bench_zoo.main() == 0
        text = Place(folder).page("results").read_text(encoding="utf-8")
        assert f"from {Place(folder).said}/*.json" in text and f"[{other}]({other})" in text
        assert f"({isa}), 2 cores" in text and text.count(", 2 cores, ") == 1
    put(docs, "vgg16-b1.json", {**RAW, "network": "vgg16"})
    with pytest.raises(SystemExit, match="several"):
        bench_zoo.written(Place(), zoo.names())
    one_machine([RAW, {**RAW, "machine": {**RAW["machine"], "fma_per_second": 1.0}}])


def test_a_machine_without_results_yet_points_to_the_others(docs: Path) -> None:
    (docs / "results" / "mobilenet_v1-b1.json").unlink()
    text = bench_zoo.written(Place(), zoo.names())
    assert "Nothing was measured yet" in text and "[results-avx2.md]" in text


def test_an_engine_that_was_slow_is_left_out_by_this_machines_results(docs: Path) -> None:
    slow = json.loads(json.dumps(RAW))
    row = next(r for r in slow["bench"]["results"] if r["engine"] == "tvm-greedy")
    row["median_ms"] = 60_000.0
    put(docs, "avx2/mobilenet_v1-b1.json", slow)
    assert bench_zoo._too_slow(Place("avx2").raw, "mobilenet_v1", 16, "tvm-greedy", 90.0)
    assert not bench_zoo._too_slow(Place().raw, "mobilenet_v1", 16, "tvm-greedy", 90.0)


def test_the_readme_has_a_table_for_each_machine(docs: Path) -> None:
    text = readme_results.block()
    assert text.index("AMD EPYC, avx512") < text.index("docs/results.md") < text.index("AMD EPYC, avx2,")
    assert text.count("| geometric mean |") == 2 and "docs/results-avx2.md" in text
    (docs / "results" / "mobilenet_v1-b1.json").unlink()
    assert readme_results.block().count("| geometric mean |") == 1
    (docs / "results" / "avx2" / "mobilenet_v1-b1.json").unlink()
    with pytest.raises(SystemExit):
        readme_results.block()


def test_kernels_of_another_machine_are_not_mixed_with_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofuse.report.results.machine", lambda: RAW["machine"])
    bench_defaults.refuse_rows_of_others({})
    bench_defaults.refuse_rows_of_others({"one": {"machine": RAW["machine"]}})
    monkeypatch.setattr(bench_defaults, "results", lambda _: {"one": {"machine": WIDE["machine"]}})
    with pytest.raises(SystemExit, match="several"):
        bench_defaults.run(argparse.Namespace(families="", networks="", each=1, threads=None), Place())


def test_what_plans_add_is_kept_with_them() -> None:
    """The page of the machine with AVX2 is what it was when it was measured."""
    rows = {}
    for path in sorted((RESULTS / "avx2" / "plans").glob("*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        rows[raw["network"]] = bench_plans.row(raw)
    assert set(rows) == set(zoo.names())
    assert rows["vgg16"]["refill"] == pytest.approx(0.189e-3, abs=5e-7)
    assert rows["yolov4"]["predicted"] == pytest.approx(210.009e-3, abs=1e-6)
    assert rows["minilm_l6"]["left"] == pytest.approx(0.120, abs=5e-4)
