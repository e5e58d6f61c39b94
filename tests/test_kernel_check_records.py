"""What fails its check is never offered again: not in the plan, not where there are records of it, not from a plan."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codegen_cases import alone, analysed_model, of_kind, taken, two_branches
from test_kernel_check import image, nothing

import autofuse
from autofuse.codegen.kernels import KernelBuilder
from autofuse.errors import RecordError
from autofuse.measure.kernel_check import KernelCheck
from autofuse.measure.process import Outcome
from autofuse.records import open_store
from autofuse.schedule.cpu.conv2d import Conv2dFamily


def test_what_failed_its_check_is_never_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the compiler would take first is wrong: a check says so once, then everybody knows."""
    first = autofuse.compile(two_branches(), threads=2, cost_model="analytical")
    right, before = first(image())[0], first.plan
    bad = {(len(g.members), g.config) for g in before.groups if g.family == "conv2d"}
    assert bad
    scheduled = Conv2dFamily.apply

    def apply(self: Any, func: Any, group: Any, config: Any, hardware: Any) -> Any:
        made = scheduled(self, func, group, config, hardware)
        return nothing(made) if (len(group.members), config.text) in bad else made

    monkeypatch.setattr(Conv2dFamily, "apply", apply)
    db = tmp_path / "records.db"
    open_store(db).close()
    given: dict[str, Any] = {"threads": 2, "cost_model": "analytical"}
    made = autofuse.compile(two_branches(), check=True, db=db, **given)
    with open_store(db, readonly=True) as store:
        failed = list(store.records())
    assert len(failed) == made.description["checked"]["wrong"] > 0
    assert {r.config for r in failed} == {config for _, config in bad}
    assert all(r.status == "wrong" and r.tir_digest and "are wrong" in r.message for r in failed)
    for options in ({"db": db}, {"plan": made.plan}, {"db": db, "plan": before}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "autofuse"):
            again = autofuse.compile(two_branches(), **given, **options)
        used = {(len(g.members), g.config) for g in again.plan.groups if g.family == "conv2d"}
        assert not used & bad
        np.testing.assert_allclose(again(image())[0], right, atol=1e-5)
        assert ("known to fail" in caplog.text) == (options.get("plan") is before)


@pytest.fixture(scope="module")
def checks() -> KernelCheck:
    """As it is after a kernel crashed, one was wrong, and two were in order."""
    analysed = analysed_model(two_branches())
    builder = KernelBuilder(analysed.fuser, analysed.hardware, alone(analysed))
    convolution, relu = (taken(analysed, [of_kind(analysed, kind)[0]]) for kind in ("nn.conv2d", "nn.relu"))
    made = KernelCheck(analysed)
    made._failures = [
        (builder.schedule(convolution), Outcome("crashed", message="the process died of SIGILL")),
        (builder.schedule(relu), Outcome("wrong", message="output 0: 3 of 9 values are wrong")),
    ]
    return made


def test_failures_are_kept_like_those_of_collection(checks: KernelCheck, tmp_path: Path) -> None:
    with open_store(tmp_path / "records.db") as store:
        assert checks.keep(tmp_path / "records.db") == 2
        records = {r.family: r for r in store.records()}
        assert {name: r.status for name, r in records.items()} == {"conv2d": "crashed", "elementwise": "wrong"}
        for record in records.values():
            assert store.find(record.identity) == record
            assert record.tvm_version and record.tir_digest and record.message
        assert records["conv2d"].layouts and store.stats().workloads == 2
    assert checks.keep("none") == 0


def test_a_store_that_is_not_to_be_written_is_not(
    checks: KernelCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is kept for evaluation stays as it is without a word; one that cannot be written costs a warning."""
    with open_store(tmp_path / "records.db") as store:
        store.keep_for_evaluation()
        assert checks.keep(tmp_path / "records.db") == 0
        assert not list(store.records())
    assert not caplog.text

    def refuse(*_: Any, **__: Any) -> Any:
        raise RecordError("it is read only")

    monkeypatch.setattr("autofuse.records.open_store", refuse)
    with caplog.at_level(logging.WARNING, "autofuse"):
        assert checks.keep(tmp_path / "records.db") == 0
    assert "what failed its check is not recorded: it is read only" in caplog.text
