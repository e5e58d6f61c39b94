"""Measuring over TVM's RPC: a tracker and devices on loopback that live, die, come back and differ."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from plain_groups import FAMILY, Scale, chain
from rpc_farm import Farm, farm, free_port, small_network

# The conformance suite, run here on the fixture `runner` of this module.
from test_runner import QUICK, TestEveryRunner, bad, builder, folder, job, module, weighted  # noqa: F401

from autofuse.cli import cli
from autofuse.cost.model import Candidate
from autofuse.measure import (
    BuildRequest,
    CollectItem,
    CollectSettings,
    CollectStats,
    MeasureError,
    MeasureJob,
    PoolBuilder,
    collect,
    module_request,
    remote,
)
from autofuse.measure.process import ChildProcess, Outcome
from autofuse.measure.remote import RpcRunner
from autofuse.measure.server import ServeError
from autofuse.records import MemoryStore, RecordedHardware, open_store
from autofuse.target import fingerprint


@pytest.fixture(scope="module")
def machines() -> Iterator[Farm]:
    with farm() as made:
        yield made


@pytest.fixture(scope="module")
def runner(machines: Farm) -> Iterator[RpcRunner]:
    machines.serve("one")
    with RpcRunner("127.0.0.1", machines.port, "one") as made:
        yield made


@pytest.fixture(scope="module")
def different(machines: Farm) -> str:
    """The key of two devices whose hardware differs."""
    for threads in (1, 2):
        machines.serve("different", threads)
    return "different"


class TestOneDevice:
    def test_says_what_hardware_it_is(self, runner: RpcRunner) -> None:
        ((row, target),) = runner.hardware()
        assert row == fingerprint(2) and json.loads(target)["num-cores"] == 2

    def test_waiting_for_the_device_is_no_part_of_a_timeout(self, runner: RpcRunner, job: MeasureJob) -> None:  # noqa: F811
        """Four jobs of a second each keep within three."""
        limits = replace(QUICK, timeout=3.0, budget=1.0, min_samples=10**6, max_samples=10**6)
        results = runner.measure([replace(job, limits=limits)] * 4)
        assert [r.status for r in results] == ["ok"] * 4

    def test_wrong_numbers_are_found_and_errors_are_the_jobs(
        self, runner: RpcRunner, job: MeasureJob, folder: Path, bad: str  # noqa: F811
    ) -> None:  # fmt: skip
        wrong = replace(job, expected=str(folder / "wrong.npz"))
        missing = replace(job, library=bad, function="missing")
        results = list(runner.measure([wrong, missing, job]))
        assert [r.status for r in results] == ["wrong", "crashed", "ok"]
        assert "(7,)" in results[0].message and "missing" in results[1].message

    @pytest.mark.parametrize(
        ("function", "status", "says"), [("hang", "timeout", "1 s"), ("crash", "crashed", "died on")]
    )
    def test_a_bad_kernel_is_a_result_and_the_device_comes_back(
        self, runner: RpcRunner, job: MeasureJob, bad: str, function: str, status: str, says: str  # noqa: F811
    ) -> None:  # fmt: skip
        """A hang is ended by the device; a kernel that costs two sessions has crashed."""
        broken = replace(job, library=bad, function=function, limits=replace(QUICK, timeout=1.0))
        results = list(runner.measure([broken, job]))
        assert [r.status for r in results] == [status, "ok"]
        assert says in results[0].message and "\n" not in results[0].message


ITEMS = [CollectItem(Candidate(chain(("negative",)), FAMILY, Scale(n)), "key", "text", "net") for n in range(2, 17)]


def ask(item: CollectItem, text: str, library: Path) -> BuildRequest:
    config = item.candidate.config
    assert isinstance(config, Scale)
    return module_request(module(config.scale), item.key, text, str(library), {"kind": "llvm"}, outputs=1)


def kill(server: subprocess.Popen[str]) -> None:
    """kill -9 a server, and see the session that it had open end with it."""
    sessions = psutil.Process(server.pid).children()
    assert sessions
    server.kill()
    server.wait()
    assert not psutil.wait_procs(sessions, timeout=5)[1]


class TestSeveralDevices:
    def test_one_dies_half_way_and_the_other_does_its_work(
        self, machines: Farm, builder: PoolBuilder, job: MeasureJob, monkeypatch: pytest.MonkeyPatch  # noqa: F811
    ) -> None:  # fmt: skip
        """Both work at once, results in order. One is killed: everything is measured. When the other dies as well, the
        run ends with a clear error and what it has."""
        servers = [machines.serve("two"), machines.serve("two")]
        here = RecordedHardware.of(fingerprint(2))
        store = MemoryStore()
        with RpcRunner("127.0.0.1", machines.port, "two", patience=0.5) as runner:
            assert len(runner.hardware()) == 1 and len(runner.devices) == 2

            finished: list[tuple[int | None, str]] = []
            asking = remote._ask

            def watched(child: ChildProcess, job: MeasureJob) -> Outcome:
                outcome = asking(child, job)
                finished.append((child.pid, job.candidate))
                return outcome

            with monkeypatch.context() as patch:
                patch.setattr(remote, "_ask", watched)
                slow = replace(QUICK, budget=4.0, min_samples=10**6, max_samples=10**6)
                jobs = [replace(job, candidate=c, limits=slow if c == "slow" else QUICK) for c in ("slow", "b", "c")]
                assert [(r.candidate, r.status) for r in runner.measure(jobs)] == [(j.candidate, "ok") for j in jobs]
            assert [c for _, c in finished] == ["b", "c", "slow"] and len({pid for pid, _ in finished}) == 2

            def kill_at(count: int, server: subprocess.Popen[str], items: list[CollectItem]) -> CollectStats:
                return collect(items, store, runner, builder, here, ask, settings=CollectSettings(limits=QUICK),
                               progress=lambda stats, what: kill(server) if stats.done == count else None)  # fmt: skip

            stats = kill_at(4, servers[0], ITEMS[:10])
            assert (stats.measured, stats.failed, stats.left) == (10, 0, 0)
            assert len(runner.devices) == 1
            said = r"no device under key 'two' .*the last one was lost.* start one: autofuse serve --tracker"
            with pytest.raises(MeasureError, match=said) as raised:
                kill_at(2, servers[1], ITEMS)
            assert "\n" not in str(raised.value)
        records = list(store.records())
        assert len(records) == 12 and {(r.hardware, r.status) for r in records} == {(here.digest, "ok")}

    def test_records_of_different_hardware_do_not_mix(
        self, machines: Farm, builder: PoolBuilder, job: MeasureJob, different: str  # noqa: F811
    ) -> None:  # fmt: skip
        store = MemoryStore()
        with RpcRunner("127.0.0.1", machines.port, different) as runner:
            rows = [row for row, _ in runner.hardware()]
            assert {row.threads for row in rows} == {1, 2} and len({row.digest for row in rows}) == 2
            with pytest.raises(MeasureError, match="different hardware"):
                next(runner.measure([job]))
            for count, row in zip((4, 2), rows, strict=True):
                runner.select(row.digest)
                stats = collect(ITEMS[:count], store, runner, builder, RecordedHardware.of(row), ask,
                                settings=CollectSettings(limits=QUICK))  # fmt: skip
                assert (stats.measured, stats.cached) == (count, 0)
            again = collect(ITEMS[:4], store, runner, builder, RecordedHardware.of(rows[1]), ask,
                            settings=CollectSettings(limits=QUICK))  # fmt: skip
            assert (again.measured, again.cached) == (2, 2)
        assert [sum(1 for _ in store.records(row.digest)) for row in rows] == [4, 4]


def test_a_plain_server_is_not_used_and_said_so(machines: Farm) -> None:
    machines.serve_plain("plain")
    with RpcRunner("127.0.0.1", machines.port, "plain", patience=2.0) as runner:
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

    def test_collect_measures_on_every_hardware(self, machines: Farm, tmp_path: Path, different: str) -> None:
        small_network(tmp_path / "small.onnx")
        arguments = ["collect", str(tmp_path / "small.onnx"), "--db", str(tmp_path / "r.db"), "--configs", "1",
                     "--json", "--rpc", f"127.0.0.1:{machines.port}", "--key", different]  # fmt: skip
        first = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        counts = json.loads(first.stdout)
        assert set(counts["hardware"]) == {fingerprint(1).digest, fingerprint(2).digest}
        assert counts["failed"] == 0 and all(c["measured"] >= 1 for c in counts["hardware"].values())
        with open_store(tmp_path / "r.db") as store:
            found = {digest: sum(1 for _ in store.records(digest)) for digest in counts["hardware"]}
        assert found == {digest: c["measured"] for digest, c in counts["hardware"].items()}
