"""Records as JSON lines: takes a store and writes a file, or a file and gives a MemoryStore.

The first line is {"type": "autofuse-records", "schema": 5}, with "evaluation_only": true where nothing may be learned
from the records; then hardware, workloads (with their models), forms and records, one object a line, sorted, so that
two exports of the same content are the same bytes and files diff well. Files of schema 1, whose records have no cold
samples, and of schemas 2 and 3, whose records do not say what version of the code generation made them, are read too.
Nothing in a file is ever executed: every line is checked against the fields and types listed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.errors import RecordError
from autofuse.files import whole_file
from autofuse.graph.keys import text_key
from autofuse.records.groups import group_from_text
from autofuse.records.memory import MemoryStore
from autofuse.records.record import (
    CODEGEN_FIELDS,
    COLD_FIELDS,
    REFERENCES,
    Form,
    Record,
    RecordedHardware,
    Workload,
    canonical,
    record_to_dict,
)
from autofuse.records.schema import EVALUATION_ONLY, SCHEMA_VERSION

if TYPE_CHECKING:
    from autofuse.records.store import RecordStore

HEADER = "autofuse-records"

_FIELDS: Mapping[str, Mapping[str, type]] = {
    "hardware": {"digest": str, "name": str, "detail": dict},
    "workload": {"key": str, "text": str, "label": str, "models": list},
    "form": {"workload": str, "layouts": str, "text": str},
    "record": {
        "workload": str,
        "hardware": str,
        "family": str,
        "family_version": int,
        "config": str,
        "layouts": str,
        "status": str,
        "message": str,
        "samples": list,
        "reference_samples": dict,
        "reference": str,
        "tvm_version": str,
        "autofuse_version": str,
        "tir_digest": str,
        "created": str,
        "cold_samples": list,
        "cold_reference_samples": dict,
        "codegen_version": int,
    },
}
# Schema → fields of records that it did not have yet.
_LATER: Mapping[int, Sequence[str]] = {
    1: (*COLD_FIELDS, *CODEGEN_FIELDS),
    2: CODEGEN_FIELDS,
    3: CODEGEN_FIELDS,
}
_LARGEST = 2**31 - 1
_LONGEST = 1e9  # seconds
_CREATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def write(store: RecordStore, path: Path) -> int:
    """Write all that `store` holds to `path`, whole or not at all; the number of records."""
    count = 0
    try:
        with whole_file(path) as out:

            def line(kind: str, value: Mapping[str, Any]) -> None:
                out.write((canonical({"type": kind, **value}) + "\n").encode("ascii"))

            mark = {EVALUATION_ONLY: True} if store.evaluation_only else {}
            line(HEADER, {"schema": SCHEMA_VERSION, **mark})
            for row in store.hardware():
                line("hardware", {"digest": row.digest, "name": row.name, "detail": dict(row.detail)})
            for w in store.workloads():
                line("workload", {"key": w.key, "text": w.text, "label": w.label, "models": list(store.models(w.key))})
            for form in store.forms():
                line("form", {"workload": form.workload, "layouts": form.layouts, "text": form.text})
            for record in store.records():
                line("record", record_to_dict(record))
                count += 1
    except OSError as error:
        raise RecordError(f"{path}: cannot be written ({error.strerror or error})") from error
    return count


def read(path: Path) -> MemoryStore:
    """What the file holds. RecordError that names the line if anything in it is not as it should be."""
    store = MemoryStore()
    schema = SCHEMA_VERSION
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: is no text file; give a file that `autofuse records export` wrote") from error
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line, parse_constant=_refuse_constant)
            if number == 1:
                schema = _schema(value)
                if value.get(EVALUATION_ONLY):
                    store.keep_for_evaluation()
            else:
                _take(store, value, schema)
        except RecursionError as error:
            raise RecordError(f"{path}:{number}: nested too deeply; nothing was imported") from error
        except (ValueError, RecordError) as error:
            raise RecordError(f"{path}:{number}: {one_line(error)}; nothing was imported") from error
    if not lines:
        raise RecordError(f"{path}: is empty; give a file that `autofuse records export` wrote")
    return store


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number that a record may hold")


def _schema(value: object) -> int:
    """The version of the schema that a file's first line names."""
    if not isinstance(value, dict) or value.get("type") != HEADER:
        raise ValueError(f"the first line does not say {HEADER}: no export of records")
    schema = value.get("schema")
    if not isinstance(value.get(EVALUATION_ONLY, False), bool):
        raise ValueError(f"{EVALUATION_ONLY} is neither true nor false")
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA_VERSION:
        raise ValueError(f"schema {schema!r} is not known (up to {SCHEMA_VERSION}): use a newer autofuse")
    return schema


def _take(store: MemoryStore, value: object, schema: int) -> None:
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    kind = value.pop("type", None)
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ValueError(f"type {kind!r} is none of {', '.join(_FIELDS)}")
    if kind == "record":
        later = _LATER.get(schema, ())
        fields = {name: wanted for name, wanted in fields.items() if name not in later}
    if set(value) != set(fields):
        odd = sorted(set(value) ^ set(fields))
        raise ValueError(f"{kind} has missing or unknown fields: {', '.join(odd)}")
    for name, wanted in fields.items():
        if not isinstance(value[name], wanted) or isinstance(value[name], bool):
            raise ValueError(f"{kind}.{name} is no {wanted.__name__}")
    _check_text(value)
    if kind == "hardware":
        store.add_hardware(RecordedHardware(**value))
    elif kind == "workload":
        models = value.pop("models")
        if not all(isinstance(model, str) for model in models):
            raise ValueError("workload.models is no list of names")
        if text_key(value["text"]) != value["key"]:
            raise ValueError(f"workload.key {value['key']} is not the key of its text")
        store.add_workload(Workload(**value), models)
    elif kind == "form":
        group_from_text(value["text"])  # a form that cannot be read is of no use to anybody
        store.add_form(Form(**value))
    else:
        if not 0 < value["family_version"] <= _LARGEST:
            raise ValueError(f"record.family_version {value['family_version']} is no version")
        value.setdefault("codegen_version", 0)
        if not 0 <= value["codegen_version"] <= _LARGEST:
            raise ValueError(f"record.codegen_version {value['codegen_version']} is no version")
        if not _CREATED.fullmatch(value["created"]):
            raise ValueError(f"record.created {value['created']!r} is no UTC time")
        for prefix in ("", "cold_"):
            samples, references = f"{prefix}samples", f"{prefix}reference_samples"
            if not set(value.get(references, ())) <= set(REFERENCES):
                raise ValueError(f"record.{references} has an unknown reference")
            value[samples] = _times(value.get(samples, []))
            value[references] = {n: _times(t) for n, t in value.get(references, {}).items()}
            if value["status"] == "ok" and any(len(t) != len(value[samples]) for t in value[references].values()):
                raise ValueError(f"record.{references} has not one time beside each sample")
        store.add(Record(**value))


def _check_text(value: object) -> None:
    """Refuse text that no file can hold (half a character), wherever it stands."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for name, content in value.items():
            _check_text(name)
            _check_text(content)
    elif isinstance(value, list):
        for content in value:
            _check_text(content)


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())


def _times(values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v <= _LONGEST for v in values
    ):
        raise ValueError("samples are no list of positive times")
    return tuple(float(v) for v in values)
