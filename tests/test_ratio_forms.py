"""The script that compares ways to make one number of a kernel's samples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from records_samples import failure, fill, record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import ratio_forms

from autofuse.records import Record, SqliteStore
from autofuse.records.noise import noise, pairs


def sampled(second: int, times: tuple[float, ...], beside: tuple[float, ...], **changes: object) -> Record:
    references = {"arithmetic": beside, "memory": (1.0,) * len(beside)}
    return record(second, samples=times, reference_samples=references, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two kernels measured twice, one once, one that failed once, one without a reference; one on other hardware."""
    found = tmp_path / "some.db"
    with SqliteStore(found) as store:
        for r in (
            sampled(0, (2.0, 6.0, 4.0, 8.0, 50.0), (1.0, 2.0, 1.0, 2.0, 5.0)),
            sampled(1, (3.0, 6.0, 9.0, 12.0, 40.0), (2.0, 2.0, 2.0, 2.0, 4.0)),
            sampled(2, (5.0,) * 4, (1.0,) * 4, config="a=2"),
            sampled(3, (5.0,) * 4, (1.0,) * 4, config="a=2"),
            sampled(4, (5.0,) * 4, (1.0,) * 4, config="a=3"),
            sampled(5, (5.0,) * 4, (1.0,) * 4, config="a=4"),
            failure(6, config="a=4"),
            record(7, config="a=5", reference_samples={}),
            record(8, 2e-3, config="a=5", reference_samples={}),
            sampled(9, (5.0,) * 4, (1.0,) * 4, hardware="hw2"),
            sampled(10, (15.0,) * 4, (1.0,) * 4, hardware="hw2"),
        ):
            fill(store).add(r)
        store.refresh_baseline("hw1")
    return found


def test_every_form_of_every_pair(path: Path) -> None:
    with SqliteStore(path, readonly=True) as store:
        found = ratio_forms.differences(pairs(store, "hw1"))
        counted = noise(store, "hw1")
    assert found.kernels == 2
    expected = {
        "quiet times, no reference": (2.0, 3.0),
        "ratio of quiet times": (2.0, 1.5),
        "median of the pairs' ratios": (3.5, 3.75),  # of 2, 3, 4, 4 and of 1.5, 3, 4.5, 6: the last was disturbed
    }
    for name, (a, b) in expected.items():
        assert found.differences[name] == pytest.approx([abs(a - b) / ((a + b) / 2), 0.0])
    # The product's own number: what `records noise` says, the kernels without a reference apart.
    assert counted.overall.pairs == 3
    own = [*found.differences["both, as it is"], 2 / 3]
    assert counted.overall.normalised == pytest.approx(ratio_forms.quantiles(own))


def test_the_table_has_a_column_for_each_hardware(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.db"
    with SqliteStore(empty) as store:
        fill(store)
    before = path.read_bytes()
    assert ratio_forms.main([str(path), str(empty)]) == 0
    out = capsys.readouterr().out.splitlines()
    columns = "2 kernels of some.db, a machine | 1 kernels of some.db, another machine"
    assert out[0] == f"| median, 95th percentile | {columns} |"
    assert out[2] == "| quiet times, no reference | 20.0 %, 38.0 % | 100.0 %, 100.0 % |"
    assert len(out) == 2 + len(ratio_forms.FORMS) and path.read_bytes() == before


def test_a_store_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ratio_forms.main([str(tmp_path / "none.db")]) == 2
    assert "none.db" in capsys.readouterr().err and not (tmp_path / "none.db").exists()
