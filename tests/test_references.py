"""The kernels that everything else is measured beside never change: what records hold are ratios to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from tvm import tirx

from autofuse.codegen.digest import DIGEST_LENGTH, tir_digest
from autofuse.measure import references

FILE = Path(__file__).with_name("golden_references.json")


def digests() -> Mapping[str, str]:
    """What the kernels do, and what the reference kernels are called with."""
    kernels = {
        "product": references._product, "memory": references._memory, "fill": references._fill,
    }  # fmt: skip
    found = {name: tir_digest(kernel) for name, kernel in kernels.items()}
    for name in references.NAMES:
        whole = hashlib.sha256()
        for array in references.reference_arrays(name):
            whole.update(f"{array.dtype} {array.shape} ".encode())
            whole.update(array.data)
        found[f"operands of {name}"] = whole.hexdigest()[:DIGEST_LENGTH]
    return found


def test_the_reference_kernels_are_what_they_always_were() -> None:
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    found = digests()
    assert set(found) == set(kept)
    changed = sorted(name for name, digest in found.items() if digest != kept[name])
    assert not changed, (
        f"{', '.join(changed)} in autofuse/measure/references.py changed: all records are ratios to these kernels, "
        "those of other versions cannot be told apart. Put it back as it was; a kernel that is to be another one needs "
        "another name, and to be known to records (REFERENCES in autofuse/records/record.py)"
    )


@pytest.mark.parametrize("name", ["_product", "_memory"])
def test_a_changed_kernel_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = getattr(references, name).with_body(tirx.Evaluate(tirx.const(0, "int32")))
    monkeypatch.setattr(references, name, nothing)
    with pytest.raises(AssertionError, match=f"{name.removeprefix('_')} in autofuse/measure/references.py changed"):
        test_the_reference_kernels_are_what_they_always_were()
