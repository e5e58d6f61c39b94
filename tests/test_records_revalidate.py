"""`records revalidate` on a network: lowered and scheduled again, the same code is found to be the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_records_upkeep import call

from autofuse.codegen.digest import tir_digest
from autofuse.compiler import analyse, choose_cost_model, problem_of
from autofuse.measure.kernels import items_of
from autofuse.records import Record, RecordedHardware, SqliteStore, Workload
from autofuse.records.identity import identity_of
from autofuse.records.verify import verify
from autofuse.schedule.registry import families
from autofuse.target import fingerprint


def network(path: Path, prefix: str = "") -> Path:
    """Two convolutions and a softmax; `prefix` of every name."""
    weights = {"w0": (16, 3, 3, 3), "w1": (16, 16, 1, 1)}
    nodes = [
        helper.make_node("Conv", [f"{prefix}x", f"{prefix}w0"], [f"{prefix}a"], pads=[1, 1, 1, 1], name=f"{prefix}c0"),
        helper.make_node("Relu", [f"{prefix}a"], [f"{prefix}b"], name=f"{prefix}r0"),
        helper.make_node("Conv", [f"{prefix}b", f"{prefix}w1"], [f"{prefix}c"], name=f"{prefix}c1"),
        helper.make_node("Softmax", [f"{prefix}c"], [f"{prefix}y"], axis=-1, name=f"{prefix}s"),
    ]
    random = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        f"{prefix}net",
        [helper.make_tensor_value_info(f"{prefix}x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info(f"{prefix}y", TensorProto.FLOAT, [1, 16, 12, 12])],
        [numpy_helper.from_array(random.normal(0, 0.2, s).astype("float32"), prefix + n) for n, s in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A store with records of the network's kernels, of one version earlier; all but their digests is made up."""
    folder = tmp_path_factory.mktemp("revalidate")
    model = analyse(str(network(folder / "net.onnx")), threads=2)
    problem = problem_of(model, choose_cost_model(model, "analytical", None, None))
    groups = dict.fromkeys(c.group for c in problem.choices if c.family)
    row = RecordedHardware.of(fingerprint(2))
    with SqliteStore(folder / "r.db") as store:
        store.add_hardware(row)
        for item in items_of(groups, families(), model.hardware, "net", 2):
            c = item.candidate
            store.add_workload(Workload(item.key, item.text, c.group.label), ["net"])
            identity = identity_of(c, item.key, row.digest)
            code = tir_digest(c.family.apply(model.fuser.fuse(c.group), c.group, c.config, model.hardware))
            version = identity.family_version - 1
            store.add(
                Record(
                    identity.workload, identity.hardware, identity.family, version, identity.config, identity.layouts,
                    samples=(1e-5,) * 3, tir_digest=code,
                )
            )  # fmt: skip
        records = list(store.records())
    return folder, records


def test_identical_code_gets_the_present_version(
    collected: tuple[Path, list[Record]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when the network is given with all its names changed: kernels are known by what they do."""
    folder, records = collected
    assert len({r.family for r in records}) > 1 and len(records) > 5
    other = network(folder / "renamed.onnx", "other_")
    for arguments, restamped in (("--dry-run", len(records)), ("--drop", len(records)), ("--drop", 0)):
        assert call("revalidate", folder / "r.db", other, "--threads", 2, arguments, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["same"], report["restamped"]) == (len(records), restamped)
        assert report["changed"] == report["unknown"] == report["unseen"] == 0
    with SqliteStore(folder / "r.db", readonly=True) as store:
        kept = list(store.records())
        assert list(verify(store)) == []
    present = {f.name: f.version for f in families()}
    assert {replace(r, family_version=present[r.family]) for r in records} == set(kept)


def test_other_code_is_listed_and_dropped_when_told(
    collected: tuple[Path, list[Record]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, records = collected
    present = {f.name: f.version for f in families()}
    with SqliteStore(folder / "other.db") as store, SqliteStore(folder / "r.db", readonly=True) as source:
        store.merge(source)
        stale = replace(
            records[0], family_version=present[records[0].family], tir_digest="0" * 16, created=records[-1].created
        )
        store.add(stale)
    for drop in ((), ("--drop",)):
        assert call("revalidate", folder / "other.db", folder / "net.onnx", "--threads", 2, *drop) == 0
        out = capsys.readouterr().out
        assert "1 have other code now" in out and "was 0000000000000000" in out
        assert f"the version of {stale.family} should have been raised" in out
    with SqliteStore(folder / "other.db", readonly=True) as store:
        assert stale.digest not in {r.digest for r in store.records()}
        assert len(list(store.records())) == len(records)
