"""What every record store promises, checked on each implementation; records themselves and the text of groups."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records_samples import cold, failure, fill, group, record

from autofuse.errors import RecordError
from autofuse.graph.model import MappingType, Role, Work
from autofuse.records import Form, MemoryStore, Record, RecordedHardware, RecordStore, SqliteStore, Workload
from autofuse.records.groups import group_from_text, group_to_text
from autofuse.records.record import quiet, ratio_of
from autofuse.records.software import software_versions


@pytest.fixture
def store(store: RecordStore) -> RecordStore:
    return fill(store)


class TestEveryStore:
    def test_gives_back_what_was_added(self, store: RecordStore) -> None:
        for given_record in (
            record(), failure(1, "oom", config="a=2"), record(2, layouts="NCHW8c->NCHW8c"), cold(3, config="a=3")
        ):  # fmt: skip
            assert store.add(given_record)
            assert store.find(given_record.identity) == given_record

    def test_adding_again_changes_nothing(self, store: RecordStore) -> None:
        assert store.add(record())
        assert not store.add(record())
        assert len(list(store.records())) == 1

    def test_repeated_measurements_are_kept_and_the_newest_counts(self, store: RecordStore) -> None:
        store.add(record(5, 2e-3))
        store.add(record(1, 1e-3))
        assert len(list(store.records())) == 2
        found = store.find(record().identity)
        assert found is not None and found.latency == 2e-3

    @pytest.mark.parametrize(
        "change",
        [{"workload": "w2"}, {"hardware": "hw2"}, {"family": "x"}, {"family_version": 2}, {"config": "a=2"},
         {"layouts": "NCHW8c->"}],
    )  # fmt: skip
    def test_a_record_answers_for_exactly_its_identity(self, store: RecordStore, change: dict[str, object]) -> None:
        store.add(record())
        other = record(**change).identity
        assert store.find(other) is None
        assert store.lookup([other, record().identity])[0] is None
        assert store.lookup([other, record().identity])[1] is not None

    def test_lookup_answers_in_order_with_repeats_and_failures(self, store: RecordStore) -> None:
        store.add(record())
        store.add(failure(1, config="a=2"))
        good, bad, unknown = record().identity, record(config="a=2").identity, record(config="a=3").identity
        answers = store.lookup([unknown, bad, good, bad])
        assert answers[0] is None
        assert [a.status for a in answers[1:] if a] == ["crashed", "ok", "crashed"]
        assert answers[1] is not None and answers[1].normalised is None and answers[1].latency is None
        assert store.lookup([]) == []

    def test_normalised_latency_takes_the_drift_out(self, store: RecordStore) -> None:
        """A machine twice as slow for one record doubles kernel and reference alike."""
        slow = {name: tuple(2 * t for t in times) for name, times in record().reference_samples.items()}
        store.add(record(0, 1e-3))
        store.add(record(1, 1e-3, config="a=2"))
        store.add(record(2, 2e-3, config="a=3", reference_samples=slow))
        before = store.find(record(config="a=3").identity)
        assert before is not None and before.normalised == before.latency == 2e-3
        assert store.refresh_baseline("hw1") == {"arithmetic": 2e-4} == store.baseline("hw1")
        answers = store.lookup([record().identity, record(config="a=3").identity])
        assert [round(a.normalised or 0, 9) for a in answers if a] == [1e-3, 1e-3]
        assert store.baseline("hw2") == {} and store.baseline("nowhere") == {}

    def test_cold_latencies_are_those_of_the_cold_samples_or_the_hot_ones(self, store: RecordStore) -> None:
        """Plain while the reference's usual time is not known, normalised with the hot records' when it is."""
        drifted = {name: tuple(2 * t for t in times) for name, times in cold().cold_reference_samples.items()}
        store.add(cold(0, 1e-3))
        store.add(cold(1, 1e-3, times=8.0, config="a=2", cold_reference_samples=drifted))
        store.add(record(2, 2e-3, config="a=3"))
        store.add(failure(3, config="a=4"))
        wanted = [record(config=f"a={n}").identity for n in (1, 2, 3, 4)]

        def answers() -> list[tuple[float | None, float | None]]:
            found = [m for m in store.lookup(wanted) if m is not None]
            records = [store.find(identity) for identity in wanted]
            assert [m.cold_normalised for m in found] == [r.cold_normalised for r in records if r is not None]
            return [(m.cold_latency, m.cold_normalised) for m in found]

        plain = [(3e-3, 3e-3), (8e-3, 8e-3), (2e-3, 2e-3), (None, None)]
        assert [pytest.approx(pair) if pair[0] else pair for pair in plain] == answers()
        store.refresh_baseline("hw1")
        taken_out = [(3e-3, 3e-3), (8e-3, 4e-3), (2e-3, 2e-3), (None, None)]
        assert [pytest.approx(pair) if pair[0] else pair for pair in taken_out] == answers()
        assert store.baseline("hw1") == {"arithmetic": 2e-4}

    def test_the_newest_record_counts_whether_or_not_it_has_cold_samples(self, store: RecordStore) -> None:
        store.add(cold(0))
        store.add(record(1, 2e-3))
        (answer,) = store.lookup([record().identity])
        assert answer is not None and answer.cold_normalised == answer.normalised == 2e-3

    def test_best_is_the_fastest_of_the_newest(self, store: RecordStore) -> None:
        store.add(record(0, 1e-4))  # superseded by the next
        store.add(record(1, 9e-3))
        store.add(record(2, 3e-3, config="a=2"))
        store.add(failure(3, config="a=3"))
        store.add(record(4, 1e-3, family="other", family_version=7))
        store.add(record(5, 1e-5, hardware="hw2"))
        best = store.best("w1", "hw1")
        assert best is not None and best.family == "other"
        best = store.best("w1", "hw1", {"conv": 1, "other": 8})
        assert best is not None and best.config == "a=2"
        assert store.best("w1", "hw1", {}) is None
        assert store.best("w2", "hw1") is None

    def test_needs_hardware_and_workload_first(self, store: RecordStore) -> None:
        for orphan in (record(hardware="nowhere"), record(workload="nothing")):
            with pytest.raises(RecordError, match="unknown"):
                store.add(orphan)
        assert list(store.records()) == []

    def test_keeps_the_first_form_of_a_workload(self, store: RecordStore) -> None:
        store.add_form(Form("w1", "NCHW8c->", group_to_text(group())))
        store.add_form(Form("w1", "NCHW8c->", "another"))
        found = store.form("w1", "NCHW8c->")
        assert found is not None and group_from_text(found.text).members == (0, 1)
        assert store.form("w1", "") is None and store.form("w2", "NCHW8c->") is None
        assert [f.workload for f in store.forms()] == ["w1"]
        with pytest.raises(RecordError, match="unknown"):
            store.add_form(Form("nothing", "", "text"))

    def test_counts(self, store: RecordStore) -> None:
        store.add(record())
        store.add(failure(1, "timeout"))
        store.add(failure(2, "timeout", config="a=2"))
        store.add_workload(Workload("w1", "ignored: the first text stays"), ["vgg16", "resnet50"])
        stats = store.stats().as_dict()
        assert stats["ok"] == 1 and stats["failed"] == 2 and stats["failures"] == {"timeout": 2}
        assert stats["workloads"] == 2 and stats["models"] == ["resnet50", "vgg16"]
        assert stats["hardware"] == ["hw1", "hw2"] and stats["families"] == {"conv 1": 3}
        assert next(iter(store.workloads())).text == "conv 1" and store.models("w1") == ("resnet50", "vgg16")

    def test_what_is_kept_for_evaluation_never_becomes_another_stores(self, store: RecordStore) -> None:
        assert not store.evaluation_only and not store.stats().as_dict()["evaluation_only"]
        kept = fill(MemoryStore())
        kept.keep_for_evaluation()
        kept.keep_for_evaluation()
        kept.add(record())
        store.add(record(1))
        for refused in (lambda: store.merge(kept), store.keep_for_evaluation):
            with pytest.raises(RecordError, match="a store of its own"):
                refused()
        assert len(list(store.records())) == 1 and not store.evaluation_only
        assert kept.merge(store) == 1 and kept.evaluation_only

    def test_an_empty_store_takes_the_mark_over_with_the_records(self, store: RecordStore) -> None:
        kept = fill(MemoryStore())
        kept.keep_for_evaluation()
        kept.add(record())
        assert store.merge(kept) == 1 and store.merge(kept) == 0
        assert store.evaluation_only and store.stats().as_dict()["evaluation_only"]

    def test_a_longer_record_takes_the_place_of_a_shorter_one(self, store: RecordStore) -> None:
        short, long = record(1), record(2, samples=(1e-3,) * 6)
        store.add(short)
        store.add(record(0, config="a=2"))
        store.supersede(short.digest, long)
        assert [r.digest for r in store.records()] == [long.digest, record(0, config="a=2").digest]
        store.supersede(long.digest, long)
        assert store.find(long.identity) == long and len(list(store.records())) == 2
        with pytest.raises(RecordError):
            store.supersede(long.digest, record(3, hardware="nowhere"))
        assert store.find(long.identity) == long

    def test_records_come_sorted_and_by_hardware(self, store: RecordStore) -> None:
        given_records = [record(s, config=f"a={s % 3}", hardware=f"hw{1 + s % 2}") for s in range(8)]
        for r in reversed(given_records):
            store.add(r)
        listed = list(store.records())
        keys = [(r.hardware, r.config, r.created) for r in listed]
        assert keys == sorted(keys) and len(keys) == 8
        assert {r.hardware for r in store.records("hw2")} == {"hw2"}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            record,
            st.integers(0, 59),
            st.floats(1e-6, 1.0),
            workload=st.sampled_from(["w1", "w2"]),
            hardware=st.sampled_from(["hw1", "hw2"]),
            config=st.sampled_from(["a=1", "a=2"]),
            reference=st.sampled_from(["arithmetic", "memory"]),
        )
    )
)
def test_the_stores_agree(records: list[Record]) -> None:
    """The two implementations give the same answers whatever is added, in whatever order."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "r.db") as sqlite:
        memory = fill(MemoryStore())
        fill(sqlite)
        assert [memory.add(r) for r in records] == [sqlite.add(r) for r in records]
        for hardware in ("hw1", "hw2"):
            assert memory.refresh_baseline(hardware) == sqlite.refresh_baseline(hardware)
        assert [(r, r.normalised) for r in memory.records()] == [(r, r.normalised) for r in sqlite.records()]
        identities = [r.identity for r in records]
        assert memory.lookup(identities) == sqlite.lookup(identities)
        for workload in ("w1", "w2"):
            assert memory.best(workload, "hw1") == sqlite.best(workload, "hw1")


class TestGroupText:
    def test_a_group_survives_the_round_trip(self) -> None:
        text = group_to_text(group())
        back = group_from_text(text)
        assert group_to_text(back) == text
        first, second = back.operators
        assert (first.work, first.attrs, first.reduction, first.blocks) == (
            Work(fma=36864), {"strides": [1, 1], "variant": "blocked"}, (2, 3, 3, 8), 2)  # fmt: skip
        assert first.mapping is MappingType.MANY_TO_MANY and second.kind == "nn.relu"
        shapes = [back.graph.tensors[t] for t in back.inputs]
        assert [(t.shape, t.role) for t in shapes] == [
            ((1, 2, 4, 4, 8), Role.INPUT),
            ((2, 2, 3, 3, 8, 8), Role.CONSTANT),
        ]
        assert [back.graph.tensors[t].layout for t in back.outputs] == ["NCHW8c", ""]
        assert back.internal == () and back.label == group().label

    def test_refuses_other_text(self) -> None:
        good = group_to_text(group())
        changes = [('"version":1', '"version":2'), ('"inputs":[0,1]', '"inputs":[0,9]'), ("Many-to-Many", "Some")]
        for bad in ("", "{}", "[1]", *(good.replace(a, b) for a, b in changes)):
            assert bad != good
            with pytest.raises(ValueError, match="no text of a group"):
                group_from_text(bad)


class TestRecord:
    def test_refuses_what_cannot_be(self) -> None:
        for change in (
            {"status": "fine"}, {"reference": "sun"}, {"samples": ()}, {"samples": (0.0,)}, {"cold_samples": (-1.0,)}
        ):  # fmt: skip
            with pytest.raises(ValueError):
                record(**change)

    def test_disturbed_samples_do_not_move_the_ratio(self) -> None:
        """Some of the samples of the kernel, and others of the reference, are hit."""
        samples = tuple(9e-3 if i % 6 < 2 else 1e-3 for i in range(12))
        beside = tuple(8e-3 if i % 6 == 5 else 2e-3 for i in range(12))
        assert ratio_of(samples, beside) == pytest.approx(0.5)
        assert record(samples=samples, reference_samples={"arithmetic": beside}).ratio == pytest.approx(0.5)
        assert quiet([3.0]) == 3.0 and quiet([4.0, 1.0, 3.0, 2.0, 5.0]) == 1.0
        assert quiet([9.0 - n for n in range(9)] * 2) == 1.0 and quiet([*range(3, 33)]) == 4.0

    def test_quiet_times_and_corrected_pairs_count_alike(self) -> None:
        assert ratio_of([3.0], [2.0]) == pytest.approx(1.5)
        # Half of the moments slow down the reference by 16, a kernel that shares three quarters of it by 8.
        assert ratio_of([1.0, 8.0, 1.0, 8.0], [2.0, 32.0, 2.0, 32.0]) == pytest.approx(0.5)
        assert ratio_of([1.0, 1.2, 1.2], [1.0, 1.0, 1.0]) == pytest.approx(1.2**0.5)
        # The slowest fifth of the references is left out, and what stood beside it.
        assert ratio_of([1.0, 1.2, 1.2, 1.2, 9.0], [1.0, 1.0, 1.0, 1.0, 1.1]) == pytest.approx(1.2**0.5)

    def test_median_and_ratio(self) -> None:
        r = record(samples=(2.0, 4.0, 9.0), reference_samples={"arithmetic": (1.0, 1.0, 3.0)})
        assert r.latency == 4.0 and r.ratio == pytest.approx((2 * 9 / 3**0.75) ** 0.5) and r.reference_latency == 1.0
        assert r.normalise(2.0) == pytest.approx(2 * (2 * 9 / 3**0.75) ** 0.5) and r.normalise(None) == 4.0
        assert failure().latency is None and failure().normalise(2.0) is None

    def test_cold_median_and_ratio(self) -> None:
        r = cold(cold_samples=(6.0, 8.0, 18.0), cold_reference_samples={"arithmetic": (2.0, 2.0, 6.0)})
        assert r.cold_latency == 8.0 and r.cold_ratio == pytest.approx((6 * 18 / 3**0.75) ** 0.5 / 2)
        assert r.normalise_cold(3.0) == pytest.approx(3 * (6 * 18 / 3**0.75) ** 0.5 / 2)
        assert r.normalise_cold(None) == 8.0
        bare = replace(r, cold_reference_samples={})
        assert bare.cold_ratio is None and bare.normalise_cold(3.0) == 8.0
        assert record().cold_latency is None and record().cold_ratio is None
        assert record().normalise_cold(2e-4) == record().normalise(2e-4) == pytest.approx(1e-3)
        assert failure().cold_latency is None and failure().normalise_cold(2.0) is None

    def test_digests_from_before_there_were_cold_samples_and_code_generations_stand(self) -> None:
        """Of the records in tests/stores/version_1.sql; cold samples, or what made the code, make another record."""
        assert record(codegen_version=0).digest == "245714c8fdb45268db7e1f4a5583927a"
        assert failure(2, config="a=2", codegen_version=0).digest == "77fb0427c285ed3d1f469383b91554a8"
        assert len({record(codegen_version=version).digest for version in (0, 1, 2)}) == 3
        assert len({record().digest, cold().digest, cold(times=4.0).digest}) == 3
        assert replace(cold(), cold_reference_samples={}).digest not in (record().digest, cold().digest)

    def test_hardware_comes_from_the_fingerprint_and_survives_json(self) -> None:
        from autofuse.target import HardwareRow, fingerprint, hardware_row, resolve

        row = fingerprint(3)
        kept = RecordedHardware.of(row)
        assert kept.digest == row.digest and "3 threads" in kept.name
        assert "60 compute units" in RecordedHardware.of(hardware_row(resolve("dcu-z100"))).name
        assert HardwareRow.from_json(json.loads(json.dumps(kept.detail))) == row

    def test_versions_of_what_made_a_record(self) -> None:
        assert software_versions()["tvm"].startswith("0.27") and software_versions()["autofuse"]
