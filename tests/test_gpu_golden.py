"""Kernels for the card take as much of it as when gpu_code/resources.json was written: a sample, made again."""

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
#: Of these networks so many rows are made again: the others take longer to analyse. --check of the script takes all.
SAMPLED = {"mobilenet_v1": 3, "minilm_l6": 2}
CONTENT = golden.kept()


@pytest.fixture(scope="module")
def compiler() -> Iterator[CrossCompiler]:
    with CrossCompiler(resolve(golden.TARGET), golden.PATIENCE) as made:
        yield made


def sample(network: str) -> list[dict[str, Any]]:
    """Rows that lie evenly over the network's, its last among them."""
    rows, count = CONTENT["networks"][network], SAMPLED[network]
    return [rows[(i + 1) * len(rows) // count - 1] for i in range(min(count, len(rows)))]


@pytest.mark.parametrize("network", SAMPLED)
def test_a_networks_kernels_take_what_they_took(compiler: CrossCompiler, network: str) -> None:
    for row in sample(network):
        label = f"{row['group']} {row['family']}[{row['config']}]"
        try:
            group = golden.group_of(network, row)
        except KeyError as error:
            pytest.fail(f"{network} is lowered otherwise than before ({label}: no operator {error}); {AGAIN}")
        said = golden.described(network, group, row["family"], row["config"])
        assert {name: row[name] for name in said} == said, f"{label}; {AGAIN}"
        found = golden.own(compiler, network, group, row["family"], row["config"])
        assert golden.differences(row["own"], found) == [], f"{label}; {AGAIN}"


def test_families_kernels_take_what_they_took(compiler: CrossCompiler) -> None:
    rows = {row["case"]: row for row in CONTENT["families"]}
    assert set(rows) == {f"{name}: {what}" for name, what, *_ in CASES}, AGAIN
    for found in golden.family_rows(compiler, sorted(rows)[::6]):
        kept = rows[found["case"]]
        assert kept["config"] == found["config"], f"{found['case']} has another best configuration; {AGAIN}"
        assert golden.differences(kept["own"], found["own"]) == [], f"{found['case']}; {AGAIN}"


def test_tvms_rules_take_what_they_took(compiler: CrossCompiler) -> None:
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
