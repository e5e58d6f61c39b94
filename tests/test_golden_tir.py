"""A family's scheduled code changes only with its version: else records of other code would be taken for its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from golden_groups import FILE, GROUPS, KERNELESS, digests, kept

from autofuse.schedule.registry import families, family

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from golden_tir import updated, write


@pytest.mark.parametrize("name", GROUPS)
def test_code_of_an_unchanged_version_is_unchanged(name: str) -> None:
    entry = kept().get(name)
    assert entry, f"{name} has no digests yet: run `python scripts/golden_tir.py {name}`"
    version = family(name).version
    assert entry["version"] == version, (
        f"{name} is of version {version}, its golden digests of {entry['version']}: "
        f"run `python scripts/golden_tir.py {name}`"
    )
    found = digests(name)
    changed = sorted(k for k, digest in found.items() if entry["digests"].get(k, digest) != digest)
    assert not changed, (
        f"{name} makes other code than before of {changed}: raise its version to {version + 1}, "
        f"then run `python scripts/golden_tir.py {name}`"
    )
    assert set(found) == set(entry["digests"]), (
        f"{name} offers other configurations, or has other golden groups, than before: "
        f"run `python scripts/golden_tir.py {name}`"
    )


def test_every_family_with_kernels_has_golden_groups() -> None:
    missing = [f.name for f in families() if f.name not in GROUPS and f.name not in KERNELESS]
    assert not missing, f"no golden groups for {', '.join(missing)}: add some to tests/golden_groups.py"
    assert set(kept()) <= {f.name for f in families()}


class TestScript:
    OLD: ClassVar = {"conv": {"version": 2, "digests": {"a [x=1]": "00", "b [x=1]": "11"}}}

    def test_refuses_to_change_a_digest_of_an_unchanged_version(self) -> None:
        with pytest.raises(ValueError, match="raise conv's version to 3") as caught:
            updated(self.OLD, "conv", 2, {"a [x=1]": "00", "b [x=1]": "22"})
        assert "b [x=1]" in str(caught.value) and "\n" not in str(caught.value)

    def test_refuses_to_go_back(self) -> None:
        with pytest.raises(ValueError, match="older"):
            updated(self.OLD, "conv", 1, {})

    def test_takes_a_new_version_a_new_family_and_new_groups(self) -> None:
        after = updated(self.OLD, "conv", 3, {"a [x=1]": "33"})
        assert after == {"conv": {"version": 3, "digests": {"a [x=1]": "33"}}}
        assert updated(self.OLD, "pool", 1, {"p": "1"})["conv"] == self.OLD["conv"]
        more = {**self.OLD["conv"]["digests"], "c []": "44"}
        assert updated(self.OLD, "conv", 2, more)["conv"]["digests"] == more
        assert updated(self.OLD, "conv", 2, self.OLD["conv"]["digests"]) == self.OLD

    def test_writes_what_is_read_back(self, tmp_path: Path) -> None:
        write(tmp_path / "g.json", kept())
        assert (tmp_path / "g.json").read_bytes() == FILE.read_bytes()
        assert json.loads(FILE.read_text()) == kept()
