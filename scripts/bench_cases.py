"""Times the cases of public bug reports about fusion at full size, and writes docs/cases.md.

Usage: python scripts/bench_cases.py [--cases a,b] [--rounds N] [--budget S] [--page-only] [--folder NAME]

Each case leaves its raw results in docs/results/case-NAME.json; those that are there are skipped unless named with
--cases. The models are those of the tests (tests/fusion_cases.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
ENGINES = ("dp", "greedy", "none", "onnxruntime")
COMPILE_LIMIT = 30.0
FLOP_LIMIT = 3.0
Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """A case at some size. `flops` where time per operation is asked for."""

    name: str
    builder: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    flops: int = 0


def conv_job(name: str, channels: tuple[int, int, int], height: int, width: int) -> Job:
    """The two convolutions of conv_odd_sizes at one size; a multiply-add is two operations."""
    batch, (first, second, third) = 3, channels
    pixels = batch * ((height + 1) // 2) * ((width + 1) // 2)
    sizes = {"batch": batch, "channels": channels, "height": height, "width": width}
    return Job(name, "conv_odd_sizes", sizes, 2 * pixels * (first * second * 9 + second * third))


#: Odd sizes, and the same convolutions at the next multiples of 16.
CONVOLUTIONS = (
    (conv_job("conv_odd_sizes", (7, 13, 17), 31, 29), conv_job("conv_even_sizes", (16, 16, 32), 32, 32)),
    (conv_job("conv_odd_large", (61, 127, 251), 61, 59), conv_job("conv_even_large", (64, 128, 256), 64, 64)),
)


def jobs() -> list[Job]:
    """All cases at full size, then the convolutions that conv_odd_sizes is held against."""
    from fusion_cases import BUILDERS

    convolutions = {job.name: job for pair in CONVOLUTIONS for job in pair}
    return [convolutions.pop(name, Job(name, name)) for name in BUILDERS] + list(convolutions.values())


def measure(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """All engines on one case, interleaved."""
    from fusion_cases import build

    from autofuse import bench
    from autofuse.report.results import machine

    case = build(job.builder, **job.sizes)
    result = bench.run(
        case.model,
        engines=ENGINES,
        inputs=case.inputs(),
        threads=options.threads,
        rounds=options.rounds,
        budget=options.budget,
    )
    return {"case": job.name, "flops": job.flops, "machine": machine(), "bench": result.to_json()}


def row(raw: Raw, engine: str) -> dict[str, Any]:
    """An engine's row."""
    return next((dict(r) for r in raw["bench"]["results"] if r["engine"] == engine), {})


def case_table(raws: Sequence[Raw]) -> str:
    """Latency, kernels, compile time, error."""
    from autofuse.report.results import number, table

    rows = []
    for raw in raws:
        found = {engine: row(raw, engine) for engine in ENGINES}
        dp = found["dp"]
        micro = dp.get("median_ms") and 1e3 * dp["median_ms"]
        spread = dp.get("iqr_ms") and 500 * dp["iqr_ms"]
        rows.append(
            [
                raw["case"],
                f"{micro:.1f} ±{spread or 0:.1f}" if micro else "–",
                *(number(found[e].get("ratio")) for e in ENGINES[1:]),
                *(number(found[e].get("kernels"), "{:d}") for e in ENGINES),
                *(number(found[e].get("compile_s"), "{:.1f}") for e in ENGINES[:3]),
                number(dp.get("max_rel_err"), "{:.1e}"),
            ]
        )
    headings = [
        "case",
        "dp, µs",
        *(f"{e} / dp" for e in ENGINES[1:]),
        *(f"kernels, {e}" for e in ENGINES),
        *(f"compile, {e}, s" for e in ENGINES[:3]),
        "largest error, dp",
    ]
    return table(headings, rows)


def per_flop(raw: Raw, engine: str) -> float | None:
    """Picoseconds an operation, in units of that run's arithmetic probe, so that two runs compare."""
    median, probe = row(raw, engine).get("median_ms"), raw["bench"]["probe"].get("arithmetic")
    return 1e9 * median / raw["flops"] / probe["median_ms"] if median and probe else None


def conv_table(by_name: Mapping[str, Raw]) -> str:
    """Time per operation at odd sizes over that at multiples of 16."""
    from autofuse.report.results import number, table

    rows = []
    for odd, even in CONVOLUTIONS:
        if odd.name in by_name and even.name in by_name:
            ratios = []
            for engine in ENGINES:
                left, right = per_flop(by_name[odd.name], engine), per_flop(by_name[even.name], engine)
                ratios.append(number(left / right if left and right else None))
            shown = ["{channels}, {height}×{width}".format(**job.sizes) for job in (odd, even)]
            rows.append([*shown, *ratios])
    return table(["odd sizes", "multiples of 16", *(f"{e}" for e in ENGINES)], rows)


def verdicts(by_name: Mapping[str, Raw]) -> str:
    """What was asked of time, and whether it holds."""
    lines = []
    for name in ("wide_concat", "long_chain"):
        if seconds := row(by_name.get(name, {"bench": {"results": []}}), "dp").get("compile_s"):
            state = "holds" if seconds < COMPILE_LIMIT else "missed"
            lines.append(f"- {name} compiles in under {COMPILE_LIMIT:.0f} s: {state} ({seconds:.1f} s).")
    for name in ("exp_chain_broadcast", "cheap_ops_under_broadcast"):
        found = row(by_name.get(name, {"bench": {"results": []}}), "none")
        if ratio := found.get("ratio"):
            state = "holds" if ratio + max(0.01, (found["ratio_iqr"] or 0.0) / 2) >= 1.0 else "missed"
            lines.append(f"- {name}, fused, is not slower than unfused beyond noise: {state} (none / dp {ratio:.2f}).")
    for odd, even in CONVOLUTIONS:
        if odd.name in by_name and even.name in by_name:
            left, right = per_flop(by_name[odd.name], "dp"), per_flop(by_name[even.name], "dp")
            if left and right:
                state = "holds" if left / right <= FLOP_LIMIT else "missed"
                lines.append(
                    f"- {odd.name} takes at most {FLOP_LIMIT:.0f} × the time per operation of {even.name}: {state}"
                    f" ({left / right:.2f})."
                )
    errors = [(raw["case"], r) for raw in by_name.values() for r in raw["bench"]["results"]]
    wrong = [f"{c}, {r['engine']}: {r['error']}" for c, r in errors if r["error"]]
    wrong += [f"{c}, {r['engine']}: error {r['max_rel_err']:.1e}" for c, r in errors if (r["max_rel_err"] or 0) > 1e-3]
    lines.append("- every engine ran and is right: " + ("holds." if not wrong else "missed by " + "; ".join(wrong)))
    return "\n".join(lines)


def page(raws: Sequence[Raw]) -> str:
    """The whole page."""
    from autofuse.report.results import machine_text

    if not raws:
        return "# Cases\n\nNothing was measured yet: run `python scripts/bench_cases.py`.\n"
    by_name = {raw["case"]: raw for raw in raws}
    parts = [
        "# Cases",
        "Written by `scripts/bench_cases.py`; not to be edited. Small models from public bug reports about fusion, at"
        " full size: tests/fusion_cases.py has them, tests/test_cases.py what must hold of kernels and operations.",
        machine_text(raws[0]["machine"]),
        f"{raws[0]['bench']['threads']} threads; engines take turns round by round, each in a process of its own. Times"
        " are medians of whole calls, numpy arrays in and out, ± half the distance between the quartiles; ratios are"
        " medians over the rounds. Compiling includes loading the compiler.",
        case_table(raws),
        "## Sizes that no tile divides",
        "Time per operation over that of the same convolutions at the next multiples of 16, both divided by the"
        " arithmetic probe of their run. The small ones are mostly the price of calling two kernels.",
        conv_table(by_name),
        "## What was expected of time",
        verdicts(by_name),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def main() -> int:
    """Measures what is missing or named, then writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", help="measure these (again), comma-separated; by default those without results")
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for the rounds of one case")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--folder", default="", help="the folder of docs/results/ of another machine, and its page")
    options = parser.parse_args()
    from raw_results import Place, one_machine, refuse_others

    from autofuse.report.results import write_json, write_text

    every = jobs()
    chosen = set(options.cases.split(",")) if options.cases else {job.name for job in every}
    if unknown := sorted(chosen - {job.name for job in every}):
        parser.error(f"no case {unknown[0]!r}: there are {', '.join(job.name for job in every)}")
    place = Place(options.folder)
    path: Callable[[Job], Path] = lambda job: place.raw / f"case-{job.name}.json"  # noqa: E731
    failed = False
    if not options.page_only:
        refuse_others(map(path, every))
    for job in [] if options.page_only else every:
        if job.name in chosen and (options.cases or options.again or not path(job).exists()):
            print(job.name, file=sys.stderr, flush=True)
            try:
                write_json(path(job), measure(job, options))
            except Exception as error:
                print(f"{job.name}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = True
    raws = [json.loads(path(job).read_text(encoding="utf-8")) for job in every if path(job).exists()]
    one_machine(raws)
    write_text(place.page("cases"), page(raws))
    print(f"wrote {place.page('cases')}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
