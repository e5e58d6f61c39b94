"""A pool with a processor for each of its threads against one left to the scheduler: writes docs/binding.md.

Usage: python scripts/bench_binding.py [NETWORK...] [--budget S] [--rounds N]

Each network is compiled once; two processes load the same file and take turns, one of them with AUTOFUSE_BIND=0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "binding.md"
NETWORKS = ("mobilenet_v2", "shufflenet_v2", "resnet50", "densenet121", "minilm_l6", "yolov4_tiny")
BOUND, FREE = "bound", "free"


def measure(network: str, rounds: int, budget: float) -> list[str]:
    """A row of the page: medians, quartiles and least times of both, and the ratio round by round."""
    import autofuse
    from autofuse.bench.case import make_case
    from autofuse.bench.engines import EngineSpec
    from autofuse.bench.interleave import Pace
    from autofuse.bench.peers.autofuse_engine import AutofusePeer
    from autofuse.bench.runner import default_threads
    from autofuse.bench.runner import measure as take_turns

    with tempfile.TemporaryDirectory(prefix="autofuse-binding-") as folder:
        path = Path(folder) / "model.so"
        autofuse.compile(network).save(path)
        peer = f"{AutofusePeer.__module__}:{AutofusePeer.__name__}"
        specs = [
            EngineSpec(name, peer, {"executable": str(path)}, environment)
            for name, environment in ((BOUND, {"AUTOFUSE_BIND": "1"}), (FREE, {"AUTOFUSE_BIND": "0"}))
        ]
        case = make_case(network, Path(folder))
        found = take_turns(case, specs, threads=default_threads(), pace=Pace(rounds=rounds, budget=budget))
    rows = {row.engine: row for row in found.results}
    for row in rows.values():
        if row.error is not None:
            raise SystemExit(f"{network}, {row.engine}: {row.error}")
    both = [rows[BOUND], rows[FREE]]
    times = [f"{row.median_ms:.3f} ±{row.iqr_ms / 2:.3f}" for row in both]
    least = [f"{row.min_ms:.3f}" for row in both]
    return [network, *times, *least, f"{rows[FREE].ratio:.3f} ±{rows[FREE].ratio_iqr / 2:.3f}"]


def main() -> int:
    """Measures the networks, then writes the page."""
    from autofuse.report.results import machine, machine_text, table, write_text

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--budget", type=float, default=25.0, help="seconds of turns a network (%(default)s)")
    options = parser.parse_args()
    rows = [measure(name, options.rounds, options.budget) for name in options.networks]
    ratios = [float(row[-1].split()[0]) for row in rows]
    headings = ["network", "bound, ms", "free, ms", "bound, least", "free, least", "free / bound"]
    text = [
        "# Threads and processors",
        "Written by `scripts/bench_binding.py`; not to be edited.",
        machine_text(machine()),
        "A pool that takes all processors has one for each of its threads, the caller's too while a model runs"
        " (`codegen/threads.py`); with AUTOFUSE_BIND=0 the system's scheduler places them. Two processes with the same"
        " compiled network take turns; medians ± half the distance between the quartiles, least times, and the median"
        " over the rounds of free over bound.",
        table(headings, rows),
        f"Geometric mean of free / bound: {statistics.geometric_mean(ratios):.3f}.",
    ]
    write_text(PAGE, "\n\n".join(part.rstrip("\n") for part in text) + "\n")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
