"""Where the configuration that costs least stands in each family's list, for the kernels of the zoo's plans.

Usage: python scripts/config_order.py [--networks a,b] [--threads N] [--cost-model analytical|learned]

Families list configurations best guess first, by rules of their own; the search takes the one that the cost model has
for the cheapest. Prints for each family how often that is the first one, or among those that collection measures, and
by how much dearer the first one is. Nothing is built or timed: `scripts/bench_defaults.py` does that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
if TYPE_CHECKING:
    from autofuse.schedule.family import Configuration
#: Configurations of a group that collection measures (`measure/kernels.py: items_of`).
MEASURED = 4
#: Fields of configurations that make a register tile.
TILE = ("m", "nb", "ht", "mt", "jt", "lq", "dt")


class Place(NamedTuple):
    """The cheapest of `listed` configurations: its position, and what the first one costs over what it costs.

    tiles: different register tiles among the first `MEASURED` of the list; alike: among as many cheapest ones.
    """

    position: int
    listed: int
    ratio: float
    tiles: int
    alike: int


def places(networks: Iterable[str], threads: int, cost_model: str) -> Iterator[tuple[str, Place]]:
    """Family and place for each kernel of each network's plan; equal kernels of a network once."""
    from autofuse.compiler import analyse, choose_cost_model, problem_of
    from autofuse.cost.model import Candidate
    from autofuse.graph.keys import workload_key
    from autofuse.schedule.registry import family
    from autofuse.search.strategies import strategy

    for network in networks:
        analysed = analyse(network, threads=threads)
        costs = choose_cost_model(analysed, cost_model, None, None)
        seen = set()
        for choice in strategy("dp", hardware=analysed.hardware).search(problem_of(analysed, costs)).choices:
            if choice.family in ("", "view"):
                continue
            name = (workload_key(choice.group), choice.family)
            if name in seen:
                continue
            seen.add(name)
            which = family(choice.family)
            listed = which.configs(choice.group, analysed.hardware)
            seconds = costs.costs([Candidate(choice.group, which, config) for config in listed])
            order = np.argsort(seconds, kind="stable")
            best = int(order[0])
            first, cheapest = (len({tile(listed[i]) for i in some[:MEASURED]}) for some in (range(len(listed)), order))
            yield choice.family, Place(best, len(listed), float(seconds[0] / seconds[best]), first, cheapest)


def tile(config: Configuration) -> tuple[object, ...]:
    """The fields of a configuration that are its register tile."""
    return tuple(getattr(config, name) for name in TILE if hasattr(config, name))


def table(found: Mapping[str, list[Place]]) -> str:
    """A Markdown table, a row a family and one for all."""
    rows = [
        ("family", "kernels", "listed", "cheapest first", f"among {MEASURED}", "first / cheapest", "worst",
         f"tiles in the first {MEASURED}", f"in the {MEASURED} cheapest")
    ]  # fmt: skip
    everything = [place for some in found.values() for place in some]
    for family, some in [*sorted(found.items(), key=lambda item: -len(item[1])), ("all", everything)]:
        if not some:
            continue
        ratios = [place.ratio for place in some]
        rows.append(
            (
                family, str(len(some)), f"{statistics.mean(p.listed for p in some):.1f}",
                str(sum(p.position == 0 for p in some)), str(sum(p.position < MEASURED for p in some)),
                f"{statistics.median(ratios):.2f}", f"{max(ratios):.2f}",
                f"{statistics.mean(p.tiles for p in some):.1f}", f"{statistics.mean(p.alike for p in some):.1f}",
            )
        )  # fmt: skip
    lines = [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in (lines[0], " | ".join(["---"] * len(rows[0])), *lines[1:]))


def main() -> None:
    from autofuse.frontend.zoo import names

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(names()), help="of the zoo, by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cost-model", choices=["analytical", "learned"], default="analytical")
    options = parser.parse_args()
    found: dict[str, list[Place]] = defaultdict(list)
    for family, place in places(options.networks.split(","), options.threads, options.cost_model):
        found[family].append(place)
    print(table(found))


if __name__ == "__main__":
    main()
