"""What every runner promises; the local runner with real kernels: right, wrong, crashing, hanging; the builder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from real_kernels import QUICK, SIZE, WEIGHTS, ask, module, request

from autofuse.measure import (
    ArgumentSpec,
    BuildRequest,
    LocalRunner,
    MeasureError,
    MeasureJob,
    MeasureResult,
    PoolBuilder,
    ReplayBuilder,
    ReplayRunner,
    Runner,
    module_request,
)
from autofuse.measure.process import ChildProcess


@pytest.fixture(scope="module", params=["local", "replay"])
def runner(request: pytest.FixtureRequest, job: MeasureJob, weighted: MeasureJob) -> Iterator[Runner]:
    times, beside = (1e-5, 2e-5, 3e-5, 4e-5), {"product": (1e-4,) * 4, "memory": (1e-3,) * 4}
    known = MeasureResult(job.key, job.candidate, "ok", "", times, beside)
    cold = replace(known, candidate=weighted.candidate, cold_samples=times, cold_reference_samples=beside)
    replayed = ReplayRunner({(r.key, r.candidate): r for r in (known, cold)})
    made: Runner = LocalRunner(2) if request.param == "local" else replayed
    with made:
        yield made


class TestEveryRunner:
    def test_gives_one_result_a_job_in_order(self, runner: Runner, job: MeasureJob) -> None:
        unknown = replace(job, candidate="another", library="/nowhere.so")
        results = list(runner.measure([job, unknown, job]))
        assert [(r.key, r.candidate) for r in results] == [(j.key, j.candidate) for j in (job, unknown, job)]
        assert [r.status for r in results] == ["ok", "crashed", "ok"]
        assert results[1].message and "\n" not in results[1].message and results[1].latency is None

    def test_samples_stand_beside_those_of_both_references(self, runner: Runner, job: MeasureJob) -> None:
        (result,) = runner.measure([job])
        assert result.status == "ok" and result.latency is not None and 0 < result.latency < 1.0
        assert len(result.samples) >= 3
        assert {n: len(t) for n, t in result.reference_samples.items()} == {
            "product": len(result.samples),
            "memory": len(result.samples),
        }
        assert result.cold_samples == () and result.cold_reference_samples == {}

    def test_kernels_with_weights_are_timed_with_cold_ones_too(self, runner: Runner, weighted: MeasureJob) -> None:
        (result,) = runner.measure([weighted])
        assert result.status == "ok", result.message
        count = len(result.cold_samples)
        assert count >= 3 and all(0 < seconds < 1 for seconds in result.cold_samples)
        assert {n: len(t) for n, t in result.cold_reference_samples.items()} == {"product": count, "memory": count}
        assert len(result.reference_samples["memory"]) == len(result.samples) >= 3

    def test_takes_no_job_before_the_last_result_was_taken(self, runner: Runner, job: MeasureJob) -> None:
        given: list[int] = []

        def jobs() -> Iterator[MeasureJob]:
            for i in range(2):
                given.append(i)
                yield job

        results = runner.measure(jobs())
        next(results)
        assert given == [0]
        assert len(list(results)) == 1

    def test_may_be_used_again_after_closing(self, runner: Runner, job: MeasureJob) -> None:
        runner.close()
        assert [r.status for r in runner.measure([job])] == ["ok"]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalRunner]:
    with LocalRunner(2) as made:
        yield made


class TestLocalRunner:
    def test_many_weights_are_timed_cold_too_beside_the_same_references(
        self, local: LocalRunner, weighted: MeasureJob
    ) -> None:
        limits = replace(QUICK, min_samples=12, max_samples=12, budget=2.0, min_sample=3e-4)
        (r,) = local.measure([replace(weighted, limits=limits)])
        assert r.status == "ok", r.message
        assert 0 < len(r.cold_samples) <= limits.most_cold + limits.retakes and min(r.cold_samples) > 0
        assert set(r.cold_reference_samples) == set(r.reference_samples)
        assert {len(times) for times in r.cold_reference_samples.values()} == {len(r.cold_samples)}

    def test_without_a_last_cache_or_with_few_weights_there_are_no_cold_samples(
        self, local: LocalRunner, job: MeasureJob, weighted: MeasureJob
    ) -> None:
        few = replace(
            job, arguments=tuple(replace(a, constant=not a.output) for a in job.arguments), last_cache=1 << 20
        )
        for asked in (replace(weighted, last_cache=0), replace(weighted, last_cache=4 * WEIGHTS // 2), few):
            (result,) = local.measure([asked])
            assert result.status == "ok" and result.samples and not result.cold_samples

    def test_wrong_numbers_are_found(self, local: LocalRunner, job: MeasureJob, folder: Path) -> None:
        (result,) = local.measure([replace(job, expected=str(folder / "wrong.npz"))])
        assert result.status == "wrong" and "1 of 4096 values" in result.message and "(7,)" in result.message

    @pytest.mark.parametrize(
        ("function", "status", "says"),
        [("crash", "crashed", "SIGSEGV"), ("hang", "timeout", "1 s"), ("missing", "crashed", "missing")],
    )
    def test_a_bad_kernel_is_a_result_and_the_next_is_measured(
        self, local: LocalRunner, job: MeasureJob, bad: str, function: str, status: str, says: str
    ) -> None:
        limits = replace(QUICK, timeout=1.0)
        broken = replace(job, library=bad, function=function, limits=limits)
        results = list(local.measure([broken, job]))
        assert [r.status for r in results] == [status, "ok"]
        assert says in results[0].message

    def test_arguments_that_do_not_fit_are_an_error_of_the_job(self, local: LocalRunner, job: MeasureJob) -> None:
        (result,) = local.measure([replace(job, arguments=(ArgumentSpec((3,)), ArgumentSpec((3,), output=True)))])
        assert result.status == "crashed" and "shape" in result.message

    def test_one_process_serves_many_jobs(self, local: LocalRunner, job: MeasureJob) -> None:
        list(local.measure([job]))
        first = local.pid
        list(local.measure([job, job]))
        assert local.pid == first is not None

    def test_a_kill_from_outside_is_taken_for_lack_of_memory(
        self, local: LocalRunner, job: MeasureJob, bad: str
    ) -> None:
        import signal
        import threading

        list(local.measure([job]))
        assert local.pid is not None
        threading.Timer(0.3, os.kill, (local.pid, signal.SIGKILL)).start()
        (result,) = local.measure([replace(job, library=bad, function="hang")])
        assert result.status == "oom" and "memory" in result.message


PARENT = """
import sys, time
from autofuse.measure.process import ChildProcess
child = ChildProcess("helpers_for_measure:sleeper")
child.start()
print(child.pid, flush=True)
child.request({"seconds": 60}, 100)
"""


@pytest.fixture
def helpers(tmp_path: Path) -> dict[str, str]:
    """A module of handlers that only the test's children can import."""
    (tmp_path / "helpers_for_measure.py").write_text(
        "import os, time\n"
        "def sleeper():\n    return lambda request: time.sleep(request['seconds']) or {}\n"
        "def talker():\n    print('chatter', flush=True)\n"
        "    return lambda request: print('noise', flush=True) or dict(request, here=os.getpid())\n"
        "def greedy():\n    return lambda request: {'size': len(bytearray(1 << 62))}\n"
        "def leaver():\n    return lambda request: os._exit(3)\n"
        "def breaker():\n    raise RuntimeError('cannot begin')\n"
    )
    path = os.pathsep.join(p for p in (str(tmp_path), os.environ.get("PYTHONPATH", "")) if p)
    return {"PYTHONPATH": path}


class TestChildProcess:
    def test_output_does_not_disturb_the_answers(self, helpers: dict[str, str]) -> None:
        child = ChildProcess("helpers_for_measure:talker", environment=helpers)
        first, second = child.request({"a": 1}, 10), child.request({"a": 2}, 10)
        assert (first.status, first.value["a"], second.value["a"]) == ("ok", 1, 2)
        assert first.value["here"] == second.value["here"] == child.pid != os.getpid()
        child.close()
        child.close()
        assert child.request({"a": 3}, 10).value["a"] == 3
        child.close()

    def test_a_lack_of_memory_has_its_own_status(self, helpers: dict[str, str]) -> None:
        child = ChildProcess("helpers_for_measure:greedy", environment=helpers)
        assert child.request({}, 10).status == "oom"
        child.close()

    def test_one_that_leaves_has_crashed_and_is_started_again(self, helpers: dict[str, str]) -> None:
        child = ChildProcess("helpers_for_measure:leaver", environment=helpers)
        for _ in range(2):
            outcome = child.request({}, 10)
            assert outcome.status == "crashed" and "exit code 3" in outcome.message
        child.close()

    def test_one_that_does_not_start_says_why(self, helpers: dict[str, str]) -> None:
        with pytest.raises(MeasureError, match="breaker does not start: RuntimeError: cannot begin"):
            ChildProcess("helpers_for_measure:breaker", environment=helpers).start()

    def test_dies_with_its_parent_even_while_busy(self, helpers: dict[str, str]) -> None:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env={**os.environ, **helpers}
        )
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        for _ in range(100):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                return
            if state == "Z":
                return
            time.sleep(0.05)
        pytest.fail("the child outlived its parent by five seconds")


class TestBuilder:
    def test_describes_the_kernels_parameters(self, folder: Path) -> None:
        import tvm

        made = module_request(module(), "w", "c", "x.so", {"kind": "llvm"}, 1, {"a": 1}, {0: (0.0, 5.0)})
        assert made.arguments == (ArgumentSpec((SIZE,), low=0.0, high=5.0), ArgumentSpec((SIZE,), output=True))
        assert made.function == "kernel" and made.options == {"a": 1}
        assert made.tir_digest == request(folder).tir_digest
        named = module_request(module(name="another"), "w", "c", "x.so", {"kind": "llvm"}, 1)
        assert named.tir_digest == made.tir_digest
        other = module_request(module(3.0), "w", "c", "x.so", {"kind": "llvm"}, 1)
        assert other.tir_digest != made.tir_digest
        two = tvm.IRModule({**module(name="a").functions, **module(name="b").functions})
        with pytest.raises(ValueError, match="one PrimFunc"):
            module_request(two, "w", "c", "x.so", {}, 1)

    def test_what_does_not_build_is_a_result(self, folder: Path, builder: PoolBuilder) -> None:
        results = list(
            builder.build(
                [
                    request(folder, library=str(folder / "a.so"), payload="{}"),
                    request(folder, library=str(folder / "b.so")),
                    request(folder, library=str(folder / "c.so"), target={"kind": "no such target"}),
                ]
            )
        )
        assert [r.status for r in results] == ["build_failed", "ok", "build_failed"]
        assert all(r.message and "\n" not in r.message for r in results if r.status != "ok")
        assert not (folder / "a.so").exists() and (folder / "b.so").exists()
        assert not list(folder.glob("partial-*"))

    def test_a_hang_costs_only_its_own_request(self, helpers: dict[str, str], folder: Path) -> None:
        """Queueing does not count: four requests of 0.3 s each on one worker all keep within 1 s."""
        slow = "helpers_for_measure:sleeper_by_name"
        (Path(helpers["PYTHONPATH"].split(os.pathsep)[0]) / "helpers_for_measure.py").write_text(
            "import time\ndef sleeper_by_name():\n    return lambda r: time.sleep(float(r['payload'])) or {}\n"
        )
        with PoolBuilder(1, timeout=1.0, compiler=slow, setup=(), environment=helpers) as pool:
            asked = [
                BuildRequest("w", str(i), "x.so", payload=p) for i, p in enumerate(("0.3", "30", "0.3", "0.3", "0.3"))
            ]
            results = list(pool.build(asked))
        assert [r.status for r in results] == ["ok", "timeout", "ok", "ok", "ok"]
        assert [r.candidate for r in results] == ["0", "1", "2", "3", "4"]

    def test_replay_builds_nothing(self, folder: Path) -> None:
        asked = request(folder, library=str(folder / "none.so"))
        (result,) = ReplayBuilder().build([asked])
        assert result.status == "ok" and not (folder / "none.so").exists()


def test_a_collection_with_real_kernels(builder: PoolBuilder, local: LocalRunner) -> None:
    """Built, checked and timed for real: a right kernel, a wrong one, one that cannot be scheduled."""
    from plain_groups import FAMILY, Scale, chain

    from autofuse.cost.model import Candidate
    from autofuse.measure import CollectItem, CollectSettings, collect
    from autofuse.records import MemoryStore, RecordedHardware

    group = chain(("negative",))
    items = [CollectItem(Candidate(group, FAMILY, Scale(scale)), "key", "text", "net") for scale in (2, 3, 0)]
    store = MemoryStore()
    stats = collect(
        items, store, local, builder, RecordedHardware("hw", "here"), ask,
        lambda candidate, inputs: [inputs[0] * 2], CollectSettings(limits=QUICK),
    )  # fmt: skip
    assert (stats.measured, stats.failed, stats.left) == (1, 2, 0)
    records = {r.config: r for r in store.records()}
    assert {c: r.status for c, r in records.items()} == {"scale=2": "ok", "scale=3": "wrong", "scale=0": "build_failed"}
    assert records["scale=2"].ratio and records["scale=2"].tir_digest and records["scale=2"].tvm_version
    assert "cannot be scheduled" in records["scale=0"].message
    again = collect(items, store, local, builder, RecordedHardware("hw", "here"), ask)
    assert (again.done, again.cached) == (0, 3)
