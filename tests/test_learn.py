"""Datasets from records, splits, training: what is learned beats the analytical model, honestly and repeatably."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_stores import (
    COLDER,
    FAMILY,
    MACHINE,
    RECORDED,
    ROW,
    beside_references,
    family_of,
    fill,
    groups,
    law,
    synthetic_store,
)

from autofuse.cost import AnalyticalCostModel, Candidate
from autofuse.cost.features import feature_names
from autofuse.cost.weights import LEAST_COLD_BYTES
from autofuse.errors import PredictorError
from autofuse.learn import Dataset, Trained, TrainSettings, build_dataset, train_predictor, tree_search
from autofuse.learn.boosting import TreeSettings, fit
from autofuse.learn.dataset import describe
from autofuse.learn.failing import fit_failures
from autofuse.learn.metrics import score
from autofuse.learn.splits import by_workload, grouped_folds, leave_one_network_out
from autofuse.learn.uncertainty import EXPECTED, Coverage, expected, fit_errors
from autofuse.measure.cold import LEAST_WEIGHTS
from autofuse.records import MemoryStore, RecordedHardware
from autofuse.records.store import RecordStore
from autofuse.target.fingerprint import fingerprint
from autofuse.target.hardware_file import load_hardware, save_hardware
from autofuse.target.registry import resolve

DESCRIPTIONS = {RECORDED.digest: MACHINE}


def dataset_of(store: RecordStore, **arguments: object) -> Dataset:
    return build_dataset(store, descriptions=DESCRIPTIONS, family_of=family_of, **arguments)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store() -> RecordStore:
    return synthetic_store()


@pytest.fixture(scope="module")
def dataset(store: RecordStore) -> Dataset:
    return dataset_of(store)


@pytest.fixture(scope="module")
def trained(dataset: Dataset) -> Trained:
    return train_predictor(dataset)


class TestDataset:
    def test_rebuilt_candidates_have_the_features_and_costs_of_the_measured_ones(self) -> None:
        """Without noise the residual is the law that made the latencies: groups and configurations came back whole."""
        store = synthetic_store(noise=0.0, limit=12)
        data = dataset_of(store)
        by_key = {f"w{i:03d}": g for i, g in enumerate(groups())}
        records = [r for r in store.records() if r.ok]
        candidates = [Candidate(by_key[r.workload], FAMILY, FAMILY.configuration.parse(r.config)) for r in records]
        assert np.allclose(data.residual, [law(c) for c in candidates], atol=1e-4)
        assert np.allclose(np.exp(data.base), AnalyticalCostModel(MACHINE).costs(candidates), rtol=1e-5)
        assert np.allclose(np.exp(data.measured), [r.latency for r in records], rtol=1e-5)
        assert data.workloads == tuple(r.workload for r in records)
        assert data.models[0] == ("net0", "shared")

    def test_failures_are_left_out_and_counted(self, store: RecordStore, dataset: Dataset) -> None:
        failed = sum(not r.ok for r in store.records())
        assert failed > 20 and dataset.skipped == {"failed": failed}
        assert len(dataset) == sum(r.ok for r in store.records())

    def test_only_the_newest_record_of_an_identity_counts(self) -> None:
        store = synthetic_store(limit=12)
        first = next(r for r in store.records() if r.ok)
        before = dataset_of(store)
        store.add(replace(first, samples=(1.0,), created="2025-01-02T00:00:00.000000Z"))
        after = dataset_of(store)
        row = after.digests.index(replace(first, samples=(1.0,), created="2025-01-02T00:00:00.000000Z").digest)
        assert len(after) == len(before) and after.measured[row] == pytest.approx(0.0, abs=1e-5)
        store.add(replace(first, samples=(), status="wrong", created="2025-01-03T00:00:00.000000Z"))
        assert len(dataset_of(store)) == len(before) - 1

    def test_what_this_program_cannot_rebuild_is_skipped_with_the_reason(self) -> None:
        store = synthetic_store(limit=12)
        count = len(dataset_of(store))
        first = next(r for r in store.records() if r.ok)
        for change in (
            {"family": "gone"},
            {"family_version": 2},
            {"config": "rows=1"},
            {"layouts": "NCHW8c->"},
        ):
            store.add(replace(first, **change))
        store.add_hardware(RecordedHardware("gpu", "no CPU", {"sm": 90}))
        store.add(replace(first, hardware="gpu"))
        data = dataset_of(store)
        assert len(data) == count
        reasons = ("family unknown", "other version of the family", "configuration unreadable",
                   "form missing or unreadable", "hardware unknown")  # fmt: skip
        assert {k: v for k, v in data.skipped.items() if k != "failed"} == dict.fromkeys(sorted(reasons), 1)
        assert dataset_of(store, hardware=["gpu"]).skipped["other hardware"] == count + 4 + data.skipped["failed"]

    def test_the_hash_is_that_of_the_measurements(self, store: RecordStore, dataset: Dataset) -> None:
        again = MemoryStore()
        again.merge(store)
        assert dataset_of(again).hash == dataset.hash
        order = np.random.default_rng(0).permutation(len(dataset))
        assert dataset.select(order).hash == dataset.hash
        assert dataset.select(order[1:]).hash != dataset.hash

    def test_a_recorded_cpu_is_described_by_its_row(self, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path))
        row = replace(ROW, l2_bytes=1 << 20, l3_bytes=8 << 20, threads=3)
        found = describe(RecordedHardware.of(row))
        assert found is not None
        assert (found.isa, found.cores, found.l2_bytes, found.l3_bytes) == ("avx2", 3, 1 << 20, 8 << 20)
        assert describe(RecordedHardware("gpu", "no CPU", {"sm": 90})) is None

    def test_this_machine_is_described_as_a_compile_describes_it(
        self, tmp_path: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path))
        target = resolve("llvm", 2)
        row = fingerprint(2)
        assert describe(RecordedHardware.of(row)) == load_hardware(target)
        save_hardware(replace(load_hardware(target), fma_per_second=1.5e10), row)
        calibrated = describe(RecordedHardware.of(row))
        assert calibrated == load_hardware(target) and calibrated.fma_per_second == 1.5e10

    def test_cold_latencies_are_rows_of_their_own(self) -> None:
        """They have the same features but for the memory that constants come from, and another base."""
        data = dataset_of(synthetic_store(noise=0.0, cold=True))
        assert data.records == int((~data.cold).sum()) and 0 < data.cold.sum() < data.records
        hot = {digest: row for row, digest in enumerate(data.digests) if not data.cold[row]}
        named = {name: i for i, name in enumerate(feature_names())}
        for row in np.flatnonzero(data.cold):
            other = hot[data.digests[row]]
            assert data.features[row, named["bytes_cold"]] > 16 and data.features[other, named["bytes_cold"]] == 0
            assert data.residual[row] == pytest.approx(data.residual[other] + COLDER, abs=1e-4)
            assert data.comparable[row] != data.comparable[other] and data.workloads[row] == data.workloads[other]
        assert LEAST_COLD_BYTES == LEAST_WEIGHTS  # what is not measured is not told apart

    def test_latencies_of_two_stores_are_normalised_alike(self) -> None:
        """Where the machine was slower all the while that one was filled, so that its usual is slower too."""
        source = synthetic_store(limit=30, cold=True, times=2)
        usual, slow = (beside_references(source, MemoryStore(), slower) for slower in (1.0, 1.3))
        data, other, alike = dataset_of(usual), dataset_of(slow), dataset_of(slow, usual_of=usual)
        assert data.cold.any() and np.allclose(other.measured - data.measured, np.log(1.3))
        assert np.allclose(alike.measured, data.measured) and np.allclose(alike.again, data.again)
        # A store that knows nothing of the hardware changes nothing.
        assert np.array_equal(dataset_of(slow, usual_of=MemoryStore()).measured, other.measured)

    def test_an_earlier_measurement_of_a_kernel_is_kept_beside_it(self) -> None:
        data = dataset_of(synthetic_store(limit=12, times=2))
        assert len(set(data.digests)) == len(data) and np.isfinite(data.again).all()
        difference = np.abs(data.again - data.measured)
        assert 0 < difference.max() < 0.1  # noise of 1 %
        assert np.isnan(dataset_of(synthetic_store(limit=12)).again).all()


class TestSplits:
    @settings(deadline=None)
    @given(st.lists(st.sampled_from([f"w{i}" for i in range(20)]), min_size=1, max_size=80), st.integers(0, 3))
    def test_folds_never_cut_a_workload(self, keys: list[str], seed: int) -> None:
        fold = grouped_folds(keys, 4, seed)
        assert set(fold) <= {0, 1, 2, 3}
        for key in set(keys):
            assert len({f for f, k in zip(fold, keys, strict=True) if k == key}) == 1
        assert np.array_equal(fold, grouped_folds(keys, 4, seed))
        # Balanced as far as whole workloads allow.
        sizes = np.bincount(fold, minlength=4)
        assert sizes.max() - sizes.min() <= max(keys.count(k) for k in keys)

    def test_every_row_is_tested_once(self) -> None:
        keys = [f"w{i // 3}" for i in range(60)]
        splits = list(by_workload(keys, 5, 1))
        assert sorted(np.concatenate([s.test for s in splits])) == list(range(60))
        for split in splits:
            assert not {keys[i] for i in split.train} & {keys[i] for i in split.test}
            assert len(split.train) + len(split.test) == 60

    def test_a_network_left_out_shares_nothing_with_training(self) -> None:
        keys = ["a", "b", "b", "c", "d"]
        models: Sequence[tuple[str, ...]] = [("x",), ("x", "y"), ("x", "y"), ("y",), ("z",)]
        splits = {s.name: s for s in leave_one_network_out(keys, models)}
        assert sorted(splits) == ["x", "y", "z"]
        assert (
            list(splits["x"].test) == [0] and list(splits["x"].train) == [1, 2, 3, 4] and len(splits["x"].left_out) == 2
        )
        assert list(splits["z"].test) == [4] and len(splits["z"].left_out) == 0


class TestMetrics:
    def test_figures_by_hand(self) -> None:
        measured = np.log([1.0, 2.0, 4.0, 1.0, 2.0, 4.0])
        predicted = np.log([1.04, 2.0, 4.0 * 1.15, 1.0 * 0.7, 4.0, 2.0])
        m = score(measured, predicted, ["a"] * 3 + ["b"] * 3)
        assert m.mape == pytest.approx((0.04 + 0 + 0.15 + 0.3 + 1.0 + 0.5) / 6)
        assert (m.within_5, m.within_10, m.within_20) == pytest.approx((2 / 6, 2 / 6, 3 / 6))
        # a: all three pairs in order; b: two of three.
        assert m.tau_within == pytest.approx((1 + 1 / 3) / 2)
        assert (m.rows, m.workloads) == (6, 2)

    def test_a_constant_prediction_has_no_rank_and_counts_as_chance(self) -> None:
        m = score(np.log([1.0, 2.0, 3.0]), np.zeros(3), ["a"] * 3)
        assert m.tau_within == 0.0 and m.tau_across is None
        assert score(np.log([1.0, 2.0]), np.zeros(2), ["a", "b"]).tau_within is None


class TestTraining:
    def test_beats_the_analytical_model_on_workloads_not_seen(self, trained: Trained) -> None:
        learned, analytical = trained.metrics["learned"], trained.metrics["analytical"]
        scaled = trained.metrics["analytical_scaled"]
        assert learned.mape < 0.5 * scaled.mape < 0.5 * analytical.mape
        assert learned.within_10 > scaled.within_10 > analytical.within_10
        assert learned.tau_within is not None and analytical.tau_within is not None
        assert learned.tau_within > analytical.tau_within + 0.1
        assert learned.rows == analytical.rows

    def test_the_reported_errors_are_those_of_an_independent_store(self, trained: Trained) -> None:
        """New noise, same law: the ensemble is at least as good there as what the card says of single members."""
        from autofuse.learn import LearnedCostModel

        data = dataset_of(synthetic_store(seed=1))
        model = LearnedCostModel(trained.card, trained.files, MACHINE)
        again = score(data.measured, np.log(model.predict_rows(data.features).seconds), data.comparable)
        assert again.mape <= trained.metrics["learned"].mape * 1.1

    def test_does_not_pretend_to_learn_from_noise(self) -> None:
        """Latencies that are the analytical model's but for noise: held-out errors are the noise's, no better."""
        data = dataset_of(synthetic_store(limit=40))
        noise = np.random.default_rng(5).normal(0, 0.2, len(data))
        metrics = train_predictor(replace(data, residual=noise)).metrics
        assert metrics["learned"].mape >= 0.95 * metrics["analytical"].mape

    def test_is_deterministic_under_a_seed(self, dataset: Dataset) -> None:
        few = dataset.select(range(300))
        first, again, other = (train_predictor(few, TrainSettings(seed=seed, members=2)) for seed in (0, 0, 7))
        assert again.files == first.files and again.card == first.card and other.files != first.files

    def test_settings_are_searched_among_those_that_predict_fast_enough(
        self, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Deeper trees than the deepest of the space would, of as many, predict too few candidates a second."""
        tried: list[TreeSettings] = []

        def noted(*arguments: Any, **named: Any) -> bytes:
            tried.append(arguments[4])
            return fit(*arguments, **named)

        monkeypatch.setattr(tree_search, "fit", noted)
        start = TreeSettings(rounds=3)
        best = tree_search.search_trees(dataset.select(range(400)), 10, start)
        assert tried[0] == start and best in tried and len(set(tried)) == 11 and {t.rounds for t in tried} == {3}
        assert max(t.depth for t in tried) == 7 > min(t.depth for t in tried)

    def test_too_few_records_are_refused_with_the_counts(self) -> None:
        store = fill(MemoryStore(), limit=2)
        good = sum(r.ok for r in store.records())
        bad = sum(not r.ok for r in store.records())
        with pytest.raises(PredictorError) as caught:
            train_predictor(dataset_of(store))
        text = str(caught.value)
        assert f"{good} usable records of 2 workloads" in text and "autofuse collect" in text and "\n" not in text
        assert bad == 0 or f"{bad} failed" in text
        with pytest.raises(PredictorError, match="0 usable records"):
            train_predictor(dataset_of(MemoryStore()))

    def test_nothing_is_learned_from_what_is_kept_for_evaluation(self, store: RecordStore) -> None:
        kept = MemoryStore()
        kept.keep_for_evaluation()
        kept.merge(store)
        with pytest.raises(PredictorError, match="evaluation alone"):
            train_predictor(dataset_of(kept))
        with pytest.raises(PredictorError, match="evaluation alone"):
            train_predictor(dataset_of(kept).select(range(len(dataset_of(store)))))

    def test_the_card_says_what_was_trained_on(self, dataset: Dataset, trained: Trained) -> None:
        card = trained.card
        assert card.kind == "cpu" and card.families == {"tile": 3} and list(card.features) == feature_names()
        assert card.data["records"] == len(dataset) and card.data["hash"] == dataset.hash
        assert card.data["models"] == ["net0", "net1", "net2", "net3", "shared"]
        assert [h.description for h in card.hardware] == [MACHINE]
        assert card.trust.offset == pytest.approx(np.median(dataset.residual))
        assert all(m.trees <= card.training["trees"]["rounds"] for m in card.members)

    def test_the_card_says_what_decides(self, trained: Trained) -> None:
        """The law that made the latencies: tile rows, tasks, and the length of the reduction."""
        first = list(trained.card.importance)[:8]
        assert list(trained.card.importance.values()) == sorted(trained.card.importance.values(), reverse=True)
        assert {"config_0", "config_1"} & set(first) and not {"hw_cores", "kind_conv"} & set(trained.card.importance)


class TestUncertainty:
    def test_expected_errors_are_right_on_workloads_not_seen(self) -> None:
        """Errors that grow with the work: most stay below the expected ones, everywhere."""
        data = dataset_of(synthetic_store(limit=60))
        column = feature_names().index("reduction")
        size = np.where(data.features[:, column] > 6, 0.2, 0.02)
        errors = np.abs(np.random.default_rng(0).normal(0, size))
        keys = np.array(data.workloads)
        train, test = np.flatnonzero(keys < "w040"), np.flatnonzero(keys >= "w040")
        model = fit_errors(data.features[train], errors[train], tuple(keys[train]))
        found = expected(model.model, model.scale, data.features[test])
        coverage = Coverage.of(errors[test], found)
        assert abs(coverage.one - EXPECTED) < 0.1 and abs(coverage.two - 0.95) < 0.06 and (coverage.rank or 0) > 0.3
        small = size[test] < 0.1
        for part in (small, ~small):
            assert abs(Coverage.of(errors[test][part], found[part]).one - EXPECTED) < 0.2

    def test_the_card_has_the_coverage(self, trained: Trained) -> None:
        coverage = trained.card.checks["coverage"]
        assert abs(coverage["one"] - EXPECTED) < 0.05 and coverage["two"] > 0.85

    def test_the_cards_coverage_is_that_of_workloads_not_seen(self) -> None:
        """Errors that nothing tells beforehand, other ones for each workload: trees that saw them know them."""
        data = dataset_of(synthetic_store(limit=40))
        rng = np.random.default_rng(4)
        size = {key: rng.choice([0.02, 0.4]) for key in sorted(set(data.workloads))}
        data = replace(data, residual=rng.normal(0, [size[key] for key in data.workloads]))
        trained = train_predictor(data, TrainSettings(trees=TreeSettings(rounds=10)))
        found = trained.card.checks["coverage"]
        wrong = np.abs(data.measured - trained.outside)
        model = fit_errors(data.features, wrong, data.workloads)
        assert found == pytest.approx(asdict(Coverage.of(wrong, model.outside)), abs=0.02)
        seen = Coverage.of(wrong, expected(model.model, model.scale, data.features))
        assert seen.rank is not None and seen.rank > found["rank"] + 0.1 and abs(found["one"] - EXPECTED) < 0.1


class TestFailures:
    def test_what_fails_by_a_rule_is_found_on_workloads_not_seen(self) -> None:
        store = synthetic_store(spilling=True)
        data = dataset_of(store)
        model = fit_failures(data)
        assert model is not None and len(data.failures) == sum(not r.ok for r in store.records())
        assert set(data.failures.statuses) == {"crashed"}
        assert model.scores.auc > 0.99 and model.scores.found > 0.95 and model.scores.lost <= 0.005

    def test_nothing_is_pruned_where_failures_teach_nothing(self, dataset: Dataset) -> None:
        """Failures by chance, and too few of them."""
        chance = fit_failures(dataset)
        assert chance is None or (chance.scores.auc < 0.65 and chance.scores.lost <= 0.005)
        assert fit_failures(dataset_of(synthetic_store(spilling=True, limit=6))) is None
