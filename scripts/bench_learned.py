"""dp with learned costs against dp with analytical ones and greedy, on the zoo: docs/results/learned/NETWORK.json.

Usage: python scripts/bench_learned.py [NETWORK...] [--budget S] [--again]

Each network is compiled six ways and timed round by round: dp with the predictor of models/cpu and the records of
data/records.db, dp with the predictor alone, with the records alone, and with the analytical model alone, greedy under
either model. Networks that have results are skipped unless named. scripts/bench_zoo.py --page-only puts them into
docs/results.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))
RECORDS, PREDICTOR = ROOT / "data" / "records.db", ROOT / "models" / "cpu"
RAW = ROOT / "docs" / "results" / "learned"
SCHEMA = 1
WAYS: dict[str, dict[str, Any]] = {
    "dp, learned": {"strategy": "dp", "cost_model": "learned", "predictor": PREDICTOR, "db": RECORDS},
    "dp, predictor alone": {"strategy": "dp", "cost_model": "learned", "predictor": PREDICTOR, "db": "none"},
    "dp, records alone": {"strategy": "dp", "cost_model": "analytical", "db": RECORDS},
    "dp, analytical": {"strategy": "dp", "cost_model": "analytical", "db": "none"},
    "greedy, learned": {"strategy": "greedy", "cost_model": "learned", "predictor": PREDICTOR, "db": RECORDS},
    "greedy, analytical": {"strategy": "greedy", "cost_model": "analytical", "db": "none"},
}


def measure(network: str, budget: float) -> dict[str, Any]:
    """Compile a network in every way, then time all of them in turns."""
    import autofuse
    from autofuse.bench.runner import run
    from autofuse.report.results import machine

    made: dict[str, dict[str, Any]] = {}
    executables: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="autofuse-learned-") as folder:
        for number, (way, arguments) in enumerate(WAYS.items()):
            compiled = autofuse.compile(network, **arguments)
            executables[way] = str(Path(folder) / f"{number}.so")
            compiled.save(executables[way])
            keys = ("kernels", "predicted_ms", "seconds", "cost_sources")
            made[way] = {key: compiled.description[key] for key in keys}
        found = run(network, engines=list(WAYS), executables=executables, budget=budget)
    for row in found.results:
        if row.engine in made:
            names = ("median_ms", "min_ms", "iqr_ms", "ratio", "max_rel_err", "error")
            made[row.engine] |= {name: getattr(row, name) for name in names}
    return {"schema": SCHEMA, "network": network, "machine": machine(), "ways": made}


def main() -> int:
    """Measure what is missing or named."""
    from raw_results import refuse_others

    from autofuse.frontend.zoo import names
    from autofuse.report.results import write_json

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help="by default those of the zoo without results")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of rounds a network (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    options = parser.parse_args()
    refuse_others([*RAW.glob("*.json"), *RAW.parent.glob("*-b*.json")])
    for network in options.networks or names():
        if (RAW / f"{network}.json").exists() and not (options.networks or options.again):
            continue
        begin = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {network}", file=sys.stderr, flush=True)
        write_json(RAW / f"{network}.json", measure(network, options.budget))
        print(f"  took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
