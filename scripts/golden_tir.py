"""Writes the digests of code that tests compare with: `golden_tir.py [FAMILY...]`, `golden_tir.py --code`.

The first are those of scheduled code, for tests/test_golden_tir.py; `--code` writes those of what reaches LLVM, for
tests/test_golden_code.py, under the same rule with the version of the code generation (`codegen/version.py`).

A digest may change only with its family's version. A family whose code has changed under an unchanged version is
refused: raise `version` in its class first, so that records of the old code are no longer used.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))


def updated(kept: dict[str, Any], name: str, version: int, digests: dict[str, str]) -> dict[str, Any]:
    """The file's content with one family's digests. ValueError, one line, if the version should have been raised."""
    before = kept.get(name, {"version": 0, "digests": {}})
    if version < before["version"]:
        raise ValueError(f"{name}: version {version} is older than version {before['version']} of the golden digests")
    if version == before["version"]:
        changed = sorted(k for k, digest in before["digests"].items() if digests.get(k, digest) != digest)
        if changed:
            raise ValueError(
                f"{name}: the code of {len(changed)} kernels has changed ({changed[0]}) but the version is still "
                f"{version}; raise {name}'s version to {version + 1}, then run this again"
            )
    return {**kept, name: {"version": version, "digests": dict(sorted(digests.items()))}}


def write(path: Path, content: dict[str, Any]) -> None:
    """Sorted, through a temporary file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def main() -> int:
    """1 if any family was refused; the others are written all the same."""
    import golden_code
    import golden_groups

    from autofuse.codegen.version import CODEGEN_VERSION
    from autofuse.schedule.registry import family

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", choices=[*golden_groups.GROUPS, []], metavar="FAMILY")
    parser.add_argument("--code", action="store_true", help="what the code generation makes, instead of schedules")
    options = parser.parse_args()
    kept = golden_code if options.code else golden_groups
    content = kept.kept() if kept.FILE.exists() else {}
    refused = 0
    for name in [golden_code.NAME] if options.code else options.families or golden_groups.GROUPS:
        try:
            if options.code:
                version, digests = CODEGEN_VERSION, golden_code.digests()
            else:
                version, digests = family(name).version, golden_groups.digests(name)
            after = updated(content, name, version, digests)
        except (AssertionError, KeyError, ValueError) as error:
            print(f"refused: {error.args[0]}", file=sys.stderr)
            refused += 1
            continue
        print(f"{name} {version}: {'unchanged' if after == content else 'written'}")
        content = after
    write(kept.FILE, content)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
