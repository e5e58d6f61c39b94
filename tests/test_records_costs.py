"""The recorded cost model: records first, another model where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plain_groups import FAMILY, PlainCosts, Scale, chain, key_of
from test_cost_analytical import MACHINE, weighted

from autofuse.cost.model import Candidate
from autofuse.graph.model import Group
from autofuse.records import MemoryStore, Record, RecordedHardware, RecordStore, SqliteStore, Workload
from autofuse.records.identity import identity_of, layouts_text
from autofuse.records.model import RecordedCostModel

HERE = RecordedHardware("hw", "here")


class TestRecordedCosts:
    def record(self, group: Group, scale: int, seconds: float | None, version: int = 1, hardware: str = "hw") -> Record:
        status = "ok" if seconds else "crashed"
        return Record(
            key_of(group), hardware, "plain", version, f"scale={scale}", status=status,
            samples=(seconds,) if seconds else (),
        )  # fmt: skip

    def test_a_record_counts_before_the_fallback_and_a_failure_costs_infinity(self, store: RecordStore) -> None:
        group, other = chain(["a"]), chain(["b"])
        store.add_hardware(HERE)
        store.add_hardware(RecordedHardware("there", "there"))
        for g in (group, other):
            store.add_workload(Workload(key_of(g), ""))
        store.add(self.record(group, 1, 7e-3))
        store.add(self.record(group, 2, None))
        store.add(self.record(group, 3, 9e-3, version=2))  # of another version of the family
        store.add(self.record(other, 1, 9e-3, hardware="there"))
        fallback = PlainCosts()
        model = RecordedCostModel(store, "hw", fallback, key_of)
        candidates = [Candidate(g, FAMILY, Scale(s)) for g in (other, group) for s in (1, 2, 3)]
        costs = model.costs(candidates)
        expected = [1e-3, 5e-4, 1e-3 / 3, 7e-3, np.inf, 1e-3 / 3]
        assert costs == pytest.approx(expected)
        assert model.sources(candidates) == ["analytical"] * 3 + ["record", "record", "analytical"]
        assert fallback.asked == [4]
        assert model.costs(candidates[::-1]) == pytest.approx(expected[::-1])
        assert model.costs([]).shape == (0,) and model.sources([]) == []

    def test_cold_latencies_count_for_a_network_whose_weights_do_not_stay(self, store: RecordStore) -> None:
        """The hot one where there are no cold samples, infinity for a failure, elsewhere the fallback's answer."""
        group = chain(["a"])
        store.add_hardware(HERE)
        store.add_workload(Workload(key_of(group), ""))
        store.add(replace(self.record(group, 1, 7e-3), cold_samples=(8e-3,)))
        store.add(self.record(group, 2, 9e-3))
        store.add(self.record(group, 3, None))
        candidates = [Candidate(group, FAMILY, Scale(s)) for s in (1, 2, 3, 4)]
        for cold, expected in ((False, 7e-3), (True, 8e-3)):
            model = RecordedCostModel(store, "hw", PlainCosts(), key_of, cold)
            assert model.costs(candidates) == pytest.approx([expected, 9e-3, np.inf, 1e-3 / 4])

    def test_one_query_answers_a_batch(self) -> None:
        class Counting(MemoryStore):
            queries = 0

            def lookup(self, identities):  # type: ignore[no-untyped-def]
                self.queries += 1
                return super().lookup(identities)

        store = Counting()
        model = RecordedCostModel(store, "hw", PlainCosts(), key_of)
        candidates = [Candidate(chain([k]), FAMILY, Scale(s)) for k in "abc" for s in (1, 2, 3)]
        model.costs(candidates)
        model.sources(candidates)
        assert store.queries == 1

    def test_layouts_at_the_borders_tell_records_apart(self) -> None:
        group = chain(["a"])
        assert layouts_text(group) == ""
        tensors = tuple(replace(t, layout="NCHW8c" if t.index else "") for t in group.graph.tensors)
        blocked = Group.of(replace(group.graph, tensors=tensors), [0])
        assert layouts_text(blocked) == "->NCHW8c"
        identity = identity_of(Candidate(blocked, FAMILY, Scale(2)), "k", "hw")
        assert (identity.layouts, identity.config, identity.family_version) == ("->NCHW8c", "scale=2", 1)

    def test_the_usual_key_is_that_of_the_graph(self) -> None:
        from autofuse.graph.keys import workload_key

        group = chain(["a"])
        store = MemoryStore()
        store.add_hardware(HERE)
        store.add_workload(Workload(workload_key(group), ""))
        store.add(replace(self.record(group, 1, 7e-3), workload=workload_key(group)))
        model = RecordedCostModel(store, "hw", PlainCosts())
        assert model.sources([Candidate(group, FAMILY, Scale(1))]) == ["record"]


def test_the_compiler_takes_cold_costs_where_the_weights_exceed_half_of_the_last_cache(tmp_path: Path) -> None:
    """From records, and from the models behind them."""
    from autofuse.compiler import choose_cost_model
    from autofuse.graph.keys import workload_key
    from autofuse.target.registry import hardware_row, resolve

    target = resolve("llvm", 2)
    here = RecordedHardware.of(hardware_row(target))
    half = MACHINE.l3_bytes // 2 // 4
    for elements, cold in ((half, False), (half + 1, True)):
        group = weighted(8, elements)
        key = workload_key(group)
        with SqliteStore(tmp_path / f"{elements}.db") as store:
            store.add_hardware(here)
            store.add_workload(Workload(key, ""))
            store.add(Record(key, here.digest, "plain", 1, "scale=1", samples=(7e-3,), cold_samples=(8e-3,)))
        analysed: Any = SimpleNamespace(graph=group.graph, hardware=MACHINE, target=target)
        model = choose_cost_model(analysed, None, None, tmp_path / f"{elements}.db")
        assert isinstance(model, RecordedCostModel) and model.fallback.cold is cold  # type: ignore[attr-defined]
        assert model.costs([Candidate(group, FAMILY, Scale(1))]) == pytest.approx([8e-3 if cold else 7e-3])
