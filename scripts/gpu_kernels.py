"""Kernels for a GPU that is not here, compiled and looked at: what they take of the card, beside TVM's own schedules.

    python scripts/gpu_kernels.py                      writes tests/gpu_code/resources.json, then docs/dcu-kernels.md
    python scripts/gpu_kernels.py minilm_l6            one network anew, and the configurations offered
    python scripts/gpu_kernels.py --families           the families' cases anew
    python scripts/gpu_kernels.py --offered            more of the configurations that families offer anew
    python scripts/gpu_kernels.py --check              makes every row of the file again and says what has changed
    python scripts/gpu_kernels.py --page               the page alone

Plans come from the search with the analytical cost model of GPUs, configurations are the best that it sees. Nothing
runs: registers, spills, LDS and scratch are read from code for gfx906, bytes are counted in the lowered code.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
PAGE = ROOT / "docs" / "dcu-kernels.md"
Row = dict[str, Any]


def told(rows: Iterable[Row], what: str) -> list[Row]:
    """The rows, counted on standard error while they are made."""
    made = []
    for row in rows:
        made.append(row)
        print(f"\r{what}: {len(made)} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return made


def lines(content: dict[str, Any]) -> str:
    """JSON with a line for each row."""

    def part(name: str) -> str:
        inner = ",\n".join(f'  "{network}": [\n{_rows(rows)}\n  ]' for network, rows in content[name].items())
        return f' "{name}": {{\n{inner}\n }}'

    lists = [f' "{name}": [\n{_rows(content[name])}\n ]' for name in ("families", "offered")]
    target = f' "target": {json.dumps(content["target"])}'
    return "{\n" + ",\n".join([target, *lists, part("networks"), part("tvm")]) + "\n}\n"


def _rows(rows: Iterable[Row]) -> str:
    return ",\n".join(f"   {json.dumps(row)}" for row in rows)


def again(content: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Every row of the file: what it is and how it differs now."""
    import gpu_golden as golden

    from autofuse.measure.cross import CrossCompiler
    from autofuse.target import resolve

    with CrossCompiler(resolve(golden.TARGET), golden.PATIENCE) as compiler:
        before = {row["case"]: row for row in content["families"]}
        for row in golden.family_rows(compiler):
            old = before.get(row["case"], {"own": {"status": "missing"}})
            yield row["case"], golden.differences(old["own"], row["own"])
        for network, rows in content["networks"].items():
            for row in rows:
                name = f"{network}: {row['group']} {row['family']}[{row['config']}]"
                try:
                    group = golden.group_of(network, row)
                except KeyError as error:
                    yield name, [f"no operator {error} any more"]
                    continue
                found = golden.own(compiler, network, group, row["family"], row["config"])
                yield name, golden.differences(row["own"], found)
                if "rules" in row:
                    found = golden.by_rules(compiler, network, group)
                    yield f"{name}, TVM's rules", golden.differences(row["rules"], found)
        # Groups of one network may have the same words: rows are told apart by their places.
        for old, row in zip_longest(content["offered"], golden.offered_rows(compiler)):
            names = [offer(one) if one else "nothing" for one in (old, row)]
            if names[0] == names[1]:
                yield names[1], golden.differences(old["own"], row["own"])
            else:
                yield names[1], [f"{names[0]} had this place"]


def offer(row: Row) -> str:
    """A row of a configuration that is offered, in words."""
    return f"{row['where']}: {row['group']} {row['family']}[{row['config']}]"


def main() -> int:
    """1 where `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="those to make anew (all, and the families' cases)")
    parser.add_argument("--families", action="store_true", help="the families' cases too, or alone")
    parser.add_argument("--offered", action="store_true", help="more of the configurations offered too, or alone")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    import gpu_golden as golden
    from gpu_page import page

    from autofuse.report.results import write_text

    if options.check:
        count = changed = 0
        for name, found in again(golden.kept()):
            count += 1
            if found:
                changed += 1
                print(f"{name}: {'; '.join(found)}")
        print(f"{count} functions compiled again, {changed} differ")
        return 1 if changed else 0
    if not options.page:
        from autofuse.measure.cross import CrossCompiler
        from autofuse.target import resolve

        nothing: dict[str, Any] = {"families": [], "offered": [], "networks": {}, "tvm": {}}
        content = nothing | (golden.kept() if golden.FILE.exists() else {})
        networks, tvm = dict(content["networks"]), dict(content["tvm"])
        with CrossCompiler(resolve(golden.TARGET), golden.PATIENCE) as compiler:
            families, offered = content["families"], content["offered"]
            named = options.networks or options.families or options.offered
            if options.families or not named or not families:
                families = told(golden.family_rows(compiler), "families")
            if options.networks or options.offered or not named or not offered:  # of the groups that plans have now
                offered = told(golden.offered_rows(compiler), "configurations offered")
            for network in options.networks if named else golden.NETWORKS:
                networks[network] = told(golden.network_rows(compiler, network), network)
                tvm[network] = told(golden.tvm_rows(compiler, network), f"{network}, TVM's fusion")
        ordered = sorted(networks, key=lambda n: [*golden.NETWORKS, n].index(n))
        made = {
            "target": golden.TARGET, "families": families, "offered": offered,
            "networks": {n: networks[n] for n in ordered}, "tvm": {n: tvm[n] for n in ordered},
        }  # fmt: skip
        write_text(golden.FILE, lines(made))
    write_text(PAGE, page(golden.kept()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
