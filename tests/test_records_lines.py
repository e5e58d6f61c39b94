"""Records as JSON lines, out and in again, and merging: nothing is lost, doubled, or believed unchecked."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

import pytest
import records_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records_samples import HERE, THERE, group

from autofuse.codegen.version import CODEGEN_VERSION
from autofuse.errors import RecordError
from autofuse.graph.keys import text_key
from autofuse.records import Form, MemoryStore, Record, RecordStore, SqliteStore, Workload
from autofuse.records.groups import group_to_text
from autofuse.records.record import CODEGEN_FIELDS, COLD_FIELDS
from autofuse.records.schema import SCHEMA_VERSION

# In a file, a workload's key has to be that of its text.
W1, W2 = text_key("conv 1"), text_key("matmul 1")
record, cold, failure = (
    partial(made, workload=W1) for made in (records_samples.record, records_samples.cold, records_samples.failure)
)


def fill(store: RecordStore) -> RecordStore:
    store.add_hardware(HERE)
    store.add_hardware(THERE)
    store.add_workload(Workload(W1, "conv 1", "conv"), ["resnet50"])
    store.add_workload(Workload(W2, "matmul 1"))
    return store


@pytest.fixture
def store(store: RecordStore) -> RecordStore:
    return fill(store)


class TestEveryStore:
    def test_export_and_import_round_trip(self, store: RecordStore, tmp_path: Path) -> None:
        for r in (record(3), failure(2, config="ü=1"), record(1, hardware="hw2"), cold(4, config="a=4")):
            store.add(r)
        store.add_form(Form(W1, "NCHW8c->", group_to_text(group())))
        store.refresh_baseline("hw1")
        store.refresh_baseline("hw2")
        assert store.export_lines(tmp_path / "a.jsonl") == 4
        other = MemoryStore()
        assert other.import_lines(tmp_path / "a.jsonl") == 4
        assert other.import_lines(tmp_path / "a.jsonl") == 0
        assert list(other.records()) == list(store.records()) and list(other.forms()) == list(store.forms())
        for name in ("normalised", "cold_normalised"):
            assert [getattr(r, name) for r in other.records()] == [getattr(r, name) for r in store.records()]
        other.export_lines(tmp_path / "b.jsonl")
        assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
        assert sorted(p.name for p in tmp_path.glob("*.jsonl*")) == ["a.jsonl", "b.jsonl"]

    def test_a_file_of_schema_1_is_read_and_its_records_are_the_same_ones(
        self, store: RecordStore, tmp_path: Path
    ) -> None:
        store.add(record(codegen_version=0))
        store.add(failure(1, config="a=2", codegen_version=0))
        store.export_lines(tmp_path / "new.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
        for value in lines:
            for name in (*COLD_FIELDS, *CODEGEN_FIELDS):
                value.pop(name, None)
        lines[0]["schema"] = 1
        old = tmp_path / "old.jsonl"
        old.write_text("".join(json.dumps(value) + "\n" for value in lines))
        other = MemoryStore()
        assert other.import_lines(old) == 2 and store.import_lines(old) == 0
        assert list(other.records()) == list(store.records())
        for schema, first, odd in (  # the fields of the other version
            (1, tmp_path / "new.jsonl", "codegen_version, cold_reference_samples, cold_samples"),
            (2, tmp_path / "new.jsonl", "codegen_version"),
            (3, old, "cold_reference_samples, cold_samples"),
            (SCHEMA_VERSION, old, "codegen_version, cold_reference_samples, cold_samples"),
        ):
            lines = first.read_text().splitlines()
            bad = tmp_path / "bad.jsonl"
            bad.write_text("\n".join([f'{{"schema":{schema},"type":"autofuse-records"}}', *lines[1:]]) + "\n")
            with pytest.raises(RecordError, match=f"missing or unknown fields: {odd};"):
                other.import_lines(bad)

    @pytest.mark.parametrize("schema", [2, 3])
    def test_records_of_schemas_2_and_3_were_made_by_a_code_generation_that_is_not_known(
        self, store: RecordStore, tmp_path: Path, schema: int
    ) -> None:
        store.add(cold())
        store.export_lines(tmp_path / "new.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
        lines[0]["schema"] = schema
        assert lines[-1].pop("codegen_version") == CODEGEN_VERSION
        old = tmp_path / "old.jsonl"
        old.write_text("".join(json.dumps(value) + "\n" for value in lines))
        other = MemoryStore()
        assert other.import_lines(old) == 1
        assert list(other.records()) == [cold(codegen_version=0)]
        assert other.lookup([cold().identity]) == [None]
        lines[0]["schema"] = 5
        lines[-1]["codegen_version"] = -1
        old.write_text("".join(json.dumps(value) + "\n" for value in lines))
        with pytest.raises(RecordError, match=r"codegen_version -1 is no version"):
            other.import_lines(old)

    def test_what_is_kept_for_evaluation_says_so_in_the_first_line(self, store: RecordStore, tmp_path: Path) -> None:
        store.keep_for_evaluation()
        store.add(record())
        store.export_lines(tmp_path / "a.jsonl")
        first, *rest = (tmp_path / "a.jsonl").read_text(encoding="ascii").splitlines()
        assert json.loads(first)["evaluation_only"] is True
        fresh, other = MemoryStore(), fill(MemoryStore())
        assert fresh.import_lines(tmp_path / "a.jsonl") == 1 and fresh.evaluation_only
        other.add(record(5))
        with pytest.raises(RecordError, match="a store of its own"):
            other.import_lines(tmp_path / "a.jsonl")
        (tmp_path / "a.jsonl").write_text("\n".join([first.replace("true", "1"), *rest]), encoding="ascii")
        with pytest.raises(RecordError, match="neither true nor false"):
            MemoryStore().import_lines(tmp_path / "a.jsonl")

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
        store.add(cold())
        store.export_lines(tmp_path / "a.jsonl")
        good = (tmp_path / "a.jsonl").read_text()
        extra = good.splitlines()[-1].replace('"a=1"', '"a=9"')
        for bad in (
            "{broken",
            '{"type": "program"}',
            json.dumps({"type": "form", "workload": W1, "layouts": "", "text": "import os"}),
            json.dumps({"type": "workload", "key": W1, "text": "another", "label": "", "models": []}),
            extra.replace('"family":"conv"', '"family":7'),
            extra.replace('"samples":[0.001', '"samples":[NaN'),
            extra.replace('"samples":[0.001', '"samples":[-1'),
            extra.replace('"status":"ok"', '"status":"fine"'),
            extra.replace('"hw1"', '"hw7"'),
            extra.replace('"created":"2025-', '"created":"now-'),
            extra.replace('"message"', '"comment"'),
            extra.replace('"family_version":1', '"family_version":true'),
            extra.replace('"family_version":1', f'"family_version":{10**30}'),
            extra.replace('"samples":[0.001', f'"samples":[{10**400}'),
            extra.replace('"message":""', r'"message":"\ud800"'),
            extra.replace('"message":""', f'"message":{"[" * 100000}'),
            extra.replace('"memory":[0.001', '"memory":[true'),
            extra.replace('"memory":[0.001,', '"memory":['),
            extra.replace('"memory":[0.001', '"memory":[{}'),
            extra.replace('"reference":"arithmetic"', '"reference":"__import__"'),
            extra.replace('"cold_samples":[0.003', '"cold_samples":[0'),
            extra.replace('"cold_samples":[0.003,', '"cold_samples":['),
            extra.replace('"cold_samples":[', '"cold_samples":{"a":['),
            extra.replace('"cold_reference_samples":{"arithmetic"', '"cold_reference_samples":{"sun"'),
            extra.replace('"cold_reference_samples"', '"lukewarm_reference_samples"'),
        ):
            assert bad != extra
            path = tmp_path / "bad.jsonl"
            path.write_text(good + extra + "\n" + bad + "\n")
            with pytest.raises(RecordError, match=r"bad.jsonl:\d+: .*nothing was imported") as caught:
                store.import_lines(path)
            assert "\n" not in str(caught.value)
            assert len(list(store.records())) == 1

    def test_a_workload_under_the_key_of_another_is_refused(self, store: RecordStore, tmp_path: Path) -> None:
        store.export_lines(tmp_path / "a.jsonl")
        good = (tmp_path / "a.jsonl").read_text()
        (tmp_path / "a.jsonl").write_text(good.replace("matmul 1", "matmul 2"))
        with pytest.raises(RecordError, match=f"workload.key {W2} is not the key of its text; nothing was imported"):
            MemoryStore().import_lines(tmp_path / "a.jsonl")

    def test_an_import_of_another_kind_of_file_is_refused(self, store: RecordStore, tmp_path: Path) -> None:
        for name, text in (("empty", ""), ("text", "hello\n"), ("new", '{"type":"autofuse-records","schema":99}\n')):
            (tmp_path / name).write_text(text)
            with pytest.raises(RecordError, match=name):
                store.import_lines(tmp_path / name)
        with pytest.raises(RecordError, match="cannot be read"):
            store.import_lines(tmp_path / "missing")


def provenance(r: Record) -> tuple[object, ...]:
    return (r.hardware, r.tvm_version, r.autofuse_version, r.family_version, r.tir_digest, r.created)


class TestMerging:
    def stores(self) -> list[RecordStore]:
        """Three that overlap; one kernel was measured in each."""
        found: list[RecordStore] = []
        for n in range(3):
            other = fill(MemoryStore())
            other.add_workload(Workload(W1, "conv 1"), [f"net{n}"])
            for r in (record(n), record(9), cold(n, config=f"a={n}", tvm_version=f"0.{n}"), failure(n, config="b=1")):
                other.add(r)
            found.append(other)
        return found

    def merged(self, order: list[int], tmp_path: Path) -> bytes:
        with SqliteStore(tmp_path / "together.db") as together:
            for n in order:
                together.merge(self.stores()[n])
            together.export_lines(tmp_path / "together.jsonl")
        (tmp_path / "together.db").unlink()
        return (tmp_path / "together.jsonl").read_bytes()

    def test_neither_order_nor_repetition_matters(self, tmp_path: Path) -> None:
        once = self.merged([0, 1, 2], tmp_path)
        assert self.merged([2, 0, 1], tmp_path) == once == self.merged([1, 1, 0, 2, 0], tmp_path)

    def test_every_record_keeps_where_it_comes_from(self, tmp_path: Path) -> None:
        together = MemoryStore()
        for other in self.stores():
            together.merge(other)
        known = {r.digest: r for other in self.stores() for r in other.records()}
        kept = {r.digest: r for r in together.records()}
        assert kept.keys() == known.keys() and len(kept) == 10
        assert all(provenance(kept[d]) == provenance(known[d]) for d in known)
        assert together.models(W1) == ("net0", "net1", "net2", "resnet50")

    def test_a_store_merged_into_itself_stays_as_it_was(self, store: RecordStore) -> None:
        store.add(record())
        assert store.merge(store) == 0 and len(list(store.records())) == 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("lines")
    store = fill(MemoryStore())
    store.add_form(Form(W1, "NCHW8c->", group_to_text(group())))
    store.add(cold())
    store.add(failure(1, config="a=2"))
    store.export_lines(folder / "a.jsonl")
    return (folder / "a.jsonl").read_text(encoding="ascii").splitlines()


class TestLines:
    def test_are_sorted_compact_and_say_what_they_are(self, exported: list[str]) -> None:
        objects = [json.loads(line) for line in exported]
        assert objects[0] == {"type": "autofuse-records", "schema": SCHEMA_VERSION}
        kinds = [o["type"] for o in objects]
        assert kinds == ["autofuse-records", "hardware", "hardware", "workload", "workload", "form", "record", "record"]
        assert [json.dumps(o, sort_keys=True, separators=(",", ":")) for o in objects] == exported

    def test_the_documented_fields_are_those_that_are_written(self, exported: list[str]) -> None:
        """docs/records.md has a table for every type of line."""
        text = (Path(__file__).parent.parent / "docs" / "records.md").read_text(encoding="utf-8")
        for line in exported[1:]:
            value = json.loads(line)
            section = text.split(f"#### `{value.pop('type')}`", 1)[1].split("####", 1)[0]
            documented = {row.split("`")[1] for row in section.splitlines() if row.startswith("| `")}
            assert documented == set(value), line

    def test_a_new_record_is_one_new_line(self, exported: list[str], tmp_path: Path) -> None:
        store = fill(MemoryStore())
        store.add_form(Form(W1, "NCHW8c->", group_to_text(group())))
        for r in (failure(1, config="a=2"), record(7, config="a=5"), cold()):
            store.add(r)
        store.export_lines(tmp_path / "b.jsonl")
        new = (tmp_path / "b.jsonl").read_text().splitlines()
        assert len(new) == len(exported) + 1 and [line for line in new if line in exported] == exported

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(data=st.data())
    def test_whatever_stands_in_a_line_is_taken_or_refused_with_one_line(
        self, exported: list[str], data: st.DataObject
    ) -> None:
        """A field at random has another value at random; what was taken can be written to SQLite."""
        place = data.draw(st.integers(1, len(exported) - 1))
        value = json.loads(exported[place])
        name = data.draw(st.sampled_from(sorted(value)))
        odd = st.sampled_from(
            ["", "ok", "\ud800", "\x00", 0, -1, 2**70, 1e300, 0.5, True, None, [], {}, [1], ["a"], [[1]]]
        )
        value[name] = data.draw(st.one_of(odd, st.lists(odd, max_size=2), st.dictionaries(st.just("memory"), odd)))
        lines = [*exported[:place], json.dumps(value), *exported[place + 1 :]]
        with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "r.db") as store:
            (Path(folder) / "odd.jsonl").write_text("\n".join(lines) + "\n")
            try:
                store.import_lines(Path(folder) / "odd.jsonl")
            except RecordError as error:
                assert "\n" not in str(error) and "odd.jsonl" in str(error)
                assert list(store.records()) == [] and list(store.workloads()) == []
            else:
                store.export_lines(Path(folder) / "again.jsonl")
                assert MemoryStore().import_lines(Path(folder) / "again.jsonl") == 2
