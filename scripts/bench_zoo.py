"""Measures the zoo's networks and writes docs/results.md: fusion, latency, compile time and errors, side by side.

Usage: python scripts/bench_zoo.py [--networks a,b] [--batches 1,large] [--engines ...] [--duel-only] [--page-only]
                                    [--folder NAME]

Each network and batch leaves its raw results in docs/results/NAME-bN.json; those that are there are skipped unless
named with --networks. The page is written from all of them, so that one network can be measured again. They are of
the machine measured last; --folder is about another one's (scripts/raw_results.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raw_results import Place

sys.path.insert(0, str(Path(__file__).resolve().parent))
#: Raw results, in the folder of their machine.
FILES = "*-b*.json"
STRATEGIES = ("dp", "greedy", "interval", "none")
PEERS = ("tvm-greedy", "onnxruntime", "openvino", "torch-compile")
LARGE = ("vgg16", "mobilenet_v1", "mobilenet_v2", "efficientnet_b0", "yolov4", "yolov4_tiny")
SCHEMA = 1
PROFILE_RUNS = 12


def compile_one(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compiles one network under one strategy in this process; what the page needs to know of it.

    A tiny model is compiled before, so that importing libraries is no part of the compile time.
    """
    import numpy as np
    import onnx

    import autofuse
    from autofuse.compiler import analyse
    from autofuse.report.results import batch_beyond, handed_on
    from autofuse.search.plan import Plan

    helper = onnx.helper
    value = helper.make_tensor_value_info
    tiny = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "tiny",
        [value("x", onnx.TensorProto.FLOAT, [1, 8, 4, 4])],
        [value("y", onnx.TensorProto.FLOAT, [1, 8, 4, 4])],
        [onnx.numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w")],
    )
    small = helper.make_model(tiny, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    autofuse.compile(small, strategy="dp", threads=request["threads"])
    options = {"threads": request["threads"], "batch": request["batch"]}
    timed = []
    for _ in range(request["repeats"]):
        made = autofuse.compile(request["network"], strategy=request["strategy"], **options)
        # Machine code is written out when a model is saved: part of the whole compile.
        start = time.perf_counter()
        made.save(request["output"])
        save = time.perf_counter() - start
        seconds = made.description["seconds"]
        timed.append({**seconds, **{part: seconds[part] + save for part in ("codegen", "total")}})
    # The compile whose whole time is the median, so that its parts belong together.
    seconds = sorted(timed, key=lambda entry: float(entry["total"]))[(len(timed) - 1) // 2]
    description, plan = {**made.description, "seconds": seconds}, made.plan
    assert isinstance(plan, Plan)
    del made
    analysed = analyse(request["network"], **options)
    graph = analysed.graph
    groups = plan.groups_of(graph)
    launched = [g for g, planned in zip(groups, plan.groups, strict=True) if planned.family != "view"]
    keys = ("operators", "kernels", "fusion_ratio", "seconds", "search", "predicted_ms", "peak_memory_mb", "cost_model")
    return {
        **{key: description[key] for key in keys},
        "handed_on_bytes": handed_on(graph, launched),
        "large_batch": batch_beyond(graph, analysed.hardware.l3_bytes),
        "groups": [
            {"members": list(group.members), "label": group.label, "seconds": planned.seconds}
            for group, planned in zip(groups, plan.groups, strict=True)
        ],
    }


def compiled(network: str, strategy: str, batch: int, options: argparse.Namespace, output: Path) -> dict[str, Any]:
    """`compile_one` in a process of its own; a failure is {"error": line}."""
    request = {
        "network": network,
        "strategy": strategy,
        "batch": batch,
        "threads": options.threads,
        "output": str(output),
        "repeats": options.compiles if strategy in ("dp", "greedy") else 1,
    }
    environment = {**os.environ, "TVM_NUM_THREADS": str(options.threads), "TVM_BIND_THREADS": "0"}
    done = subprocess.run(
        [sys.executable, __file__, "--compile", json.dumps(request)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    warned = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "group "))]
    return {**found, "warnings": warned[:10]}


def large_batch(network: str, threads: int) -> int:
    """The batch at which most of the traffic between unfused kernels is beyond the last-level cache."""
    from autofuse.compiler import analyse
    from autofuse.report.results import batch_beyond

    analysed = analyse(network, threads=threads, batch=1)
    return max(2, batch_beyond(analysed.graph, analysed.hardware.l3_bytes))


def measure(network: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Compiles under every strategy, then times all engines in one interleaved run."""
    from autofuse import bench
    from autofuse.report.results import has_package, machine

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="autofuse-zoo-") as name:
        folder = Path(name)
        compiles, executables, skipped = {}, {}, {}
        wanted = [e for e in options.engines.split(",") if e]
        for strategy in (e for e in wanted if e in STRATEGIES):
            print(f"  compiling: {strategy}", file=sys.stderr, flush=True)
            found = compiled(network, strategy, batch, options, folder / f"{strategy}.so")
            compiles[strategy] = found
            if "error" in found:
                skipped[strategy] = found["error"]
            else:
                executables[strategy] = folder / f"{strategy}.so"
        engines = list(executables)
        for engine in (e for e in wanted if e not in STRATEGIES):
            reason = _too_slow(options.raw, network, batch, engine, options.engine_budget)
            if engine == "torch-compile" and not has_package("torch"):
                reason = "torch is not installed"
            if reason:
                skipped[engine] = reason
            else:
                engines.append(engine)
        rivals = duel(network, batch, options, executables)
        print(f"  timing: {', '.join(engines)}", file=sys.stderr, flush=True)
        result = bench.run(
            network,
            engines=engines,
            threads=options.threads,
            batch=batch,
            rounds=options.rounds,
            budget=options.budget,
            executables=executables,
        )
        profiled = profile_of(executables.get("dp"))
    return {
        "schema": SCHEMA,
        "network": network,
        "batch": batch,
        "threads": options.threads,
        "spinning": True,
        "machine": machine(),
        "compiles": compiles,
        "skipped": skipped,
        "bench": result.to_json(),
        "duel": rivals,
        "profile": profiled,
        "budget_s": options.budget,
        "seconds": time.perf_counter() - began,
    }


def profile_of(path: Path | None) -> dict[str, Any] | None:
    """Where the time of a compiled model goes, kernel by kernel, and what each executes and reads."""
    import autofuse
    from autofuse.errors import AutofuseError
    from autofuse.profile import profile

    if path is None:
        return None
    print("  profiling: dp", file=sys.stderr, flush=True)
    try:
        executable = autofuse.load(path)
        found = profile(executable, runs=PROFILE_RUNS).to_json()
    except AutofuseError as error:
        print(f"  no profile: {error}", file=sys.stderr)
        return None
    keys = ("labels", "family", "config", "calls", "total_ms", "predicted_ms", "executed", "weight_bytes")
    return {
        "latency_ms": found["latency_ms"],
        "cold_weights": bool(executable.description["cold_weights"]),
        "kernels": [{key: kernel[key] for key in keys} for kernel in found["kernels"]],
    }


def duel(
    network: str, batch: int, options: argparse.Namespace, executables: Mapping[str, Path]
) -> dict[str, Any] | None:
    """dp against greedy alone, in many short turns: they differ by less than the machine does between long ones."""
    from autofuse import bench
    from autofuse.bench.interleave import Pace

    if not {"dp", "greedy"} <= set(executables):
        return None
    print("  duel: dp, greedy", file=sys.stderr, flush=True)
    both = {name: executables[name] for name in ("dp", "greedy")}
    pace = Pace(rounds=options.duels, budget=options.duel_budget, visit=0.08, most_calls=10, pause=0.02)
    result = bench.run(network, engines=list(both), threads=options.threads, batch=batch, pace=pace, executables=both)
    found: dict[str, Any] = result.to_json()
    return found


def duel_again(path: Path, network: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """The results that are there, with the duel repeated on fresh compiles."""
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="autofuse-zoo-") as name:
        executables = {}
        for strategy in ("dp", "greedy"):
            output = Path(name) / f"{strategy}.so"
            found = compiled(network, strategy, batch, options, output)
            if "error" in found:
                raise RuntimeError(f"{strategy}: {found['error']}")
            executables[strategy] = output
        return {**raw, "duel": duel(network, batch, options, executables)}


def _too_slow(raw: Path, network: str, batch: int, engine: str, budget: float) -> str:
    """Why an engine is left out of a larger batch: two calls would take longer than `budget` seconds, by batch 1."""
    path = raw / f"{network}-b1.json"
    if batch == 1 or not path.exists():
        return ""
    rows = json.loads(path.read_text(encoding="utf-8"))["bench"]["results"]
    single = next((row["median_ms"] for row in rows if row["engine"] == engine and row["median_ms"]), None)
    if single is None or 2 * single * batch / 1e3 <= budget:
        return ""
    return f"left out: {single / 1e3:.1f} s a call at batch 1"


def main() -> int:
    """Measures what is missing or named, then writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--networks", help="measure these (again), comma-separated; by default those without results")
    parser.add_argument("--batches", default="1,large", help="1, large, or numbers (default: %(default)s)")
    parser.add_argument("--engines", default=",".join((*STRATEGIES, *PEERS)), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="default: all cores")
    parser.add_argument(
        "--compiles", type=int, default=3, help="compiles under dp and greedy, whose times are compared"
    )
    parser.add_argument("--rounds", type=int, default=15, help="rounds of an engine that is not slow")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds for the rounds of one network")
    parser.add_argument("--engine-budget", type=float, default=90.0, help="seconds that a slow engine may take")
    parser.add_argument("--duels", type=int, default=40, help="rounds of dp against greedy alone")
    parser.add_argument("--duel-budget", type=float, default=60.0, help="seconds for them")
    parser.add_argument("--duel-only", action="store_true", help="repeat them alone, for the results that are there")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--folder", default="", help="the folder of docs/results/ of another machine, and its page")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        print(json.dumps(compile_one(json.loads(options.compile))))
        return 0
    from raw_results import Place, refuse_others

    from autofuse.frontend.zoo import names
    from autofuse.report.results import write_json, write_text
    from autofuse.target.host import processors

    place = Place(options.folder)
    options.raw = place.raw
    options.threads = options.threads or processors()
    unknown = sorted(set((options.networks or "").split(",")) - {"", *names()})
    if unknown:
        parser.error(f"no network {unknown[0]!r}: the zoo has {', '.join(names())}")
    chosen: Sequence[str] = options.networks.split(",") if options.networks else names()
    failed = False
    if not options.page_only:
        refuse_others([*place.raw.glob(FILES), *place.raw.glob("learned/*.json")])
    for network in [] if options.page_only else chosen:
        for text in options.batches.split(","):
            if text == "large" and network not in LARGE:
                continue
            batch = large_batch(network, options.threads) if text == "large" else int(text)
            path = place.raw / f"{network}-b{batch}.json"
            if options.duel_only and not path.exists():
                continue
            if path.exists() and not (options.networks or options.again or options.duel_only):
                continue
            print(f"{network}, batch {batch}", file=sys.stderr, flush=True)
            try:
                again = duel_again(path, network, batch, options) if options.duel_only else None
                write_json(path, again or measure(network, batch, options))
            except Exception as error:
                print(f"{network}, batch {batch}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = True
                continue
            write_text(place.page("results"), written(place, names()))
    write_text(place.page("results"), written(place, names()))
    print(f"wrote {place.page('results')}")
    return int(failed)


def written(place: Place, order: Sequence[str]) -> str:
    """The page of a machine's results."""
    from raw_results import one_machine
    from zoo_page import page

    raws, learned = _raw(place.raw, order), _learned(place.raw, order)
    one_machine([*raws, *learned])
    return page(raws, learned, place.said, place.elsewhere(FILES, "results"))


def _raw(folder: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    """All results that are there, in the zoo's order, by batch."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(FILES)]
    known = [raw for raw in found if raw.get("schema") == SCHEMA and raw["network"] in order]
    return sorted(known, key=lambda raw: (order.index(raw["network"]), raw["batch"]))


def _learned(folder: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    """The results of scripts/bench_learned.py that are there, in the zoo's order."""
    found = [folder / "learned" / f"{name}.json" for name in order]
    return [json.loads(path.read_text(encoding="utf-8")) for path in found if path.exists()]


if __name__ == "__main__":
    sys.exit(main())
