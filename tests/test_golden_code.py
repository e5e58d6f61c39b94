"""What reaches LLVM changes only with the version of the code generation: else records of other code would be used."""

from __future__ import annotations

from typing import Any

import golden_code
import pytest

from autofuse.codegen import build, intrinsics, stack
from autofuse.codegen.version import CODEGEN_VERSION

AGAIN = "then run `python scripts/golden_tir.py --code`"


def test_code_of_an_unchanged_version_is_unchanged() -> None:
    entry = golden_code.kept()[golden_code.NAME]
    assert entry["version"] == CODEGEN_VERSION, f"the golden digests are of version {entry['version']}: {AGAIN}"
    found = golden_code.digests()
    changed = sorted(name for name, digest in found.items() if entry["digests"].get(name, digest) != digest)
    assert not changed, (
        f"equal scheduled code becomes other code than before ({', '.join(changed)}): raise CODEGEN_VERSION in "
        f"autofuse/codegen/version.py to {CODEGEN_VERSION + 1}, {AGAIN}"
    )
    assert set(found) == set(entry["digests"]), f"other kernels than before: {AGAIN}"


class TestWhatTheDigestsSee:
    """Each kind of change that was made to the code generation so far."""

    def of(self, name: str) -> str:
        return golden_code.lowered(golden_code.KERNELS[name]())

    @pytest.mark.parametrize("lanes", [1, golden_code.LANES])
    def test_a_coefficient(self, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        name, other = f"tanh, lanes {lanes}", f"erf, lanes {lanes}"
        before, others = self.of(name), self.of(other)
        monkeypatch.setattr(intrinsics, "TANH_P", (*intrinsics.TANH_P[:-1], intrinsics.TANH_P[-1] * 1.0001))
        assert self.of(name) != before and self.of(other) == others

    def test_what_is_on_the_stack(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = self.of("row sums of 8 numbers")
        monkeypatch.setattr(stack, "MOST_BYTES", 16)
        assert self.of("row sums of 8 numbers") != before

    def test_checks_of_arguments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = self.of("edges")
        monkeypatch.setattr(build, "PASS_CONFIG", {**build.PASS_CONFIG, "tirx.disable_assert": False})
        assert self.of("edges") != before

    def test_options_of_llvm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from autofuse.target.registry import Target

        before = self.of("edges")
        plain = vars(Target)["description"].fget

        def described(target: Any) -> dict[str, object]:
            return {**plain(target), "opt-level": 2}

        monkeypatch.setattr(Target, "description", property(described))
        assert self.of("edges") != before

    def test_not_names(self) -> None:
        func = golden_code.KERNELS["edges"]()
        assert golden_code.lowered(func) == golden_code.lowered(func.with_attr("global_symbol", "another"))
