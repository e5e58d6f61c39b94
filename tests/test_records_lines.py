"""Records as JSON lines, out and in again, and merging: nothing is lost, doubled, or believed unchecked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from records_samples import failure, fill, group, record

from autofuse.errors import RecordError
from autofuse.records import Form, MemoryStore, RecordStore, SqliteStore, Workload
from autofuse.records.groups import group_to_text


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    made: RecordStore = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "records.db")
    with made:
        yield fill(made)


class TestEveryStore:
    def test_export_and_import_round_trip(self, store: RecordStore, tmp_path: Path) -> None:
        for r in (record(3), failure(2, config="ü=1"), record(1, hardware="hw2")):
            store.add(r)
        store.add_form(Form("w1", "NCHW8c->", group_to_text(group())))
        store.refresh_baseline("hw1")
        store.refresh_baseline("hw2")
        assert store.export_lines(tmp_path / "a.jsonl") == 3
        other = MemoryStore()
        assert other.import_lines(tmp_path / "a.jsonl") == 3
        assert other.import_lines(tmp_path / "a.jsonl") == 0
        assert list(other.records()) == list(store.records()) and list(other.forms()) == list(store.forms())
        assert [r.normalised for r in other.records()] == [r.normalised for r in store.records()]
        other.export_lines(tmp_path / "b.jsonl")
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
        assert sorted(p.name for p in tmp_path.glob("*.jsonl*")) == ["a.jsonl", "b.jsonl"]

    def test_merge_takes_what_is_new_and_only_that(self, store: RecordStore) -> None:
        other = fill(MemoryStore())
        other.add_workload(Workload("w3", "pool"), ["vgg16"])
        other.add(record())
        other.add(record(1, workload="w3"))
        store.add(record())
        assert store.merge(other) == 1
        assert store.merge(other) == 0
        assert store.models("w3") == ("vgg16",)

    def test_a_failed_import_leaves_nothing(self, store: RecordStore, tmp_path: Path) -> None:
        store.add(record())
        store.export_lines(tmp_path / "a.jsonl")
        good = (tmp_path / "a.jsonl").read_text()
        extra = good.splitlines()[-1].replace('"a=1"', '"a=9"')
        for bad in (
            "{broken",
            '{"type": "program"}',
            '{"type": "form", "workload": "w1", "layouts": "", "text": "import os"}',
            extra.replace('"family":"conv"', '"family":7'),
            extra.replace('"samples":[0.001', '"samples":[NaN'),
            extra.replace('"samples":[0.001', '"samples":[-1'),
            extra.replace('"status":"ok"', '"status":"fine"'),
            extra.replace('"hw1"', '"hw7"'),
            extra.replace('"created":"2025-', '"created":"now-'),
            extra.replace('"message"', '"comment"'),
            extra.replace('"family_version":1', '"family_version":true'),
        ):
            assert bad != extra
            path = tmp_path / "bad.jsonl"
            path.write_text(good + extra + "\n" + bad + "\n")
            with pytest.raises(RecordError, match=r"bad.jsonl:\d+: .*nothing was imported") as caught:
                store.import_lines(path)
            assert "\n" not in str(caught.value)
            assert len(list(store.records())) == 1

    def test_an_import_of_another_kind_of_file_is_refused(self, store: RecordStore, tmp_path: Path) -> None:
        for name, text in (("empty", ""), ("text", "hello\n"), ("new", '{"type":"autofuse-records","schema":99}\n')):
            (tmp_path / name).write_text(text)
            with pytest.raises(RecordError, match=name):
                store.import_lines(tmp_path / name)
        with pytest.raises(RecordError, match="cannot be read"):
            store.import_lines(tmp_path / "missing")
