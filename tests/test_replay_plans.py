"""Networks kept as data are planned again as they were, and a change of plan is seen."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import replay

from autofuse.cost import AnalyticalCostModel
from autofuse.errors import PlanError
from autofuse.learn.plans import NetworkPlans
from autofuse.learn.replay_plans import Replayable, differences, kernels_of, read, renumbered, save
from autofuse.search.problem import Thresholds
from autofuse.search.thresholds import save_thresholds

FILES = sorted(replay.PLANS.glob("*.json.gz"))


def test_a_network_from_its_file_is_planned_as_the_network_itself(planned: NetworkPlans, tmp_path: Path) -> None:
    hardware = planned.hardware
    costs = AnalyticalCostModel(hardware)
    graph, greedy = renumbered(planned)
    plan = planned.plan(costs)
    kept = Replayable("net", "digest", graph, greedy, kernels_of(plan), plan.cost)
    save(kept, tmp_path / "plans" / "net.json.gz")
    again = read(tmp_path / "plans" / "net.json.gz")
    assert (again.name, again.hardware, again.greedy, again.seconds) == ("net", "digest", greedy, plan.cost)
    found = again.network(hardware).plan(costs)
    assert found.cost == pytest.approx(plan.cost, rel=1e-12)
    assert [c.group.members for c in found.choices] == [c.group.members for c in plan.choices]
    assert [(c.family, c.config) for c in found.choices] == [(c.family, c.config) for c in plan.choices]
    save(again, tmp_path / "again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == (tmp_path / "plans" / "net.json.gz").read_bytes()


def test_another_plan_is_seen(planned: NetworkPlans) -> None:
    costs = AnalyticalCostModel(planned.hardware)
    one, other = (kernels_of(planned.plan(costs, strategy)) for strategy in ("dp", "none"))
    assert differences(one, one) == []
    lines = differences(one, other)
    members = {mark: [len(x[2:].split(" -> ")[0].split()) for x in lines if x[0] == mark] for mark in "-+"}
    assert max(members["-"]) > 1 and set(members["+"]) == {1}  # dp's kernels are gone, each operator has its own


def test_networks_are_planned_with_the_thresholds_of_the_predictor(
    planned: NetworkPlans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a compile with the predictor does."""
    costs = AnalyticalCostModel(planned.hardware)
    monkeypatch.setattr(replay, "PREDICTOR", tmp_path)
    monkeypatch.setattr(replay, "hardware_of", lambda _: ("digest", planned.hardware))
    monkeypatch.setattr(replay, "costs_of", lambda *_: costs)
    graph, _ = renumbered(planned)
    bare = Replayable("net", "digest", graph, (), (), 0.0)
    usual = kernels_of(bare.network(planned.hardware).plan(costs))
    save(replace(bare, plan=usual), tmp_path / "net.json.gz")
    assert replay.thresholds() is None and replay.compare(tmp_path / "net.json.gz") == []
    limits = Thresholds(max_group_size=1)
    save_thresholds(limits, tmp_path / "thresholds.json", {})
    alone = bare.network(planned.hardware, limits).plan(costs)
    assert {len(c.group.members) for c in alone.choices} == {1} and replay.thresholds() == limits
    assert replay.compare(tmp_path / "net.json.gz") == differences(usual, kernels_of(alone)) != []


def test_another_file_is_refused_in_one_line(tmp_path: Path) -> None:
    for content in (b"", b"nonsense", b"\x1f\x8b"):
        (tmp_path / "x.json.gz").write_bytes(content)
        with pytest.raises(PlanError, match=r"scripts/replay\.py") as caught:
            read(tmp_path / "x.json.gz")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", FILES, ids=[p.name.removesuffix(".json.gz") for p in FILES])
def test_the_plans_of_data_are_what_records_and_predictor_give(path: Path) -> None:
    """A change of plan is no fault: look at it, then `python scripts/replay.py --write`."""
    assert replay.compare(path) == []
