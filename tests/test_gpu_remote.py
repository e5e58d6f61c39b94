"""GPUs of other machines: tracker, servers, upload, time, record, with PoCL in the place of a card, and one dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from gpu_harness import POCL, TARGET, pocl_missing
from plain_groups import FAMILY, Scale, chain
from rpc_farm import Farm, farm, small_network

from autofuse.cli import cli
from autofuse.cost.model import Candidate
from autofuse.device.opencl import device_called
from autofuse.measure import (
    ArgumentSpec,
    Builder,
    BuildRequest,
    BuildResult,
    CollectItem,
    CollectSettings,
    CollectStats,
    MeasureLimits,
    collect,
)
from autofuse.measure.gpu_runner import form_of, gpu_row
from autofuse.measure.remote import RpcRunner
from autofuse.records import MemoryStore, RecordedHardware, open_store
from autofuse.target import hardware_row, resolve
from autofuse.target.fingerprint import STAND_IN

SIZE = 1024
QUICK = MeasureLimits(timeout=30.0, budget=0.2, min_samples=4, max_samples=6, min_sample=1e-5)
SOURCE = """
__kernel void twice(__global const float* x, __global float* y) { y[get_global_id(0)] = 2.0f * x[get_global_id(0)]; }
__kernel void crash(__global const float* x, __global float* y) { y[(size_t)1 << 40] = x[0]; }
"""
GPU = ("--target", TARGET, "--device", f"opencl:{POCL}")
ARGUMENTS = (ArgumentSpec((SIZE,)), ArgumentSpec((SIZE,), output=True))
ITEMS = [CollectItem(Candidate(chain(("negative",)), FAMILY, Scale(n)), "key", "text", "net") for n in range(2, 8)]


class Twice(Builder):
    """Builds nothing of what it is asked for: every kernel doubles its first argument, that of Scale(4) crashes."""

    def build(self, requests: Iterable[BuildRequest]) -> Generator[BuildResult, None, None]:
        for request in requests:
            name = "crash" if "scale=4" in request.candidate else "twice"
            count = int(np.prod(request.arguments[-1].shape))
            launch = {"kernel": name, "workgroups": [count // 64, 1, 1], "threads": [64, 1, 1],
                      "arguments": [0, len(request.arguments) - 1]}  # fmt: skip
            content = {"source": SOURCE, "launches": [launch]}
            Path(request.library).write_text(json.dumps(content), encoding="utf-8")
            yield BuildResult(request.key, request.candidate, "ok", library=request.library, function=name,
                              arguments=request.arguments)  # fmt: skip

    def close(self) -> None:
        pass


def ask(item: CollectItem, text: str, library: Path) -> BuildRequest:
    return BuildRequest(item.key, text, str(library), arguments=ARGUMENTS)


def doubled(candidate: Candidate, inputs: Any) -> list[np.ndarray]:
    return [2 * inputs[0]]


@pytest.fixture(scope="module")
def machines() -> Iterator[Farm]:
    if missing := pocl_missing():
        pytest.skip(missing)
    with farm() as made:
        yield made


@pytest.fixture(scope="module")
def servers(machines: Farm) -> list[subprocess.Popen[Any]]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: machines.serve("cards", more=GPU), range(2)))


def test_stand_ins_measure_say_what_they_are_and_one_may_die(
    machines: Farm, servers: list[subprocess.Popen[Any]]
) -> None:
    store = MemoryStore()
    with RpcRunner("127.0.0.1", machines.port, "cards") as runner:
        ((row, text),) = runner.hardware()
        target = resolve(text)
        assert (target.card, target.kind) == (TARGET, "rocm") and form_of(row) == "opencl"
        assert row.architecture == STAND_IN and "in place of" in row.model_name
        assert row.digest == gpu_row(target, device_called(POCL)).digest != hardware_row(target).digest
        runner.select(row.digest)
        assert runner.arithmetic == "arithmetic" and len(runner.devices) == 2

        def kill(stats: CollectStats, _: str) -> None:
            if stats.done == 3:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(servers[0].pid, signal.SIGKILL)

        stats = collect(ITEMS, store, runner, Twice(), RecordedHardware.of(row), ask, doubled,
                        CollectSettings(limits=QUICK), kill)  # fmt: skip
        assert (stats.measured, stats.failed, stats.left) == (5, 1, 0), [r.message for r in store.records()]
        assert len(runner.devices) == 1
    records = {r.config: r for r in store.records()}
    assert records["scale=4"].status == "crashed" and {r.hardware for r in records.values()} == {row.digest}
    good = [r for r in records.values() if r.ok]
    assert all(set(r.reference_samples) == {"memory", "arithmetic"} for r in good)
    assert not list(store.records(hardware_row(target).digest))


def test_collect_asks_the_servers_what_kernels_are_for(
    machines: Farm, servers: list[subprocess.Popen[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "home"))
    forms: list[str] = []

    def built(workers: int, form: str) -> Builder:
        forms.append(form)
        return Twice()

    monkeypatch.setattr("autofuse.measure.gpu_runner.gpu_builder", built)
    small_network(tmp_path / "small.onnx")
    arguments = [
        "collect", str(tmp_path / "small.onnx"), "--db", str(tmp_path / "r.db"), "--configs", "1", "--explore", "0",
        "--trials", "1", "--json", "--rpc", f"127.0.0.1:{machines.port}", "--key", "cards",
    ]  # fmt: skip
    counts = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)
    assert forms == ["opencl"] and (counts["measured"], counts["failed"]) == (0, 1), counts
    target = resolve(TARGET)
    with open_store(tmp_path / "r.db") as store:
        (record,) = store.records()
    assert record.status == "wrong" and record.family.startswith("gpu_")
    assert record.hardware == gpu_row(target, device_called(POCL)).digest


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--device", "rocm"], "say what kernels are for"),
        (["--target", "llvm -mcpu=nehalem"], "is a CPU's"),
        (["--target", TARGET, "--device", "opencl:a card"], "no OpenCL device"),
    ],
)
def test_places_that_cannot_be_offered_are_refused(more: list[str], says: str) -> None:
    error = CliRunner().invoke(cli, ["serve", "--tracker", "127.0.0.1:1", "--key", "k", *more]).exception
    assert says in str(error) and "\n" not in str(error)
