"""What is in doubt before a plan is settled, measuring it in a compile, and the predictor that is taken by default."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from learn_stores import MACHINE, RECORDED, family_of, small_predictor, synthetic_store
from random_graphs import chain
from replayed_kernels import Instant
from small_network import here, refused

from autofuse.graph.model import Group
from autofuse.learn import TrainSettings, build_dataset, save_predictor, train_predictor
from autofuse.learn.ask import doubts
from autofuse.learn.boosting import TreeSettings
from autofuse.learn.default import default_predictor
from autofuse.measure import ReplayBuilder
from autofuse.records import SqliteStore
from autofuse.search.dp import DPStrategy
from autofuse.search.problem import Choice, SearchProblem
from autofuse.target.hardware_file import load_hardware
from autofuse.target.registry import resolve


def problem(pair: float, source: str = "predicted") -> SearchProblem:
    """A chain of four operators, of which the first two may be one kernel that takes `pair`; alone each takes 1."""
    graph = chain(4)
    choices = [Choice(Group.of(graph, [i]), 1.0, "f", "") for i in range(4)]
    return SearchProblem(graph, (*choices, Choice(Group.of(graph, [0, 1]), pair, "f", "", source)))


class TestDoubts:
    def test_what_may_change_the_plan_is_in_doubt(self) -> None:
        close = problem(1.95)
        found = doubts(close, [0.0] * 4 + [0.3], DPStrategy(tie=0.0), draws=16)
        assert [d.choice.group.members for d in found] == [(0, 1)]
        assert 0 < found[0].share < 1 and 0 < found[0].worth <= 0.3 * 1.95

    def test_what_cannot_change_it_is_not(self) -> None:
        """A pair that is far too dear, one that is a record, and costs that are certain."""
        assert doubts(problem(20.0), [0.1] * 5, DPStrategy(tie=0.0)) == []
        assert doubts(problem(1.95, "record"), [0.0] * 4 + [0.3], DPStrategy(tie=0.0)) == []
        assert doubts(problem(1.95), [0.0] * 5, DPStrategy(tie=0.0)) == []

    def test_groups_that_are_alike_are_drawn_alike_and_the_same_each_time(self) -> None:
        one, other = (doubts(problem(1.9), [0.2] * 5, DPStrategy(tie=0.0)) for _ in range(2))
        assert one == other
        # Single operators are alike here: none of them is in some plans and not in others by itself.
        assert len({d.choice.group.label for d in one}) == len(one)


class Fast(Instant):
    times: ClassVar[tuple[float, ...]] = (1e-8, 2e-8)


class TestMeasure:
    def test_a_compile_measures_what_is_in_doubt_and_keeps_it(
        self, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("autofuse.measure.LocalRunner", Fast, raising=False)
        monkeypatch.setattr("autofuse.measure.PoolBuilder", lambda workers: ReplayBuilder(), raising=False)
        db = tmp_path / "r.db"
        reports: list[dict[str, Any]] = []
        for _ in range(2):
            arguments = (
                "compile",
                network,
                "--strategy",
                "dp",
                "--threads",
                2,
                "--db",
                db,
                "--measure",
                "20s",
                "--json",
            )
            assert here(*arguments) == 0
            reports.append(json.loads(capsys.readouterr().out))
        with SqliteStore(db) as store:
            kept = sum(r.ok for r in store.records())
        assert kept > 0 and reports[0]["records"]["groups"] > 0
        assert 0 < reports[0]["seconds"]["measure"] < 20 and reports[0]["seconds"]["search"] > 0
        # What is known is not asked for again.
        assert reports[1]["records"]["groups"] >= reports[0]["records"]["groups"]

    def test_there_must_be_a_place_for_records(
        self, network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert "--db FILE" in refused(capfd, tmp_path, "compile", network, "--measure", "5s")
        assert "is no time" in refused(capfd, tmp_path, "compile", network, "--measure", "soon")
        with SqliteStore(tmp_path / "kept.db") as store:
            store.keep_for_evaluation()
        said = refused(capfd, tmp_path, "compile", network, "--measure", "5s", "--db", tmp_path / "kept.db")
        assert "kept for evaluation" in said


class TestDefault:
    def test_the_predictor_of_this_hardware_is_taken_unless_told_otherwise(
        self, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "home"))
        hardware = load_hardware(resolve("llvm", 2))
        data = build_dataset(synthetic_store(limit=12), descriptions={RECORDED.digest: hardware}, family_of=family_of)
        trained = train_predictor(data, TrainSettings(members=2, trees=TreeSettings(rounds=5)))

        def cost_model(*arguments: str) -> str:
            assert here("compile", network, "--threads", 2, "--strategy", "none", "--json", *arguments) == 0
            return str(json.loads(capsys.readouterr().out)["cost_model"])

        assert cost_model() == "analytical"
        assert here("compile", network, "--threads", 2, "--cost-model", "learned") == 2
        assert "--predictor" in capsys.readouterr().err
        monkeypatch.setenv("AUTOFUSE_MODELS", str(tmp_path / "models"))
        place = save_predictor(trained, tmp_path / "models" / "cpu")
        assert default_predictor(hardware) == place
        assert cost_model() == cost_model("--cost-model", "learned") == "learned"
        assert cost_model("--cost-model", "analytical") == "analytical"
        # One for other hardware is not taken, nor one that cannot be read: that is said, and nothing fails.
        assert default_predictor(replace(hardware, cores=16)) is None
        (place / "card.json").write_text("{")
        assert cost_model() == "analytical"

    def test_it_is_looked_for_in_this_machines_folder_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AUTOFUSE_MODELS")
        monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "home"))
        place = save_predictor(small_predictor(), tmp_path / "home" / "models" / "cpu")
        assert default_predictor(MACHINE) == tmp_path / "home" / "models" / "cpu" == place
