"""Measuring over TVM's RPC: a tracker and a device on loopback that lives, dies and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from real_kernels import QUICK
from rpc_farm import Farm, free_port

# The conformance suite, run here on the fixture `runner` of this module.
from test_runner import TestEveryRunner  # noqa: F401

from autofuse.cli import cli
from autofuse.measure import MeasureError, MeasureJob
from autofuse.measure.remote import RpcRunner
from autofuse.measure.server import ServeError
from autofuse.target import fingerprint


@pytest.fixture(scope="module")
def runner(machines: Farm) -> Iterator[RpcRunner]:
    machines.serve("one")
    with RpcRunner("127.0.0.1", machines.port, "one") as made:
        yield made


class TestOneDevice:
    def test_says_what_hardware_it_is(self, runner: RpcRunner) -> None:
        ((row, target),) = runner.hardware()
        assert row == fingerprint(2) and json.loads(target)["num-cores"] == 2

    def test_waiting_for_the_device_is_no_part_of_a_timeout(self, runner: RpcRunner, job: MeasureJob) -> None:
        """Four jobs of a second each keep within three."""
        limits = replace(QUICK, timeout=3.0, budget=1.0, min_samples=10**6, max_samples=10**6)
        results = runner.measure([replace(job, limits=limits)] * 4)
        assert [r.status for r in results] == ["ok"] * 4

    def test_wrong_numbers_are_found_and_errors_are_the_jobs(
        self, runner: RpcRunner, job: MeasureJob, folder: Path, bad: str
    ) -> None:
        wrong = replace(job, expected=str(folder / "wrong.npz"))
        missing = replace(job, library=bad, function="missing")
        results = list(runner.measure([wrong, missing, job]))
        assert [r.status for r in results] == ["wrong", "crashed", "ok"]
        assert "(7,)" in results[0].message and "missing" in results[1].message

    @pytest.mark.parametrize(
        ("function", "status", "says"), [("hang", "timeout", "1 s"), ("crash", "crashed", "died on")]
    )
    def test_a_bad_kernel_is_a_result_and_the_device_comes_back(
        self, runner: RpcRunner, job: MeasureJob, bad: str, function: str, status: str, says: str
    ) -> None:
        """A hang is ended by the device; a kernel that costs two sessions has crashed."""
        broken = replace(job, library=bad, function=function, limits=replace(QUICK, timeout=1.0))
        results = list(runner.measure([broken, job]))
        assert [r.status for r in results] == [status, "ok"]
        assert says in results[0].message and "\n" not in results[0].message


def test_a_plain_server_is_not_used_and_said_so(machines: Farm) -> None:
    machines.serve_plain("plain")
    with RpcRunner("127.0.0.1", machines.port, "plain", patience=0.0) as runner:
        said = r"cannot say what hardware it is; start one: autofuse serve"
        with pytest.warns(UserWarning, match="not started by autofuse serve"), pytest.raises(MeasureError, match=said):
            runner.hardware()


def test_without_a_tracker_there_is_one_clear_line() -> None:
    port = free_port()
    with pytest.raises(ServeError, match=f"no tracker answers at 127.0.0.1:{port} .*tvm.exec.rpc_tracker") as raised:
        RpcRunner("127.0.0.1", port, "any").hardware()
    assert "\n" not in str(raised.value)


class TestCommands:
    def test_serve_warns_of_what_rpc_runs(self) -> None:
        result = CliRunner().invoke(cli, ["serve", "--help"])
        said = " ".join(result.output.split())
        assert "runs whatever it is sent" in said and "trusted network only" in said and "127.0.0.1" in said

    def test_serve_leaves_nothing_behind_when_it_is_ended(self, machines: Farm) -> None:
        before = set(machines.folder.glob("autofuse-serve-*"))
        server = machines.serve("ended")
        (made,) = set(machines.folder.glob("autofuse-serve-*")) - before
        server.terminate()
        assert server.wait(timeout=10) == 0 and not made.exists()
        assert machines.free("ended") == 0

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["serve", "--tracker", "nowhere", "--key", "k"], "HOST:PORT"),
            (["collect", "m.onnx", "--db", "r.db", "--rpc", "127.0.0.1:1"], "--rpc and --key"),
            (["collect", "m.onnx", "--db", "r.db", "--rpc", "h:1", "--key", "k", "--threads", "2"], "serve --threads"),
        ],
    )
    def test_bad_options_are_named(self, arguments: list[str], says: str) -> None:
        assert says in str(CliRunner().invoke(cli, arguments).exception)
