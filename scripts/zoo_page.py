"""Raw results of the zoo's networks (scripts/bench_zoo.py) → the Markdown page docs/results.md. Nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence

from zoo_figures import Raw, name
from zoo_limits import limit_table
from zoo_tables import compile_table, error_table, fusion_table, latency_table, learned_table, probes
from zoo_verdicts import expectations, published, reason

from autofuse.report.results import machine_text


def machines(raws: Sequence[Raw]) -> str:
    """The machine, or each of them with its networks."""
    found: dict[str, list[str]] = {}
    for raw in raws:
        found.setdefault(machine_text(raw["machine"]), []).append(name(raw))
    if len(found) == 1:
        return next(iter(found))
    return "\n\n".join(f"{', '.join(names)}: {text}" for text, names in found.items())


def problems(raws: Sequence[Raw]) -> str:
    """Engines without figures, and groups that had to be taken apart."""
    lines = []
    for raw in raws:
        for engine, why in raw["skipped"].items():
            lines.append(f"- {name(raw)}, {engine}: {why}")
        lines += [f"- {name(raw)}, {r['engine']}: {r['error']}" for r in raw["bench"]["results"] if r["error"]]
        for strategy, found in raw["compiles"].items():
            lines += [f"- {name(raw)}, {strategy}: {w}" for w in found.get("warnings", [])]
    return "\n".join(lines) or "None."


LEARNED = (
    "From runs of their own (`scripts/bench_learned.py`), batch 1, the six taking turns: dp with the predictor and the"
    " records that come along, with the predictor alone, with the records alone, with the analytical model, greedy"
    " under either model."
    " Ratios are medians over the rounds, of an engine's time over that of dp with predictor and records; predicted"
    " over measured is that of the same plan."
)


def _asleep(raws: Sequence[Raw]) -> str:
    """What to know of results from before threads were left to spin."""
    old = sorted({raw["network"] for raw in raws if not raw.get("spinning")})
    if not old:
        return ""
    return (
        f" Not so in the runs of {', '.join(old)}: there the peers' threads were told to sleep (OpenVINO's do not heed"
        " it) while TVM's pool, ours, yields for about a millisecond before it sleeps, which is in our favour:"
        " docs/kernels.md, peers that may spin."
    )


def page(raws: Sequence[Raw], learned: Sequence[Raw] = (), folder: str = "docs/results", elsewhere: str = "") -> str:
    """The whole page, of one machine. folder: where the results are. elsewhere: a line on pages of other machines."""
    if not raws:
        parts = ["# Results", "Nothing was measured yet: run `python scripts/bench_zoo.py`.", elsewhere]
        return "\n\n".join(filter(None, parts)) + "\n"
    single = [raw for raw in raws if raw["batch"] == 1]
    large = [raw for raw in raws if raw["batch"] > 1]
    threads = sorted({raw["threads"] for raw in raws})
    parts = [
        "# Results",
        f"Written by `scripts/bench_zoo.py` from {folder}/*.json; not to be edited.",
        *filter(None, [elsewhere]),
        "## Machine and method",
        machines(raws),
        f"Every engine ran with {' or '.join(map(str, threads))} threads in a process of its own, on the same inputs;"
        " they took turns round by round, in an order that rotates, with a pause before each turn, in"
        " which threads that spin for work fall asleep. Threads may spin where they wait, as they do by default."
        f"{_asleep(raws)}"
        " A fixed kernel on all threads runs before and after each turn: while it takes"
        " over 1.5 times its best time a neighbour has part of the machine, and the turn is put off or repeated, up to"
        " four times; turns that stay disturbed count only where there are no others. A latency is the median of the"
        " calls that count, ± half the distance between the quartiles; a ratio is the median over the rounds that both"
        " engines were in."
        " A slow engine gets fewer rounds. greedy / dp comes from a run of the two alone, in many short turns, since"
        " they differ by less than the machine does between longer ones. `greedy` is TVM's own partition (FuseOps),"
        " `none` leaves every operator alone, `interval` is a DP over intervals of one order; all have the schedules"
        " and the costs of `dp`. `tvm-greedy` is TVM's default pipeline. Weights are random, so are inputs. Compile"
        " times are those of a process that compiled a tiny model before, from the model's name to the saved file;"
        " under dp and greedy the median where there were several compiles.",
        "## Batch 1",
        "### Latency",
        latency_table(single),
        "### Fusion",
        "Fusion ratio: operators before fusion over kernels launched. Handed on: bytes of intermediates that kernels"
        " write for, or read from, other kernels.",
        fusion_table(single),
        "### Compiling",
        "Search includes mapping analysis, enumeration and costing of candidates.",
        compile_table(single),
    ]
    if large:
        parts += [
            "## Beyond the last-level cache",
            "The batch is the smallest power of two at which over half of the bytes between unfused kernels belong to"
            " kernels whose activations (inputs and outputs together) are larger than L3: there, fusion keeps"
            " tensors out of memory and not just out of a cache.",
            latency_table(large),
            fusion_table(large),
            compile_table(large),
        ]
    parts += [
        *(["## Learned costs", LEARNED, learned_table(learned)] if learned else []),
        "## The machine's limit",
        "A kernel's limit is the arithmetic that its schedule executes (after Winograd) at the rate of the matrix"
        " product that ran in the same rounds, or, where the network's weights do not stay in the last cache, its"
        " weights at the rate of the copy, if that is longer; a network's is the sum over its kernels. limit / dp is"
        " by the medians of the run; least / least by the fastest call of dp and of the probes, which is the harder"
        " one: a short probe finds a moment without neighbours, a network of milliseconds seldom. Rates: median,"
        " fastest. What is over the limits is dp's fastest call, divided as a profile by kernel, taken after the run,"
        " divides its own.",
        limit_table([(name(raw), raw) for raw in raws]),
        "## Published figures",
        "At batch 1. The published ones come from other machines and other baselines.",
        published(single),
        *(["At the larger batches:", published(large)] if large else []),
        "## What was expected",
        expectations(raws),
        "## Why, network by network",
        "\n".join(f"- **{name(raw)}**: {reason(raw)}" for raw in raws),
        "## Errors",
        "Largest difference from ONNX Runtime's output, relative to the largest output.",
        error_table(raws),
        "## The machine meanwhile",
        "Two fixed kernels timed in every round: a matrix product, and a copy of 64 MB. Spread: distance of the"
        " quartiles over the median.",
        probes(raws),
        "## Left out, failed, or taken apart",
        problems(raws),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
