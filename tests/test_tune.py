"""Tuning of thresholds by replay, and thresholds as files."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_stores import TileFamily
from random_graphs import GraphBuilder, chain

from autofuse.cli import main
from autofuse.cost import AnalyticalCostModel, Candidate, CostModel
from autofuse.errors import PlanError
from autofuse.graph.model import Graph, Group
from autofuse.records import SqliteStore
from autofuse.report.learning import study_page
from autofuse.schedule.family import Configuration
from autofuse.search.candidates import search_problem
from autofuse.search.dp import DPStrategy
from autofuse.search.problem import Thresholds
from autofuse.search.replay import CANDIDATE_SECONDS, ReplayedCosts, ReplayNetwork
from autofuse.search.threshold_table import effects
from autofuse.search.thresholds import load_thresholds, save_thresholds
from autofuse.search.tuning import SPACE, Outcome, TuningResult, evaluate, pareto, select, tune
from autofuse.target import Hardware

MACHINE = Hardware()


class FewTiles(TileFamily):
    """With fewer configurations, to be quick."""

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        return super().configs(group, hardware)[1::5]


FAMILY = FewTiles()


class Counting(AnalyticalCostModel):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(MACHINE)
        self.asked = 0

    def costs(self, candidates: Sequence[Candidate]):  # type: ignore[no-untyped-def]
        self.asked += len(candidates)
        return super().costs(candidates)


def branches() -> Graph:
    """Matmuls with element-by-element tails on several branches."""
    b = GraphBuilder("branches")
    x = b.input(64, 64)
    ends = []
    for _ in range(2):
        y = b.matmul(x, columns=64)
        y = b.unary(b.binary(y, b.constant(1, 64)), "exp")
        ends.append(b.unary(y))
    y = ends[0]
    for other in ends[1:]:
        y = b.binary(y, other)
    b.reduce(b.unary(y, "exp"))
    return b.build()


def network(graph: Graph, costs: CostModel | None = None) -> ReplayNetwork:
    base = costs or AnalyticalCostModel(MACHINE)
    return ReplayNetwork(graph.name, graph.name, graph, ReplayedCosts(base), MACHINE, (FAMILY,))


def networks() -> list[ReplayNetwork]:
    return [network(branches()), network(chain(5))]


class TestReplay:
    def test_finds_the_plan_of_an_ordinary_search(self) -> None:
        for graph in (branches(), chain(5)):
            for limits in (Thresholds(), Thresholds(max_group_size=2)):
                direct = search_problem(
                    graph, AnalyticalCostModel(MACHINE), hardware=MACHINE, families=(FAMILY,), thresholds=limits
                )
                expected = DPStrategy().search(direct)
                replayed = network(graph).search(limits, DPStrategy())
                assert replayed.cost == pytest.approx(expected.cost, rel=1e-12)
                assert [c.group for c in replayed.result.choices] == [c.group for c in expected.choices]
                assert replayed.result.choices[0].source == "analytical"

    def test_costs_a_candidate_once(self) -> None:
        base = Counting()
        replayed = network(branches(), base)
        first = replayed.search(Thresholds(), DPStrategy())
        asked = base.asked
        assert asked > 0
        again = replayed.search(Thresholds(), DPStrategy())
        assert base.asked == asked
        # The effort is that of a search on its own, whatever was replayed.
        assert again.seconds == first.seconds and again.cost == first.cost
        fewer = replayed.search(Thresholds(max_group_size=2), DPStrategy())
        assert base.asked == asked and fewer.seconds < first.seconds


class Doubtful(AnalyticalCostModel):
    """Sure of the cost of single operators, not of any other: takes those for cheaper than they are."""

    def __init__(self, optimism: float, error: float = 0.5) -> None:
        super().__init__(MACHINE)
        self.optimism = optimism
        self.error = error

    def doubted(self, candidates: Sequence[Candidate]) -> np.ndarray:
        return np.array([len(c.group.members) > 1 for c in candidates], bool)

    def costs(self, candidates: Sequence[Candidate]) -> np.ndarray:
        costs = super().costs(candidates)
        return np.where(self.doubted(candidates), costs * self.optimism, costs)

    def uncertainty(self, candidates: Sequence[Candidate]) -> np.ndarray:
        return np.where(self.doubted(candidates), self.error, 0.0)


class TestMargin:
    def test_what_is_not_known_is_taken_to_be_dearer(self) -> None:
        """Large groups look cheap and are not: with a margin the search keeps to what it is sure of."""
        graph = branches()
        told, judge = ReplayedCosts(Doubtful(0.5, error=1.5)), ReplayedCosts(Doubtful(20.0))
        replayed = ReplayNetwork("b", "b", graph, told, MACHINE, (FAMILY,), judge=judge)
        bold, wary = (replayed.search(Thresholds(uncertainty_margin=m), DPStrategy()) for m in (0.0, 3.0))
        assert max(len(c.group.members) for c in bold.result.choices) > 1
        assert max(len(c.group.members) for c in wary.result.choices) == 1
        assert wary.cost < bold.cost and bold.cost > bold.result.cost
        assert bold.seconds > 0 and told.asked > judge.asked == 0

    def test_costs_of_plans_do_not_have_the_margin(self) -> None:
        replayed = network(branches(), Doubtful(1.0, error=0.01))
        usual, wary = (replayed.search(Thresholds(uncertainty_margin=m), DPStrategy()) for m in (0.0, 1.0))
        assert [c.group for c in usual.result.choices] == [c.group for c in wary.result.choices]
        assert wary.cost == pytest.approx(usual.cost, rel=1e-12) and wary.result.cost > usual.result.cost

    def test_asking_how_sure_costs_are_takes_as_long_again(self) -> None:
        """Were it free, a study would turn the margin on for next to nothing."""
        replayed = network(branches(), Doubtful(1.0, error=0.0))
        usual = replayed.search(Thresholds(), DPStrategy())
        asked = replayed.costs.asked
        wary = replayed.search(Thresholds(uncertainty_margin=1.0), DPStrategy())
        assert asked > 0 and wary.result == usual.result
        assert wary.seconds == pytest.approx(usual.seconds + CANDIDATE_SECONDS * asked)


class TestEffects:
    def test_each_threshold_is_looked_at_by_itself(self) -> None:
        found = {e.name: e for e in effects(networks(), Thresholds(max_group_size=2), "dp")}
        assert set(found) == set(SPACE)
        size = found["max_group_size"]
        assert [value for value, _ in size.values.values()] == [128, Thresholds().max_group_size, 2, 2] and size.matters
        shown = size.as_dict()
        assert shown["default"]["plan_cost"] == 1.0 <= shown["tuned"]["plan_cost"]
        assert shown["tuned"]["search_seconds"] < shown["default"]["search_seconds"]
        assert found["uncertainty_margin"].off[0] == 0 < found["uncertainty_margin"].tight[0]
        # The analytical model is not asked how sure it is, and nothing here is to be computed again.
        assert not found["uncertainty_margin"].matters and not found["recompute_members"].matters


@pytest.fixture(scope="module")
def result() -> TuningResult:
    return tune(networks(), trials=12)


class TestStudy:
    def test_chosen_is_no_slower_and_within_a_percent_of_the_best(self, result: TuningResult) -> None:
        assert result.trials == 12 == result.new_trials and result.failed == 0 and not result.interrupted
        assert result.chosen.seconds <= result.default.seconds
        assert result.chosen.ratio(result.best) <= 1.01 * result.pareto[-1].ratio(result.best)
        # The claim holds when the networks are searched afresh.
        again = evaluate(networks(), result.chosen.thresholds, "dp")
        assert again.costs == pytest.approx(dict(result.chosen.costs)) and again.seconds == result.chosen.seconds

    def test_the_front_goes_from_fast_to_good(self, result: TuningResult) -> None:
        assert len(result.pareto) >= 2
        assert [o.seconds for o in result.pareto] == sorted(o.seconds for o in result.pareto)
        ratios = [o.ratio(result.best) for o in result.pareto]
        assert ratios == sorted(ratios, reverse=True) and len(set(ratios)) == len(ratios)
        assert min(ratios) >= 1.0 - 1e-12

    def test_is_deterministic(self, result: TuningResult) -> None:
        assert tune(networks(), trials=12) == result
        assert tune(networks(), trials=12, seed=3).pareto != result.pareto

    def test_thresholds_that_change_nothing_keep_their_defaults(self, result: TuningResult) -> None:
        usual = Thresholds()
        assert result.chosen.thresholds.hybrid_share == usual.hybrid_share
        for name in SPACE:
            value = getattr(usual, name)
            if getattr(result.chosen.thresholds, name) != value:
                other = evaluate(networks(), replace(result.chosen.thresholds, **{name: value}), "dp")
                assert other.seconds > result.chosen.seconds or other.ratio(result.chosen.costs) > 1

    def test_hybrid_tunes_its_share(self) -> None:
        result = tune(networks(), trials=8, strategy="hybrid")
        assert len({o.thresholds.hybrid_share for o in [result.default, result.chosen, *result.pareto]}) > 1

    def test_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        path = tmp_path / "study.log"
        first = tune(networks(), trials=4, study=path)
        assert (first.trials, first.new_trials) == (4, 4)
        second = tune(networks(), trials=7, study=path)
        assert (second.trials, second.new_trials) == (7, 3)
        content = path.read_bytes()
        third = tune(networks(), trials=7, study=path)
        assert (third.trials, third.new_trials) == (7, 0)
        assert third.chosen == second.chosen and third.pareto == second.pareto
        assert len(third.pareto) >= 1 and path.read_bytes().startswith(content)

    def test_an_interrupt_keeps_what_was_found(self, tmp_path: Path) -> None:
        def progress(finished: int, total: int) -> None:
            if finished == 4:
                raise KeyboardInterrupt

        path = tmp_path / "study.log"
        result = tune(networks(), trials=6, study=path, progress=progress)
        assert result.interrupted and result.trials == 4 and result.chosen.costs.keys() == {"branches", "chain"}
        assert tune(networks(), trials=6, study=path).trials == 6

    def test_a_study_of_something_else_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "study.log"
        tune(networks(), trials=3, study=path)
        dearer = replace(MACHINE, fma_per_second=1e9)
        for arguments, word in (
            ({"networks": networks()[:1]}, "networks"),
            ({"networks": networks(), "strategy": "hybrid"}, "strategy"),
            ({"networks": [network(n.graph, AnalyticalCostModel(dearer)) for n in networks()]}, "costs"),
        ):
            with pytest.raises(PlanError, match=f"another {word}.*--study") as caught:
                tune(trials=3, study=path, **arguments)  # type: ignore[arg-type]
            assert "\n" not in str(caught.value)

    def test_a_file_that_is_no_study_is_refused_and_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("my notes\n")
        with pytest.raises(PlanError, match="no study"):
            tune(networks(), trials=3, study=path)
        assert path.read_text() == "my notes\n"
        with pytest.raises(PlanError, match="cannot open"):
            tune(networks(), trials=3, study=tmp_path / "nowhere" / "study.log")

    def test_nothing_to_tune_on_is_refused(self) -> None:
        with pytest.raises(PlanError, match="no network"):
            tune([], trials=3)


def outcome(cost: float, seconds: float) -> Outcome:
    return Outcome(Thresholds(), {"a": cost}, {"a": seconds})


outcomes_of = st.lists(st.builds(outcome, st.floats(1, 2), st.floats(1, 9)), min_size=1, max_size=12)


class TestSelection:
    def test_by_hand(self) -> None:
        best, near, cheap = outcome(1.0, 9.0), outcome(1.009, 5.0), outcome(1.02, 1.0)
        assert select([cheap, best, near]) is near
        assert select([cheap, best, near], tolerance=0.0) is best
        assert pareto([best, cheap, near, outcome(1.01, 6.0)], {"a": 1.0}) == [cheap, near, best]

    @given(outcomes_of)
    def test_no_outcome_within_tolerance_is_faster(self, outcomes: list[Outcome]) -> None:
        least = min(o.costs["a"] for o in outcomes)
        chosen = select(outcomes)
        assert chosen.costs["a"] <= least * (1.01 + 1e-9)
        assert all(o.seconds >= chosen.seconds for o in outcomes if o.costs["a"] <= least * (1.01 - 1e-9))

    @given(outcomes_of)
    def test_the_front_holds_what_nothing_beats(self, outcomes: list[Outcome]) -> None:
        front = pareto(outcomes, {"a": 1.0})
        for o in outcomes:
            beaten = any(
                p.costs["a"] <= o.costs["a"]
                and p.seconds <= o.seconds
                and (p.costs["a"], p.seconds) != (o.costs["a"], o.seconds)
                for p in outcomes
            )
            assert beaten != any((p.costs["a"], p.seconds) == (o.costs["a"], o.seconds) for p in front)


class TestThresholdsFile:
    @settings(max_examples=25)
    @given(
        st.builds(
            Thresholds,
            max_group_size=st.integers(1, 10**6),
            abort_factor=st.floats(0.5, 1e9),
            hybrid_share=st.floats(0, 1),
            frontier_values=st.integers(0, 9),
        )
    )
    def test_round_trip(self, tmp_path_factory: pytest.TempPathFactory, thresholds: Thresholds) -> None:
        path = tmp_path_factory.mktemp("thresholds") / "t.json"
        save_thresholds(thresholds, path, {"trials": 3})
        assert load_thresholds(path) == thresholds
        assert [p.name for p in path.parent.iterdir()] == ["t.json"]

    def test_thresholds_not_named_have_their_defaults(self, tmp_path: Path) -> None:
        path = tmp_path / "t.json"
        path.write_text(
            json.dumps({"format": "autofuse-thresholds", "version": 1, "thresholds": {"max_group_size": 5}})
        )
        assert load_thresholds(path) == Thresholds(max_group_size=5)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("{", "not JSON"),
            ("[]", "no thresholds file"),
            ('{"format": "autofuse-thresholds", "version": 2}', "version 2, this program reads 1"),
            ('{"format": "autofuse-thresholds", "version": 1}', "has no thresholds"),
            ('{"format": "autofuse-thresholds", "version": 1, "thresholds": {"speed": 1}}', "no threshold 'speed'"),
            *(
                (
                    f'{{"format": "autofuse-thresholds", "version": 1, "thresholds": {{"max_group_size": {v}}}}}',
                    "whole number",
                )
                for v in ('"5"', "2.5", "-1", "true", "NaN", "1e999")
            ),
        ],
    )
    def test_refuses_in_one_line(self, tmp_path: Path, content: str, words: str) -> None:
        path = tmp_path / "t.json"
        path.write_text(content)
        with pytest.raises(PlanError) as caught:
            load_thresholds(path)
        text = str(caught.value)
        assert words in text and "autofuse tune" in text and str(path) in text and "\n" not in text

    def test_a_missing_file_and_folder(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="cannot read thresholds"):
            load_thresholds(tmp_path / "t.json")
        with pytest.raises(PlanError, match="cannot write"):
            save_thresholds(Thresholds(), tmp_path / "nowhere" / "t.json")


class TestCommand:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        import numpy as np
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        rng = np.random.default_rng(0)
        weights = [
            numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32), f"w{i}") for i in range(2)
        ]
        nodes = [
            helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Add", ["c", "b"], ["y"]),
        ]
        value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 16, 16]) for n in "xy"]
        graph = helper.make_graph(nodes, "small", value[:1], value[1:], weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "small.onnx")
        return tmp_path / "small.onnx"

    def test_tunes_a_model_and_writes_what_compile_takes(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out, study = tmp_path / "t.json", tmp_path / "study.log"
        arguments = ["tune", str(model), "--trials", "4", "--study", str(study), "-o", str(out)]
        assert run(*arguments, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert report["trials"] == 4 == report["new_trials"] and report["models"] == [str(model)]
        assert asdict(load_thresholds(out)) == report["chosen"]["thresholds"]
        assert report["chosen"]["search_seconds"] <= report["default"]["search_seconds"]
        assert all(math.isfinite(o["plan_cost"]) for o in report["pareto"])
        assert run(*arguments, "--each", "--check", str(model), "--json") == 0
        report = json.loads(capsys.readouterr().out)
        page = study_page(report)
        front = page.split("The Pareto front")[1].split("\n\n")[1].splitlines()
        assert len(front) == 2 + len(report["pareto"]) > 2
        for line, o in zip(front[2:], report["pareto"], strict=True):
            assert line.startswith(f"| {o['plan_cost']:.4f} | {o['search_seconds']:.2f} | ")
            changed = {k: v for k, v in o["thresholds"].items() if v != report["default"]["thresholds"][k]}
            assert line.endswith(f"| {', '.join(f'{k} {v:g}' for k, v in changed.items()) or 'none'} |")
        assert report["predictor"] is report["db"] is None and "judged by" not in page
        judged = study_page({**report, "predictor": "models/cpu", "db": "data/records.db"})
        assert "judged by the predictor, and by data/records.db where it has records" in judged
        assert all(f"| {name} |" in page for name in SPACE) and "did not see" in page and "changes nothing" in page
        assert run(*arguments, "--each", "--check", str(model)) == 0
        text = capsys.readouterr().out
        assert "4 trials (0 new)" in text and "max_group_size" in text and "(changes nothing)" in text
        assert "models not tuned on, chosen: plan cost" in text

    def test_tunes_for_the_shape_that_is_compiled(
        self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Another shape is another graph: the costs differ, and a study of one does not go on with the other."""
        out, study = tmp_path / "t.json", tmp_path / "study.log"
        costs = {}
        for flags in ((), ("--input-shape", "x=1,8,48,48"), ("--batch", "9")):
            run("tune", str(model), "--trials", "1", "-o", str(out), "--json", *flags)
            costs[flags] = json.loads(capsys.readouterr().out)["default"]["networks"][str(model)]["plan_ms"]
            origin = json.loads(out.read_text())["origin"]
            assert origin["batch"] == (9 if "--batch" in flags else None)
            assert origin["input_shapes"] == ({"x": [1, 8, 48, 48]} if "--input-shape" in flags else {})
        assert costs[()] < min(costs[flags] for flags in costs if flags)
        assert run("tune", str(model), "--trials", "1", "-o", str(out), "--study", str(study)) == 0
        again = ("tune", str(model), "--trials", "1", "-o", str(out), "--study", str(study))
        capsys.readouterr()
        assert run(*again, "--batch", "2") == 2
        assert "another" in capsys.readouterr().err

    def test_bad_input_is_one_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments, words in (
            ([], "name at least one MODEL"),
            (["--db", str(tmp_path / "none.db")], "no record store"),
            (["x.onnx", "-o", str(tmp_path / "nowhere" / "t.json")], "does not exist"),
            ([str(tmp_path / "x.onnx"), "-o", str(tmp_path / "t.json")], "x.onnx"),
            (["x.onnx", "--input-shape", "1,3", "-o", str(tmp_path / "t.json")], "--input-shape '1,3'"),
            (["x.onnx", "--batch", "0"], "--batch"),
        ):
            assert run("tune", *arguments) == 2
            captured = capsys.readouterr()
            assert words in captured.err and captured.err.count("\n") == 1 and captured.out == ""
        assert list(tmp_path.iterdir()) == []

    def test_nothing_is_tuned_on_what_is_kept_for_evaluation(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with SqliteStore(tmp_path / "kept.db") as store:
            store.keep_for_evaluation()
        assert run("tune", "x.onnx", "--db", str(tmp_path / "kept.db"), "-o", str(tmp_path / "t.json")) == 2
        assert "kept for evaluation alone" in capsys.readouterr().err and not (tmp_path / "t.json").exists()


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)
