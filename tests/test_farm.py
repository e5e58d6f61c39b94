"""Builds on other machines: libraries come back as bytes, from any executor, from a local cluster of dask's."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from real_kernels import request as build_request
from rpc_farm import small_network

from autofuse.cli import cli
from autofuse.errors import InputError
from autofuse.measure import BuildRequest, MeasureError, PoolBuilder
from autofuse.measure.farm import FarmBuilder, build_there, dask_builder


class Elsewhere(Executor):
    """Runs what it is given in a thread; `answer` replaces parts of what comes back."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._answer = answer

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        answer = self._answer
        if answer is None:
            return self._pool.submit(function, *arguments, **named)
        return self._pool.submit(lambda: {**function(*arguments, **named), **answer})


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> BuildRequest:
    return build_request(tmp_path_factory.mktemp("built"))


def check(builder: FarmBuilder, asked: BuildRequest) -> None:
    """Right requests and wrong ones come back in order; the library is here and can be loaded, the worker's is gone."""
    library = Path(asked.library)
    wrong = replace(asked, candidate="wrong", library=str(library.with_name("wrong.so")), payload="{}")
    results = list(builder.build([asked, wrong]))
    assert [(r.candidate, r.status) for r in results] == [(asked.candidate, "ok"), ("wrong", "build_failed")]
    assert results[0].arguments == asked.arguments and results[0].seconds > 0
    assert hasattr(ctypes.CDLL(str(library)), "__tvm_ffi_kernel")
    assert [p.name for p in library.parent.iterdir()] == [library.name]
    library.unlink()


def test_any_executor_builds(asked: BuildRequest) -> None:
    released: list[bool] = []
    with FarmBuilder(Elsewhere(), release=lambda: released.append(True)) as builder:
        check(builder, asked)
    assert released == [True]


def test_a_build_that_takes_too_long_is_a_result(tmp_path: Path, asked: BuildRequest) -> None:
    (result,) = FarmBuilder(Elsewhere(), timeout=1e-3).build([replace(asked, library=str(tmp_path / "late.so"))])
    assert result.status == "timeout" and not (tmp_path / "late.so").exists()


def test_a_farm_that_fails_is_no_fault_of_the_kernels(asked: BuildRequest) -> None:
    class Broken(Elsewhere):
        def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(ConnectionError("the scheduler\nis gone"))
            return future

    with pytest.raises(MeasureError, match="the build farm failed: ConnectionError: the scheduler is gone"):
        list(FarmBuilder(Broken()).build([asked]))
    with pytest.raises(MeasureError, match=r"the build farm has TVM 0\.1, this machine 0"):
        list(FarmBuilder(Elsewhere({"tvm": "0.1"})).build([asked]))


def test_what_a_worker_sends_are_plain_values(asked: BuildRequest) -> None:
    from dataclasses import asdict

    from autofuse.measure.builder import COMPILER, SETUP

    answer = build_there(asdict(asked), 60.0, COMPILER, SETUP)
    assert answer["status"] == "ok" and answer["library"][:4] == b"\x7fELF" and not Path(asked.library).exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import distributed  # what tests are run with has it: autofuse[dev]

    with distributed.LocalCluster(1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as made:
        yield made


def test_a_dask_cluster_builds(cluster: Any, asked: BuildRequest) -> None:
    with dask_builder(cluster.scheduler_address) as builder:
        check(builder, asked)


@pytest.mark.usefixtures("one_pass")
def test_collect_builds_on_the_cluster(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(self: object, *_: object) -> None:
        raise AssertionError("nothing is built here")

    monkeypatch.setattr(PoolBuilder, "build", none_here)
    small_network(tmp_path / "small.onnx")
    arguments = ["collect", str(tmp_path / "small.onnx"), "--db", str(tmp_path / "r.db"), "--configs", "1",
                 "--threads", "2", "--trials", "2", "--json", "--dask", cluster.scheduler_address]  # fmt: skip
    counts = json.loads(CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout)
    assert (counts["measured"], counts["failed"]) == (2, 0) and counts["left"] > 0


def test_a_dask_address_that_nobody_answers_is_said() -> None:
    for address in ("127.0.0.1:1", "nonsense://x"):
        with pytest.raises(InputError, match="no dask scheduler answers at"):
            dask_builder(address, patience=0.5)


def test_without_dask_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"autofuse\[dask\]"):
        dask_builder("127.0.0.1:8786")
    assert "--dask" in CliRunner().invoke(cli, ["collect", "--help"]).output
