"""From Python: compile, call, save, load; what is computed, and what is refused."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_network import close, expected, image, small_network

import autofuse
from autofuse.codegen.executable import Executable
from autofuse.errors import PlanError


def test_compiled_networks_give_what_onnxruntime_gives(executable: Executable) -> None:
    x = image()
    close(executable(x), expected(small_network(), [x]))
    close(executable(image=x), executable(x), tolerance=0)


def test_outputs_follow_inputs(executable: Executable) -> None:
    first, second = image(seed=1), image(seed=2)
    assert not np.allclose(executable(first)[0], executable(second)[0])
    close(executable(first), expected(small_network(), [first]))


def test_outputs_of_one_call_survive_the_next(executable: Executable) -> None:
    kept = executable(image(seed=1))[0]
    copy = kept.copy()
    executable(image(seed=2))
    np.testing.assert_array_equal(kept, copy)


def test_saved_and_loaded(executable: Executable, tmp_path: Path) -> None:
    executable.save(tmp_path / "net.so")
    loaded = autofuse.load(tmp_path / "net.so")
    assert [p.name for p in tmp_path.iterdir()] == ["net.so"]
    assert loaded.plan == executable.plan
    assert loaded.kernels == executable.kernels
    x = image(seed=3)
    close(loaded(x), executable(x), tolerance=0)


def test_fusion_leaves_fewer_kernels(executable: Executable, network: Path) -> None:
    description = executable.description
    assert description["kernels"] < description["operators"]
    assert description["fusion_ratio"] == pytest.approx(description["operators"] / description["kernels"], abs=1e-3)
    greedy = autofuse.compile(network, strategy="greedy", threads=2)
    assert executable.kernels <= greedy.kernels
    assert description["predicted_ms"] <= greedy.description["predicted_ms"] * (1 + 1e-9)


def test_records_are_told_apart_from_the_cost_model_asked_for(network: Path, tmp_path: Path) -> None:
    """The description names the model behind the records, and how many groups of the plan a record has priced."""
    from autofuse.compiler import analyse, choose_cost_model, problem_of
    from autofuse.cost.model import Candidate
    from autofuse.generation import assignment_of
    from autofuse.graph.keys import workload_key
    from autofuse.records import Record, RecordedHardware, Workload, open_store
    from autofuse.records.identity import identity_of
    from autofuse.search.strategies import strategy
    from autofuse.target import fingerprint

    analysed = analyse(network, threads=2)
    choice = strategy("none").search(problem_of(analysed, choose_cost_model(analysed, None, None, None))).choices[0]
    assignment = assignment_of(choice.group, choice.family, choice.config)
    row, key = fingerprint(2), workload_key(choice.group)
    with open_store(tmp_path / "r.db") as store:
        store.add_hardware(RecordedHardware.of(row))
        made = autofuse.compile(network, strategy="none", db=tmp_path / "r.db", threads=2).description
        assert made["cost_model"] == "analytical" and made["records"] == {"groups": 0, "of": made["operators"]}
        store.add_workload(Workload(key, ""))
        identity = identity_of(Candidate(assignment.group, assignment.family, assignment.config), key, row.digest)
        store.add(
            Record(
                key, row.digest, identity.family, identity.family_version, identity.config, identity.layouts,
                samples=(1e-9,) * 3,
            )
        )  # fmt: skip
    executable = autofuse.compile(network, strategy="none", cost_model="analytical", db=tmp_path / "r.db", threads=2)
    assert executable.description["cost_model"] == executable.plan.cost_model == "analytical"
    assert executable.description["records"] == {"groups": 1, "of": made["operators"]}
    assert [g.source for g in executable.plan.groups].count("record") == 1


def test_one_thread(network: Path, executable: Executable) -> None:
    single = autofuse.compile(network, strategy="dp", threads=1)
    assert single.description["threads"] == 1
    x = image()
    close(single(x), executable(x))


def test_fuel_bounds_the_groups(network: Path, executable: Executable) -> None:
    """0 fuses nothing, 1 the first group only; what it computes stays the same."""
    x = image()
    for fuel in (0, 1):
        made = autofuse.compile(network, strategy="dp", fuel=fuel, threads=2)
        assert sum(len(group.members) > 1 for group in made.plan.groups) == fuel
        close(made(x), executable(x))


def test_memory_limit_holds(network: Path) -> None:
    free = autofuse.compile(network, strategy="none", threads=2).description["peak_memory_mb"]
    limited = autofuse.compile(network, strategy="dp", max_memory=free, threads=2)
    assert 0 < limited.description["peak_memory_mb"] <= free
    with pytest.raises(autofuse.AutofuseError, match="memory"):
        autofuse.compile(network, strategy="dp", max_memory=1e-5, threads=2)


def test_ir_is_dumped_after_each_phase(network: Path, tmp_path: Path) -> None:
    autofuse.compile(network, strategy="dp", threads=2, dump_ir=tmp_path / "ir")
    written = sorted((tmp_path / "ir").iterdir())
    assert [p.name for p in written] == ["1-prepared.py", "2-lowered.py", "3-scheduled.py"]
    for path in written:
        ast.parse(path.read_text())
    assert "call_tir" not in written[0].read_text()
    assert "T.parallel" in written[2].read_text() or "T.vectorized" in written[2].read_text()


def test_a_network_of_the_zoo_at_another_resolution() -> None:
    from autofuse.frontend import zoo

    source = zoo.build("mobilenet_v1")
    made = autofuse.compile("mobilenet_v1", strategy="dp", threads=2, input_shapes={"input": (1, 3, 64, 64)})
    for extent in source.graph.input[0].type.tensor_type.shape.dim[2:]:
        extent.dim_value = 64
    del source.graph.value_info[:]
    x = image(64)
    close(made(x), expected(source, [x]), tolerance=1e-4)
    assert made.kernels < made.description["operators"] / 2


def test_exported_pytorch_programs() -> None:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 6)

        def forward(self, x: Any) -> Any:
            return torch.softmax(self.linear(x) * 2.0, -1)

    x = torch.randn(4, 8)
    network = Network().eval()
    made = autofuse.compile(torch.export.export(network, (x,)), strategy="dp", threads=2)
    close(made(x.numpy()), [network(x).detach().numpy()])


@pytest.mark.parametrize(
    "change", [{"family": "absent"}, {"family": ""}, {"config": "odd"}, {"seconds": float("nan")}], ids=str
)
def test_a_plan_with_a_damaged_group(network: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    plan = autofuse.compile(network, strategy="dp", threads=2).plan.to_json()
    position = next(i for i, group in enumerate(plan["groups"]) if len(group["members"]) > 1)
    plan["groups"][position].update(change)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(PlanError, match=f"damaged: group {position}"):
        autofuse.compile(network, plan=tmp_path / "plan.json", threads=2)


def test_help_loads_no_compiler() -> None:
    code = "import sys, autofuse, autofuse.cli; sys.exit(bool({'tvm', 'onnx', 'xgboost', 'optuna'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
