"""How far the configuration that the compiler takes is from the best of its space, on the zoo's dearest kernels.

Usage: python scripts/bench_defaults.py [--networks a,b] [--families a,b] [--each K] [--budget S] [--limit S] [--again]
[--page-only] [--folder NAME]

For every network the `--each` dearest groups of its plan in each family: all configurations that the families offer for
such a group are built, then timed in turns in one process. Raw results go to docs/results/defaults.json after every
kernel; kernels that are there, with the same configurations of the same versions, are skipped. The page is the one that
scripts/bench_kernels.py writes, docs/kernels.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from raw_results import Place, one_machine

#: Raw results, in the folder of their machine.
FILE = "defaults.json"
#: How much slower than the best one the default may be.
ALLOWED = 1.15
Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A kernel to look at: `items` are all configurations offered for it, `chosen` the name of the plan's.

    `share`: of the network's predicted time, with all kernels equal to it.
    """

    network: str
    share: float
    key: str
    label: str
    family: str
    chosen: str
    items: tuple[Any, ...]
    model: Any

    @property
    def names(self) -> list[str]:
        """A text for each item: family, version, configuration."""
        return [name_of(item.candidate) for item in self.items]


def name_of(candidate: Any) -> str:
    """family@version[configuration]."""
    return f"{candidate.family.name}@{candidate.family.version}[{candidate.config.text}]"


def targets(network: str, each: int, wanted: set[str], threads: int | None) -> list[Target]:
    """The dearest kernels of a network's plan, by family, dearest first."""
    from autofuse.compiler import analyse, choose_cost_model, problem_of
    from autofuse.graph.keys import workload_key
    from autofuse.measure.kernels import items_of
    from autofuse.schedule.registry import families
    from autofuse.search.strategies import strategy

    model = analyse(network, threads=threads)
    problem = problem_of(model, choose_cost_model(model, "analytical", None, None))
    choices = [c for c in strategy("auto", hardware=model.hardware).search(problem).choices if c.family]
    kinds = families(model.hardware.kind)
    total = sum(c.cost for c in choices)
    seconds: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Any] = {}
    for choice in choices:
        place = (choice.family, workload_key(choice.group))
        seconds[place] += choice.cost
        first.setdefault(place, choice)
    taken: Counter[str] = Counter()
    found = []
    for (family, key), cost in seconds.most_common():
        if taken[family] == each or (wanted and family not in wanted):
            continue
        choice = first[family, key]
        items = items_of([choice.group], kinds, model.hardware, network, sys.maxsize)
        chosen = next(
            (i for i in items if i.candidate.family.name == family and i.candidate.config.text == choice.config), None
        )
        if chosen is None:  # a view
            continue
        taken[family] += 1
        label = choice.group.label
        found.append(Target(network, cost / total, key, label, family, name_of(chosen.candidate), tuple(items), model))
    return found


def measure(target: Target, builder: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Build all configurations of a kernel and time them in turns. RuntimeError if none can be timed."""
    from autofuse.cost.weights import weights_are_cold
    from autofuse.measure.jobs import MeasureJob
    from autofuse.measure.kernels import KernelSource
    from autofuse.measure.local import thread_environment
    from autofuse.measure.process import ChildProcess
    from autofuse.report.results import machine
    from autofuse.target.registry import hardware_row

    model = target.model
    cold = weights_are_cold(model.graph, model.hardware)
    errors: dict[str, str] = {}
    source = KernelSource([model])
    with tempfile.TemporaryDirectory(prefix="autofuse-defaults-") as name:
        requests = []
        for number, item in enumerate(target.items):
            try:
                requests.append(source.request(item, name_of(item.candidate), Path(name) / f"{number}.so"))
            except Exception as error:
                errors[name_of(item.candidate)] = f"{type(error).__name__}: {error}".splitlines()[0]
        jobs = []
        for built in builder.build(requests):
            if built.status != "ok":
                errors[built.candidate] = f"{built.status}: {built.message}"
                continue
            jobs.append(
                MeasureJob(target.key, built.candidate, built.library, built.function, built.arguments,
                           last_cache=model.hardware.l3_bytes)
            )  # fmt: skip
        # The plan's choice first: what differs from its outputs is wrong.
        jobs.sort(key=lambda job: job.candidate != target.chosen)
        if not jobs or jobs[0].candidate != target.chosen:
            raise RuntimeError(f"{target.chosen} cannot be built: {errors.get(target.chosen, 'unknown')}")
        asked = {
            "jobs": [job.to_dict() for job in jobs], "cold": cold, "budget": options.budget, "rounds": options.rounds,
        }  # fmt: skip
        child = ChildProcess("autofuse.measure.turns:factory", environment=thread_environment(model.target.threads))
        try:
            outcome = child.request(asked, 60.0 + 20 * options.budget)
        finally:
            child.close()
    if outcome.status != "ok":
        raise RuntimeError(f"{outcome.status}: {outcome.message}")
    times = {}
    for job, answer in zip(jobs, outcome.value["kernels"], strict=True):
        if answer["status"] == "ok":
            times[job.candidate] = answer["samples"]
        else:
            errors[job.candidate] = f"wrong: {answer['message']}"
    return {
        "network": target.network, "share": round(target.share, 4), "family": target.family, "label": target.label,
        "key": target.key, "chosen": target.chosen, "listed": target.names, "cold_weights": cold,
        "threads": model.target.threads, "hardware": hardware_row(model.target).digest, "machine": machine(),
        "configurations": summaries(times, target.chosen), "errors": errors,
    }  # fmt: skip


def summaries(times: Mapping[str, Sequence[float]], chosen: str) -> dict[str, Any]:
    """For each configuration its median in µs, and the median and quartiles over the rounds of its time / the chosen
    one's."""
    from autofuse.measure.turns import paired_ratios

    found = {}
    for name, samples in times.items():
        ratios = paired_ratios(samples, times[chosen])
        low, middle, high = (float(q) for q in np.percentile(ratios, (25, 50, 75)))
        found[name] = {
            "rounds": len(samples), "median_us": round(1e6 * statistics.median(samples), 3), "ratio": round(middle, 4),
            "quartiles": [round(low, 4), round(high, 4)],
        }  # fmt: skip
    return found


def best(raw: Raw) -> str:
    """The fastest configuration that was in all rounds."""
    measured = raw["configurations"]
    most = max(entry["rounds"] for entry in measured.values())
    return min((n for n, e in measured.items() if e["rounds"] == most), key=lambda name: measured[name]["ratio"])


def loss(raw: Raw, name: str | None = None) -> float | None:
    """Time of a configuration, by default the chosen one, over that of the best one; None if it was not timed."""
    measured = raw["configurations"]
    entry = measured.get(name or raw["chosen"])
    return entry["ratio"] / measured[best(raw)]["ratio"] if entry else None


def section(raws: Sequence[Raw]) -> str:
    """What docs/kernels.md says of this; empty without results."""
    from autofuse.report.results import number, table

    if not raws:
        return ""
    rows = []
    groups = {family: [r for r in raws if r["family"] == family] for family in sorted({r["family"] for r in raws})}
    for family, some in [*groups.items(), ("all", list(raws))]:
        losses = [value for value in (loss(r) for r in some) if value is not None]
        firsts = [value for value in (loss(r, r["listed"][0]) for r in some) if value is not None]
        within = sum(value <= ALLOWED for value in losses)
        sizes = [len(r["configurations"]) for r in some]
        rows.append([
            family, str(len(some)), f"{statistics.median(sizes):g}", number(statistics.median(losses)),
            number(max(losses)), f"{within} of {len(losses)}", number(statistics.median(firsts)), number(max(firsts)),
        ])  # fmt: skip
    headings = [
        "family", "kernels", "configurations", "chosen / best, median", "worst", "within 15 %", "first listed / best",
        "worst",
    ]  # fmt: skip
    far = sorted((r for r in raws if (loss(r) or 0.0) > ALLOWED), key=lambda r: -(loss(r) or 0.0))
    lines = [
        [r["network"], f"`{r['label']}`", f"{r['configurations'][r['chosen']]['median_us']:.1f}", number(loss(r)),
         f"`{r['chosen']}`", f"`{best(r)}`", f"{100 * r['share']:.1f} %"]
        for r in far
    ]  # fmt: skip
    text = (
        "## The default configuration\n\n"
        "Written by `scripts/bench_defaults.py`: the dearest groups of each network's plan by family, all"
        " configurations that families offer for such a group timed in turns, with the weights in the cache or not as"
        " the network has them. Chosen: what the analytical cost model takes without any record; first listed: the"
        " first configuration of the first family in the registry that takes the group, which chooses between no"
        " families (3×3 convolutions: direct ones come before Winograd). A ratio is a median over the rounds; the best"
        " of many is a little lucky.\n\n"
    )
    text += table(headings, rows)
    if lines:
        text += "\nBeyond 15 %:\n\n" + table(
            ["network", "kernel", "chosen, µs", "chosen / best", "chosen", "best", "share of the network"], lines
        )
    return text


def results(place: Place) -> dict[str, Any]:
    """What was measured so far on a machine, by family and workload."""
    raw = place.raw / FILE
    found: dict[str, Any] = json.loads(raw.read_text(encoding="utf-8")) if raw.exists() else {}
    return found


def place(target: Target) -> str:
    """A kernel's name in the file."""
    return f"{target.family} {target.key}"


def due(target: Target, found: Mapping[str, Any], again: bool) -> bool:
    """Whether it is to be measured: other configurations than those of the file count as another kernel."""
    known = found.get(place(target))
    return again or known is None or known["chosen"] != target.chosen or known["listed"] != target.names


def refuse_rows_of_others(found: Mapping[str, Any]) -> None:
    """SystemExit if kernels in the file were measured on another machine."""
    from autofuse.report.results import machine

    if found:
        one_machine([*found.values(), {"machine": machine()}])


def main() -> int:
    """Measures what is missing, then writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", help="only these, comma-separated (default: the zoo)")
    parser.add_argument("--families", help="only kernels of these families, comma-separated")
    parser.add_argument("--each", type=int, default=1, help="kernels of a network and family")
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--rounds", type=int, default=25, help="at most so many rounds a kernel")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of timing a kernel")
    parser.add_argument("--limit", type=float, help="begin no kernel after so many seconds")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--folder", default="", help="the folder of docs/results/ of another machine, and its page")
    options = parser.parse_args()
    place = Place(options.folder)
    failed = False
    if not options.page_only:
        failed = run(options, place)
    from kernels_page import write_page

    print(f"wrote {write_page(place)}")
    return int(failed)


def run(options: argparse.Namespace, place: Place) -> bool:
    """Measure into a machine's folder; whether a kernel failed."""
    from rich.progress import track

    from autofuse.frontend.zoo import names
    from autofuse.measure import PoolBuilder
    from autofuse.report.results import write_json

    refuse_rows_of_others(results(place))
    begin = time.monotonic()
    wanted = set(options.families.split(",")) if options.families else set()
    networks = options.networks.split(",") if options.networks else names()
    chosen: dict[str, Target] = {}
    for network in track(networks, description="networks"):
        for target in targets(network, options.each, wanted, options.threads):
            # Of equal kernels of several networks the one that weighs most in its own.
            known = chosen.get(place(target))
            if known is None or known.share < target.share:
                chosen[place(target)] = target
    found = results(place)
    todo = sorted((t for t in chosen.values() if due(t, found, options.again)), key=lambda t: -t.share)
    failed = False
    with PoolBuilder(2) as builder:
        for target in track(todo, description="kernels"):
            if options.limit is not None and time.monotonic() - begin > options.limit:
                break
            try:
                found[place(target)] = measure(target, builder, options)
            except Exception as error:
                print(f"{target.network} {target.label}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = True
            else:
                write_json(place.raw / FILE, found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
