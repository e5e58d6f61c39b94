"""Kernels for the card take as much of it as when gpu_code/resources.json was written: all of them, made again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_golden as golden
import pytest
from gpu_cases import CASES

from autofuse.measure.cross import CrossCompiler
from autofuse.schedule.registry import families
from autofuse.target import resolve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import gpu_page

AGAIN = "run `python scripts/gpu_kernels.py` where that is meant"
CONTENT = golden.kept()


@pytest.fixture(scope="module")
def compiler() -> Iterator[CrossCompiler]:
    with CrossCompiler(resolve(golden.TARGET), golden.PATIENCE) as made:
        yield made


def label(row: dict[str, Any]) -> str:
    return f"{row['group']} {row['family']}[{row['config']}]"


@pytest.mark.parametrize("network", golden.NETWORKS)
def test_a_networks_plan_is_the_one_in_the_table(network: str) -> None:
    """Every fused group, its family, configuration and estimates: what is compiled below is all of the plan."""
    planned = [row for row, _ in golden.planned(network)]
    kept = [{name: row[name] for name in planned[0]} for row in CONTENT["networks"][network]]
    assert list(map(label, kept)) == list(map(label, planned)), AGAIN
    assert kept == planned, AGAIN


@pytest.mark.parametrize("network", golden.NETWORKS)
def test_a_networks_kernels_take_what_they_took(compiler: CrossCompiler, network: str) -> None:
    rows = CONTENT["networks"][network]
    found = {
        label(row): golden.differences(
            row["own"],
            golden.own(compiler, network, golden.group_of(network, row), row["family"], row["config"]),
        )
        for row in rows
    }
    assert {name: said for name, said in found.items() if said} == {}, AGAIN


def test_families_kernels_take_what_they_took(compiler: CrossCompiler) -> None:
    kept, found = CONTENT["families"], list(golden.family_rows(compiler))
    assert [(row["case"], row["config"]) for row in found] == [(row["case"], row["config"]) for row in kept], AGAIN
    assert len(found) == len(CASES)
    changed = {row["case"]: golden.differences(row["own"], now["own"]) for row, now in zip(kept, found, strict=True)}
    assert {name: said for name, said in changed.items() if said} == {}, AGAIN


def test_tvms_rules_take_what_they_took(compiler: CrossCompiler) -> None:
    """One kernel of the rules that are compared with; `scripts/gpu_kernels.py --check` makes all of them again."""
    row = next(row for row in CONTENT["networks"]["mobilenet_v1"] if "status" not in row["rules"])
    found = golden.by_rules(compiler, "mobilenet_v1", golden.group_of("mobilenet_v1", row))
    assert golden.differences(row["rules"], found) == [], AGAIN


def test_every_kernel_of_the_table_has_code_that_fits_the_card_and_spills_nothing() -> None:
    rows = [row for rows in CONTENT["networks"].values() for row in rows] + CONTENT["families"]
    assert set(CONTENT["networks"]) == set(golden.NETWORKS) and len(rows) > 80
    for row in rows:
        own = row["own"]
        assert "status" not in own, row
        assert own["spills"] == own["scratch"] == 0 and own["waves"] > 0 and own["threads"] <= 256, row
    used = {row["family"] for rows in CONTENT["networks"].values() for row in rows}
    used |= {row["case"].partition(":")[0] for row in CONTENT["families"]}
    assert used >= {f.name for f in families("gpu")} - {"view", "dlight"}


def test_registers_are_hardly_ever_more_than_families_expect() -> None:
    """What prunes configurations before they are compiled: an estimate that is too low would let spills through."""
    rows = [row for rows in CONTENT["networks"].values() for row in rows if row["family"] != "dlight"]
    over = [row for row in rows if row["own"]["vgprs"] > 1.5 * row["estimated"]["vgprs"] + 16]
    assert len(over) <= len(rows) // 10, [(row["group"], row["config"], row["own"]["vgprs"]) for row in over]
    assert all(row["own"]["lds"] <= row["estimated"]["lds"] + 1024 for row in rows)


def test_estimates_are_near_what_the_compiler_makes() -> None:
    """They are features of predictors, and thresholds look at them: docs/dcu-kernels.md has how near they are."""
    rows = CONTENT["offered"]
    assert len(rows) > 400 and {row["family"] for row in rows} == {f.name for f in families("gpu")} - {"view", "dlight"}
    assert [row for row in rows if "status" in row["own"]] == []
    assert [row for row in rows if row["own"]["lds"] > row["estimated"]["lds"]] == []
    fewer = [row for row in rows if row["own"]["waves"] < row["estimated"]["waves"]]
    assert len(fewer) <= len(rows) // 20
    spilling = [row for row in rows if row["own"]["spills"] or row["own"]["scratch"]]
    assert len(spilling) <= len(rows) // 100
    tiles = [row for row in rows if row["own"]["fma"] and row["family"] in ("gpu_gemm", "gpu_depthwise_gemm")]
    loads = [row["own"]["inner_loads"] / row["own"]["fma"] / row["estimated"]["loads_per_fma"] for row in tiles]
    assert len(tiles) > 200 and sum(0.9 < ratio < 1.3 for ratio in loads) >= 0.95 * len(loads)


def test_differences_are_told_beyond_tolerances() -> None:
    row = next(iter(CONTENT["families"]))["own"]
    assert golden.differences(row, {**row, "vgprs": row["vgprs"] + 8}) == []
    assert golden.differences(row, {**row, "spills": 1}) == ["spills was 0, is 1"]
    assert golden.differences(row, {**row, "vgprs": 3 * row["vgprs"] + 9})[0].startswith("vgprs was")
    failed = {"status": "crashed", "message": "gone"}
    assert golden.differences(row, failed) == ["status was ok, is crashed: gone"]
    assert golden.differences(failed, failed) == []


def test_the_page_is_written_from_the_table() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "dcu-kernels.md"
    assert page.read_text(encoding="utf-8") == gpu_page.page(CONTENT), AGAIN
