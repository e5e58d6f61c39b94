"""`autofuse collect` from model to store, with kernels that are neither built nor timed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

import onnx
import pytest
from click.testing import CliRunner
from learn_stores import small_predictor
from replayed_kernels import Instant
from small_network import small_network

from autofuse.cli import cli
from autofuse.cost import CostModel
from autofuse.learn import save_predictor
from autofuse.measure import BuildRequest, BuildResult, CollectItem, ReplayBuilder, oracle
from autofuse.measure.order import in_order
from autofuse.records import SqliteStore


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with the small network; measuring and building are replaced."""
    monkeypatch.setattr("autofuse.measure.LocalRunner", Instant, raising=False)
    monkeypatch.setattr("autofuse.measure.PoolBuilder", lambda workers: ReplayBuilder(), raising=False)
    monkeypatch.setenv("AUTOFUSE_HOME", str(tmp_path / "home"))
    onnx.save(small_network(), tmp_path / "small.onnx")
    return str(tmp_path / "small.onnx")


class Slow(ReplayBuilder):
    """Builds for longer than a run of a second."""

    def build(self, requests: Iterable[BuildRequest]) -> Generator[BuildResult, None, None]:
        for result in super().build(requests):
            time.sleep(1.2)
            yield result


def collect(*arguments: object) -> dict[str, Any]:
    ran = CliRunner().invoke(cli, ["collect", *map(str, arguments), "--threads", "2", "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_plans_come_first_and_a_run_goes_on_where_it_stopped(network: str, tmp_path: Path) -> None:
    db = tmp_path / "r.db"
    whole = collect(network, "--db", db, "--dry-run")
    assert not db.exists() and whole["candidates"] > 20
    first = collect(network, "--db", db, "--trials", 4)
    assert (first["measured"], first["left"]) == (4, whole["candidates"] - 4) and first["rate"] > 0
    second = collect(network, "--db", db, "--trials", 3, "--again", 2)
    # The best plan may be another one now, with other configurations than that which was measured for the first.
    assert second["measured"] == 3 and 3 <= second["cached"] <= 4
    with SqliteStore(db) as store:
        assert [len(r.samples) for r in store.records()] == [4] * 7  # two passes of two samples, which agree
        models = {store.models(r.workload) for r in store.records()}
    assert len(models) == 1


def test_the_most_useful_of_a_model_and_some_of_them_twice(network: str, tmp_path: Path) -> None:
    db = tmp_path / "r.db"
    counts = collect(network, "--db", db, "--per-model", 12, "--again", 3, "--evaluation")
    assert (counts["measured"], counts["failed"], counts["left"]) == (15, 0, 0)
    assert counts["store"]["evaluation_only"] and counts["store"]["ok"] == 15
    again = collect(network, "--db", db, "--per-model", 12, "--again", 3)
    # Plans may use other kernels now: these are measured too, whatever the number, and most of the first are known.
    assert again["left"] == 0 and 6 < again["cached"] <= 12 and again["cached"] + again["measured"] >= 12
    with SqliteStore(db, readonly=True) as store:
        assert store.evaluation_only


def test_the_greedy_plan_s_kernels_are_always_measured(network: str, tmp_path: Path) -> None:
    from autofuse.chosen import choose_cost_model
    from autofuse.compiler import analyse, problem_of
    from autofuse.graph.keys import workload_key
    from autofuse.search.strategies import strategy

    collect(network, "--db", tmp_path / "r.db", "--per-model", 1, "--configs", 1, "--explore", 0)
    model = analyse(network, threads=2)
    problem = problem_of(model, choose_cost_model(model, "analytical", None, None))
    choices = [c for c in strategy("greedy").search(problem).choices if c.family not in ("", "view")]
    with SqliteStore(tmp_path / "r.db", readonly=True) as store:
        there = {(r.workload, r.family, r.config) for r in store.records()}
    wanted = {(workload_key(c.group), c.family, c.config) for c in choices}
    assert len(wanted) > 1 and wanted <= there


def test_the_zoo_s_networks_stand_beside_those_that_are_named(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autofuse.frontend.zoo.names", lambda: (network,))
    alone = collect("--zoo", "--db", tmp_path / "r.db", "--dry-run")
    assert alone["models"] == [network] and alone["candidates"] > 0
    assert collect(network, "--zoo", "--db", tmp_path / "r.db", "--dry-run") == alone


def test_what_is_left_out_tells_which_models_contain_what_is_measured(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autofuse.measure import collect as real

    seen: list[tuple[int, int]] = []

    def looked_at(items: Any, *given: Any) -> Any:
        seen.append((len({i.key for i in items}), len({i.key for i in given[-1]})))
        return real(items, *given)

    monkeypatch.setattr("autofuse.measure.collect", looked_at, raising=False)
    collect(network, "--db", tmp_path / "r.db", "--per-model", 1, "--configs", 1)
    ((chosen, found),) = seen
    assert chosen < found


def test_a_store_that_is_learned_from_is_not_turned_into_one_for_evaluation(network: str, tmp_path: Path) -> None:
    db = tmp_path / "r.db"
    collect(network, "--db", db, "--trials", 1)
    arguments = ["collect", network, "--db", str(db), "--threads", "2", "--evaluation"]
    failed = CliRunner().invoke(cli, arguments)
    assert "a store of its own" in str(failed.exception)
    more = collect(network, "--db", db, "--trials", 1)
    assert more["measured"] == 1 and (more["store"]["ok"], more["store"]["evaluation_only"]) == (2, False)


def test_what_numpy_does_not_compute_is_skipped_and_named(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(cast(dict[str, Any], oracle._KINDS), "nn.softmax")
    monkeypatch.setattr("autofuse.measure.oracle_definitions.MOST", 0)
    counts = collect(network, "--db", tmp_path / "r.db", "--configs", 1)
    assert counts["skipped"] and counts["failed"] == 0 and len(counts["skips"]) <= counts["skipped"]
    assert all("not measured, nothing to compare with: numpy does not compute" in said for said in counts["skips"])
    with SqliteStore(tmp_path / "r.db") as store:
        assert not any("softmax" in w.text for w in store.workloads() if list(store.records(workload=w.key)))
    arguments = ["collect", network, "--db", str(tmp_path / "r.db"), "--configs", "1", "--threads", "2"]
    ran = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert re.search(r"already there, \d+ skipped", ran.output) and "(nn.softmax)" in ran.output


def test_time_that_is_too_short_for_a_kernel_is_said(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autofuse.measure.PoolBuilder", lambda workers: Slow())
    arguments = ["collect", network, "--db", str(tmp_path / "r.db"), "--configs", "1", "--threads", "2"]
    ran = CliRunner().invoke(cli, [*arguments, "--budget", "1s"], catch_exceptions=False)
    assert ran.exit_code == 0 and ran.stdout.startswith("0 measured, 0 failed, 0 already there")
    assert "time ran out before the first kernel was measured: give a longer --budget" in ran.stderr


def test_a_predictor_says_what_to_explore(network: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    save_predictor(small_predictor(), tmp_path / "p")
    counts = collect(network, "--db", tmp_path / "r.db", "--predictor", tmp_path / "p", "--configs", 1, "--trials", 2)
    assert counts["measured"] == 2 and counts["left"] > 0


def test_a_collection_from_nothing_is_the_same_whatever_predictor_is_there(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    orders: list[list[tuple[str, str, str]]] = []
    models: list[str] = []

    def noted(items: list[CollectItem], costs: CostModel) -> list[CollectItem]:
        found = in_order(items, costs)
        orders.append([(i.key, i.candidate.family.name, i.candidate.config.text) for i in found])
        models.append(costs.name)
        return found

    monkeypatch.setattr("autofuse.measure.order.in_order", noted)
    arguments = (network, "--db", tmp_path / "r.db", "--configs", 1, "--dry-run")
    collect(*arguments)
    save_predictor(small_predictor(), tmp_path / "p")
    monkeypatch.setattr("autofuse.learn.default.default_predictor", lambda _: tmp_path / "p")
    collect(*arguments)
    collect(*arguments, "--cost-model", "analytical")
    assert models == ["analytical", "learned", "analytical"]
    assert orders[0] == orders[2] != orders[1]
    both = ["collect", *map(str, arguments), "--cost-model", "analytical", "--predictor", str(tmp_path / "p")]
    assert "give one of them" in str(CliRunner().invoke(cli, both).exception)
