"""Evaluation of predictors: splits that share nothing, noise, regret of plans on measured kernels, the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from learn_networks import fill_from, seconds, truth
from learn_stores import FAMILY, MACHINE, RECORDED, beside_references, family_of, fill, synthetic_store
from small_network import here, small_network

import autofuse
from autofuse.cost import AnalyticalCostModel, Candidate, CostModel
from autofuse.cost.plan_term import refills
from autofuse.graph.keys import workload_key
from autofuse.learn import (
    Dataset,
    LearnedCostModel,
    TrainSettings,
    build_dataset,
    end_to_end,
    save_predictor,
    train_predictor,
)
from autofuse.learn.boosting import TreeSettings
from autofuse.learn.evaluate import evaluate
from autofuse.learn.evaluation import evaluate_splits, evaluate_unseen, kinds, noise_floor, settings_of
from autofuse.learn.plans import MeasuredKernels, NetworkPlans, OnlyMeasured, regrets, worth
from autofuse.learn.splits import kinds_of_networks, leave_hardware_out, leave_one_family_out
from autofuse.measure.process import Outcome
from autofuse.records import MemoryStore, SqliteStore
from autofuse.records.store import RecordStore
from autofuse.report.learning import evaluation_page, plans_table, verdict
from autofuse.search.problem import Thresholds
from autofuse.target.fingerprint import fingerprint
from autofuse.target.hardware_file import load_hardware
from autofuse.target.registry import resolve

QUICK = TrainSettings(members=2, trees=TreeSettings(rounds=8, eta=0.4))
KEYS = {"mape", "tau_within", "tau_across", "plan_regret", "end_to_end_error"}


def dataset_of(store: RecordStore) -> Dataset:
    return build_dataset(store, descriptions={RECORDED.digest: MACHINE}, family_of=family_of)


@pytest.fixture(scope="module")
def data() -> Dataset:
    return dataset_of(synthetic_store(limit=30, times=2))


class TestSplits:
    def test_a_family_of_networks_is_left_out_whole(self) -> None:
        keys = ["a", "b", "c", "c", "d"]
        models = [("cnn1",), ("cnn1", "bert"), ("cnn2",), ("cnn2",), ("bert",)]
        kinds = {"cnn1": "cnn", "cnn2": "cnn", "bert": "transformer"}
        splits = {s.name: s for s in leave_one_family_out(keys, models, kinds)}
        assert sorted(splits) == ["cnn", "transformer"]
        assert list(splits["cnn"].test) == [0, 2, 3] and list(splits["cnn"].train) == [1, 4]
        assert list(splits["transformer"].test) == [4] and list(splits["transformer"].left_out) == [1]
        assert not list(leave_one_family_out(keys, models, dict.fromkeys(kinds, "cnn")))

    def test_other_hardware_shares_no_workload_with_training(self) -> None:
        keys = [f"w{i % 9}" for i in range(36)]
        hardware = ["a"] * 18 + ["b"] * 18
        tested: dict[str, list[int]] = {}
        for split in leave_hardware_out(keys, hardware, 3):
            assert {hardware[i] for i in split.test} == {split.name}
            assert split.name not in {hardware[i] for i in split.train}
            assert not {keys[i] for i in split.train} & {keys[i] for i in split.test}
            tested.setdefault(split.name, []).extend(split.test)
        assert sorted(tested["a"]) == list(range(18)) and sorted(tested["b"]) == list(range(18, 36))
        assert not list(leave_hardware_out(keys, ["a"] * 36, 3))

    def test_networks_are_told_apart_by_what_multiplies(self, data: Dataset) -> None:
        found = kinds_of_networks([("x",), ("x", "y"), ("y",)], np.array([9.0, 1, 0]), np.array([0.0, 2, 1]))
        assert found == {"x": "cnn", "y": "transformer"}
        assert set(kinds(data).values()) == {"transformer"}  # its groups are products


class TestFigures:
    def test_every_split_beats_the_analytical_model_and_is_no_better_than_noise(self, data: Dataset) -> None:
        noise = noise_floor(data)
        assert noise is not None and 0.005 < noise.mape < 0.03 and (noise.tau_within or 0) > 0.9
        by_hardware, elsewhere = evaluate_splits(data, QUICK, MACHINE)
        assert elsewhere == {} and list(by_hardware) == [RECORDED.digest]
        splits = by_hardware[RECORDED.digest]
        assert set(splits) == {"workload", *(f"network/{name}" for name in ("net0", "net1", "net2", "net3"))}
        for tested in splits.values():
            learned, scaled = tested.models["learned"], tested.models["analytical_scaled"]
            assert noise.mape < learned.mape < scaled.mape < tested.models["analytical"].mape
            assert learned.rows == scaled.rows and 0.3 < tested.predicted <= 1
        assert splits["workload"].models["learned"].rows == len(data)
        assert splits["network/net1"].left_out > 0  # workloads that it shares with others

    def test_rows_of_workloads_that_were_trained_on_are_not_tested(self, data: Dataset) -> None:
        trained = train_predictor(data, QUICK)
        model = LearnedCostModel(trained.card, trained.files, MACHINE)
        unseen = dataset_of(fill(MemoryStore(), start=20, limit=45, networks="other", seed=3))
        tested, overlap = evaluate_unseen(model, data, unseen)
        assert tested is not None and 0 < overlap == sum(key < "w030" for key in unseen.workloads)
        assert tested.models["learned"].rows == len(unseen) - overlap
        assert tested.models["learned"].workloads == 15
        assert evaluate_unseen(model, data, data) == (None, len(data))

    def test_a_predictor_is_trained_again_as_it_was(self, data: Dataset) -> None:
        assert settings_of(train_predictor(data, QUICK).card) == QUICK

    def test_there_is_no_noise_without_repeated_measurements(self) -> None:
        assert noise_floor(dataset_of(synthetic_store(limit=4))) is None


class Exact(CostModel):
    """Knows what kernels take."""

    name = "exact"

    def __init__(self, network: NetworkPlans, sign: float = 1.0) -> None:
        self.network = network
        self.sign = sign

    def costs(self, candidates: list[Candidate]) -> np.ndarray:  # type: ignore[override]
        exact = seconds(candidates, self.network.hardware)
        return exact if self.sign > 0 else 1e-9 / exact


class TestRegret:
    def test_the_plan_of_exact_costs_has_no_regret_and_the_worst_has(self, planned: NetworkPlans) -> None:
        row = fingerprint(2)
        kernels = MeasuredKernels(fill_from(MemoryStore(), [planned], row, noise=0.0, times=2), row.digest)
        found = regrets(planned, kernels, {"exact": Exact(planned), "wrong": Exact(planned, sign=-1)})
        assert found["exact"].regret == found["exact"].same == 0
        assert found["wrong"].regret > 0.05 and found["wrong"].regret == pytest.approx(found["wrong"].same)
        assert found["exact"].worth.once == 0 and found["exact"].worth.kernels > 1

    def test_another_measurement_judges_than_the_one_that_chose(self, planned: NetworkPlans) -> None:
        """With much noise the plan that the noise chose looks better by that noise than by another."""
        row = fingerprint(2)
        kernels = MeasuredKernels(fill_from(MemoryStore(), [planned], row, noise=0.5, times=2), row.digest)
        best = worth(planned.plan(OnlyMeasured(kernels, planned.hardware, False)), planned, kernels)
        assert best.newest < best.before
        found = regrets(planned, kernels, {"exact": Exact(planned)})["exact"]
        assert found.regret < found.same and found.same >= 0

    def test_plans_hold_kernels_without_a_record_only_where_nothing_else_is_there(self, planned: NetworkPlans) -> None:
        row = fingerprint(2)
        store = fill_from(MemoryStore(), [planned], row)
        kernels = MeasuredKernels(store, row.digest)
        best = planned.plan(OnlyMeasured(kernels, planned.hardware, False))
        used = {(c.group.members, c.family) for c in best.choices}
        gone = next(c for c in best.choices if planned.candidate(c) is not None and len(c.group.members) > 1)
        store.drop([r.digest for r in store.records(workload=workload_key(gone.group))])
        kernels = MeasuredKernels(store, row.digest)
        other = planned.plan(OnlyMeasured(kernels, planned.hardware, False))
        assert (gone.group.members, gone.family) in used
        assert gone.group.members not in {c.group.members for c in other.choices}
        assert worth(other, planned, kernels).unmeasured == 0
        nothing = MeasuredKernels(MemoryStore(), row.digest)
        bare = planned.plan(OnlyMeasured(nothing, planned.hardware, False))
        chosen = [c for c in map(planned.candidate, bare.choices) if c is not None]
        added = refills(chosen, planned.hardware, False) + planned.hardware.call_overhead
        said = (AnalyticalCostModel(planned.hardware).costs(chosen) + added).sum()
        found = worth(bare, planned, nothing)
        assert found.unmeasured == found.kernels == len(chosen) > 0
        assert found.newest == found.before == pytest.approx(said)

    def test_a_kernel_without_a_record_does_not_hide_what_the_others_take(self, planned: NetworkPlans) -> None:
        """It costs a second: a plan that is a hundredth of that dearer is no near tie among microseconds."""
        row = fingerprint(2)

        def pairs(candidate: Candidate) -> float:
            """Two operators together are quick, more are slow."""
            return {1: 0.0, 2: -1.0}.get(len(candidate.group.members), 1.0)

        store = fill_from(MemoryStore(), [planned], row, law=pairs, noise=0.0, times=2)
        last = len(planned.graph.operators) - 1
        keys = {workload_key(c.group) for c in planned.candidates() if last in c.group.members}
        store.drop([r.digest for key in keys for r in store.records(workload=key)])
        kernels = MeasuredKernels(store, row.digest)
        costs = OnlyMeasured(kernels, planned.hardware, False)
        cheapest, settled = (worth(found, planned, kernels) for found in (planned.cheapest(costs), planned.plan(costs)))
        assert cheapest.unmeasured == settled.unmeasured == 1 and cheapest.newest < 0.7 * settled.newest
        (found,) = regrets(planned, kernels, {"measured": costs}).values()
        assert found.worth == cheapest and found.same == found.regret == 0


class Unsure(AnalyticalCostModel):
    """Knows nothing to a tenth."""

    def uncertainty(self, candidates: Sequence[Candidate]) -> np.ndarray:
        return np.full(len(candidates), 0.1)


def test_a_plan_takes_what_costs_say_whatever_margin_it_was_chosen_with(planned: NetworkPlans) -> None:
    costs = Unsure(planned.hardware)
    wary = NetworkPlans(
        "net", planned.graph, planned.hardware, list(planned.families.values()), planned.greedy,
        thresholds=Thresholds(uncertainty_margin=2.0),
    )  # fmt: skip
    plan, usual = wary.plan(costs, "greedy"), planned.plan(costs, "greedy")
    assert [c.group for c in plan.choices] == [c.group for c in usual.choices] and plan.cost > usual.cost
    assert wary.predicted(plan, costs) == pytest.approx(usual.cost) == pytest.approx(planned.predicted(usual, costs))


class TestCommand:
    def test_networks_that_were_not_seen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """From stores to the figures: trained on two sizes of a network, tested on a third, which is run."""
        monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "home"))
        hardware, row = load_hardware(resolve("llvm", 2)), fingerprint(2)
        plans = []
        for size in (16, 24, 40):  # trained on two
            onnx.save(small_network(size), tmp_path / f"net{size}.onnx")
            plans.append(NetworkPlans.of_model(str(tmp_path / f"net{size}.onnx"), hardware))
        db, unseen, out = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "p"
        with SqliteStore(db) as store:
            fill_from(store, plans[:2], row, times=2)
            trained = train_predictor(build_dataset(store, descriptions={row.digest: hardware}), QUICK)
        save_predictor(trained, out)
        with SqliteStore(unseen) as store:
            store.keep_for_evaluation()
            fill_from(store, plans[2:], row, times=2, seed=1)
        arguments = ("evaluate", "--db", db, "--unseen", unseen, "--predictor", out)
        assert here(*arguments, "--json", "-o", tmp_path / "all.json") == 0
        report = json.loads(capsys.readouterr().out)
        assert set(report) == {"noise_floor", "splits", "unseen_networks", "analytical"}
        assert set(report["noise_floor"]) == {"mape", "tau_within"} and report["noise_floor"]["mape"] < 0.03
        assert set(report["unseen_networks"]) == set(report["analytical"]["unseen_networks"]) == KEYS
        learned, analytical = report["unseen_networks"], report["analytical"]["unseen_networks"]
        assert learned["mape"] < analytical["mape"] and -0.05 < learned["plan_regret"] < 0.3
        assert learned["end_to_end_error"] >= 0 and analytical["end_to_end_error"] >= 0
        (network,) = report["splits"]["unseen"]["networks"].values()
        assert network["covered"] == 1 and network["measured_ms"] > 0 and network["kernels_measured_once"] == 0
        assert set(network["plan_regret"]) == {"learned", "learned_and_records", "records", "analytical"}
        assert json.loads((tmp_path / "all.json").read_text()) == report
        text = evaluation_page(report)
        assert "| net40 |" in text and "without the" not in text and "plan regret, unseen networks" in text
        assert "the predictor alone beats the analytical model in MAPE" in verdict(report)
        assert here(*arguments, "--no-run", "--no-splits", "--save") == 0
        text = capsys.readouterr().out
        kept = json.loads((out / "evaluation.json").read_text())
        assert kept["noise_floor"] == report["noise_floor"] and kept["unseen_networks"]["end_to_end_error"] is None
        assert (out / "evaluation.md").read_text().startswith("# Evaluation")
        assert "unseen networks" in text and "noise" in text and "regret" in text
        # What cannot be compiled loses its own latency and nothing else.
        monkeypatch.setattr(autofuse, "compile", lambda *_, **__: 1 / 0)
        with pytest.warns(UserWarning, match="net40 is not run: ZeroDivisionError"):
            found = evaluate(db, unseen, out, splits=False).summary()
        assert found["unseen_networks"]["end_to_end_error"] is None
        assert found["unseen_networks"]["plan_regret"] == kept["unseen_networks"]["plan_regret"]
        assert "net40 was not run: ZeroDivisionError: division by zero." in plans_table(found)

    def test_a_network_that_does_not_run_stops_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One does not compile, one dies in its second pass, one runs."""

        class Child:
            def __init__(self, _: str, arguments: Sequence[str], __: object) -> None:
                self.dies = "dies" in arguments[0]
                self.passes = 0

            def request(self, _: object, __: float) -> Outcome:
                self.passes += 1
                if self.dies and self.passes == 2:
                    return Outcome("crashed", message="the process died of SIGSEGV")
                return Outcome("ok", {"latencies": [2e-3], "references": [1e-4]})

            def close(self) -> None:
                assert self.passes in (2, end_to_end.PASSES)

        def compile(source: str, **_: object) -> SimpleNamespace:
            if source == "broken":
                raise RuntimeError("no such\noperator")
            return SimpleNamespace(description={}, plan=None, save=lambda path: None)

        monkeypatch.setattr(autofuse, "compile", compile)
        monkeypatch.setattr("autofuse.measure.process.ChildProcess", Child)
        monkeypatch.setattr("autofuse.profile.run.example_inputs", lambda _: {})
        monkeypatch.setattr(end_to_end, "kernels_of", lambda *_: [])
        monkeypatch.setattr(end_to_end, "predicted_seconds", lambda *_: 1e-3)
        networks: Any = [SimpleNamespace(name=name, source=name) for name in ("broken", "dies", "good")]
        found = end_to_end.run_networks(networks, "p", lambda _: {"learned": Exact(networks[2])}, 2, 3e-4)
        assert found == {
            "broken": end_to_end.NetworkRun(failure="RuntimeError: no such operator"),
            "dies": end_to_end.NetworkRun({"learned": 1e-3}, failure="crashed: the process died of SIGSEGV"),
            "good": end_to_end.NetworkRun({"learned": 1e-3}, pytest.approx(6e-3)),  # twenty times the reference
        }
        again = end_to_end.run_networks(networks, "p", lambda _: {"learned": Exact(networks[2])}, 2, None)
        assert again["good"].measured == 2e-3

    def test_bad_input_is_one_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        kept = tmp_path / "kept.db"
        with SqliteStore(kept) as store:
            store.keep_for_evaluation()
            fill(store, limit=3)
        data = dataset_of(synthetic_store(limit=12))
        save_predictor(train_predictor(data, QUICK), tmp_path / "p")
        for arguments, words in (
            (("--db", tmp_path / "no.db", "--predictor", tmp_path / "p"), "there is no record store"),
            (("--db", kept, "--predictor", tmp_path / "q"), "there is no predictor"),
            (("--db", kept, "--predictor", tmp_path / "p"), "kept for evaluation alone"),
        ):
            assert here("evaluate", *arguments) == 2
            captured = capsys.readouterr()
            assert words in captured.err and captured.err.count("\n") == 1 and captured.out == ""

    def test_other_records_than_those_trained_on_are_told(self, tmp_path: Path) -> None:
        db = tmp_path / "a.db"
        with SqliteStore(db) as store:
            fill(store, limit=12)
        save_predictor(train_predictor(dataset_of(synthetic_store(limit=12, seed=5)), QUICK), tmp_path / "p")
        with pytest.warns(UserWarning, match="trained on other records"):
            found = evaluate(db, None, tmp_path / "p", splits=False, family_of=family_of)
        assert found.summary()["unseen_networks"]["mape"] is None and found.noise is None


def test_unseen_latencies_are_those_of_the_machine_as_it_was_trained_on(tmp_path: Path) -> None:
    """A store that was filled while everything took longer gives the same errors."""
    found = []
    for slower in (1.0, 1.3):
        db, unseen, out = (tmp_path / f"{name}-{slower}" for name in ("db", "unseen", "predictor"))
        with SqliteStore(db) as store:
            beside_references(synthetic_store(limit=14), store)
            save_predictor(train_predictor(dataset_of(store), QUICK), out)
        with SqliteStore(unseen) as store:
            store.keep_for_evaluation()
            beside_references(fill(MemoryStore(), start=14, limit=24), store, slower)
        found.append(evaluate(db, unseen, out, networks=[], splits=False, family_of=family_of).unseen)
    usual, slow = found
    assert usual is not None and slow is not None
    for name, metrics in usual.models.items():
        assert slow.models[name].mape == pytest.approx(metrics.mape, rel=1e-3)


def test_the_law_is_not_the_analytical_models(planned: NetworkPlans) -> None:
    """Else every test above would be passed by a predictor that learned nothing."""
    candidates = planned.candidates()
    assert np.ptp([truth(c) for c in candidates]) > 0.5 and FAMILY.name not in {c.family.name for c in candidates}
    assert (AnalyticalCostModel(planned.hardware).costs(candidates) > 0).all()
