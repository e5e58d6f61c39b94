"""Measuring over TVM's RPC on several devices: they share the work, one dies, they differ."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from plain_groups import FAMILY, Scale, chain
from real_kernels import QUICK, ask
from rpc_farm import Farm, small_network

from autofuse.cli import cli
from autofuse.cost.model import Candidate
from autofuse.measure import (
    CollectItem,
    CollectSettings,
    CollectStats,
    MeasureError,
    MeasureJob,
    PoolBuilder,
    collect,
    remote,
)
from autofuse.measure.process import ChildProcess, Outcome
from autofuse.measure.remote import RpcRunner
from autofuse.records import MemoryStore, RecordedHardware, open_store
from autofuse.target import fingerprint


@pytest.fixture(scope="module")
def different(machines: Farm) -> str:
    """The key of two devices whose hardware differs."""
    for threads in (1, 2):
        machines.serve("different", threads)
    return "different"


ITEMS = [CollectItem(Candidate(chain(("negative",)), FAMILY, Scale(n)), "key", "text", "net") for n in range(2, 17)]


def kill(server: subprocess.Popen[str]) -> None:
    """kill -9 a server, and see the session that it had open end with it."""
    sessions = psutil.Process(server.pid).children()
    assert sessions
    server.kill()
    server.wait()
    assert not psutil.wait_procs(sessions, timeout=5)[1]


class TestSeveralDevices:
    def test_one_dies_half_way_and_the_other_does_its_work(
        self, machines: Farm, builder: PoolBuilder, job: MeasureJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
                slow = replace(QUICK, budget=3.0, min_samples=10**6, max_samples=10**6)
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
        self, machines: Farm, builder: PoolBuilder, job: MeasureJob, different: str
    ) -> None:
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


@pytest.mark.usefixtures("one_pass")
def test_collect_measures_on_every_hardware(machines: Farm, tmp_path: Path, different: str) -> None:
    small_network(tmp_path / "small.onnx")
    arguments = ["collect", str(tmp_path / "small.onnx"), "--db", str(tmp_path / "r.db"), "--configs", "1",
                 "--explore", "0", "--json", "--rpc", f"127.0.0.1:{machines.port}", "--key", different]  # fmt: skip
    first = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    counts = json.loads(first.stdout)
    assert set(counts["hardware"]) == {fingerprint(1).digest, fingerprint(2).digest}
    assert counts["failed"] == 0 and all(c["measured"] >= 1 for c in counts["hardware"].values())
    with open_store(tmp_path / "r.db") as store:
        found = {digest: sum(1 for _ in store.records(digest)) for digest in counts["hardware"]}
    assert found == {digest: c["measured"] for digest, c in counts["hardware"].items()}
