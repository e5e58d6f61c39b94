"""`autofuse profile`: times by kernel, taken apart and put together again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
from frontend_graphs import model, node, weights

import autofuse
from autofuse.cli.profile_ import command
from autofuse.errors import EngineError, InputError, ModelError
from autofuse.profile.child import Observer, split_calls
from autofuse.profile.result import Profile, least_seconds, summarise
from autofuse.profile.run import example_inputs, profile
from autofuse.profile.table import profile_table
from autofuse.report.profile_page import page, write_page
from autofuse.target import Hardware

HARDWARE = Hardware(cores=2, fma_per_second=1e9, l3_bytes=1000, l3_bandwidth=1e9, memory_bandwidth=5e8)


def entry(name: str, label: str, predicted: float | None, flops: int = 8_000_000, traffic: int = 500) -> dict[str, Any]:
    return {
        "name": name, "label": label, "operators": [label], "family": "conv2d", "config": "a=1", "flops": flops,
        "bytes": traffic, "executed": flops // 2, "weight_bytes": 100, "predicted_ms": predicted,
        "source": "analytical" if predicted else "",
    }  # fmt: skip


DESCRIPTION = {
    "model": "m", "threads": 2, "strategy": "dp", "cost_model": "analytical", "predicted_ms": 6.0,
    "kernel_list": [entry("f", "conv2d+relu", 2.0), entry("f", "conv2d+relu", 2.5), entry("g", "add", None)],
}  # fmt: skip
TIMES = {"g": [[0.001], [0.003], [0.001]], "f": [[0.004, 0.004], [0.004, 0.006], [0.001, 0.001]], "topk": [[0.0]] * 3}


def made() -> Profile:
    return summarise(DESCRIPTION, HARDWARE, [0.012, 0.010, 0.011], TIMES)


def test_the_roofline_is_the_longer_of_computing_and_moving() -> None:
    assert least_seconds(4e9, 0, HARDWARE) == pytest.approx(1.0)
    assert least_seconds(0, 1000, HARDWARE) == pytest.approx(1000 / 2e9)
    assert least_seconds(0, 1001, HARDWARE) == pytest.approx(1001 / 5e8)
    assert least_seconds(4e9, 1000, HARDWARE) == pytest.approx(1.0)


def test_kernels_are_the_longest_first_with_their_calls_put_together() -> None:
    found = made()
    assert [k.name for k in found.kernels] == ["f", "g", "topk"]
    first, second, outside = found.kernels
    assert (first.calls, first.total_ms, first.call_ms) == (2, pytest.approx(8.0), pytest.approx(4.0))
    assert first.labels == ("conv2d+relu",)
    assert first.predicted_ms == pytest.approx(4.5)
    assert first.gflops == pytest.approx(16e6 / 8e-3 / 1e9)
    assert first.gbytes == pytest.approx(1000 / 8e-3 / 1e9)
    assert first.roofline == pytest.approx(2 * 1e-3 / 8e-3)
    assert (first.executed, first.weight_bytes) == (8_000_000, 200)
    assert (second.total_ms, second.predicted_ms) == (pytest.approx(1.0), None)
    assert (outside.labels, outside.family, outside.roofline) == ((), "", 0.0)


def test_shares_add_up_and_the_whole_is_beside_the_sum() -> None:
    found = made()
    assert sum(k.share for k in found.kernels) == pytest.approx(1.0)
    assert found.kernels_ms == pytest.approx(9.0)
    assert found.latency_ms == pytest.approx(11.0)
    assert found.runs == 3


def test_a_profile_is_plain_json() -> None:
    text = json.loads(json.dumps(made().to_json(), allow_nan=False))
    assert text["kernels"][0]["call_ms"] == pytest.approx(4.0)
    assert {"name", "labels", "calls", "total_ms", "share", "gflops", "gbytes", "roofline", "predicted_ms"} <= set(
        text["kernels"][0]
    )


def test_the_table_sums_up_what_it_leaves_out() -> None:
    from rich.console import Console

    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(profile_table(made(), top=1))
    text = console.export_text()
    assert "conv2d+relu" in text
    assert "2 more" in text
    assert "1.78" in text  # 8 ms measured over 4.5 predicted
    assert "kernels 9.000 ms, whole 11.000 ms (+2.000 ms beside them)" in " ".join(text.split())


PAGE = {"operators": 5, "kernels": 3, "fusion_ratio": 5 / 3, "peak_memory_mb": 1.5}


def test_a_page_is_well_formed_and_needs_nothing_else(tmp_path: Path) -> None:
    import xml.etree.ElementTree as xml

    entries = [entry("f", "conv2d<relu> & more", 2.0), entry("", "topk", None)]
    found = summarise({**DESCRIPTION, "kernel_list": entries, "model": "a <b>"}, HARDWARE, [0.01], TIMES)
    write_page(tmp_path / "p.html", found, {**PAGE, "kernel_list": entries})
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["p.html"]
    body = xml.fromstring(text.partition("\n")[2].replace('<meta charset="utf-8">', "").replace("<br>", "<br/>"))
    rows = list(body.iter("tr"))
    assert len(rows) == 1 + len(found.kernels) + 1 + len(entries)
    assert len(list(body.iter("circle"))) == 1
    everything = "".join(body.itertext())
    assert "conv2d<relu> & more" in everything
    assert "a <b>: where the time goes" in everything
    assert not any(word in text for word in ("<script", "http:", "https:", "src="))


def test_circles_of_the_roofline_stay_inside_the_picture() -> None:
    import re

    text = page(made(), {**PAGE, "kernel_list": []})
    width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', text).groups())  # type: ignore[union-attr]
    places = re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', text)
    assert len(places) == 2
    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in places)


def test_a_profile_without_arithmetic_has_a_page_too() -> None:
    found = summarise({**DESCRIPTION, "kernel_list": []}, HARDWARE, [0.01], {"topk": [[0.1]]})
    assert "No kernel with arithmetic" in page(found, {**PAGE, "kernel_list": []})


def test_a_page_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot write"):
        write_page(tmp_path / "none" / "p.html", made(), {**PAGE, "kernel_list": []})


def test_the_observer_leaves_its_own_time_out() -> None:
    ticks = iter(range(100))
    observer = Observer(lambda: float(next(ticks)))
    observer("f", True)  # reads 0, starts at 1
    observer("f", False)  # reads 2
    assert observer.take() == [("f", 1.0)]
    assert observer.take() == []


def test_the_machine_s_own_functions_are_the_overhead() -> None:
    run = [("vm.builtin.reshape", 2e-6), ("f", 10e-6), ("vm.builtin.alloc", 5e-6), ("g", 1e-6), ("f", 12e-6)]
    times = split_calls([run, run])
    assert list(times) == ["f", "g"]
    assert times["f"][1] == pytest.approx([8e-6, 10e-6])
    assert times["g"][0] == [0.0]


def test_example_inputs_fit_any_table_and_mask_nothing_out() -> None:
    inputs = [
        {"name": "x", "shape": [2, 3], "dtype": "float32"},
        {"name": "ids", "shape": [4], "dtype": "int64"},
        {"name": "attention_mask", "shape": [4], "dtype": "int64"},
        {"name": "flag", "shape": [], "dtype": "bool"},
    ]
    found = example_inputs({"inputs": inputs})
    assert [(a.shape, str(a.dtype)) for a in found.values()] == [(tuple(e["shape"]), e["dtype"]) for e in inputs]
    assert set(np.unique(found["ids"])) <= {0, 1}
    assert found["attention_mask"].all() and found["flag"].all()


@pytest.fixture(scope="module")
def compiled() -> autofuse.Executable:
    source = model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"]),
            node("GlobalAveragePool", ["b"], ["c"]),
            node("Flatten", ["c"], ["d"]),
            node("TopK", ["d", "k"], ["y", "places"], axis=1),
        ],
        {"x": [1, 8, 12, 12]},
        ["y", "places"],
        {"w": weights(16, 8, 3, 3), "k": np.int64([3])},
    )
    return autofuse.compile(source, strategy="dp", threads=1)


def test_every_kernel_of_a_compiled_model_is_timed(compiled: autofuse.Executable, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    compiled.save(path)
    np.savez(tmp_path / "x.npz", x=np.ones((1, 8, 12, 12), "float32"))
    done = click.testing.CliRunner().invoke(
        command,
        [str(path), "--runs", "3", "--json", "--input", f"{tmp_path}/x.npz", "--html", f"{tmp_path}/p.html"],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    assert "Against the roofline" in (tmp_path / "p.html").read_text()
    found = json.loads(done.stdout)
    assert (found["model"], found["threads"], found["runs"]) == (compiled.name, 1, 3)
    names = {e["name"] for e in compiled.description["kernel_list"] if e["name"]}
    assert names <= {k["name"] for k in found["kernels"]}
    timed = {k["name"]: k for k in found["kernels"]}
    assert all(timed[n]["total_ms"] > 0 and timed[n]["calls"] >= 1 for n in names)
    (convolution,) = [k for k in found["kernels"] if any("conv2d" in label for label in k["labels"])]
    assert convolution["predicted_ms"] > 0
    assert convolution["gflops"] > 0
    assert any("topk" in k["name"] or "sort" in k["name"] for k in found["kernels"])


def test_inputs_that_do_not_fit_are_refused_before_a_process_starts(
    compiled: autofuse.Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "save", lambda path: pytest.fail("went on"))
    with pytest.raises(InputError, match="has shape"):
        profile(compiled, inputs={"x": np.zeros(3, "float32")})


def test_a_process_that_fails_is_one_clear_line(compiled: autofuse.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    from autofuse.measure.process import ChildProcess, Outcome

    monkeypatch.setattr(ChildProcess, "request", lambda *a: Outcome("crashed", message="the process died of SIGSEGV"))
    with pytest.raises(EngineError, match="profiling small failed \\(crashed\\): the process died of SIGSEGV"):
        profile(compiled, runs=1)


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_an_input_file_that_cannot_be_read_is_one_clear_line(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz"):
        click.testing.CliRunner().invoke(
            command, ["mobilenet_v1", "--input", str(path)], catch_exceptions=False, standalone_mode=False
        )
