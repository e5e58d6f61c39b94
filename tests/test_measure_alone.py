"""Nothing of ours runs beside a kernel that is timed: a processor for each thread of the pool, no threads of a BLAS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from plain_groups import FAMILY, Scale, chain
from real_kernels import QUICK
from rpc_farm import Farm
from threadpoolctl import threadpool_info, threadpool_limits

import autofuse
from autofuse.cost.model import Candidate
from autofuse.measure import ArgumentSpec, LocalRunner, MeasureJob
from autofuse.measure.local import thread_environment
from autofuse.measure.process import ChildProcess
from autofuse.measure.remote import RpcRunner
from autofuse.measure.right_outputs import RightOutputs
from autofuse.target.host import places

ALL = len(places())
bound = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or ALL < 2, reason="binding needs Linux and two processors"
)
BLAS = "[i['num_threads'] for i in threadpool_info() if i['user_api'] == 'blas']"


def home(pid: int | None) -> set[int]:
    """Where the thread that runs kernels may run: a process's first one."""
    assert pid is not None
    return os.sched_getaffinity(pid)


@bound
def test_the_process_that_times_stays_on_a_processor_of_its_own(job: MeasureJob) -> None:
    with LocalRunner(ALL) as runner:
        assert [r.status for r in runner.measure([job])] == ["ok"]
        assert home(runner.pid) == {places()[0]}
    with LocalRunner(1) as runner:
        assert [r.status for r in runner.measure([job])] == ["ok"]
        assert home(runner.pid) == os.sched_getaffinity(0)


@bound
def test_so_does_the_one_that_compares_configurations(job: MeasureJob) -> None:
    with closing(ChildProcess("autofuse.measure.turns:factory", environment=thread_environment(ALL))) as child:
        jobs = {"jobs": [job.to_dict()], "budget": 0.1, "rounds": 3, "cold": False}
        assert child.request(jobs, QUICK.timeout).value["kernels"][0]["status"] == "ok"
        assert home(child.pid) == {places()[0]}


@bound
def test_so_does_the_one_that_times_networks_beside_the_reference(network: Path, tmp_path: Path) -> None:
    made = autofuse.compile(network, strategy="greedy", threads=ALL)
    made.save(tmp_path / "m.so")
    inputs = {i["name"]: np.ones(i["shape"], i["dtype"]) for i in made.description["inputs"]}
    np.savez(tmp_path / "x.npz", **inputs)
    with closing(ChildProcess("autofuse.profile.child:Handler", (f"{tmp_path}/m.so", f"{tmp_path}/x.npz"))) as child:
        found = child.request({"runs": 2, "beside": True}, 60).value
        assert len(found["latencies"]) == len(found["references"]) == 2
        assert home(child.pid) == {places()[0]}


@bound
def test_so_does_a_session_of_another_machine(machines: Farm) -> None:
    server = machines.serve("alone", threads=ALL)
    with RpcRunner("127.0.0.1", machines.port, "alone") as runner:
        assert runner.hardware()
        (session,) = psutil.Process(server.pid).children()
        assert home(session.pid) == {places()[0]}
    assert home(server.pid) == os.sched_getaffinity(0)


def test_a_blas_has_one_thread_in_a_session() -> None:
    program = (
        "import numpy\n"
        "from threadpoolctl import threadpool_info, threadpool_limits\n"
        "from autofuse.measure.server import run_nothing_beside_kernels\n"
        "threadpool_limits(2)\n"
        f"before = {BLAS}\n"
        "run_nothing_beside_kernels(1)\n"
        f"print([before, {BLAS}])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert before and set(before) == {2} and after == [1] * len(before)


def test_a_blas_has_one_thread_in_the_process_that_times(tmp_path: Path) -> None:
    (tmp_path / "blas_of_a_child.py").write_text(
        "import numpy\nfrom threadpoolctl import threadpool_info\n"
        f"def teller():\n    return lambda request: {{'blas': {BLAS}}}\n"
    )
    path = os.pathsep.join(p for p in (str(tmp_path), os.environ.get("PYTHONPATH", "")) if p)
    asked = {**thread_environment(2), "PYTHONPATH": path}
    with closing(ChildProcess("blas_of_a_child:teller", environment=asked)) as child:
        found = child.request({}, 60).value["blas"]
    assert found and set(found) == {1}


def test_a_blas_has_one_thread_while_right_outputs_are_computed(tmp_path: Path) -> None:
    def blas() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    seen: list[list[int]] = []

    def reference(candidate: Candidate, inputs: Sequence[Any]) -> Sequence[Any]:
        seen.append(blas())
        if len(seen) == 2:
            raise RuntimeError("no such operator")
        return [np.maximum(inputs[0], 0)]

    arguments = (ArgumentSpec((8,)), ArgumentSpec((8,), output=True))
    outputs = RightOutputs(reference, tmp_path, seed=0, least=1)
    with threadpool_limits(2, user_api="blas"):
        before = blas()
        outputs.file(Candidate(chain("a"), FAMILY, Scale()), arguments)
        with pytest.raises(RuntimeError):
            outputs.file(Candidate(chain("b"), FAMILY, Scale()), arguments)
        assert blas() == before and set(before) == {2}
    assert seen == [[1] * len(before)] * 2
