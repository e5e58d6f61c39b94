"""How well the sum of a plan's kernels tells the plan's latency: writes docs/plans.md, a row for each network.

Usage: python scripts/bench_plans.py [NETWORK...] [--prepare] [--again] [--page-only] [--folder NAME]

A network's plan (dp, analytical costs) is compiled; each of its kernels is timed by itself as `autofuse collect` times
it, and the whole plan in a process of its own in between. Raw results go to
docs/results/plans/NETWORK.json; those that are there are skipped unless named. They are of the machine measured last;
--folder is about another one's (scripts/raw_results.py). Compiling can be done beforehand (`--prepare`, into --build),
so that nothing else runs while something is timed. Exit code 1 if what is left over is more than 5 % of a network.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from autofuse.target import Hardware

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
SCHEMA = 3
#: Runs of the whole plan each time, and kernels between two times.
RUNS, EVERY = 12, 12
TOLERANCE = 0.05


def prepare(network: str, folder: Path, threads: int) -> None:
    """Compile the network and, one by one, its distinct kernels into `folder`; nothing is timed."""
    import autofuse
    from autofuse.compiler import analyse
    from autofuse.cost.model import Candidate
    from autofuse.cost.weights import weights_are_cold
    from autofuse.frontend import zoo
    from autofuse.graph.keys import canonical_text, workload_key
    from autofuse.graph.model import Role
    from autofuse.measure import CollectItem, MeasureJob, PoolBuilder
    from autofuse.measure.kernels import KernelSource
    from autofuse.measure.nearer import nearer_reference
    from autofuse.measure.replay import candidate_text
    from autofuse.records.identity import identity_of
    from autofuse.report.results import write_json
    from autofuse.schedule.registry import family as family_by_name

    folder.mkdir(parents=True, exist_ok=True)
    made = autofuse.compile(network, strategy="dp", cost_model="analytical", threads=threads)
    made.save(folder / "model.so")
    inputs: dict[str, Any] = dict(zoo.sample_inputs(network))
    np.savez(folder / "inputs.npz", **inputs)
    analysed = analyse(network, threads=threads)
    graph, hardware = analysed.graph, analysed.hardware
    tensors = graph.tensors
    planned = list(zip(made.plan.groups_of(graph), made.plan.groups, strict=True))
    kernels: dict[str, dict[str, Any]] = {}
    source = KernelSource([analysed])
    with PoolBuilder(2, timeout=120) as builder:
        requests = []
        for group, choice in planned:
            if choice.family in ("", "view"):
                continue
            family = family_by_name(choice.family)
            candidate = Candidate(group, family, family.configuration.parse(choice.config))
            identity = identity_of(candidate, workload_key(group), "here")
            name = f"{identity.workload} {candidate_text(identity)}"
            entry = kernels.get(name)
            if entry is None:
                shape = family.shape(group, candidate.config, hardware)
                item = CollectItem(candidate, identity.workload, canonical_text(group), network)
                library = folder / f"kernel{len(kernels)}.so"
                requests.append(source.request(item, candidate_text(identity), library))
                inputs = [tensors[t] for t in group.inputs]
                entry = kernels[name] = {
                    "label": group.label,
                    "family": choice.family,
                    "config": choice.config,
                    "calls": [],
                    "parallel": shape.loops if shape.tasks > 1 and hardware.cores > 1 else 0,
                    "read": sum(t.bytes for t in inputs if t.role is not Role.CONSTANT),
                    "weights": sum(t.bytes for t in inputs if t.role is Role.CONSTANT),
                    "written": sum(tensors[t].bytes for t in group.outputs),
                    "reference": nearer_reference(candidate, hardware.l3_bytes),
                    "predicted": choice.seconds,
                }
            entry["calls"].append([op.name for op in group.operators])
        built = list(builder.build(requests))
    bad = [b for b in built if b.status != "ok"]
    if bad:
        raise RuntimeError(f"{network}: {len(bad)} kernels were not built: {bad[0].message}")
    for entry, result in zip(kernels.values(), built, strict=True):
        job = MeasureJob(
            result.key, result.candidate, result.library, result.function, result.arguments,
            reference=entry["reference"], last_cache=hardware.l3_bytes,
        )  # fmt: skip
        entry["job"] = job.to_dict()
    order = [(entry["name"], entry["operators"]) for entry in made.description["kernel_list"]]
    content = {
        "network": network,
        "threads": threads,
        "cold": weights_are_cold(graph, hardware),
        "order": order,
        "kernels": list(kernels.values()),
    }
    write_json(folder / "prepared.json", content)


def measure(folder: Path) -> dict[str, Any]:
    """Time the plan and its kernels, in turn: raw results, kernels without their samples."""
    from autofuse.bench.child import common_environment
    from autofuse.measure import LocalRunner, MeasureJob
    from autofuse.measure.passes import with_samples
    from autofuse.measure.process import ChildProcess
    from autofuse.measure.settings import PASSES
    from autofuse.records import MemoryStore, Record, RecordedHardware, Workload
    from autofuse.records.record import NETWORK_REFERENCE, quiet, ratio_of
    from autofuse.report.results import machine
    from autofuse.target.hardware_file import load_hardware
    from autofuse.target.registry import resolve

    prepared = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
    threads, kernels = prepared["threads"], prepared["kernels"]
    arguments = (str(folder / "model.so"), str(folder / "inputs.npz"))
    plan = ChildProcess("autofuse.profile.child:Handler", arguments, common_environment(threads))
    latencies: list[float] = []
    beside: list[float] = []
    times: dict[str, list[list[float]]] = {}

    def run_plan() -> None:
        outcome = plan.request({"runs": RUNS, "beside": True}, 300)
        if outcome.status != "ok":
            raise RuntimeError(f"{prepared['network']}: {outcome.status}: {outcome.message}")
        latencies.extend(outcome.value["latencies"])
        beside.extend(outcome.value["references"])
        for name, runs in outcome.value["times"].items():
            times.setdefault(name, []).extend(runs)

    jobs = [MeasureJob.from_dict(entry["job"]) for entry in kernels]
    jobs = [replace(job, limits=job.limits.part(PASSES)) for job in jobs]
    records: list[Record] = []
    with contextlib.closing(plan), LocalRunner(threads) as runner:
        run_plan()
        for number in range(PASSES):
            runner.renew()
            for position, (job, result) in enumerate(zip(jobs, runner.measure(jobs), strict=True)):
                if result.status != "ok":
                    raise RuntimeError(f"{job.candidate}: {result.status}: {result.message}")
                if number:
                    records[position] = with_samples(records[position], result)
                else:
                    records.append(
                        Record(
                            job.key,
                            "here",
                            "plan",
                            1,
                            f"{position}",
                            samples=result.samples,
                            reference_samples=result.reference_samples,
                            reference=result.reference,
                            cold_samples=result.cold_samples,
                            cold_reference_samples=result.cold_reference_samples,
                        )
                    )
                if position % EVERY == EVERY - 1:
                    run_plan()
        run_plan()
    store = MemoryStore()
    store.add_hardware(RecordedHardware("here", "this machine"))
    for record in records:
        store.add_workload(Workload(record.workload, record.workload))
        store.add(record)
    store.refresh_baseline("here")
    inside = _inside(prepared["order"], times)
    found = []
    for entry, record in zip(kernels, records, strict=True):
        kept = store.find(record.identity)
        assert kept is not None
        calls = [inside.get(tuple(names)) for names in entry["calls"]]
        found.append(
            {
                **{name: value for name, value in entry.items() if name not in ("job", "calls")},
                "calls": len(calls),
                "hot": kept.normalised,
                "cold": kept.cold_normalised,
                "inside": [quiet(seconds) for seconds in calls if seconds],
            }
        )
    return {
        "schema": SCHEMA,
        **{name: prepared[name] for name in ("network", "threads", "cold")},
        "machine": machine(),
        "term": term_of(found, prepared["cold"], load_hardware(resolve("llvm", threads))),
        "latency": ratio_of(latencies, beside) * store.baseline("here")[NETWORK_REFERENCE],
        "quiet": quiet(latencies),
        "median": float(np.median(latencies)),
        "runs": len(latencies),
        "kernels": found,
    }


def _inside(
    order: Sequence[tuple[str, Sequence[str]]], times: Mapping[str, Sequence[Sequence[float]]]
) -> dict[tuple[str, ...], list[float]]:
    """Operators of a kernel → seconds of its call in every observed run of the plan."""
    taken: dict[str, int] = {}
    found: dict[tuple[str, ...], list[float]] = {}
    for name, operators in order:
        position = taken.get(name, 0)
        taken[name] = position + 1
        runs = times.get(name, ())
        found[tuple(operators)] = [run[position] for run in runs if position < len(run)]
    return found


def term_of(kernels: Sequence[Mapping[str, Any]], cold: bool, hardware: Hardware) -> dict[str, float]:
    """What a plan of these kernels adds to them on this hardware, seconds: calls, and operands from L3 again.

    Kept with the results: the calibration of the machine that they are of is not at hand where the page is written.
    """
    from autofuse.cost.plan_term import refill

    launches = [k for k in kernels for _ in range(k["calls"])]
    activations = np.array([k["read"] + k["written"] for k in launches], float)
    constants = np.array([0 if cold else k["weights"] for k in launches], float)
    cores = np.array([hardware.cores if k["parallel"] else 1 for k in launches])
    found = refill(activations, constants, cores, hardware)
    return {"calls": len(launches) * hardware.call_overhead, "refill": float(found.sum())}


def row(raw: Mapping[str, Any]) -> dict[str, float]:
    """A network's figures, seconds: kernels as they count, terms, prediction, measured latency; left over is a share.

    inside: the kernels' times within the plan, which an observer of the virtual machine sees.
    """
    kernels = sum(k["calls"] * k["cold" if raw["cold"] else "hot"] for k in raw["kernels"])
    inside = sum(sum(k["inside"]) for k in raw["kernels"])
    term = raw["term"]
    predicted = kernels + term["calls"] + term["refill"]
    return {
        "launches": sum(k["calls"] for k in raw["kernels"]),
        "kernels": kernels,
        "calls": term["calls"],
        "refill": term["refill"],
        "predicted": predicted,
        "measured": raw["latency"],
        "quiet": raw["quiet"],
        "median": raw["median"],
        "inside": inside,
        "left": raw["latency"] / predicted - 1,
    }


def faults(raws: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on each network whose prediction is further off than is wanted."""
    found = []
    for raw in raws:
        of = row(raw)
        if abs(of["left"]) <= TOLERANCE:
            continue
        said = f"{raw['network']}: {100 * of['left']:+.1f} %, {1e3 * (of['measured'] - of['predicted']):+.3f} ms"
        if of["inside"]:
            said += f"; the least tenths of its kernels within the plan add up to {1e3 * of['inside']:.3f} ms"
        found.append(f"{said}.")
    return found


def page(raws: Sequence[Mapping[str, Any]], folder: str = "docs/results", elsewhere: str = "") -> str:
    """The page, of one machine. folder: where the results are. elsewhere: a line on pages of other machines."""
    from autofuse.report.results import machine_text, number, table

    rows, left = [], []
    for raw in raws:
        found = row(raw)
        left.append(abs(found["left"]))
        times = [
            number(1e3 * found[name], "{:.3f}")
            for name in ("kernels", "calls", "refill", "predicted", "measured", "quiet", "median", "inside")
        ]
        weights = "cold" if raw["cold"] else "hot"
        share = number(100 * found["left"], "{:+.1f} %")
        rows.append([raw["network"], weights, str(int(found["launches"])), *times, share])
    headings = ["network", "weights", "launches", "kernels, ms", "calls, ms", "from L3 again, ms", "predicted, ms"]
    headings += ["measured, ms", "least tenth", "median", "kernels inside, ms", "left over"]
    within, over = sum(share <= TOLERANCE for share in left), faults(raws)
    return "\n".join(
        [
            "# A plan and the sum of its kernels\n",
            f"Written by `scripts/bench_plans.py` from {folder}/plans/*.json; not to be edited.\n",
            *([f"{elsewhere}\n"] if elsewhere else []),
            machine_text(raws[0]["machine"]) + "\n" if raws else "",
            "Each kernel of a network's plan was timed by itself as `autofuse collect` times it, with hot weights, or"
            " with cold ones where the network's weights exceed half of the last cache; the plan was run in between."
            " Kernels and measured plans are normalised latencies (docs/records.md): over the reference kernel that ran"
            " beside each of their samples; the least tenth and the median of the plan's own runs stand beside them."
            " What a plan adds is that of `cost/plan_term.py`: calls of the virtual machine, and operands that come"
            " from L3 again. `kernels inside` are the kernels' times within the plan, each with an observer around it."
            " Left over: measured over predicted.\n",
            table(headings, rows),
            f"Within {100 * TOLERANCE:g} %: {within} of {len(raws)}.\n",
            *(["Measured beyond what is predicted, of the others:\n", *(f"- {f}" for f in over), ""] if over else []),
        ]
    )


def main() -> int:
    """Prepare and measure what is missing or named, then write the page."""
    from raw_results import Place, one_machine, refuse_others

    from autofuse.frontend.zoo import names
    from autofuse.report.results import write_json, write_text
    from autofuse.target.host import processors

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help="by default those of the zoo without results")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "plans", help="for what is compiled")
    parser.add_argument("--folder", default="", help="the folder of docs/results/ of another machine, and its page")
    parser.add_argument("--prepare", action="store_true", help="compile alone, for a later run that measures")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that are there")
    options = parser.parse_args()
    unknown = sorted(set(options.networks) - set(names()))
    if unknown:
        parser.error(f"no network {unknown[0]!r}: the zoo has {', '.join(names())}")
    place = Place(options.folder)
    raw = place.raw / "plans"
    if not options.page_only:
        refuse_others(raw.glob("*.json"))
    for network in [] if options.page_only else options.networks or names():
        if (raw / f"{network}.json").exists() and not (options.networks or options.again):
            continue
        begin = time.monotonic()
        print(f"{time.strftime('%H:%M:%S')} {network}", file=sys.stderr, flush=True)
        folder = options.build / network
        if options.prepare or not (folder / "prepared.json").exists():
            prepare(network, folder, processors())
        if not options.prepare:
            write_json(raw / f"{network}.json", measure(folder))
        print(f"  took {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    if not options.prepare:
        found = [raw / f"{name}.json" for name in names()]
        raws = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.exists()]
        one_machine(raws)
        write_text(place.page("plans"), page(raws, place.said, place.elsewhere("plans/*.json", "plans")))
        print(f"wrote {place.page('plans')}")
        over = faults(raws)
        for line in over:
            print(line, file=sys.stderr)
        return int(bool(over))
    return 0


if __name__ == "__main__":
    sys.exit(main())
