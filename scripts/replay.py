"""Plans all networks of data/ again from graphs, records and predictor, and compares with the plans committed there.

Usage: python scripts/replay.py [NETWORK...] [--write]

data/plans/NETWORK.json.gz holds a network's graph and its plan; --write makes the files anew. Nothing is compiled or
timed. Exit code 1 if a plan is another one than that in its file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autofuse.cost.model import CostModel
    from autofuse.learn.plans import NetworkPlans
    from autofuse.search.problem import Thresholds
    from autofuse.target import Hardware

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PLANS = ROOT / "data" / "plans"
RECORDS = ROOT / "data" / "records.db"
PREDICTOR = ROOT / "models" / "cpu"


def hardware_of(digest: str | None = None) -> tuple[str, Hardware]:
    """The hardware that the predictor knows by that digest, by default the one with most records."""
    from autofuse.learn.predictor import read_card

    known = {h.digest: h for h in read_card(PREDICTOR).hardware}
    chosen = known[digest] if digest in known else max(known.values(), key=lambda h: h.records)
    return chosen.digest, chosen.description


def costs_of(network: NetworkPlans, digest: str) -> CostModel:
    """What a compile with the predictor and data/records.db reckons with."""
    from autofuse.learn.evaluate import load_quietly
    from autofuse.records import open_store
    from autofuse.records.model import RecordedCostModel

    learned = load_quietly(PREDICTOR, network.hardware, network.cold)
    return RecordedCostModel(open_store(RECORDS, readonly=True), digest, learned, cold=network.cold)


def thresholds() -> Thresholds | None:
    """The thresholds that a compile with the predictor searches with: those tuned for it, None for the defaults."""
    from autofuse.chosen import choose_thresholds

    return choose_thresholds(None, PREDICTOR)


def write(name: str) -> None:
    """Import a network and write its file."""
    from autofuse.learn.plans import NetworkPlans
    from autofuse.learn.replay_plans import Replayable, kernels_of, renumbered, save

    digest, hardware = hardware_of()
    graph, greedy = renumbered(NetworkPlans.of_model(name, hardware))
    network = Replayable(name, digest, graph, greedy, (), 0.0).network(hardware, thresholds())
    costs = costs_of(network, digest)
    plan = network.plan(costs)
    seconds = network.predicted(plan, costs)
    save(Replayable(name, digest, graph, greedy, kernels_of(plan), seconds), PLANS / f"{name}.json.gz")


def compare(path: Path) -> list[str]:
    """What is different about the plan in a file, planned again: lines marked - and +."""
    from autofuse.learn.replay_plans import differences, kernels_of, read

    known = read(path)
    digest, hardware = hardware_of(known.hardware)
    if digest != known.hardware:
        return [f"- hardware {known.hardware}", f"+ hardware {digest}"]
    network = known.network(hardware, thresholds())
    return differences(known.plan, kernels_of(network.plan(costs_of(network, digest))))


def main() -> int:
    """Write or compare those that are named, by default all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help="by default all of the zoo, or all that are there")
    parser.add_argument("--write", action="store_true", help="make the files anew")
    options = parser.parse_args()
    changed = Counter[str]()
    if options.write:
        from autofuse.frontend.zoo import names

        for name in options.networks or names():
            start = time.perf_counter()
            write(name)
            print(f"{name}: written in {time.perf_counter() - start:.1f} s", flush=True)
        return 0
    for name in options.networks or sorted(p.name.removesuffix(".json.gz") for p in PLANS.glob("*.json.gz")):
        start = time.perf_counter()
        lines = compare(PLANS / f"{name}.json.gz")
        changed[name] = len(lines)
        print(
            f"{name}: {'another plan' if lines else 'the same plan'}, {time.perf_counter() - start:.1f} s", flush=True
        )
        print("".join(f"  {line}\n" for line in lines), end="")
    return int(any(changed.values()))


if __name__ == "__main__":
    sys.exit(main())
