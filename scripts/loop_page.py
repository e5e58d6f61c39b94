"""Writes docs/loop.md from what scripts/demo.sh left in build/demo-NETWORK/. Usage: scripts/loop_page.py [NETWORK]"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from autofuse.records import open_store
from autofuse.report.results import machine, machine_text, number, table

ROOT = Path(__file__).resolve().parent.parent


def read(path: Path) -> Any:
    """A JSON file of the demo."""
    if not path.exists():
        raise SystemExit(f"{path} is not there: run scripts/demo.sh first")
    return json.loads(path.read_text(encoding="utf-8"))


def metrics_table(card: dict[str, Any]) -> str:
    """Errors on workloads that a member of the ensemble did not see, beside the analytical model's."""
    first = next(iter(card["metrics"].values()))
    names = [n for n in first if isinstance(first[n], int | float)]
    rows = [[title, *(f"{found[n]:.3g}" for n in names)] for title, found in card["metrics"].items()]
    return table(["cost model", *names], rows)


def plan_rows(folder: Path) -> list[list[str]]:
    """Both plans in a line each."""
    rows = []
    for name in ("analytical", "learned"):
        plan = read(folder / f"{name}.json")
        groups = plan["groups"]
        sources = Counter(g["source"] for g in groups)
        predicted = sum(g["seconds"] for g in groups) * 1e3
        text = ", ".join(f"{count} {source}" for source, count in sorted(sources.items()))
        rows.append([name, str(len(groups)), f"{predicted:.2f}", text])
    return rows


def main() -> None:
    network = sys.argv[1] if len(sys.argv) > 1 else "mobilenet_v1"
    folder = ROOT / "build" / f"demo-{network}"
    bench = read(folder / "bench.json")
    card = read(folder / "predictor" / "card.json")
    with open_store(folder / "records.db", readonly=True) as store:
        stats = store.stats().as_dict()
    changed = differing(folder)
    bench_rows = [
        [r["engine"], number(r["median_ms"]), number(r["iqr_ms"]), number(r.get("ratio")), str(r["kernels"] or "–"),
         f"{r['max_rel_err']:.1e}" if r["max_rel_err"] is not None else "–", r["error"] or ""]
        for r in bench["results"]
    ]  # fmt: skip
    families = ", ".join(f"{name}: {count}" for name, count in stats["families"].items())
    text = f"""# The loop on {network}

Written by `scripts/loop_page.py` from a run of `scripts/demo.sh {network}`; not to be edited.

{machine_text(machine())}

## Measured

{stats["ok"]} records and {stats["failed"]} failures of {stats["workloads"]} workloads.
By family and version: {families}.

## Learned

On workloads that were held out; the last row is the analytical model with its median error taken out.

{metrics_table(card)}

## Planned

{table(["cost model", "groups", "predicted, ms", "where the costs come from"], plan_rows(folder))}

{changed}

## Ran

Interleaved round by round on {bench["threads"]} threads. `analytical` is the executable of the analytical plan,
`autofuse` the one compiled with records and predictor; `greedy` and `none` choose configurations by the same learned
costs. A ratio is the median over the rounds of an engine's time over the first row's.

{table(["engine", "median ms", "iqr ms", "ratio", "kernels", "largest relative error", "note"], bench_rows)}
"""
    page = ROOT / "docs" / "loop.md"
    page.write_text(text, encoding="utf-8")


def differing(folder: Path) -> str:
    """How the learned plan differs from the analytical one."""

    def kernels(name: str) -> dict[tuple[int, ...], tuple[str, str]]:
        return {tuple(g["members"]): (g["family"], g["config"]) for g in read(folder / f"{name}.json")["groups"]}

    first, second = kernels("analytical"), kernels("learned")
    shared = first.keys() & second.keys()
    other = sum(1 for members in shared if first[members] != second[members])
    return (
        f"{len(shared)} groups are the same in both plans, {other} of them with another configuration;"
        f" {len(first) - len(shared)} groups of the analytical plan and {len(second) - len(shared)} of the learned one"
        " are its own."
    )


if __name__ == "__main__":
    main()
