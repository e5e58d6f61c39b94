"""Writes the tables of results in README.md, one a machine, from docs/results/ (see scripts/bench_zoo.py)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

from raw_results import Place, one_machine, title  # noqa: E402
from zoo_figures import PEERS, compiled, over_dp, over_fastest_peer, time_of  # noqa: E402

from autofuse.frontend import zoo  # noqa: E402
from autofuse.report.results import geometric_mean, number, table  # noqa: E402

FILES = "*-b1.json"
START, END = "<!-- results: written by scripts/readme_results.py -->", "<!-- end of results -->"


def block() -> str:
    """A table at batch 1 for each machine, the one measured last first."""
    places = [Place(), *Place().others(FILES)]
    found = [part(place) for place in places if any(place.raw.glob(FILES))]
    if not found:
        raise SystemExit("docs/results/ holds no results at batch 1: run scripts/bench_zoo.py first")
    return "\n\n".join([START, *found, END])


def part(place: Place) -> str:
    """A machine's table in the zoo's order, with what it shows."""
    paths = [place.raw / f"{name}-b1.json" for name in zoo.names()]
    raws = [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]
    one_machine(raws)
    rows = [
        [
            raw["network"],
            f"{compiled(raw, 'dp').get('operators', '–')} → {compiled(raw, 'dp').get('kernels', '–')}",
            number(time_of(raw, "dp")),
            *(number(time_of(raw, peer)) for peer in PEERS),
            number(1 / ratio if (ratio := over_fastest_peer(raw)) else None),
            number(over_dp(raw, "tvm-greedy"), "{:.0f}"),
        ]
        for raw in raws
    ]
    best = geometric_mean(1 / r if (r := over_fastest_peer(raw)) else None for raw in raws)
    tvm = geometric_mean(over_dp(raw, "tvm-greedy") for raw in raws)
    rows.append(["geometric mean", "", "", "", "", "", number(best), number(tvm, "{:.0f}")])
    headings = ["network", "operators → kernels", "autofuse", *PEERS, "best peer / autofuse", "TVM / autofuse"]
    threads = raws[0]["bench"]["threads"]
    text = (
        f"Milliseconds at batch 1 on {threads} threads of {title(raws[0]['machine'])}, engines interleaved round by"
        " round in one run, outputs checked against ONNX Runtime. Details, spread and larger batches:"
        f" docs/{place.page('results').name}."
    )
    return f"{text}\n\n{table(headings, rows)}".rstrip("\n")


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"README.md does not have the lines {START!r} and {END!r}")
    made = block()
    readme.write_text(pattern.sub(lambda _: made, text), encoding="utf-8")


if __name__ == "__main__":
    main()
